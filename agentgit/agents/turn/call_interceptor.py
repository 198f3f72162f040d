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

from agentgit.agents.turn.calls import AdmittedCall, Attempt, InflightResult, RequestedCall, Slot, Slots, scope_name
from agentgit.agents.turn.fence_errors import (
    in_effect_error,
    open_outcome_error,
    other_tool_error,
    require_same_args,
    unmatched_error,
    unreachable_error,
    unreadable_error,
)
from agentgit.agents.turn.recorded_results import UnreadableResult, has_command, rebuild_result
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects import ToolInvocation
from agentgit.effects.effects import FENCED, IRREVERSIBLE, READ_ONLY, STATE
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
from agentgit.store.records.recorded_calls import RESULT_STATUSES

ANSWER, REFUSE, OFF = "replay", "raise", "off"
FENCE_MODES = (ANSWER, REFUSE, OFF)
"""The values of `wrap(fence=...)`: what to do with a call whose effect already exists."""

POSSIBLY_IN_EFFECT = STANDING - {FAILED}
"""The statuses in which a call took effect, or may have."""

UNRESOLVABLE = frozenset({INTENDED, REVERSING, REVERSE_UNKNOWN})
"""The statuses in which a call can be neither answered from the record nor made again."""


class CallInterceptor:
    """Admits, answers or refuses the calls of one turn."""

    is_simulated = False
    """True if the turn is part of a rerun: no call reaches its tool unless the interceptor admits it."""

    result_statuses = RESULT_STATUSES
    """The statuses of earlier calls of the branch from which a repeated call is answered."""

    def __init__(self, turn: RunningTurn) -> None:
        self.turn = turn
        self.store = turn.context.store
        self.fence_mode = turn.context.settings.fence_mode
        self._attempts: dict[tuple[str, str, int], Attempt] = {}
        self._slots: dict[tuple[UUID | None, str, str | None, str], Slots] = defaultdict(Slots)
        self._runs: dict[str, set[UUID | None]] = defaultdict(set)
        self._lock = threading.Lock()

    def authorize(self, request: RequestedCall) -> AdmittedCall:
        """Admit a call, or answer it from the record."""
        with self._lock:
            slots = self._slots[request.caller_run_id, request.requester, request.call_id, request.intent.tool_name]
            slot = slots.assign(request.call_id, request.repeat_hash)
            request = self._with_key(request, slot)
            earlier = self._attempts.get(request.retry_key)
            blocks_new_attempt = earlier is not None and not earlier.can_repeat(is_harmless=request.is_harmless)
            scope = scope_name("call", request.requester, slot.name, request.intent.tool_name)
            if (
                earlier is not None
                and blocks_new_attempt
                and not (request.intent.effect == STATE and earlier.has_only_written)
                and self._is_answerable(request, slot, earlier.intent.args)
            ):
                slot.attempt = earlier
                return AdmittedCall(request.intent, None, earlier.answer, None, earlier.used_numbers, slot.name, scope)
            attempt = self._attempts[request.retry_key] = slot.attempt = Attempt(request.intent)
            is_retry = earlier is not None and not request.is_harmless
            is_possible_repeat = self._is_possible_repeat(request, slots, slot) or is_retry
        try:
            resolved = self._resolve_repeated(request, slots, slot) if is_possible_repeat else request
            call = resolved if isinstance(resolved, AdmittedCall) else self._admit(resolved)
            return replace(call, attempt=attempt, name=slot.name, scope=scope)
        except BaseException as error:
            attempt.fail(error)
            raise

    def authorize_model(self) -> None:
        """Admit a call of a model."""

    def on_model_error(self, error: BaseException) -> None:
        """Handle the error of a model."""

    def _with_key(self, request: RequestedCall, slot: Slot) -> RequestedCall:
        """Return a call with the idempotency key of its slot."""
        key = call_key(request.intent.branch_id, request.requester, slot.name, request.intent.tool_name)
        slot.keys.add(key)
        return replace(request, intent=replace(request.intent, idempotency_key=key))

    def _is_possible_repeat(self, request: RequestedCall, slots: Slots, slot: Slot) -> bool:
        """Return whether a call, or an equivalent one, may have been made before."""
        if not request.is_named:
            runs = self._runs[request.requester]
            runs.add(request.caller_run_id)
            return not request.is_harmless and (len(runs) > 1 or not self.turn.turn_input.is_new)
        # Middleware may make a call with other arguments after it has raised.
        has_failed_slot = any(other.is_retryable for other in slots.all if other is not slot)
        return not self.turn.turn_input.is_new or (has_failed_slot and not request.is_harmless)

    # -- calls that may have been made before

    def _is_answerable(self, request: RequestedCall, slot: Slot, args: Any) -> bool:
        """Return whether to answer a call that is done from the record; False to run it again."""
        if slot.name == request.call_id:
            require_same_args(request.intent, args)
        if request.is_harmless and not request.is_named:
            return False
        if request.is_reachable or request.is_harmless:
            return request.is_reachable
        raise unreachable_error(request.intent)

    def _resolve_repeated(self, request: RequestedCall, slots: Slots, slot: Slot) -> RequestedCall | AdmittedCall:
        """Answer a call that was made before, or return it with the idempotency key for a new attempt."""
        earlier_calls = self._load_earlier_calls(request)
        attempt, key = self._find_attempt(request, slot, earlier_calls)
        request = replace(request, intent=replace(request.intent, idempotency_key=key))
        slot.keys.update({key} if attempt is None else {key, attempt.idempotency_key})
        if attempt is not None and attempt.status == UNKNOWN and self._verify(attempt):
            attempt, key = self._find_attempt(request, slot, self._load_earlier_calls(request))
        if (
            attempt is None
            or attempt.may_be_repeated
            or attempt.status not in self.result_statuses | UNRESOLVABLE | {UNKNOWN}
        ):
            self._require_different_call(request, slots, earlier_calls)
            return request
        if attempt.status in self.result_statuses:
            return self._answer_from_record(request, slot, attempt) or request
        if slot.name == request.call_id:
            require_same_args(request.intent, attempt.args)
        if attempt.status in UNRESOLVABLE or not request.is_harmless:
            raise open_outcome_error(
                self._registry.current(attempt), "This turn continues with it, so it was not made again."
            )
        return request

    def _require_different_call(
        self, request: RequestedCall, slots: Slots, earlier_calls: Sequence[ToolInvocation]
    ) -> None:
        """Check that a call with different arguments than before is really a different call."""
        if request.is_named:
            failed_keys = {key for slot in slots.all if slot.is_retryable for key in slot.keys}
            for call in earlier_calls:
                is_undecided = (
                    call.idempotency_key in failed_keys and call.status == UNKNOWN and not call.may_be_repeated
                )
                if is_undecided and not self._verify(call):
                    raise open_outcome_error(
                        self._registry.current(call),
                        "This would be the same call with other arguments, so it was not made.",
                    )
        elif request.intent.effect in FENCED and self.fence_mode != OFF:
            matched_keys = {key for slot in slots.all for key in slot.keys}
            for call in earlier_calls:
                if (
                    call.idempotency_key not in matched_keys
                    and call.effect == IRREVERSIBLE
                    and call.status in POSSIBLY_IN_EFFECT
                ):
                    raise unmatched_error(call, request.intent)

    def _answer_from_record(self, request: RequestedCall, slot: Slot, attempt: ToolInvocation) -> AdmittedCall | None:
        if not self._is_answerable(request, slot, attempt.args):
            return None
        try:
            value = rebuild_result(attempt.result, request.intent.tool_call_id)
        except UnreadableResult as error:
            if request.is_harmless:
                return None
            raise unreadable_error(attempt, error) from error
        if request.intent.effect == STATE and not has_command(value):
            return None  # what it wrote to the state itself was lost with its task
        return AdmittedCall(
            request.intent, None, InflightResult.of(value), used_numbers=self._load_used_numbers(request, attempt)
        )

    def _load_used_numbers(self, request: RequestedCall, attempt: ToolInvocation) -> dict[str, Any] | None:
        """Read the task's counter numbers that a call consumed; None for calls of a ToolNode, which has its own."""
        if request.is_in_batch:
            return None
        with self.store.database.reading() as connection:
            numbers = self.store.recorded_calls.answers(connection, attempt.id)
        return numbers if numbers and not numbers["task"] else None

    def _load_earlier_calls(self, request: RequestedCall) -> list[ToolInvocation]:
        """Read the earlier calls made in the same place, newest first."""
        with self.store.database.reading() as connection:
            path = self.store.track_parts(connection, self.turn.branch)
            return self.store.recorded_calls.attempts(
                connection,
                path,
                request.intent.tool_name,
                request.call_id,
                None if request.is_named else request.requester,
            )

    def _find_attempt(
        self, request: RequestedCall, slot: Slot, earlier_calls: Sequence[ToolInvocation]
    ) -> tuple[ToolInvocation | None, str]:
        """Find the decisive earlier attempt at a call, and the idempotency key for the call now."""
        intent = request.intent
        with self.store.database.reading() as connection:
            path = self.store.track_parts(connection, self.turn.branch)
            for branch_id, origin_id in _branch_origins(path, earlier_calls):
                first_key = call_key(origin_id, request.requester, slot.name, intent.tool_name)
                attempt, key = self._choose_attempt(connection, earlier_calls, first_key)
                if attempt is not None or key != first_key:
                    # A call that did not happen on an ancestor branch may happen once on each descendant.
                    keeps_key = branch_id == intent.branch_id or attempt is None or attempt.status == UNKNOWN
                    return attempt, key if keeps_key else intent.idempotency_key
        return None, intent.idempotency_key

    def _choose_attempt(
        self, connection: Connection, attempts: Sequence[ToolInvocation], key: str
    ) -> tuple[ToolInvocation | None, str]:
        """Choose among attempts, newest first, one that is done, else the newest; skip reversed ones."""
        matches = [one for one in attempts if one.idempotency_key == key]
        if not matches:
            return None, key
        chosen = next((one for one in matches if one.status in self.result_statuses), matches[0])
        if chosen.status != REVERSED:
            return chosen, key
        reruns = [
            one for one in self.store.world.redo_calls(connection, chosen.id) if one.status not in (FAILED, REVERSED)
        ]
        return (reruns[0], key) if reruns else self._choose_attempt(connection, attempts, repeat_key(key))

    # -- the fence

    def _admit(self, request: RequestedCall) -> AdmittedCall:
        intent = request.intent
        if request.is_once or (intent.effect in FENCED and self.fence_mode != OFF and self._is_after_rollback):
            return self._admit_fenced(request)
        if intent.effect == READ_ONLY:
            return AdmittedCall(intent, None)  # a read-only call may be recorded after it has ended
        return self.turn.unit_of_work.write(lambda c: self._record_intent(c, intent))

    def _record_intent(self, connection: Connection, intent: Intent) -> AdmittedCall:
        self.turn.authorize_call(connection, intent.effect)
        return AdmittedCall(intent, self.turn.unit_of_work.intend(connection, intent))

    @functools.cached_property
    def _is_after_rollback(self) -> bool:
        """True if a rollback created this branch or one of its ancestors, or reversed effects of one of them."""
        with self.store.database.reading() as connection:
            branches = [part.branch_id for part in self.store.track_parts(connection, self.turn.branch)]
            operations = self.store.operations.of_branches(connection, branches)
        return any(row.kind == "rollback" for row in operations)

    def _admit_fenced(self, request: RequestedCall) -> AdmittedCall:
        """Admit or answer a call whose effect may exist. Check and record are atomic, so only one call can begin."""
        result = self.turn.unit_of_work.write(lambda c: self._check_fence(c, request))
        if isinstance(result, ToolInvocation):
            if not self._verify(result):
                raise open_outcome_error(
                    self._registry.current(result), "This would be the same call again, so it was not made."
                )
            return self._admit_fenced(request)
        return result

    def _check_fence(self, connection: Connection, request: RequestedCall) -> AdmittedCall | ToolInvocation:
        """Answer or admit a call, or return the invocation that blocks it."""
        self.turn.unit_of_work.lock_session(connection)
        identical_calls = self._load_identical_calls(connection, request.intent)
        identical_calls = [call for call in identical_calls if self._is_of_same_tool(call, request.intent)]
        if not request.is_once:
            path_ids = self._ids_on_path(connection, identical_calls)
            identical_calls = [call for call in identical_calls if call.first_id not in path_ids]
        finished_call = next((call for call in identical_calls if call.status in RESULT_STATUSES), None)
        if finished_call is not None:
            return self._answer_as_replay(connection, request, finished_call)
        return identical_calls[0] if identical_calls else self._record_intent(connection, request.intent)

    def _load_identical_calls(self, connection: Connection, intent: Intent) -> list[ToolInvocation]:
        """Read the calls with the same identity whose effects are, or may be, in place."""
        identical_calls = self.store.recorded_calls.find_identical(connection, intent.session_id, intent.identity or "")
        running = [call for call in identical_calls if call.status == INTENDED]
        for call in running:  # its process may have died
            self.store.recover(connection, self.store.sessions.branch(connection, call.internal_session_id))
        return (
            self.store.recorded_calls.find_identical(connection, intent.session_id, intent.identity or "")
            if running
            else identical_calls
        )

    def _is_of_same_tool(self, call: ToolInvocation, intent: Intent) -> bool:
        is_same = self.turn.context.settings.effects.is_of_tool(call, intent.tool_path, intent.enclosing)
        if is_same is None:
            raise other_tool_error(call, intent)
        return is_same

    def _ids_on_path(self, connection: Connection, calls: Sequence[ToolInvocation]) -> set[int]:
        """Return the ids of the calls that are on the path of the branch."""
        path = self.store.track_parts(connection, self.turn.branch)
        return self.store.world.ids_on_path(connection, path, (call.first_id for call in calls))

    def _answer_as_replay(self, connection: Connection, request: RequestedCall, call: ToolInvocation) -> AdmittedCall:
        """Answer a call with the result of an earlier one, and record that as a replay, nested calls included."""
        if self.fence_mode == REFUSE or not request.is_reachable:
            raise in_effect_error(call, is_reachable=request.is_reachable)
        try:
            value = rebuild_result(call.result, request.intent.tool_call_id)
        except UnreadableResult as error:
            raise unreadable_error(call, error) from error
        self.turn.authorize_call(connection, READ_ONLY)
        inner_calls = self.store.recorded_calls.inner_calls(connection, call)
        path_ids = self._ids_on_path(connection, inner_calls)
        replay_id = self._record_replay(connection, request.intent, call)
        for inner_call in inner_calls:
            if inner_call.id not in path_ids:
                inner_intent = replace(
                    request.intent,
                    tool_name=inner_call.tool_name,
                    tool_call_id=None,
                    args=inner_call.args,
                    identity=inner_call.identity,
                    idempotency_key=repeat_key(request.intent.idempotency_key, str(inner_call.id)),
                )
                self._record_replay(connection, inner_intent, inner_call)
        return AdmittedCall(request.intent, replay_id, InflightResult.of(value))

    def _record_replay(self, connection: Connection, intent: Intent, call: ToolInvocation) -> int:
        """Record that a call was answered from the record."""
        replay_intent = replace(intent, kind=REPLAY, replay_of=call.first_id, effect=call.effect, undo=None)
        outcome = CallOutcome(status=DONE, result=call.result, ended_at=datetime.now(UTC))
        return self.store.journal.add(connection, [(replay_intent, outcome)])

    # -- verification

    def has_verify(self, call: AdmittedCall) -> bool:
        """Return whether the tool of a call declares a `verify` function."""
        if call.id is None or call.answer is not None:
            return False
        try:
            return (
                self._registry.verify(self.turn.branch.external_session_id, self._load_invocation(call.id)) is not None
            )
        except NotFound:
            return True  # one is recorded but not available here, so the call stays unknown

    def verify_call(self, call: AdmittedCall) -> None:
        """Verify a call that raised. If it happened, its result answers the call when the graph makes it again."""
        invocation = self._load_invocation(call.id or 0)
        is_verified = self._verify(invocation)
        if call.attempt is not None and is_verified:
            current = self._load_invocation(invocation.id)
            if current.status == DONE:
                call.attempt.end(rebuild_result(current.result, call.intent.tool_call_id))

    def _load_invocation(self, invocation_id: int) -> ToolInvocation:
        with self.store.database.reading() as connection:
            invocation = self.store.journal.invocation(connection, invocation_id)
        assert invocation is not None, "it was recorded in this turn"  # noqa: S101
        return invocation

    @property
    def _registry(self) -> Registry:
        return self.turn.context.registry

    def _verify(self, call: ToolInvocation) -> bool:
        """Run the tool's `verify` on an interrupted call, and return whether it could determine the status."""
        if call.status != UNKNOWN:
            return False
        session_id = self.turn.branch.external_session_id
        Verification(self.store, self._registry, wait).verify(session_id, call)
        with self.store.database.reading() as connection:
            current = self.store.journal.invocation(connection, call.id)
        return current is not None and current.status != UNKNOWN


def _branch_origins(path: Sequence[TrackPart], attempts: Sequence[ToolInvocation]) -> list[tuple[int, int]]:
    """List the branches of a path, nearest first, each paired with itself and the origins of its imported calls."""
    origins_by_branch: dict[int, set[int]] = {part.branch_id: set() for part in reversed(path)}
    for call in attempts:
        if call.made_on is not None:
            origins_by_branch[call.internal_session_id].add(call.made_on)
    return [
        (branch_id, origin_id)
        for branch_id, origins in origins_by_branch.items()
        for origin_id in (branch_id, *sorted(origins, reverse=True))
    ]
