"""Resuming of operations that stopped half way or whose process died."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentgit.effects import RollbackPlan
from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import REVERSED
from agentgit.effects.plan import REDO, REVERSE, SWITCH, WORLD_ONLY, PlanStep
from agentgit.errors import Conflict, NotFound, RollbackBlocked
from agentgit.next_steps import Next, Reason
from agentgit.rollback.crash_recovery import recover_abandoned, require_idle
from agentgit.rollback.executor import IN_THE_WORLD, Executor
from agentgit.rollback.planner import Planner, Refusals
from agentgit.rollback.request import ConfirmedPlan
from agentgit.rollback.start import Authorize, is_confirmed, plan_changed
from agentgit.sessions.session import DONE, PARTIAL, REPLAYING
from agentgit.store.records.json_columns import read_report, read_request
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.workspace_snapshots import snapshot_ref_from_row
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store


class Resumption:
    """Resumes operations."""

    def __init__(self, store: Store, planner: Planner, executor: Executor, authorize: Authorize) -> None:
        self.authorize = authorize
        self.store = store
        self.planner = planner
        self.executor = executor

    def load_operation(self, transaction: Reading, operation_id: int) -> StoredRow:
        """Read the row of an operation."""
        row = self.store.operations.find(transaction, operation_id)
        if row is None:
            raise NotFound(f"There is no operation {operation_id}.", Next("list_operations"))
        return row

    def take_over(self, transaction: Writing, operation_id: int, owner: str) -> StoredRow | None:
        """Take over a stopped operation and return its row; None if the operation is done."""
        session_id = self.load_operation(transaction, operation_id).external_session_id
        self.authorize(transaction, session_id)
        self.store.sessions.lock(transaction, session_id)
        if operation_id in recover_abandoned(self.store, transaction, session_id):
            raise Conflict(f"Operation {operation_id} is in progress. Wait until it ends.")
        row = self.load_operation(transaction, operation_id)
        if row.status == DONE:
            return None
        require_idle(self.store, transaction, session_id)
        self.store.operations.resume(transaction, operation_id, owner)
        self.store.sessions.set_status(transaction, row.internal_session_id, REPLAYING)
        return row

    def release(self, transaction: Writing, row: StoredRow) -> None:
        """Release an operation that was taken over but cannot continue."""
        self.store.sessions.set_status(transaction, row.internal_session_id, PARTIAL)
        self.store.operations.end(transaction, row.id, PARTIAL, read_report(row))

    def plan_new_effects(self, transaction: Reading, row: StoredRow, refusals: Refusals) -> RollbackPlan:
        """Plan actions for effects that are neither among the steps of an operation nor made by them."""
        steps = read_request(row)["steps"]
        reruns = [
            self.executor.find_rerun(transaction, row, step["invocation"]) for step in steps if step["action"] == REDO
        ]
        known_ids = {step["invocation"] for step in steps} | {call.id for call in reruns if call is not None}
        plan = self.planner.replan(transaction, row, refusals).without(known_ids)
        is_world_only = row.kind != SWITCH and row.internal_session_id == row.source_id
        return replace(plan, kind=WORLD_ONLY) if is_world_only else plan

    def add_new_steps(
        self,
        transaction: Writing,
        row: StoredRow,
        refusals: Refusals,
        files: FileChanges | None,
        *,
        force: bool,
        confirmed: ConfirmedPlan,
    ) -> None:
        """Add steps to an operation for what happened in the world since it was planned, if a person confirmed them.

        New reversals come first, because their effects are newer. Calls that were reversed since run again at the end.
        `files` are what it would do to files that were changed since; None if there are none.
        """
        request = read_request(row)
        if request.get("sync") not in ("note", "ignore"):
            new_plan = replace(self.plan_new_effects(transaction, row, refusals), files=files)
            if force or request["force"]:
                new_plan = new_plan.forced()
            branch_id = row.internal_session_id if row.kind == SWITCH else row.source_id
            if not new_plan.is_admissible:
                raise RollbackBlocked(
                    f"Nothing was done. Since this was planned: {new_plan.blocking_reasons}.",
                    *new_plan.next,
                    Next("resume_forced", operation=row.id),
                    plan=self.planner.add_names(transaction, new_plan, branch_id),
                )
            steps = new_plan.as_request()
            other_steps = [step for step in steps if step["action"] != REDO]
            redo_steps = [step for step in steps if step["action"] == REDO]
            request["conflicts"] = [*request.get("conflicts", ()), *new_plan.conflict_ids()]
            request["steps"] = [*other_steps, *request["steps"], *redo_steps]
            if (files is not None and files.is_needed) or new_plan.reversals or new_plan.redos:
                newest = self.store.snapshots.newest_of_session(transaction, row.external_session_id)
                request["files_known"] = vars(snapshot_ref_from_row(newest)) if newest is not None else None
                world = self.planner.world_state(transaction, row.external_session_id)
                basis = {"operation": row.id, "world": world, "files": newest and newest.id}
                plan = replace(new_plan, steps=self._open_steps(transaction, row, request["steps"]), basis=basis)
                if not is_confirmed(confirmed, plan):
                    place = branch_id, row.internal_session_id, plan.position
                    completed = self.planner.complete(transaction, plan, *place)
                    raise plan_changed(completed, Next("resume_planned", operation=row.id))
        if force:
            request |= {"on_error": "continue", "on_drift": "continue", "give_up": True}
        self.store.operations.set_request(transaction, row.id, request)

    def _open_steps(self, transaction: Reading, row: StoredRow, steps: list[dict[str, Any]]) -> list[PlanStep]:
        """Return the steps of an operation that are not done yet."""
        calls, open_steps = self.store.journal.invocations(transaction, [step["invocation"] for step in steps]), []
        for step in steps:
            call = calls[step["invocation"]]
            rerun = self.executor.find_rerun(transaction, row, call.id) if step["action"] == REDO else None
            is_reversed = step["action"] == REVERSE and call.status == REVERSED
            if not is_reversed and (rerun is None or rerun.status not in IN_THE_WORLD):
                why = Reason.from_dict(step, "why")
                open_steps.append(PlanStep(action=step["action"], invocation=call, why=why))
        return open_steps
