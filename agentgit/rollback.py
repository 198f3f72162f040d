"""Rollback, exactly: plan, a new branch, the later effects reversed newest first, publish.

Each step is on disk before the next begins, so that a rollback which was killed anywhere can be finished by `resume`
and the branch that was left is as before.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from agentgit.errors import Conflict, InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete
from agentgit.sessions import operation
from agentgit.sessions.session import OPEN, PARTIAL, REPLAYING, RUNNING
from agentgit.store import owners
from agentgit.store.checkpoints import Label, Snapshot
from agentgit.store.operations import Begun
from agentgit.store.sessions import CHECKPOINT, Found
from agentgit.store.store import Store
from agentgit.tools import RollbackPlan, RollbackReport, ToolInvocation, invocation
from agentgit.tools.effects import Undo, takes_invocation
from agentgit.tools.plan import GONE, KEEP, REVERSE, TOOLS_MODES, make_plan
from agentgit.tools.report import ReportItem
from agentgit.tools.undos import Undos
from agentgit.values import as_object

ON_ERROR = ("stop", "continue")
"""What a rollback may do when an undo function raises."""

GROUPS = ("reversed", "kept", "gone", "failed", "remaining")
"""What can become of the steps of a plan."""

Settle = Callable[[Awaitable[Any]], Any]
"""Waits for an asynchronous undo function."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rollback that somebody asks for.

    Args:
        user_id: who.
        source_id: the branch that is left.
        target: the row of the checkpoint to go to.
        label: how the user called it.
        tools: one of `TOOLS_MODES`.
        name: of the new branch; None for a free one.
        force: True to keep what stands in the way.
        on_error: one of `ON_ERROR`.
        request_id: the caller's own name for this rollback, unique in the session.
    """

    user_id: int
    source_id: int
    target: Found
    label: str
    tools: str = "reverse"
    name: str | None = None
    force: bool = False
    on_error: str = "stop"
    request_id: str | None = None


def wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for an asynchronous undo function, on an event loop of its own in a thread of its own.

    The caller may stand on a running loop, as every cell of a notebook does.
    """

    async def settled() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, settled()).result()


class Rollback:
    """The verb, on one store.

    Args:
        store: where.
        undos: the undo functions at hand.
        settle: waits for asynchronous ones.
    """

    def __init__(self, store: Store, undos: Undos, settle: Settle = wait) -> None:
        self.store = store
        self.undos = undos
        self.settle = settle

    # -- plan

    def plan(self, source_id: int, target: Found, label: str, tools: str) -> RollbackPlan:
        """Tell what a rollback would do, without doing anything.

        Args:
            source_id: the branch that would be left.
            target: the row of the checkpoint to go to.
            label: how the user called it.
            tools: one of `TOOLS_MODES`.

        Raises:
            InvalidInput: `tools` is no such mode.
        """
        self.store.recover_all(target.external_session_id)
        with self.store.database.reading() as connection:
            plan = self._plan(connection, source_id, target, label, tools)
            branch = self.store.sessions.branch(connection, target.internal_session_id)
            return replace(plan, replayed=self.store.track(connection, branch, target.position))

    def _plan(self, connection: Connection, source_id: int, target: Found, label: str, tools: str) -> RollbackPlan:
        """Decide about every effect that stands and is not on the path to the target."""
        if tools not in TOOLS_MODES:
            raise InvalidInput(f"tools={tools!r} means nothing; it can be {', '.join(TOOLS_MODES)}.")
        session_id = target.external_session_id
        branch = self.store.sessions.branch(connection, target.internal_session_id)
        path = self.store.parts(connection, branch, target.position)
        return make_plan(
            checkpoint_id=target.id,
            target=label,
            position=target.position,
            later=self.store.journal.standing(connection, session_id, path),
            gone=self.store.journal.gone(connection, path),
            accepted=self._accepted(connection, source_id),
            can_undo=lambda call: self.undos.missing(session_id, call),
            tools=tools,
        )

    def _accepted(self, connection: Connection, branch_id: int) -> set[int]:
        """Find the effects that the rollbacks on the way to a branch have kept: it lives with them."""
        line = self.store.sessions.lineage(connection, self.store.sessions.branch(connection, branch_id))
        made = self.store.operations.of_branches(connection, [segment.branch.id for segment in line])
        steps = [step for row in made for step in as_object(row.request)["steps"]]
        return {step["invocation"] for step in steps if step["action"] == KEEP}

    # -- the whole of it

    def run(self, request: Request) -> int:
        """Roll back; give the id of the new branch.

        Raises:
            RollbackBlocked: something that cannot be reversed stands in the way; nothing was done.
            RollbackIncomplete: a reversal failed; `resume` goes on.
            Conflict: the branch that is left is running.
        """
        if request.on_error not in ON_ERROR:
            raise InvalidInput(f"on_error={request.on_error!r} means nothing; it can be {', '.join(ON_ERROR)}.")
        if request.request_id is not None and not _fits(request.request_id):
            raise InvalidInput(f"request_id={request.request_id!r} must be a text of 1 to 64 characters.")
        self.store.recover_all(request.target.external_session_id)
        with owners.owner() as owner:
            begun, is_new = self.store.database.write(lambda c: self._begin(c, request, owner), durable=True)
            if is_new:
                return self._proceed(begun, owner)
        self.resume(begun)
        with self.store.database.reading() as connection:
            return int(self._operation(connection, begun).internal_session_id)

    def resume(self, operation_id: int) -> RollbackReport:
        """Finish a rollback that stopped half way or whose process died; done items are not done again.

        Raises:
            NotFound: there is no such operation.
            Conflict: it is being worked on.
            RollbackIncomplete: a reversal failed again.
        """
        with owners.owner() as owner:
            if self.store.database.write(lambda c: self._take(c, operation_id, owner), durable=True):
                self._proceed(operation_id, owner)
        return self._read_report(operation_id)

    def _read_report(self, operation_id: int) -> RollbackReport:
        with self.store.database.reading() as connection:
            return self.report(connection, self._operation(connection, operation_id))

    def _begin(self, connection: Connection, request: Request, owner: str) -> tuple[int, bool]:
        """Write down what is going to happen: the operation, and the branch that is not published yet."""
        target = request.target
        session_id = target.external_session_id
        if request.request_id is not None:
            earlier = self.store.operations.requested(connection, session_id, request.request_id)
            if earlier is not None:
                return self._same(earlier, request), False
        self._expect_quiet(connection, session_id)
        plan = self._plan(connection, request.source_id, target, request.label, request.tools)
        plan = self._admitted(plan, request.force)
        branch_id = self._branch(connection, target, request.name, request.source_id)
        begun = Begun(
            kind="rollback", session_id=session_id, user_id=request.user_id, source_id=request.source_id,
            target_id=target.id, branch_id=branch_id, request_id=request.request_id, owner=owner,
            request={
                "on_error": request.on_error,
                "tools": request.tools,
                "force": request.force,
                "steps": _steps(plan),
            },
        )  # fmt: skip
        return self.store.operations.begin(connection, begun), True

    def _expect_quiet(self, connection: Connection, session_id: int) -> None:
        """Make sure that nobody else is acting on the world of the session: no turn, and no other rollback."""
        for branch in self.store.sessions.branches(connection, session_id):
            if branch.status == RUNNING:
                raise Conflict(f"Branch {branch.name} is running. Wait for its turn to end, then roll back.")
        if going_on := self.store.operations.unfinished(connection, session_id, alive=True):
            raise Conflict(f"Rollback {going_on[0]} of this session is being done. Wait until it ends.")
        if dead := self.store.operations.unfinished(connection, session_id, alive=False):
            raise Conflict(
                f"Rollback {dead[0]} of this session was interrupted. First finish it: repo.resume({dead[0]})."
            )

    @staticmethod
    def _same(earlier: Found, request: Request) -> int:
        if earlier.target_id != request.target.id:
            raise InvalidInput(
                f"request_id {request.request_id!r} was used for a rollback to checkpoint {earlier.target_id}; "
                "take another one."
            )
        return int(earlier.id)

    @staticmethod
    def _admitted(plan: RollbackPlan, force: bool) -> RollbackPlan:
        if plan.is_admissible:
            return plan
        if not force:
            why = "; ".join(f"{step.invocation}: {step.why}" for step in plan.blockers)
            raise RollbackBlocked(
                f"Nothing was done. {why}. Choose a later checkpoint, or force=True to keep what cannot be reversed.",
                plan,
            )
        return plan.forced()

    def _branch(self, connection: Connection, target: Found, name: str | None, source_id: int) -> int:
        """Make the new branch with the state of its branch point, not to be used yet."""
        sessions, session_id = self.store.sessions, target.external_session_id
        source = sessions.branch(connection, source_id)
        branch_id = sessions.create_branch(
            connection,
            session_id,
            sessions.free_name(connection, session_id, name, source.name),
            status=REPLAYING,
            parent_id=target.internal_session_id,
            branch_point_id=target.id,
            inherited=target.position,
        )
        if target.graph_checkpoint_id is not None:
            thread_id = sessions.branch(connection, branch_id).thread_id
            self.store.graphs.fork(connection, target.thread_id, target.graph_checkpoint_id, thread_id)
        return branch_id

    def _take(self, connection: Connection, operation_id: int, owner: str) -> bool:
        """Take over an unfinished operation; what its last owner was reversing is unknown from now on."""
        row = self._operation(connection, operation_id)
        if row.status == operation.DONE:
            return False
        if owners.is_alive(row.owner) or not self.store.operations.take(connection, row, owner):
            raise Conflict(f"Operation {operation_id} is being worked on. Wait until it ends.")
        for invocation_id in self.store.journal.in_reversal(connection, row.external_session_id, row.owner):
            self.store.journal.move(
                connection, invocation_id, invocation.REVERSE_UNKNOWN, operation_id=operation_id,
                error="the process died during its reversal",
            )  # fmt: skip
        self._plan_again(connection, row)
        self.store.sessions.set_status(connection, row.internal_session_id, REPLAYING)
        return True

    def _plan_again(self, connection: Connection, row: Found) -> None:
        """Put what happened in the world since the rollback was planned in front of its steps: it is newer."""
        request = as_object(row.request)
        known = {step["invocation"] for step in request["steps"]}
        target = self.store.checkpoints.find(connection, CHECKPOINT.c.id == row.target_id)[0]
        plan = self._plan(connection, row.source_id, target, f"checkpoint {row.target_id}", request["tools"])
        since = replace(plan, steps=[step for step in plan.steps if step.invocation.id not in known])
        if since.steps:
            request["steps"] = [*_steps(self._admitted(since, request["force"])), *request["steps"]]
            self.store.operations.change(connection, row.id, request)

    def _operation(self, connection: Connection, operation_id: int) -> Found:
        row = self.store.operations.find(connection, operation_id)
        if row is None:
            raise NotFound(f"There is no operation {operation_id}. repo.operations() lists those of a session.")
        return row

    # -- reverse

    def _proceed(self, operation_id: int, owner: str) -> int:
        with self.store.database.reading() as connection:
            row = self._operation(connection, operation_id)
        request = as_object(row.request)
        for step in request["steps"]:
            if step["action"] != REVERSE:
                continue
            if not self._reverse(row, step["invocation"], owner) and request["on_error"] == "stop":
                break
        if self.store.database.write(lambda c: self._publish(c, operation_id), durable=True) != operation.DONE:
            report = self._read_report(operation_id)
            problems = "; ".join(map(str, report.failed or report.remaining))
            raise RollbackIncomplete(
                f"Rollback {operation_id} stopped half way: {problems}. The branch that was left is as before. Mend "
                f"the cause, then repo.resume({operation_id}); or reverse it by hand, tell so with "
                "repo.resolve(invocation, 'happened'), and resume.",
                operation=operation_id,
                report=report,
            )
        return int(row.internal_session_id)

    def _reverse(self, row: Found, invocation_id: int, owner: str) -> bool:
        """Run the undo of one invocation, unless that was done already; tell whether it is reversed now."""
        journal, write = self.store.journal, self.store.database.write
        with self.store.database.reading() as connection:
            call = journal.invocation(connection, invocation_id)
        if call is None or call.status in (invocation.REVERSED, invocation.REVERSE_UNKNOWN):
            return call is not None and call.status == invocation.REVERSED
        if self.undos.missing(row.external_session_id, call) is not None:
            return False
        undo = self.undos.find(row.external_session_id, call)
        try:
            write(lambda c: journal.move(c, call.id, invocation.REVERSING, owner=owner), durable=True)
        except Conflict:
            return False  # another rollback was faster; the report tells its status
        status, problem = invocation.REVERSED, None
        try:
            self._call(undo, call)
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises is journaled and reported
            status, problem = invocation.REVERSE_FAILED, f"{type(error).__name__}: {error}"
        write(lambda c: journal.move(c, call.id, status, operation_id=row.id, error=problem), durable=True)
        return problem is None

    def _call(self, undo: Undo, call: ToolInvocation) -> None:
        arguments = (call.args, call.result, call) if takes_invocation(undo) else (call.args, call.result)
        answer = undo(*arguments)
        if inspect.isawaitable(answer):
            self.settle(answer)

    # -- publish

    def _publish(self, connection: Connection, operation_id: int) -> str:
        """Make the new branch the current one, if everything was reversed; record the report in either case."""
        row, sessions = self._operation(connection, operation_id), self.store.sessions
        groups = self._outcome(connection, row)
        status = operation.PARTIAL if groups["failed"] or groups["remaining"] else operation.DONE
        if status == operation.DONE:
            session = sessions.one(connection, row.external_session_id)
            # A rollback that is finished later does not take the session away from where somebody has led it since.
            still_here = session.current_branch_id == row.source_id
            self.publish(connection, row.internal_session_id, row.user_id, current=still_here)
        else:
            sessions.set_status(connection, row.internal_session_id, PARTIAL)
        report = {
            group: [{"invocation": item.invocation.id, "reason": item.reason} for item in items]
            for group, items in groups.items()
        }
        self.store.operations.end(connection, operation_id, status, report)
        return status

    def publish(self, connection: Connection, branch_id: int, user_id: int, *, current: bool) -> None:
        """Open a branch that stands at its branch point.

        Args:
            branch_id: the branch.
            user_id: who asked for it.
            current: True to make the session continue on it.

        Raises:
            Corrupt: its state is not that of its branch point.
        """
        sessions = self.store.sessions
        branch = sessions.branch(connection, branch_id)
        point = self.store.checkpoints.one(connection, branch.branch_point_id)
        self.store.sure(connection, branch, point.state_hash)
        snapshot = Snapshot(
            graph_checkpoint_id=point.graph_checkpoint_id,
            state_hash=point.state_hash,
            position=point.position,
            message_count=point.message_count,
        )
        label = Label(kind="branch", user_id=user_id, description=point.name or point.description)
        self.store.checkpoints.add(connection, branch_id, snapshot, label)
        sessions.set_status(connection, branch_id, OPEN)
        if current:
            sessions.set_current(connection, branch.external_session_id, branch_id)

    def _outcome(self, connection: Connection, row: Found) -> dict[str, list[ReportItem]]:
        """Tell what became of each step from the journal itself."""
        groups: dict[str, list[ReportItem]] = {group: [] for group in GROUPS}
        for step in as_object(row.request)["steps"]:
            call = self.store.journal.invocation(connection, step["invocation"])
            assert call is not None, "an invocation is never deleted while an operation names it"  # noqa: S101
            settled = ("gone" if step["action"] == GONE else "kept", "")
            group, why = self._became(row, call) if step["action"] == REVERSE else settled
            groups[group].append(ReportItem(invocation=call, reason=why or step["why"]))
        return groups

    def _became(self, row: Found, call: ToolInvocation) -> tuple[str, str]:
        if call.status == invocation.REVERSED:
            return "reversed", ""
        if call.status == invocation.REVERSE_UNKNOWN:
            return "failed", f"it is unknown whether it was reversed ({call.error_message}); see repo.resolve"
        if call.status == invocation.REVERSE_FAILED:
            return "failed", f"its undo raised {call.error_message}"
        missing = self.undos.missing(row.external_session_id, call)
        return "remaining", missing or "not tried, because an earlier one failed"

    def report(self, connection: Connection, row: Found) -> RollbackReport:
        """Read the report of an operation that ended."""
        stored, groups = as_object(row.report), {}
        for group in GROUPS:
            items = [(self.store.journal.invocation(connection, i["invocation"]), i) for i in stored.get(group, [])]
            groups[group] = [ReportItem(invocation=call, reason=i["reason"]) for call, i in items if call is not None]
        branch = self.store.sessions.branch(connection, row.internal_session_id)
        replayed = self.store.track(connection, branch, branch.inherited)
        return RollbackReport(
            operation_id=row.id,
            status=row.status,
            checkpoint_id=row.target_id,
            branch=branch.name,
            replayed=[ReportItem(invocation=call, reason="replayed from the record") for call in replayed],
            **groups,
        )

    # -- fork

    def fork(self, connection: Connection, target: Found, name: str | None, source_id: int, user_id: int) -> int:
        """Make a branch at a checkpoint without touching the world; give its id."""
        branch_id = self._branch(connection, target, name, source_id)
        begun = Begun(
            kind="fork", session_id=target.external_session_id, user_id=user_id, source_id=source_id,
            target_id=target.id, branch_id=branch_id, request_id=None, owner="", request={"steps": []},
        )  # fmt: skip
        operation_id = self.store.operations.begin(connection, begun)
        self.publish(connection, branch_id, user_id, current=False)
        self.store.operations.end(connection, operation_id, operation.DONE, {})
        return branch_id


def _steps(plan: RollbackPlan) -> list[dict[str, Any]]:
    return [{"action": s.action, "why": s.why, "invocation": s.invocation.id} for s in plan.steps]


def _fits(request_id: Any) -> bool:
    return isinstance(request_id, str) and 0 < len(request_id) <= 64 and request_id.isprintable()
