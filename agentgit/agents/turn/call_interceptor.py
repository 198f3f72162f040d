"""The interceptor, which decides before each call whether its tool runs.

A call that was already done is answered from the record, and its tool does not run. There are three cases: the turn
continues an interrupted one that has made the call, a rollback has kept the effect that the call would cause again (the
fence), or the tool runs at most once in a session. If it cannot be determined whether a call was done, the call is
refused. See docs/undo.md.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from agentgit.agents.isolation import detached
from agentgit.agents.tools.recorded_results import UnreadableResult, has_command, rebuild_result
from agentgit.agents.turn.calls import Call, InflightResult
from agentgit.agents.turn.fence_errors import (
    done_error,
    open_outcome_error,
    other_args_error,
    other_tool_error,
    unmatched_error,
)
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.agents.turn.scopes import scope_name
from agentgit.effects import ToolInvocation
from agentgit.effects.function_names import FunctionName
from agentgit.effects.invocation import (
    DONE,
    FAILED,
    INTENDED,
    REDO,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    SIMULATED,
    STANDING,
    UNKNOWN,
    call_key,
    repeat_key,
)
from agentgit.effects.kinds import IRREVERSIBLE, READ_ONLY, STATE
from agentgit.errors import Fenced, NotFound
from agentgit.rollback import wait
from agentgit.rollback.verification import Verification
from agentgit.store.records.journal import Intent, TrackPart
from agentgit.store.records.recorded_calls import RESULT_STATUSES
from agentgit.store.sql.transaction import Reading, Writing

ANSWER, REFUSE, OFF = "replay", "raise", "off"
FENCE_MODES = (ANSWER, REFUSE, OFF)
"""The values of `wrap(fence=...)`: what to do with a call whose effect already exists."""

POSSIBLY_IN_EFFECT = STANDING - {FAILED}
"""The statuses in which a call took effect, or may have."""

UNRESOLVABLE = frozenset({INTENDED, REVERSING, REVERSE_UNKNOWN})
"""The statuses in which a call can be neither answered from the record nor made again."""

SAME_CALL = ", so the same call was not made again. To make a different call, change its identity arguments"
UNREADABLE = " and was not made again, but {}. Let the tool return plain data, or a Command of plain data"


@dataclass
class Slot:
    """One call of one run of a task."""

    name: str
    identity: str
    tool: Hashable
    keys: set[str] = field(default_factory=set)
    attempt: Call | None = None

    @property
    def is_retryable(self) -> bool:
        """True if the next equal call is another attempt at this one."""
        return self.attempt is not None and self.attempt.has_failed


class Slots:
    """The calls of one run of a task, in order.

    LangGraph's call ids are not enough: calls from a node's own code have none or get new ones every time, and
    middleware may make a call several times under one id. Equal calls of one function are therefore counted. An equal
    call after an error is the same call.
    """

    def __init__(self) -> None:
        self.all: list[Slot] = []

    def assign(self, call: Call) -> Slot:
        identity = scope_name(
            call.arguments.repeat_hash(call.intent.tool_name, call.effect),
            FunctionName.read(call.intent.tool_path or "").path,
        )
        equal_slots = [slot for slot in self.all if slot.identity == identity]
        slot = next((slot for slot in equal_slots if slot.is_retryable), None)
        if slot is None:
            name = self._name(call.call_id, identity, len(equal_slots))
            slot = Slot(name, identity, call.declaration.tool_identity)
            self.all.append(slot)
        return slot

    def _name(self, call_id: str | None, identity: str, number: int) -> str:
        if call_id is None:
            return f"#{identity}#{number}"
        if not self.all:
            return call_id  # the requested call; middleware makes the others
        if self.all[0].identity == identity:
            return f"{call_id}#{number}"
        return f"{call_id}#{identity}#{number}"

    def failed(self, call: Call) -> list[Slot]:
        """List the calls that a model has requested under the id of this one, and that raised."""
        same = [one for one in self.all if one.attempt is not None and one.attempt.tool_call_id == call.tool_call_id]
        return [one for one in same if one.is_retryable] if call.tool_call_id is not None else []

    def are_of_several_tools(self, slot: Slot) -> bool:
        """Return whether several tools, with one name for their functions, have made calls equal to that of a slot."""
        return len({one.tool for one in self.all if one.identity == slot.identity}) > 1


SIBLING_SECONDS = 0.5
"""The time for which a call waits for those that its task makes beside it, before it is refused as unmatched."""


class CallInterceptor:
    """Admits, answers or refuses the calls of one turn."""

    is_simulated = False

    result_statuses = RESULT_STATUSES
    """The statuses of earlier calls of the branch from which a repeated call is answered."""

    def __init__(self, turn: RunningTurn) -> None:
        self.turn = turn
        self.store, self.registry = turn.context.store, turn.context.registry
        self.fence_mode = turn.context.settings.fence_mode
        self._attempts: dict[tuple[str, str, int], Call] = {}
        self._slots: dict[tuple[UUID | None, str, str | None, str], Slots] = defaultdict(Slots)
        self._runs: dict[str, set[UUID | None]] = defaultdict(set)
        self._lock = threading.Lock()
        self._matched = threading.Condition(self._lock)
        """Notified when a call is found to be one that was made before."""

    def authorize(self, call: Call) -> None:
        """Admit a call, or answer it from the record."""
        with self._lock:
            slots = self._slots[call.caller_run_id, call.requester, call.call_id, call.intent.tool_name]
            slot = slots.assign(call)
            call.name = slot.name
            key = call_key(call.intent.branch_id, call.requester, slot.name, call.intent.tool_name)
            call.intent = replace(call.intent, idempotency_key=key)
            slot.keys.add(call.intent.idempotency_key)
            earlier = self._attempts.get(call.retry_key)
            if (
                earlier is not None
                and not (earlier.has_failed and (call.is_harmless or not earlier.is_aborted))
                and not (call.intent.effect == STATE and earlier.has_only_written)
                and earlier.intent.tool_path == call.intent.tool_path
                and not slots.are_of_several_tools(slot)
                and self._is_answerable(call, slot, earlier.intent)
            ):
                slot.attempt = earlier
                call.answer, call.used_numbers = earlier.result, earlier.used_numbers
                return
            self._attempts[call.retry_key] = slot.attempt = call
            is_retry = earlier is not None and not call.is_harmless
            is_possible_repeat = self._is_possible_repeat(call, slots) or is_retry
        try:
            if not is_possible_repeat or not self._answer_repeated(call, slots, slot):
                self._admit(call)
        except BaseException as error:
            call.fail(error)
            raise

    def authorize_model(self) -> None:
        """Admit a call of a model."""

    def on_model_error(self, error: BaseException) -> None:
        """Handle the error of a model."""

    def _is_possible_repeat(self, call: Call, slots: Slots) -> bool:
        """Return whether a call, or an equivalent one, may have been made before."""
        is_again = not self.turn.turn_input.is_new
        if not call.is_named:
            runs = self._runs[call.requester]
            runs.add(call.caller_run_id)
            is_again = (is_again or len(runs) > 1) and (call.is_requested or not call.is_harmless)
        # Middleware may make a call with other arguments after it has raised.
        return is_again or (not call.is_harmless and bool(slots.failed(call)))

    # -- calls that may have been made before

    def _is_answerable(self, call: Call, slot: Slot, earlier: ToolInvocation | Intent) -> bool:
        """Return whether to answer a call that is done from the record; False to run it again."""
        if slot.name == call.call_id and not call.is_equal(earlier):
            raise other_args_error(call.intent, earlier.args)
        return call.is_requested or not call.is_harmless

    def _answer_repeated(self, call: Call, slots: Slots, slot: Slot) -> bool:
        """Answer a call that was made before, or set the idempotency key of the next attempt at it."""
        attempt, earlier_calls = self._find_attempt(call, slot)
        with self._matched:
            slot.keys.update({call.intent.idempotency_key, *([] if attempt is None else [attempt.idempotency_key])})
            self._matched.notify_all()
        if attempt is not None and attempt.status == UNKNOWN and self._verify(attempt):
            attempt, _ = self._find_attempt(call, slot)
        self._require_known_tool(call, slots, slot, attempt, earlier_calls)
        decisive = self.result_statuses | UNRESOLVABLE | {UNKNOWN}
        if attempt is None or attempt.may_be_repeated or attempt.status not in decisive:
            self._require_different_call(call, slots, earlier_calls)
            if attempt is not None and attempt.status == SIMULATED:  # what the rerun simulated may stand in the world
                self._is_fenced = True
            return False
        if attempt.status in self.result_statuses:
            return self._answer_from_record(call, slot, attempt)
        if slot.name == call.call_id and not call.is_equal(attempt):
            raise other_args_error(call.intent, attempt.args)
        if attempt.status in UNRESOLVABLE or not call.is_harmless:
            raise self._undecided(attempt, "This turn continues with it, so it was not made again.")
        return False

    def _require_known_tool(
        self, call: Call, slots: Slots, slot: Slot, attempt: ToolInvocation | None, earlier_calls: list[ToolInvocation]
    ) -> None:
        """Check that no other tool of the name may have made the call that this one repeats; a model's has an id."""
        equal = [one for one in earlier_calls if one.status in POSSIBLY_IN_EFFECT and call.is_equal(one)]
        if not slots.are_of_several_tools(slot):
            doubt = False if slot.name == call.call_id else None
            is_known = attempt is None or self._is_of_tool(attempt, call) is not doubt
            equal = [] if is_known else [one for one in equal if attempt is not None and one.id == attempt.id]
        if equal and not call.is_harmless and self.fence_mode != OFF:
            raise other_tool_error(equal[0], call.intent)

    def _require_different_call(self, call: Call, slots: Slots, earlier_calls: Sequence[ToolInvocation]) -> None:
        """Check that a call with different arguments than before is really a different call."""
        failed_keys = {key for slot in slots.failed(call) for key in slot.keys}
        for earlier in earlier_calls:
            is_undecided = (
                earlier.idempotency_key in failed_keys and earlier.status == UNKNOWN and not earlier.may_be_repeated
            )
            if is_undecided and not self._verify(earlier):
                raise self._undecided(earlier, "This would be the same call with other arguments, so it was not made.")
        if not (call.is_named or call.is_harmless) and self.fence_mode != OFF:
            acted = [one for one in earlier_calls if self._may_be(one, call)]

            def unmatched() -> ToolInvocation | None:
                keys = {key for slot in slots.all for key in slot.keys}
                return next((one for one in acted if one.idempotency_key not in keys), None)

            with self._matched:  # a call that the task makes at the same time may be the one that was made before
                self._matched.wait_for(lambda: unmatched() is None, timeout=SIBLING_SECONDS)
                if (left := unmatched()) is not None:
                    raise (other_tool_error if call.is_equal(left) else unmatched_error)(left, call.intent)

    def _may_be(self, earlier: ToolInvocation, call: Call) -> bool:
        """Return whether a call may be an earlier one by a function with another name, or with other arguments."""
        is_of_tool = self._is_of_tool(earlier, call)
        if is_of_tool is False or earlier.status not in POSSIBLY_IN_EFFECT:
            return False
        is_single = earlier.effect == IRREVERSIBLE or call.arguments.unidentifiable(call.effect)
        return bool(call.intent.effect.leaves_trace and is_single) or (is_of_tool is None and call.is_equal(earlier))

    def _answer_from_record(self, call: Call, slot: Slot, attempt: ToolInvocation) -> bool:
        if not self._is_answerable(call, slot, attempt):
            return False
        try:
            value = rebuild_result(attempt.result, call.intent.tool_call_id)
        except UnreadableResult as error:
            if call.is_harmless:
                return False
            raise done_error(attempt, UNREADABLE.format(error)) from error
        if call.intent.effect == STATE and not has_command(value):
            return False  # what it wrote to the state itself was lost with its task
        call.answer = InflightResult.of(value)
        if not call.is_in_batch:  # those of a ToolNode have their own numbers
            with self.store.database.reading() as transaction:
                numbers = self.store.recorded_calls.answers(transaction, attempt.id)
            call.used_numbers = numbers if numbers and numbers["direct"] else None
        return True

    def _load_earlier_calls(self, transaction: Reading, path: Sequence[TrackPart], call: Call) -> list[ToolInvocation]:
        """Read the earlier calls made in the same place, newest first."""
        task = None if call.is_named else call.requester
        return self.store.recorded_calls.attempts(transaction, path, call.intent.tool_name, call.call_id, task)

    def _find_attempt(self, call: Call, slot: Slot) -> tuple[ToolInvocation | None, list[ToolInvocation]]:
        """Find the decisive one among the earlier calls in the same place, and set the idempotency key of the call."""
        intent = call.intent
        with self.store.database.reading() as transaction:
            path = self.store.track_parts(transaction, self.turn.branch)
            earlier_calls = self._load_earlier_calls(transaction, path, call)
            keys = (call_key(id, call.requester, slot.name, intent.tool_name) for id in _origins(path, earlier_calls))
            chosen = (self._choose_attempt(transaction, earlier_calls, key) for key in keys)
            attempt = next((one for one in chosen if one is not None), None)
            if attempt is None and (slot.name == call.call_id or (call.is_requested and not call.is_named)):
                attempt = self._find_before_update(transaction, path, call)
        if attempt is None:
            return None, earlier_calls
        is_reversed = attempt.status == REVERSED
        key = repeat_key(attempt.idempotency_key, str(attempt.id)) if is_reversed else attempt.idempotency_key
        if is_reversed or attempt.kind == REDO:  # it takes the place of the first run
            call.intent = replace(intent, idempotency_key=key, kind=REDO, replay_of=attempt.first_id)
        # A call that did not happen on an ancestor branch may happen once on each descendant.
        elif attempt.internal_session_id == intent.branch_id or attempt.status == UNKNOWN:
            call.intent = replace(intent, idempotency_key=key)
        return None if is_reversed else attempt, earlier_calls

    def _find_before_update(self, transaction: Reading, path: Sequence[TrackPart], call: Call) -> ToolInvocation | None:
        """Find the newest attempt in a step that was updated by hand since, which changes the ids of its tasks."""
        newest, calls = self.turn.unit_of_work.newest.checkpoint, self.store.recorded_calls
        steps = self.store.graphs.before_updates(transaction, newest) if newest is not None else []
        attempts = (
            calls.attempts(transaction, path, call.intent.tool_name, call.tool_call_id, None) if steps[1:] else ()
        )
        last = next((one for one in attempts if steps[-1].precedes(one.started_at)), None)
        attempt = last and self.store.world.last_run(transaction, last)
        is_done = attempt is not None and attempt.status in self.result_statuses
        if attempt is None or (is_done and call.is_named and call.is_equal(attempt)):
            return attempt
        made = calls.inner_calls(transaction, attempt, POSSIBLY_IN_EFFECT) if call.is_named else [attempt]
        if made and self.fence_mode != OFF and (call.is_named or (is_done and not call.is_harmless)):
            why = "was not run again: the state was updated by hand since, so it cannot go on from there"
            raise done_error(made[0], f". {made[0].enclosing}, which made it, {why}")
        return None if call.is_harmless else attempt

    def _choose_attempt(
        self, transaction: Reading, attempts: Sequence[ToolInvocation], key: str
    ) -> ToolInvocation | None:
        """Choose among attempts, newest first, one that is done, else the newest; of each, its last run."""
        matches = [one for one in attempts if one.idempotency_key == key]
        chosen = next((one for one in matches if one.status in self.result_statuses), next(iter(matches), None))
        return chosen and self.store.world.last_run(transaction, chosen)

    # -- the fence

    def _admit(self, call: Call) -> None:
        effect = call.intent.effect
        if call.is_once or (effect.leaves_trace and self.fence_mode != OFF and self._is_fenced):
            self._admit_fenced(call)
        elif effect != READ_ONLY:  # a read-only call may be recorded after it has ended
            self.turn.unit_of_work.write(lambda transaction: self._record_intent(transaction, call))

    def _record_intent(self, transaction: Writing, call: Call) -> None:
        """Record the intents of a call and of those whose tools contain it."""
        self.turn.authorize_call(transaction, call.intent.effect)
        self.turn.unit_of_work.intend(transaction, [*call.outer_intents, call.intent])

    @functools.cached_property
    def _is_fenced(self) -> bool:
        """True if a rollback created this branch or one of its ancestors, or reversed effects of one of them."""
        with self.store.database.reading() as transaction:
            branches = [part.branch_id for part in self.store.track_parts(transaction, self.turn.branch)]
            operations = self.store.operations.of_branches(transaction, branches)
        return any(row.kind == "rollback" for row in operations)

    def _admit_fenced(self, call: Call) -> None:
        """Admit or answer a call whose effect may exist. Check and record are atomic, so only one call can begin."""
        intent = call.intent
        call.arguments.require_identifiable(intent.tool_name, call.effect)
        blocking = self.turn.unit_of_work.write(lambda transaction: self._check_fence(transaction, call, intent))
        if blocking is not None:
            if not self._verify(blocking):
                raise self._undecided(blocking, "This would be the same call again, so it was not made.")
            self._admit_fenced(call)

    def _check_fence(self, transaction: Writing, call: Call, intent: Intent) -> ToolInvocation | None:
        """Answer or admit a call, or return the invocation that blocks it."""
        call.intent, call.answer = intent, None  # an attempt of the transaction may have answered it
        self.turn.unit_of_work.lock_session(transaction)
        of_tool = [(one, self._is_of_tool(one, call)) for one in self._load_identical_calls(transaction, call.intent)]
        if (unknown := next((one for one, is_of_tool in of_tool if is_of_tool is None), None)) is not None:
            raise other_tool_error(unknown, call.intent)
        identical_calls = [one for one, is_of_tool in of_tool if is_of_tool]
        if not call.is_once:
            path = self.store.track_parts(transaction, self.turn.branch)
            path_ids = self.store.world.ids_on_path(transaction, path, (one.first_id for one in identical_calls))
            identical_calls = [one for one in identical_calls if one.first_id not in path_ids]
        finished_call = next((one for one in identical_calls if one.status in RESULT_STATUSES), None)
        if finished_call is not None:
            self._answer_as_replay(transaction, call, finished_call)
        elif identical_calls:
            return identical_calls[0]
        else:
            self._record_intent(transaction, call)
        return None

    def _load_identical_calls(self, transaction: Writing, intent: Intent) -> list[ToolInvocation]:
        """Read the calls with the same identity whose effects are, or may be, in place."""
        find, identity = self.store.recorded_calls.find_identical, intent.identity or ""
        identical_calls = find(transaction, intent.session_id, identity)
        running = [call for call in identical_calls if call.status == INTENDED]
        for call in running:  # its process may have died
            self.store.recover(transaction, self.store.sessions.branch(transaction, call.internal_session_id))
        return find(transaction, intent.session_id, identity) if running else identical_calls

    def _is_of_tool(self, earlier: ToolInvocation, call: Call) -> bool | None:
        """Return whether a call was made by the tool that is now called; None if that is not known."""
        intent, effects = call.intent, self.turn.context.settings.effects
        is_same = effects.is_of_tool(earlier, intent.tool_path, intent.enclosing)
        is_doubtful = is_same and self.registry.may_be_of_other(intent.session_id, earlier, call.declaration)
        return None if is_doubtful else is_same

    def _answer_as_replay(self, transaction: Writing, call: Call, earlier: ToolInvocation) -> None:
        """Answer a call with the result of an earlier one, and record that as a replay, inner calls included."""
        if self.fence_mode == REFUSE:
            raise done_error(earlier, SAME_CALL)
        try:
            value = rebuild_result(earlier.result, call.intent.tool_call_id)
        except UnreadableResult as error:
            raise done_error(earlier, UNREADABLE.format(error)) from error
        if call.outer_intents:
            self.turn.unit_of_work.intend(transaction, call.outer_intents)
        path = self.store.track_parts(transaction, self.turn.branch)
        call.intent = self.store.recorded_calls.add_replays(transaction, path, earlier, call.intent)
        call.answer = InflightResult.of(value)

    # -- verification

    def _undecided(self, earlier: ToolInvocation, consequence: str) -> Fenced:
        return open_outcome_error(self.registry.current(earlier), consequence)

    def has_verify(self, call: Call) -> bool:
        """Return whether the tool of a call declares a `verify` function."""
        if call.intent.effect == READ_ONLY or call.is_simulated or call.answer is not None:
            return False
        try:
            return self.registry.verify(call.intent.session_id, self._load_invocation(call.intent.id)) is not None
        except NotFound:
            return True  # one is recorded but not available here, so the call stays unknown

    def verify_call(self, call: Call) -> None:
        """Verify a call that ended with an error. If it happened, its result answers an equal call."""
        is_settled = self._verify(self._load_invocation(call.intent.id))
        if is_settled and (current := self._load_invocation(call.intent.id)).status == DONE:
            call.settle(rebuild_result(current.result, call.intent.tool_call_id))

    def _load_invocation(self, invocation_id: int) -> ToolInvocation:
        with self.store.database.reading() as transaction:
            return self.store.journal.invocations(transaction, [invocation_id])[invocation_id]

    def _verify(self, call: ToolInvocation) -> bool:
        """Run the tool's `verify` on an interrupted call, and return whether it could determine the status."""
        if call.status != UNKNOWN:
            return False
        with detached():
            Verification(self.store, self.registry, wait).verify(self.turn.branch.external_session_id, call)
        return self._load_invocation(call.id).status != UNKNOWN


def _origins(path: Sequence[TrackPart], attempts: Sequence[ToolInvocation]) -> Iterator[int]:
    """Yield the branches of a path, nearest first, each followed by the origins of its imported calls."""
    for part in reversed(path):
        yield part.branch_id
        imported = (one for one in attempts if one.internal_session_id == part.branch_id)
        yield from sorted({one.made_on for one in imported if one.made_on is not None}, reverse=True)
