"""Execution of an operation. Each step is journaled before and after it runs, so it can be resumed after a crash."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import ToolInvocation, invocation
from agentgit.effects.effects import Undo, takes_invocation
from agentgit.effects.invocation import FAILED, STANDING, idempotency_key, idempotency_key_set, join_errors
from agentgit.effects.plan import EXECUTE, REDO, REVERSE
from agentgit.effects.registry import Registry, Run
from agentgit.effects.results import LASTING, NothingDone, ResultChange, Rewriter, comparable
from agentgit.errors import Conflict
from agentgit.rollback.planner import REPEATABLE, PathCalls
from agentgit.rollback.verification import (
    Awaiter,
    Verdict,
    Verification,
    VerifiedCall,
    VerifyRaised,
    await_completed_result,
    await_result,
)
from agentgit.store.records import recorded_calls
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.records.recorded_calls import PlacedCall
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.store.threads import message_rewrite
from agentgit.tracing import span, tool_span
from agentgit.values import as_object, describe_error, portable


class RerunTrack:
    """Puts the calls that ran again with `replay="execute"` on the track of the new branch.

    Args:
        store: The store of the database.
        past: The reader of the calls of a path.
        executor: The executor, which finds the calls that ran again.
    """

    def __init__(self, store: Store, past: PathCalls, executor: Executor) -> None:
        self.store = store
        self.past = past
        self.executor = executor

    def is_of(self, row: StoredRow) -> bool:
        """Return whether an operation creates a branch whose calls run again."""
        return row.internal_session_id != row.source_id and as_object(row.request).get("replay") == EXECUTE

    def replace_calls(self, connection: Connection, row: StoredRow) -> None:
        """Replace the calls on the path of an operation's branch by their new runs, also in the messages.

        Args:
            connection: A connection in the transaction that publishes the branch.
            row: The row of the operation, whose steps are done.
        """
        branch = self.store.sessions.branch(connection, row.internal_session_id)
        calls = self.past.calls(connection, self.store.parts(connection, branch, branch.inherited))
        runs = self._runs(connection, row)
        placed, answers = [], []
        for row_id, call in calls.items():
            run = runs.pop(call.id, None)  # only for the first of the rows that the record of one call answered
            placed.append(PlacedCall(row_id, call.id, run.id if run is not None else None))
            answers.append((row_id, call, run))
        recorded_calls.replace_track(connection, self.store.journal, self.store.sessions, branch.id, placed)
        rewriter = Rewriter(self._answered(connection, answers))
        message_rewrite.rewrite(connection, self.store.graphs, branch.thread_id, rewriter)

    def _runs(self, connection: Connection, row: StoredRow) -> dict[int, ToolInvocation]:
        """Read the calls that ran again, by the ids of the calls that they repeat."""
        steps = [step["invocation"] for step in as_object(row.request)["steps"] if step["action"] == REDO]
        found = {id: self.executor.find_rerun(connection, row, id) for id in steps}
        return {id: run for id, run in found.items() if run is not None and run.status in IN_THE_WORLD}

    def _answered(
        self, connection: Connection, answers: list[tuple[int, ToolInvocation, ToolInvocation | None]]
    ) -> list[ResultChange]:
        rows: Mapping[int, ToolInvocation] = self.store.journal.invocations(connection, [id for id, *_ in answers])
        return [
            ResultChange(tool_call_id=asked, recorded=call.result, current=_now(call, run))
            for row_id, call, run in answers
            if (asked := rows[row_id].tool_call_id) and call.status != FAILED
        ]


def _now(call: ToolInvocation, run: ToolInvocation | None) -> Any:
    """Return the current result of a call: the recorded one if nothing ran, or if a person resolved it without one."""
    return call.result if run is None or run.result is None else run.result


OFF_THE_TRACK = -1
"""The batch of calls that ran again, which belong to no AI message."""

CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
"""The exceptions of a function that was cancelled at an unknown point."""

IN_THE_WORLD = frozenset({invocation.DONE, invocation.REVERSE_FAILED})
"""The statuses of calls whose effects are known to be in the world."""


class Executor:
    """Executes the steps of operations.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
        settle: A function that waits for an awaitable and returns its result.
        verification: The verification of calls and reversals that raised.
    """

    def __init__(self, store: Store, registry: Registry, settle: Awaiter, verification: Verification) -> None:
        self.store = store
        self.registry = registry
        self.settle = settle
        self.verification = verification

    def execute(self, row: StoredRow, owner: str) -> bool:
        """Execute the remaining steps of an operation in order; return False if it stopped early.

        Args:
            row: The row of the operation.
            owner: The name of the piece of work that executes it.
        """
        request = as_object(row.request)
        for step in request["steps"]:
            if step["action"] == REVERSE:
                done = self._reverse(row, step["invocation"], owner)
            elif step["action"] == REDO:
                done = self._redo(row, step["invocation"], owner)
                if request.get("on_drift") == "stop" and self._drifted(row, step["invocation"]):
                    return False
            else:
                continue
            if not done and request["on_error"] == "stop":
                return False
        return True

    def _read(self, invocation_id: int) -> ToolInvocation | None:
        with self.store.database.reading() as connection:
            return self.store.journal.invocation(connection, invocation_id)

    # -- reverse

    def _reverse(self, row: StoredRow, invocation_id: int, owner: str) -> bool:
        """Run the undo function of one invocation unless it is already reversed; return whether it is reversed now."""
        call = self._read(invocation_id)
        if call is None or call.status in (invocation.REVERSED, invocation.REVERSE_UNKNOWN):
            return call is not None and call.status == invocation.REVERSED
        if self.registry.cannot_undo(row.external_session_id, call) is not None:
            return False
        undo = self.registry.undo(row.external_session_id, call)
        try:
            self._move(row, owner, call, invocation.REVERSING)
        except Conflict:
            return False  # another rollback was faster; the report shows the status
        status, problem = invocation.REVERSED, None
        with span("agentgit.reverse", gen__ai_tool_name=call.tool_name, agentgit_effect=call.effect) as traced:
            try:
                self._undo(undo, call)
            except (Exception, *CANCELLED) as error:  # noqa: BLE001  # whatever a user's function raises is journaled and reported
                # If `verify` finds the effect gone, the call was reversed, whatever its undo function raised.
                seen = self.verification.run_verify(row.external_session_id, call)
                if seen is not Verdict.GONE:
                    is_known = isinstance(seen, VerifiedCall) or not isinstance(error, CANCELLED)
                    status = invocation.REVERSE_FAILED if is_known else invocation.REVERSE_UNKNOWN
                    problem = _problem(error, seen)
                    traced.fail(type(error).__name__)
            traced.set(agentgit_call_status=status)
        self._move(row, owner, call, status, operation_id=row.id, error=problem)
        return problem is None

    def _move(self, row: StoredRow, owner: str, call: ToolInvocation, status: str, **how: Any) -> None:
        """Record the status of a reversal, if this piece of work still holds the operation."""

        def move(connection: Connection) -> None:
            self.store.operations.require_held(connection, row.id, owner)
            by = owner if status == invocation.REVERSING else None
            self.store.journal.move(connection, call.id, status, owner=by, **how)

        self.store.database.write(move, durable=True)

    def _undo(self, undo: Undo, call: ToolInvocation) -> None:
        arguments = (call.args, call.result, call) if takes_invocation(undo) else (call.args, call.result)
        await_completed_result(self.settle, undo(*arguments))

    # -- redo

    def find_rerun(self, connection: Connection, row: StoredRow, invocation_id: int) -> ToolInvocation | None:
        """Find the call that ran again in place of an invocation; None if the operation still has to run it.

        A run by another operation counts as well, except with `replay="execute"`.
        """
        found = self.store.world.redone(connection, invocation_id)
        own = [call for call in found if call.idempotency_key.startswith(_key(row, invocation_id))]
        able = own if as_object(row.request).get("replay") == EXECUTE else found
        return next((call for call in able if call.status in STANDING - {FAILED}), own[0] if own else None)

    def _drifted(self, row: StoredRow, invocation_id: int) -> bool:
        """Return whether the operation stops because a call that ran again returned something different."""
        with self.store.database.reading() as connection:
            original = self.store.journal.invocation(connection, invocation_id)
            again = self.find_rerun(connection, row, invocation_id)
        if original is None or again is None or again.status not in IN_THE_WORLD:
            return False
        return stops_at(row, again) and drift(original, again) is not None

    def _redo(self, row: StoredRow, invocation_id: int, owner: str) -> bool:
        """Run the tool of one invocation again unless it already has; return whether its effect is in the world now."""
        with self.store.database.reading() as connection:
            original = self.store.journal.invocation(connection, invocation_id)
            earlier = self.find_rerun(connection, row, invocation_id)
        if original is None or (earlier is not None and not _may_run_again(earlier)):
            return earlier is not None and earlier.status in IN_THE_WORLD
        if self.registry.cannot_run(row.external_session_id, original) is not None:
            return False
        if earlier is None and self.still_stands(row, original):
            return False
        run = self.registry.runner(row.external_session_id, original)
        intent = _intent(row, original, owner, earlier)
        again = self.store.database.write(lambda c: self._intend(c, row, intent), durable=True)
        traced = tool_span(original.tool_name, agentgit_effect=original.effect, agentgit_call_kind=invocation.REDO)
        with traced, traced.current(), idempotency_key_set(intent.idempotency_key):
            outcome = self._run(run, row, original, again)
            traced.set(agentgit_call_status=outcome.status)
            if outcome.status != invocation.DONE:
                traced.fail(outcome.status)
        self.store.database.write(lambda c: self.store.journal.end(c, again, outcome), durable=True)
        return outcome.status == invocation.DONE

    def still_stands(self, row: StoredRow, original: ToolInvocation) -> bool:
        """Return whether a call on the path may be in the world although it must be reversed before it runs again."""
        if as_object(row.request).get("replay") != EXECUTE or original.effect in REPEATABLE or original.is_imported:
            return False
        with self.store.database.reading() as connection:
            return self.store.world.may_be_in_world(connection, original)

    def _intend(self, connection: Connection, row: StoredRow, intent: Intent) -> int:
        self.store.operations.require_held(connection, row.id, intent.owner)
        return self.store.journal.intend(connection, intent)

    def _run(self, run: Run, row: StoredRow, original: ToolInvocation, again: int) -> CallOutcome:
        with self.store.database.reading() as connection:
            thread_id = self.store.sessions.branch(connection, row.internal_session_id).thread_id
        try:
            value = portable(await_result(self.settle, _keyed(run(original.args, thread_id), idempotency_key())))
        except (Exception, *CANCELLED) as error:  # noqa: BLE001  # whatever a tool raises is journaled and reported
            return self._raised(row, again, error)
        return CallOutcome(status=invocation.DONE, result=value, ended_at=datetime.now(UTC))

    def _raised(self, row: StoredRow, again: int, error: BaseException) -> CallOutcome:
        """Return the outcome of a call that raised. It may have acted before it raised."""
        call, now = self._read(again), datetime.now(UTC)
        if call is None or self._proves_nothing_done(row, call, error):
            return CallOutcome(status=FAILED, error=describe_error(error), ended_at=now)
        seen = self.verification.run_verify(row.external_session_id, call)
        if isinstance(seen, VerifiedCall):
            return CallOutcome(status=invocation.DONE, result=seen.result, ended_at=now)
        problem = _problem(error, seen)
        if isinstance(error, CANCELLED) and seen is not Verdict.GONE:
            return CallOutcome(status=invocation.UNKNOWN, error=problem)
        is_known = seen is Verdict.GONE or (seen is Verdict.NO_VERIFY and call.effect not in LASTING)
        return CallOutcome(status=FAILED if is_known else invocation.UNKNOWN, error=problem, ended_at=now)

    def _proves_nothing_done(self, row: StoredRow, call: ToolInvocation, error: BaseException) -> bool:
        return isinstance(error, (NothingDone, *self.registry.failed_on(row.external_session_id, call)))


def _problem(error: BaseException, seen: object) -> str:
    """Return the error of a tool or its undo function, with the error that its `verify` raised after that."""
    return join_errors(describe_error(error), seen.error if isinstance(seen, VerifyRaised) else None) or ""


def _may_run_again(call: ToolInvocation) -> bool:
    """Return whether a call may run again: it did not happen, was reversed, or can be reversed if it happened."""
    return call.status in (FAILED, invocation.REVERSED) or call.may_be_repeated


def _keyed(answer: Any, key: str) -> Any:
    """Make the idempotency key available to an asynchronous tool, wherever the tool is awaited."""

    async def keyed() -> Any:
        with idempotency_key_set(key):
            return await answer

    return keyed() if inspect.isawaitable(answer) else answer


def drift(original: ToolInvocation, again: ToolInvocation) -> str | None:
    """Return how the result of a tool that ran again differs from the recorded one; None if it does not."""
    now, then = comparable(again.result), comparable(original.result)
    return None if now == then else f"it returned {now!r}; the record has {then!r}"


def stops_at(row: StoredRow, again: ToolInvocation) -> bool:
    """Return whether an operation stops at a call that returned something different.

    It does not stop there twice, because whoever resumes it has seen the difference.
    """
    request = as_object(row.request)
    return request.get("on_drift") == "stop" and again.id not in request.get("told", ())


def _key(row: StoredRow, invocation_id: int) -> str:
    return hashlib.sha256(f"{row.id}\0{invocation_id}".encode()).hexdigest()[:32]


def _intent(row: StoredRow, original: ToolInvocation, owner: str, earlier: ToolInvocation | None) -> Intent:
    """Return the intent of running a call again.

    After a failure, the idempotency key stays the same, so the called service recognizes the attempt. After a reversal,
    it is a new one.
    """
    key = _key(row, original.id)
    if earlier is not None:
        key = f"{key}-{earlier.id}" if earlier.status == invocation.REVERSED else earlier.idempotency_key
    return Intent(
        session_id=row.external_session_id,
        branch_id=row.internal_session_id,
        batch=OFF_THE_TRACK,
        batch_index=0,
        tool_name=original.tool_name,
        tool_call_id=None,
        effect=original.effect,
        undo=original.undo,
        args=original.args,
        idempotency_key=key,
        owner=owner,
        started_at=datetime.now(UTC),
        verify=original.verify,
        precheck=original.precheck,
        kind=invocation.REDO,
        identity=original.identity,
        replay_of=original.id,
    )
