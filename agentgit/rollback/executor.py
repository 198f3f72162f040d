"""Execution of an operation. Each step is journaled before and after it runs, so it can be resumed after a crash."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agentgit.effects import ToolInvocation, invocation
from agentgit.effects.declarations import ToolRunner
from agentgit.effects.effects import Undo, takes_invocation
from agentgit.effects.function_names import VALUES, name_of, printable_name
from agentgit.effects.invocation import (
    FAILED,
    NOTHING_UNDONE,
    STANDING,
    idempotency_key,
    idempotency_key_set,
    join_errors,
)
from agentgit.effects.kinds import COMPENSABLE, RECORDED_KINDS, UNDECLARED
from agentgit.effects.plan import EXECUTE, GONE, KEEP, REDO, REVERSE, Stays
from agentgit.effects.registry import Registry
from agentgit.effects.results import NothingDone, comparable, returned_error
from agentgit.errors import Conflict, Fenced
from agentgit.rollback.planner import PathCalls
from agentgit.rollback.verification import (
    Awaiter,
    Verdict,
    Verification,
    VerifiedCall,
    VerifyRaised,
    await_answer,
    await_result,
    call_in_operation,
)
from agentgit.store.records import recorded_calls
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.records.json_columns import read_request
from agentgit.store.records.recorded_calls import PlacedCall
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.message_rewrite import ResultChange, rewrite_messages
from agentgit.tracing import span, tool_span
from agentgit.values import describe_error, portable


class RerunTrack:
    """Puts the calls that ran again with `replay="execute"` on the track of the new branch."""

    def __init__(self, store: Store, path_calls: PathCalls, executor: Executor) -> None:
        self.store = store
        self.path_calls = path_calls
        self.executor = executor

    def has_reruns(self, row: StoredRow) -> bool:
        """Return whether an operation creates a branch whose calls run again."""
        return row.internal_session_id != row.source_id and read_request(row).get("replay") == EXECUTE

    def replace_calls(self, transaction: Writing, row: StoredRow) -> None:
        """Replace the calls on the path of an operation's branch by their new runs, also in the messages."""
        branch = self.store.sessions.branch(transaction, row.internal_session_id)
        calls = self.path_calls.load_calls(transaction, self.store.track_parts(transaction, branch, branch.inherited))
        runs = self._load_runs(transaction, row)
        placed_calls, call_runs = [], []
        for row_id, call in calls.items():
            run = runs.pop(call.id, None)  # only for the first of the rows that the record of one call answered
            stands = any(one.status in IN_THE_WORLD for one in self.store.world.redo_calls(transaction, call.id))
            placed_calls.append(PlacedCall(row_id, call.id, run.id if run is not None else None, stands))
            call_runs.append((row_id, call, run))
        recorded_calls.replace_track(transaction, self.store.journal, branch.id, placed_calls)
        changes = self._result_changes(transaction, call_runs)
        rewrite_messages(transaction, self.store.graphs, branch.thread_id, changes)

    def _load_runs(self, transaction: Reading, row: StoredRow) -> dict[int, ToolInvocation]:
        """Read the calls that ran again, by the ids of the calls that they repeat."""
        ids = [step["invocation"] for step in read_request(row)["steps"] if step["action"] == REDO]
        runs = {id: self.executor.find_rerun(transaction, row, id) for id in ids}
        return {id: run for id, run in runs.items() if run is not None and run.status in IN_THE_WORLD}

    def _result_changes(
        self, transaction: Reading, call_runs: list[tuple[int, ToolInvocation, ToolInvocation | None]]
    ) -> list[ResultChange]:
        rows: Mapping[int, ToolInvocation] = self.store.journal.invocations(transaction, [id for id, *_ in call_runs])
        return [
            ResultChange(
                tool_call_id=tool_call_id,
                recorded=call.result,
                current=call.result if run is None or run.result is None else run.result,  # resolved without one
            )
            for row_id, call, run in call_runs
            if (tool_call_id := rows[row_id].tool_call_id) and call.status != FAILED
        ]


RERUN_BATCH = -1
"""The batch of calls that ran again, which belong to no AI message."""

CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
"""The exceptions of a function that was cancelled at an unknown point."""

IN_THE_WORLD = frozenset({invocation.DONE, invocation.REVERSE_FAILED})
"""The statuses of calls whose effects are known to be in the world."""


class Executor:
    """Executes the steps of operations."""

    def __init__(self, store: Store, registry: Registry, awaiter: Awaiter, verification: Verification) -> None:
        self.store = store
        self.registry = registry
        self.awaiter = awaiter
        self.verification = verification
        self.memory_conflicts = verification.memory_conflicts

    def execute(self, row: StoredRow, owner: str) -> bool:
        """Execute the remaining steps of an operation in order; return False if it stopped early."""
        request = read_request(row)
        for step in request["steps"]:
            if step["action"] == REVERSE:
                is_done = self._reverse(row, step["invocation"], owner)
            elif step["action"] == REDO:
                is_done = self._redo(row, step["invocation"], owner)
                if request.get("on_drift") == "stop" and self._must_stop_on_drift(row, step["invocation"]):
                    return False
            else:
                continue
            if not is_done and request["on_error"] == "stop":
                return False
        return True

    def _load_call(self, invocation_id: int) -> ToolInvocation | None:
        with self.store.database.reading() as transaction:
            return self.store.journal.invocation(transaction, invocation_id)

    # -- reverse

    def _reverse(self, row: StoredRow, invocation_id: int, owner: str) -> bool:
        """Run the undo function of one invocation unless it is already reversed; return whether it is reversed now."""
        call = self._load_call(invocation_id)
        if call is None or call.status == invocation.REVERSED:
            return call is not None
        session_id = row.external_session_id
        is_unknown = call.status in (invocation.UNKNOWN, invocation.REVERSE_UNKNOWN)
        if is_unknown and not self.registry.undoes_unknown(session_id, call):
            return False
        if self.registry.undo_obstacle(session_id, call) is not None:
            return False
        with self.memory_conflicts.lock(session_id, call):
            return self._leave_on_conflict(row, call, owner, REVERSE) or self._reverse_call(row, call, owner)

    def _leave_on_conflict(self, row: StoredRow, call: ToolInvocation, owner: str, action: str) -> bool:
        """Replace a step by one that leaves memory as it is, if the item has another value by now; return whether."""
        conflict = self.memory_conflicts.find(row.external_session_id, call, action)
        if not isinstance(conflict, Stays):
            return False

        def write(transaction: Writing) -> None:
            self.store.operations.require_held(transaction, row.id, owner)
            current = self.store.operations.find(transaction, row.id)
            request = read_request(current if current is not None else row)
            for step in request["steps"]:
                if step["invocation"] == call.id and step["action"] == action:
                    step |= {"action": KEEP if action == REVERSE else GONE, **conflict.to_dict("why")}
            request["conflicts"] = [*request.get("conflicts", ()), call.id]
            self.store.operations.set_request(transaction, row.id, request)

        self.store.database.write(write, durable=True)
        return True

    def _reverse_call(self, row: StoredRow, call: ToolInvocation, owner: str) -> bool:
        undo = self.registry.undo(row.external_session_id, call)
        try:
            self._record_reversal(row, owner, call, invocation.REVERSING)
        except Conflict:
            return False  # another rollback was faster; the report shows the status
        status, problem = invocation.REVERSED, None
        with span("agentgit.reverse", gen__ai_tool_name=call.tool_name, agentgit_effect=call.effect) as trace_span:
            try:
                self._run_undo(undo, call)
            except (Exception, *CANCELLED) as error:  # noqa: BLE001  # whatever a user's function raises is journaled and reported
                status, problem = self._outcome_of_failed_undo(row, call, error)
                if problem is not None:
                    trace_span.fail(type(error).__name__)
            trace_span.set(agentgit_call_status=status)
        self._record_reversal(row, owner, call, status, operation_id=row.id, error=problem)
        return problem is None

    def _outcome_of_failed_undo(
        self, row: StoredRow, call: ToolInvocation, error: BaseException
    ) -> tuple[str, str | None]:
        """Return the status and the error of a call whose undo raised. The undo may have acted before it raised."""
        verdict = self.verification.run_verify(row.external_session_id, call)
        if verdict is Verdict.GONE:
            return invocation.REVERSED, None
        problem = _describe_failure(error, verdict)
        if isinstance(verdict, VerifiedCall) or self._proves_nothing_done(row, call, error):
            return invocation.REVERSE_FAILED, f"{NOTHING_UNDONE}{problem}"
        is_unknown = call.effect == COMPENSABLE or isinstance(error, CANCELLED)
        return invocation.REVERSE_UNKNOWN if is_unknown else invocation.REVERSE_FAILED, problem

    def _record_reversal(self, row: StoredRow, owner: str, call: ToolInvocation, status: str, **fields: Any) -> None:
        """Record the status of a reversal, if this piece of work still holds the operation."""

        def write(transaction: Writing) -> None:
            self.store.operations.require_held(transaction, row.id, owner)
            new_owner = owner if status == invocation.REVERSING else None
            self.store.journal.move(transaction, call.id, status, owner=new_owner, **fields)

        self.store.database.write(write, durable=True)

    def _run_undo(self, undo: Undo, call: ToolInvocation) -> None:
        arguments = (call.args, call.result, call) if takes_invocation(undo) else (call.args, call.result)
        if await_answer(self.awaiter, undo, call, *arguments) is False:
            raise NothingDone(f"{printable_name(name_of(undo).path.partition(VALUES)[0])} returned False")

    # -- redo

    def find_rerun(self, transaction: Reading, row: StoredRow, invocation_id: int) -> ToolInvocation | None:
        """Find the call that ran again in place of an invocation; None if the operation still has to run it.

        A run by another operation counts as well, except with `replay="execute"`.
        """
        reruns = self.store.world.redo_calls(transaction, invocation_id)
        own_reruns = [call for call in reruns if call.idempotency_key.startswith(_rerun_key(row, invocation_id))]
        candidates = own_reruns if read_request(row).get("replay") == EXECUTE else reruns
        return next(
            (call for call in candidates if call.status in STANDING - {FAILED}), own_reruns[0] if own_reruns else None
        )

    def _must_stop_on_drift(self, row: StoredRow, invocation_id: int) -> bool:
        """Return whether the operation stops because a call that ran again returned something different."""
        with self.store.database.reading() as transaction:
            original = self.store.journal.invocation(transaction, invocation_id)
            rerun = self.find_rerun(transaction, row, invocation_id)
        if original is None or rerun is None or rerun.status not in IN_THE_WORLD:
            return False
        return stops_at_drift(row, rerun) and describe_drift(original, rerun) is not None

    def _redo(self, row: StoredRow, invocation_id: int, owner: str) -> bool:
        """Run the tool of one invocation again unless it already has; return whether its effect is in the world now."""
        with self.store.database.reading() as transaction:
            original = self.store.journal.invocation(transaction, invocation_id)
            earlier_run = self.find_rerun(transaction, row, invocation_id)
            if original is None or (earlier_run is not None and not _may_run_again(earlier_run)):
                return earlier_run is not None and earlier_run.status in IN_THE_WORLD
            may_be_there = earlier_run is None and self.may_still_be_in_world(transaction, row, original)
        if may_be_there or self.registry.rerun_obstacle(row.external_session_id, original) is not None:
            return False
        with self.memory_conflicts.lock(row.external_session_id, original):
            if self._leave_on_conflict(row, original, owner, REDO):
                return True
            adapted = self.memory_conflicts.adapted(row.external_session_id, original)
            return self._run_again(row, adapted, earlier_run, owner)

    def _run_again(
        self, row: StoredRow, original: ToolInvocation, earlier_run: ToolInvocation | None, owner: str
    ) -> bool:
        runner = self.registry.runner(row.external_session_id, original)
        names = self.registry.names(row.external_session_id, original)
        intent = _rerun_intent(row, original, owner, earlier_run, names)
        rerun_id = self.store.database.write(lambda c: self._record_intent(c, row, intent), durable=True)
        trace_span = tool_span(original.tool_name, agentgit_effect=original.effect, agentgit_call_kind=invocation.REDO)
        with trace_span, trace_span.current(), idempotency_key_set(intent.idempotency_key):
            outcome = self._run_tool(runner, row, original, rerun_id)
            trace_span.set(agentgit_call_status=outcome.status)
            if outcome.status != invocation.DONE:
                trace_span.fail(outcome.status)
        self.store.database.write(lambda c: self.store.journal.end(c, rerun_id, outcome), durable=True)
        return outcome.status == invocation.DONE

    def may_still_be_in_world(self, transaction: Reading, row: StoredRow, original: ToolInvocation) -> bool:
        """Return whether a call on the path may be in the world although it must be reversed before it runs again."""
        if read_request(row).get("replay") != EXECUTE or original.effect.is_repeatable or original.is_imported:
            return False
        return self.store.world.may_be_in_world(transaction, original)

    def _record_intent(self, transaction: Writing, row: StoredRow, intent: Intent) -> int:
        self.store.operations.require_held(transaction, row.id, intent.owner)
        return self.store.journal.intend(transaction, intent)

    def _run_tool(self, runner: ToolRunner, row: StoredRow, original: ToolInvocation, rerun_id: int) -> CallOutcome:
        with self.store.database.reading() as transaction:
            thread_id = self.store.sessions.branch(transaction, row.internal_session_id).thread_id
        # What undeclared tools do in a tool that acts is part of its own effect, which is recorded.
        acts = not original.effect.is_neutral
        kinds = [kind for kind in RECORDED_KINDS if kind.is_neutral or (acts and kind == UNDECLARED)]
        try:
            returned = call_in_operation(runner, original.args, thread_id, key=idempotency_key(), kinds=kinds)
            result = portable(await_result(self.awaiter, returned))
        except (Exception, *CANCELLED) as error:  # noqa: BLE001  # whatever a tool raises is journaled and reported
            return self._outcome_of_error(row, rerun_id, error)
        if (text := returned_error(result)) is not None:
            return self._outcome_of_error(row, rerun_id, text, result)
        return CallOutcome(status=invocation.DONE, result=result, ended_at=datetime.now(UTC))

    def _outcome_of_error(
        self, row: StoredRow, rerun_id: int, error: BaseException | str, result: Any = None
    ) -> CallOutcome:
        """Return the outcome of a call that raised an error, or returned one. It may have acted before."""
        call, now = self._load_call(rerun_id), datetime.now(UTC)
        if call is None or (isinstance(error, BaseException) and self._proves_nothing_done(row, call, error)):
            return CallOutcome(status=FAILED, error=_describe_failure(error), ended_at=now)
        verdict = self.verification.run_verify(row.external_session_id, call)
        if isinstance(verdict, VerifiedCall):
            return CallOutcome(status=invocation.DONE, result=verdict.result, ended_at=now)
        problem = _describe_failure(error, verdict)
        if isinstance(error, (*CANCELLED, Fenced)) and verdict is not Verdict.GONE:  # broken off, and not made again
            return CallOutcome(status=invocation.UNKNOWN, error=problem)
        is_failed = verdict is Verdict.GONE or (verdict is Verdict.NO_VERIFY and not call.effect.is_lasting)
        status = FAILED if is_failed else invocation.UNKNOWN
        return CallOutcome(status=status, result=result, error=problem, ended_at=now)

    def _proves_nothing_done(self, row: StoredRow, call: ToolInvocation, error: BaseException) -> bool:
        return isinstance(error, (NothingDone, *self.registry.failed_on(row.external_session_id, call)))


def _describe_failure(error: BaseException | str, verdict: object = None) -> str:
    """Return the error of a tool or its undo function, with the error that its `verify` raised after that."""
    text = error if isinstance(error, str) else describe_error(error)
    return join_errors(text, verdict.error if isinstance(verdict, VerifyRaised) else None) or ""


def _may_run_again(call: ToolInvocation) -> bool:
    """Return whether a call may run again: it did not happen, was reversed, or can be reversed if it happened."""
    return call.status in (FAILED, invocation.REVERSED) or call.may_be_repeated


def describe_drift(original: ToolInvocation, rerun: ToolInvocation) -> str | None:
    """Return how the result of a tool that ran again differs from the recorded one; None if it does not."""
    new_result, recorded_result = comparable(rerun.result), comparable(original.result)
    return None if new_result == recorded_result else f"it returned {new_result!r}; the record has {recorded_result!r}"


def stops_at_drift(row: StoredRow, rerun: ToolInvocation) -> bool:
    """Return whether an operation stops at a call that returned something different.

    It does not stop there twice, because whoever resumes it has seen the difference.
    """
    request = read_request(row)
    return request.get("on_drift") == "stop" and rerun.id not in request.get("told", ())


def _rerun_key(row: StoredRow, invocation_id: int) -> str:
    return hashlib.sha256(f"{row.id}\0{invocation_id}".encode()).hexdigest()[:32]


def _rerun_intent(
    row: StoredRow,
    original: ToolInvocation,
    owner: str,
    earlier_run: ToolInvocation | None,
    names: Mapping[str, str | None],
) -> Intent:
    """Return the intent of running a call again.

    After a failure, the idempotency key stays the same, so the called service recognizes the attempt. After a reversal,
    it is a new one.
    """
    key = _rerun_key(row, original.id)
    if earlier_run is not None:
        key = f"{key}-{earlier_run.id}" if earlier_run.status == invocation.REVERSED else earlier_run.idempotency_key
    return Intent(
        session_id=row.external_session_id,
        branch_id=row.internal_session_id,
        batch=RERUN_BATCH,
        batch_index=0,
        tool_name=original.tool_name,
        tool_call_id=None,
        effect=original.effect,
        undo=names.get("undo"),
        args=original.args,
        idempotency_key=key,
        owner=owner,
        started_at=datetime.now(UTC),
        verify=names.get("verify"),
        precheck=names.get("precheck"),
        tool_path=names["tool_path"],
        enclosing=original.enclosing,
        kind=invocation.REDO,
        identity=original.identity,
        replay_of=original.id,
    )
