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
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from agentgit.agents.turn.calls import AdmittedCall, Attempt, InflightResult, RequestedCall, Slot, Slots, scope_of
from agentgit.agents.turn.fence_errors import (
    already_in_effect,
    refusal,
    require_same,
    unmatched,
    unreachable,
    unreadable,
)
from agentgit.agents.turn.outcome_buffer import Outcomes
from agentgit.agents.turn.recorded_results import Unreadable, rebuild_result
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects import ToolInvocation
from agentgit.effects.effects import COMPENSABLE, IRREVERSIBLE, READ_ONLY
from agentgit.effects.invocation import (
    DONE,
    FAILED,
    INTENDED,
    REPLAY,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    STANDING,
    UNKNOWN,
    call_key,
    repeat_key,
)
from agentgit.effects.registry import Registry
from agentgit.errors import NotFound
from agentgit.rollback import wait
from agentgit.rollback.verification import Verification
from agentgit.store.records.journal import CallOutcome, Intent, TrackPart
from agentgit.store.records.recorded_calls import ANSWERS

ANSWER, REFUSE, OFF = "replay", "raise", "off"
FENCES = (ANSWER, REFUSE, OFF)
"""The values of `wrap(fence=...)`: what to do with a call whose effect already exists."""

FENCED = frozenset({COMPENSABLE, IRREVERSIBLE})
"""The effects that the fence prevents a second time on a branch that a rollback created."""

LEFT = STANDING - {FAILED}
"""The statuses in which a call took effect, or may have."""

UNRESOLVABLE = frozenset({INTENDED, REVERSING, REVERSE_UNKNOWN})
"""The statuses in which a call can be neither answered from the record nor made again."""


class CallInterceptor:
    """Admits, answers or refuses the calls of one turn.

    Args:
        turn: The turn.
        outcomes: The outcomes that are recorded before the next call begins.
    """

    def __init__(self, turn: RunningTurn, outcomes: Outcomes) -> None:
        self.turn = turn
        self.outcomes = outcomes
        self.store = turn.context.store
        self.fence = turn.context.settings.fence
        self._attempts: dict[tuple[str, str, int], Attempt] = {}
        self._slots: dict[tuple[UUID | None, str, str | None, str], Slots] = defaultdict(Slots)
        self._runs: dict[str, set[UUID | None]] = defaultdict(set)
        self._lock = threading.Lock()

    def authorize(self, asked: RequestedCall) -> AdmittedCall:
        """Admit a call, or answer it from the record.

        Raises:
            Fenced: The call was already done, and it cannot be answered from the record or `fence` is `raise`.
            Conflict: It is not known whether the call was done, or this turn was taken over.
            WorldDiverged: Another branch has changed the world while this turn ran.
        """
        with self._lock:
            slots = self._slots[asked.run, asked.place, asked.call_id, asked.intent.tool_name]
            slot = slots.take(asked.call_id, asked.repeat_hash)
            asked = self._keyed(asked, slot)
            earlier = self._attempts.get(asked.retry_key)
            holds = earlier is not None and not earlier.can_repeat(is_harmless=asked.is_harmless)
            scope = scope_of("call", asked.place, slot.name, asked.intent.tool_name)
            if earlier is not None and holds and self._answers(asked, slot, earlier.intent.args):
                slot.attempt = earlier
                return AdmittedCall(asked.intent, None, earlier.answer, None, earlier.used, slot.name, scope)
            attempt = self._attempts[asked.retry_key] = slot.attempt = Attempt(asked.intent)
            is_known = earlier is not None and not asked.is_harmless
            is_begun = self._is_begun(asked, slots, slot) or is_known
        try:
            found = self._resolve_repeated(asked, slots, slot) if is_begun else asked
            call = found if isinstance(found, AdmittedCall) else self._pass(found)
            return replace(call, attempt=attempt, name=slot.name, scope=scope)
        except BaseException as error:
            attempt.fail(error)
            raise

    def _keyed(self, asked: RequestedCall, slot: Slot) -> RequestedCall:
        """Return a call with the idempotency key of its slot."""
        key = call_key(asked.intent.branch_id, asked.place, slot.name, asked.intent.tool_name)
        slot.keys.add(key)
        return replace(asked, intent=replace(asked.intent, idempotency_key=key))

    def _is_begun(self, asked: RequestedCall, slots: Slots, slot: Slot) -> bool:
        """Return whether a call, or an equivalent one, may have been made before."""
        if not asked.is_named:
            runs = self._runs[asked.place]
            runs.add(asked.run)
            return not asked.is_harmless and (len(runs) > 1 or not self.turn.given.is_new)
        # Middleware may make a call with other arguments after it has raised.
        raised = any(other.is_retryable for other in slots.all if other is not slot)
        return not self.turn.given.is_new or (raised and not asked.is_harmless)

    # -- calls that may have been made before

    def _answers(self, asked: RequestedCall, slot: Slot, args: Any) -> bool:
        """Return whether to answer a call that is done from the record; False to run it again.

        Raises:
            Fenced: The call can be neither answered nor run again.
        """
        if slot.name == asked.call_id:
            require_same(asked.intent, args)
        if asked.is_harmless and not asked.is_named:
            return False
        if asked.is_reachable or asked.is_harmless:
            return asked.is_reachable
        raise unreachable(asked.intent)

    def _resolve_repeated(self, asked: RequestedCall, slots: Slots, slot: Slot) -> RequestedCall | AdmittedCall:
        """Answer a call that was made before, or return it with the idempotency key for a new attempt."""
        made = self._made(asked)
        attempt, key = self._attempt(asked, slot, made)
        asked = replace(asked, intent=replace(asked.intent, idempotency_key=key))
        slot.keys.update({key} if attempt is None else {key, attempt.idempotency_key})
        if attempt is not None and attempt.status == UNKNOWN and self._verified(attempt):
            attempt, key = self._attempt(asked, slot, self._made(asked))
        if attempt is None or attempt.may_be_repeated or attempt.status not in ANSWERS | UNRESOLVABLE | {UNKNOWN}:
            self._require_none_left(asked, slots, made)
            return asked
        if attempt.status in ANSWERS:
            return self._from_record(asked, slot, attempt) or asked
        if slot.name == asked.call_id:
            require_same(asked.intent, attempt.args)
        if attempt.status in UNRESOLVABLE or not asked.is_harmless:
            raise refusal(attempt, "This turn continues with it, so it was not made again.")
        return asked

    def _require_none_left(self, asked: RequestedCall, slots: Slots, made: Sequence[ToolInvocation]) -> None:
        """Check that a call with different arguments than before is really a different call.

        Raises:
            Fenced: This is not certain, and the earlier call that it may repeat took effect or may have.
        """
        if asked.is_named:
            raised = {key for slot in slots.all if slot.is_retryable for key in slot.keys}
            for call in made:
                unsure = call.idempotency_key in raised and call.status == UNKNOWN and not call.may_be_repeated
                if unsure and not self._verified(call):
                    raise refusal(call, "This would be the same call with other arguments, so it was not made.")
        elif asked.intent.effect in FENCED and self.fence != OFF:
            matched = {key for slot in slots.all for key in slot.keys}
            for call in made:
                if call.idempotency_key not in matched and call.effect == IRREVERSIBLE and call.status in LEFT:
                    raise unmatched(call, asked.intent)

    def _from_record(self, asked: RequestedCall, slot: Slot, attempt: ToolInvocation) -> AdmittedCall | None:
        if not self._answers(asked, slot, attempt.args):
            return None
        try:
            value = rebuild_result(attempt.result, asked.intent.tool_call_id)
        except Unreadable as error:
            if asked.is_harmless:
                return None
            raise unreadable(attempt, error) from error
        return AdmittedCall(asked.intent, None, InflightResult.of(value), used=self._used(asked, attempt))

    def _used(self, asked: RequestedCall, attempt: ToolInvocation) -> dict[str, Any] | None:
        """Read the task's counter numbers that a call consumed; None for calls of a ToolNode, which has its own."""
        if asked.is_in_batch:
            return None
        with self.store.database.reading() as connection:
            used = self.store.fences.answers(connection, attempt.id)
        return used if used and not used["task"] else None

    def _made(self, asked: RequestedCall) -> list[ToolInvocation]:
        """Read the earlier calls made in the same place, newest first."""
        with self.store.database.reading() as connection:
            path = self.store.parts(connection, self.turn.branch)
            return self.store.fences.attempts(
                connection, path, asked.intent.tool_name, asked.call_id, None if asked.is_named else asked.place
            )

    def _attempt(
        self, asked: RequestedCall, slot: Slot, made: Sequence[ToolInvocation]
    ) -> tuple[ToolInvocation | None, str]:
        """Find the decisive earlier attempt at a call, and the idempotency key for the call now."""
        intent = asked.intent
        with self.store.database.reading() as connection:
            path = self.store.parts(connection, self.turn.branch)
            for branch_id, maker in _makers(path, made):
                first = call_key(maker, asked.place, slot.name, intent.tool_name)
                found, key = self._counting(connection, made, first)
                if found is not None or key != first:
                    # A call that did not happen on an ancestor branch may happen once on each descendant.
                    shared = branch_id == intent.branch_id or found is None or found.status == UNKNOWN
                    return found, key if shared else intent.idempotency_key
        return None, intent.idempotency_key

    def _counting(
        self, connection: Connection, attempts: Sequence[ToolInvocation], key: str
    ) -> tuple[ToolInvocation | None, str]:
        """Choose among attempts, newest first, one that is done, else the newest; skip reversed ones."""
        same = [one for one in attempts if one.idempotency_key == key]
        if not same:
            return None, key
        found = next((one for one in same if one.status in ANSWERS), same[0])
        if found.status != REVERSED:
            return found, key
        redone = [one for one in self.store.world.redone(connection, found.id) if one.status not in (FAILED, REVERSED)]
        return (redone[0], key) if redone else self._counting(connection, attempts, repeat_key(key))

    # -- the fence

    def _pass(self, asked: RequestedCall) -> AdmittedCall:
        intent = asked.intent
        if asked.once or (intent.effect in FENCED and self.fence != OFF and self._is_after_rollback):
            return self._fenced(asked)
        if intent.effect == READ_ONLY:
            return AdmittedCall(intent, None)  # a read-only call may be recorded after it has ended
        return self.outcomes.write_with(lambda c: self._begin(c, intent))

    def _begin(self, connection: Connection, intent: Intent) -> AdmittedCall:
        self.turn.authorize_call(connection, intent.effect)
        return AdmittedCall(intent, self.store.journal.intend(connection, intent))

    @functools.cached_property
    def _is_after_rollback(self) -> bool:
        """True if a rollback created this branch or one of its ancestors, or reversed effects of one of them."""
        with self.store.database.reading() as connection:
            branches = [part.branch_id for part in self.store.parts(connection, self.turn.branch)]
            made = self.store.operations.of_branches(connection, branches)
        return any(row.kind == "rollback" for row in made)

    def _fenced(self, asked: RequestedCall) -> AdmittedCall:
        """Admit or answer a call whose effect may exist. Check and record are atomic, so only one call can begin."""
        found = self.outcomes.write_with(lambda c: self._look(c, asked))
        if isinstance(found, ToolInvocation):
            if not self._verified(found):
                raise refusal(found, "This would be the same call again, so it was not made.")
            return self._fenced(asked)
        return found

    def _look(self, connection: Connection, asked: RequestedCall) -> AdmittedCall | ToolInvocation:
        """Answer or admit a call, or return the invocation that blocks it."""
        self.store.sessions.lock(connection, asked.intent.session_id)
        standing = self._standing(connection, asked.intent)
        if not asked.once:
            own = self._own(connection, standing)
            standing = [call for call in standing if call.first_id not in own]
        answer = next((call for call in standing if call.status in ANSWERS), None)
        if answer is not None:
            return self._replay(connection, asked, answer)
        return standing[0] if standing else self._begin(connection, asked.intent)

    def _standing(self, connection: Connection, intent: Intent) -> list[ToolInvocation]:
        """Read the calls with the same identity whose effects are, or may be, in place."""
        found = self.store.fences.find_identical(connection, intent.session_id, intent.identity or "")
        running = [call for call in found if call.status == INTENDED]
        for call in running:  # its process may have died
            self.store.recover(connection, self.store.sessions.branch(connection, call.internal_session_id))
        return (
            self.store.fences.find_identical(connection, intent.session_id, intent.identity or "") if running else found
        )

    def _own(self, connection: Connection, calls: Sequence[ToolInvocation]) -> set[int]:
        """Return the ids of the calls that are on the path of the branch."""
        path = self.store.parts(connection, self.turn.branch)
        return self.store.world.on_path(connection, path, (call.first_id for call in calls))

    def _replay(self, connection: Connection, asked: RequestedCall, call: ToolInvocation) -> AdmittedCall:
        """Answer a call with the result of an earlier one, and record that as a replay, nested calls included."""
        if self.fence == REFUSE or not asked.is_reachable:
            raise already_in_effect(call, is_reachable=asked.is_reachable)
        try:
            value = rebuild_result(call.result, asked.intent.tool_call_id)
        except Unreadable as error:
            raise unreadable(call, error) from error
        self.turn.authorize_call(connection, READ_ONLY)
        inside = self.store.fences.inner_calls(connection, call)
        own = self._own(connection, inside)
        replayed = self._take_over(connection, asked.intent, call)
        for one in inside:
            if one.id not in own:
                called = replace(
                    asked.intent,
                    tool_name=one.tool_name,
                    tool_call_id=None,
                    args=one.args,
                    identity=one.identity,
                    idempotency_key=repeat_key(asked.intent.idempotency_key, str(one.id)),
                )
                self._take_over(connection, called, one)
        return AdmittedCall(asked.intent, replayed, InflightResult.of(value))

    def _take_over(self, connection: Connection, intent: Intent, call: ToolInvocation) -> int:
        """Record that a call was answered from the record."""
        taken = replace(intent, kind=REPLAY, replay_of=call.first_id, effect=call.effect, undo=None)
        outcome = CallOutcome(status=DONE, result=call.result, ended_at=datetime.now(UTC))
        return self.store.journal.add(connection, [(taken, outcome)])

    # -- verification

    def can_look(self, call: AdmittedCall) -> bool:
        """Return whether the tool of a call declares a `verify` function."""
        if call.id is None or call.answer is not None:
            return False
        try:
            return self._registry.verify(self.turn.branch.external_session_id, self._invocation(call.id)) is not None
        except NotFound:
            return True  # one is recorded but not available here, so the call stays unknown

    def verify_call(self, call: AdmittedCall) -> None:
        """Verify a call that raised. If it happened, its result answers the call when the graph makes it again."""
        found = self._invocation(call.id or 0)
        is_sure = self._verified(found)
        if call.attempt is None:
            return
        call.attempt.is_unsure = not is_sure
        if is_sure and (now := self._invocation(found.id)).status == DONE:
            call.attempt.end(rebuild_result(now.result, call.intent.tool_call_id))

    def _invocation(self, invocation_id: int) -> ToolInvocation:
        with self.store.database.reading() as connection:
            found = self.store.journal.invocation(connection, invocation_id)
        assert found is not None, "it was recorded in this turn"  # noqa: S101
        return found

    @property
    def _registry(self) -> Registry:
        return self.turn.context.registry

    def _verified(self, call: ToolInvocation) -> bool:
        """Run the tool's `verify` on an interrupted call, and return whether it could determine the status."""
        if call.status != UNKNOWN:
            return False
        session_id = self.turn.branch.external_session_id
        Verification(self.store, self._registry, wait).verify(session_id, call)
        with self.store.database.reading() as connection:
            now = self.store.journal.invocation(connection, call.id)
        return now is not None and now.status != UNKNOWN


def _makers(path: Sequence[TrackPart], attempts: Sequence[ToolInvocation]) -> list[tuple[int, int]]:
    """List the branches of a path, nearest first, each paired with itself and the origins of its imported calls."""
    made_on: dict[int, set[int]] = {part.branch_id: set() for part in reversed(path)}
    for one in attempts:
        if one.made_on is not None:
            made_on[one.internal_session_id].add(one.made_on)
    return [
        (branch_id, maker)
        for branch_id, origins in made_on.items()
        for maker in (branch_id, *sorted(origins, reverse=True))
    ]
