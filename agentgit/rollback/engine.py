"""The rollback engine: rollback, switch, and resuming of stopped operations.

Each step is on disk before the next one begins. `resume` can finish an operation that was killed at any point, and the
branch that was left is unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.files import FileChanges, SnapshotRef
from agentgit.effects.invocation import DECISIONS, REDO, SIMULATED
from agentgit.effects.registry import Registry
from agentgit.errors import InvalidInput, PlanChanged, RollbackBlocked, RollbackIncomplete, WorkspaceChanged
from agentgit.next_steps import Next, Reason
from agentgit.rollback.crash_recovery import owning, require_nothing_running
from agentgit.rollback.executor import Executor, RerunTrack
from agentgit.rollback.files import RollbackFiles, why_not_restored
from agentgit.rollback.finish import Finisher
from agentgit.rollback.planner import Planner
from agentgit.rollback.report import DRIFTED_BEFORE, Reports
from agentgit.rollback.request import ConfirmedPlan, Request, SwitchRequest
from agentgit.rollback.resume import Resumption
from agentgit.rollback.start import Authorize, StalePlan, Starter, filter_refusals, is_confirmed, plan_refused
from agentgit.rollback.verification import Awaiter, PlanFactory, Verification, wait
from agentgit.sessions.session import DONE
from agentgit.store.records.sessions import is_simulated, require_whole_rerun
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store
from agentgit.tracing import span

T = TypeVar("T")

RecordOperation = Callable[[dict[int, str], Writing], T]
"""A function that records an operation before its steps run, given the answers of the prechecks."""


class RollbackEngine:
    """Plans and runs rollbacks and switches on one store."""

    def __init__(
        self, store: Store, registry: Registry, awaiter: Awaiter = wait, *, user_id: int, authorize: Authorize
    ) -> None:
        self.store = store
        self.planner = Planner(store, registry, user_id)
        self.verification = Verification(store, registry, awaiter)
        self.executor = Executor(store, registry, awaiter, self.verification)
        self.reports = Reports(store, registry, self.executor, self.planner)
        self.resumption = Resumption(store, self.planner, self.executor, authorize)
        self.files = RollbackFiles(store, registry)
        self.starter = Starter(store, self.planner, self.files, authorize)
        rerun_track = RerunTrack(store, self.planner.path_calls, self.executor)
        self.finisher = Finisher(store, self.reports, self.resumption, self.files, rerun_track)

    # -- plan

    def plan(self, request: Request) -> RollbackPlan:
        """Return what a rollback would do, without doing anything."""
        target = request.target
        self.verification.verify_unsettled_calls(target.external_session_id)
        snapshot, overwrites = self._snapshot_to_restore(request), request.overwrites_files
        files = self.files.plan(target.external_session_id, snapshot, overwrites=overwrites)
        request = replace(request, why_files_stay=request.why_files_stay or why_not_restored(files))
        plan, _ = self.verification.plan_with_prechecks(
            lambda c, refusals: self.planner.plan_request(c, request, refusals)
        )
        plan = self.files.add_to_plan(plan, target.external_session_id, snapshot, files)
        with self.store.database.reading() as transaction:
            place = request.source_id, target.internal_session_id, target.position
            return self.planner.complete(transaction, plan, *place)

    def plan_switch(self, branch_id: int) -> RollbackPlan:
        """Return what a switch to a branch would do to the world, without doing anything."""
        with self.store.database.reading() as transaction:
            branch = self.store.sessions.branch(transaction, branch_id)
        require_whole_rerun(branch)
        self.verification.verify_unsettled_calls(branch.external_session_id)
        snapshot = self.files.of_branch(branch)
        files = self.files.plan(branch.external_session_id, snapshot)
        plan, _ = self.verification.plan_with_prechecks(
            lambda c, refusals: self.planner.plan_switch(c, branch, refusals, why_not_restored(files))
        )
        plan = self.files.add_to_plan(plan, branch.external_session_id, snapshot, files)
        with self.store.database.reading() as transaction:
            return self.planner.complete(transaction, plan, branch_id, branch_id)

    def _snapshot_to_restore(self, request: Request) -> SnapshotRef | None:
        """Return the files that a rollback restores; None if it leaves them alone or the target has none."""
        if isinstance(request.files, SnapshotRef):
            return request.files
        snapshot = self.files.of_checkpoint(request.target) if request.files else None
        if snapshot is None and not request.conversation and request.tools == "keep":
            raise InvalidInput(f"Nothing would be rolled back: {request.label} has no files.", Next("keep_files"))
        return snapshot

    def _plan_files(
        self, session_id: int, snapshot: SnapshotRef | None, request: Request | SwitchRequest
    ) -> FileChanges | None:
        """Return what restoring the files would do, and check that nothing is in its way."""
        try:
            return self.files.require_safe_restore(session_id, snapshot, request)
        except WorkspaceChanged as refusal:
            with self.store.database.reading() as transaction:
                require_nothing_running(self.store, transaction, session_id)
            if request.plan is not None:
                plan = self.plan(request) if isinstance(request, Request) else self.plan_switch(request.branch.id)
                if not is_confirmed(request.plan, plan):
                    raise plan_refused(plan, refusal) from None
            raise

    # -- run and resume

    def run(self, request: Request) -> int:
        """Roll back and return the id of the new branch, or of the source branch if the conversation stays."""
        with span("agentgit.rollback", **_span_attributes(request.target.external_session_id)):
            return self._run(request)

    def _run(self, request: Request) -> int:
        session_id, snapshot = request.target.external_session_id, self._snapshot_to_restore(request)
        with self.store.database.reading() as transaction:
            operation_id = self.starter.find_earlier(transaction, request, snapshot)
        if operation_id is None:
            self.verification.verify_unsettled_calls(session_id)
            files = self._plan_files(session_id, snapshot, request)
            request = replace(request, why_files_stay=request.why_files_stay or why_not_restored(files))
            found = self.files.take_found(session_id, snapshot, files)
            with owning(self.store, session_id) as owner:
                operation_id, is_new = self._precheck_and_record(
                    lambda c, refusals: self.planner.plan_request(c, request, refusals),
                    lambda answers, c: self.starter.record_rollback(c, request, owner, answers, snapshot, files, found),
                )
                if is_new:
                    return self._execute_and_publish(operation_id, owner)
        self.resume(operation_id, plan=request.plan)
        with self.store.database.reading() as transaction:
            return int(self.resumption.load_operation(transaction, operation_id).internal_session_id)

    def switch(self, request: SwitchRequest) -> int:
        """Switch to another branch, reconcile it with the world, and return the id of the operation."""
        with span(
            "agentgit.switch", **_span_attributes(request.branch.external_session_id), agentgit_sync=request.sync
        ):
            return self._switch(request)

    def _switch(self, request: SwitchRequest) -> int:
        self.verification.verify_unsettled_calls(request.branch.external_session_id)
        snapshot = self.files.of_branch(request.branch) if request.sync == "world" else None
        files = self._plan_files(request.branch.external_session_id, snapshot, request)
        found = self.files.take_found(request.branch.external_session_id, snapshot, files)
        with owning(self.store, request.branch.external_session_id) as owner:
            operation_id = self._precheck_and_record(
                lambda c, refusals: self.planner.plan_switch(c, request.branch, refusals, why_not_restored(files)),
                lambda answers, c: self.starter.record_switch(c, request, owner, answers, snapshot, files, found),
            )
            self._execute_and_publish(operation_id, owner)
        return operation_id

    def _precheck_and_record(self, create_plan: PlanFactory, record: RecordOperation[T]) -> T:
        """Run the prechecks of a plan, then record the operation. Retry if meanwhile there is more to reverse."""
        while True:
            _, precheck_answers = self.verification.plan_with_prechecks(create_plan)
            try:
                return self.store.database.write(functools.partial(record, precheck_answers), durable=True)
            except StalePlan:
                continue

    def resume(self, operation_id: int, *, force: bool = False, plan: ConfirmedPlan = None) -> RollbackReport:
        """Finish an operation that stopped half way or whose process died. Completed steps are not repeated."""
        with span("agentgit.resume", agentgit_operation_id=operation_id):
            self._resume(operation_id, force=force, plan=plan)
        return self.read_report(operation_id)

    def _resume(self, operation_id: int, *, force: bool, plan: ConfirmedPlan) -> None:
        with self.store.database.reading() as transaction:
            session_id = self.resumption.load_operation(transaction, operation_id).external_session_id
        with owning(self.store, session_id) as owner:
            row = self.store.database.write(lambda c: self.resumption.take_over(c, operation_id, owner), durable=True)
            if row is not None:
                self.verification.verify_unsettled_calls(row.external_session_id)
                _, precheck_answers = self.verification.plan_with_prechecks(
                    lambda c, refusals: self.resumption.plan_new_effects(c, row, refusals)
                )
                refusals, files = filter_refusals(precheck_answers), self.files.plan_changed_since(row, force=force)
                try:
                    self.store.database.write(
                        lambda c: self.resumption.add_new_steps(c, row, refusals, files, force=force, confirmed=plan)
                    )
                except (PlanChanged, RollbackBlocked):
                    self.store.database.write(lambda c: self.resumption.release(c, row))
                    raise
                self._execute_and_publish(operation_id, owner)

    def read_report(self, operation_id: int) -> RollbackReport:
        """Return the report of an operation."""
        with self.store.database.reading() as transaction:
            return self.reports.read(transaction, self.resumption.load_operation(transaction, operation_id))

    # -- execute and publish

    def _execute_and_publish(self, operation_id: int, owner: str) -> int:
        database = self.store.database
        with database.reading() as transaction:
            row = self.resumption.load_operation(transaction, operation_id)
        file_changes = self.files.restore(row) if self.executor.execute(row, owner) else None
        status = database.write(lambda c: self.finisher.end(c, operation_id, owner, file_changes), durable=True)
        if status != DONE:
            report = self.read_report(operation_id)
            unfinished = [item.invocation.first_id for item in (*report.failed, *report.remaining)]
            with database.reading() as transaction:
                calls = self.store.journal.invocations(transaction, unfinished)
                branch = self.store.sessions.branch(transaction, row.internal_session_id)
            is_forcible = not is_simulated(branch) or all(call.status != SIMULATED for call in calls.values())
            described = _describe_stop(report, is_forcible=is_forcible)
            raise RollbackIncomplete(
                f"{row.kind.capitalize()} {operation_id} stopped half way: {described.message}",
                *described.next,
                operation=operation_id,
                report=report,
            )
        return int(row.internal_session_id)


def _span_attributes(session_id: int) -> dict[str, Any]:
    return {"gen__ai_conversation_id": str(session_id)}


def _describe_stop(report: RollbackReport, *, is_forcible: bool) -> Reason:
    """Describe where an operation stopped, and how to go on."""
    resume, branch_status = Next("resume", operation=report.operation_id), "The previous branch is unchanged."
    if not report.failed and report.drifted and all(item.reason == DRIFTED_BEFORE for item in report.remaining):
        drifted = "; ".join(map(str, report.drifted))
        return Reason(f"{drifted}. {branch_status} If that is acceptable, it can be resumed.", resume)
    unfinished_items = report.failed or report.remaining
    calls = [item.invocation for item in unfinished_items if item.invocation.kind != REDO]  # a redo says it
    undecided = [Next("resolve_happened", call=call.id) for call in calls if call.status in DECISIONS][:1]
    forced = [Next("resume_forced", operation=report.operation_id)] if is_forcible else []
    items = [f"{item.invocation}: {Reason.of(item.reason).message}" for item in unfinished_items]
    problem = Reason.of(report.files.problem if report.files else "").message
    causes = "; ".join(one.removesuffix(".") for one in [*items, problem] if one)
    also = dict.fromkeys(step for item in unfinished_items for step in Reason.of(item.reason).next)
    unskippable = "" if is_forcible else " A simulated call cannot be skipped."
    text = f"{causes}. {branch_status}{unskippable} First fix the cause."
    return Reason(text, *also, *undecided, resume, *forced)
