"""Resuming of operations that stopped half way or whose process died."""

from __future__ import annotations

from typing import Any

from agentgit.effects import RollbackPlan
from agentgit.effects.plan import REDO, SWITCH
from agentgit.errors import Conflict, NotFound, RollbackBlocked
from agentgit.next_steps import Next
from agentgit.rollback.crash_recovery import recover_abandoned, require_idle
from agentgit.rollback.executor import Executor
from agentgit.rollback.planner import Planner, Refusals
from agentgit.rollback.start import Authorize
from agentgit.sessions.session import DONE, PARTIAL, REPLAYING
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.values import as_object


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
        self.store.operations.end(transaction, row.id, PARTIAL, as_object(row.report))

    def plan_new_effects(self, transaction: Reading, operation_id: int, refusals: Refusals) -> RollbackPlan:
        """Plan actions for what happened in the world since an operation was planned."""
        row = self.load_operation(transaction, operation_id)
        return self._plan_effects_since(transaction, row, as_object(row.request)["steps"], refusals)

    def add_new_steps(self, transaction: Writing, operation_id: int, refusals: Refusals, *, force: bool) -> None:
        """Add steps to an operation for what happened in the world since it was planned.

        New reversals come first, because their effects are newer. Calls that were reversed since run again at the end.
        """
        row = self.load_operation(transaction, operation_id)
        request = as_object(row.request)
        if request.get("sync") not in ("note", "ignore"):
            new_plan = self._plan_effects_since(transaction, row, request["steps"], refusals)
            if force or request["force"]:
                new_plan = new_plan.forced()
            if not new_plan.is_admissible:
                branch_id = row.internal_session_id if row.kind == SWITCH else row.source_id
                raise RollbackBlocked(
                    f"Nothing was done. Since this was planned: {new_plan.blocking_reasons}.",
                    *new_plan.next,
                    Next("resume_forced", operation=operation_id),
                    plan=self.planner.add_names(transaction, new_plan, branch_id),
                )
            steps = new_plan.as_request()
            other_steps = [step for step in steps if step["action"] != REDO]
            redo_steps = [step for step in steps if step["action"] == REDO]
            request["conflicts"] = [*request.get("conflicts", ()), *new_plan.conflict_ids()]
            request["steps"] = [*other_steps, *request["steps"], *redo_steps]
        if force:
            request |= {"on_error": "continue", "on_drift": "continue", "give_up": True}
        self.store.operations.set_request(transaction, row.id, request)

    def _plan_effects_since(
        self, transaction: Reading, row: StoredRow, steps: list[dict[str, Any]], refusals: Refusals
    ) -> RollbackPlan:
        """Plan actions for effects that are neither among the steps nor made by them."""
        known_ids = {step["invocation"] for step in steps}
        reruns = [
            self.executor.find_rerun(transaction, row, step["invocation"]) for step in steps if step["action"] == REDO
        ]
        known_ids |= {call.id for call in reruns if call is not None}
        return self.planner.replan(transaction, row, refusals).without(known_ids)
