"""The start of a rollback or a switch: the operation is recorded before any step runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentgit.effects import RollbackPlan
from agentgit.effects.files import FileChanges, SnapshotRef
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.errors import AgentGitError, Conflict, InvalidInput, PlanChanged, RollbackBlocked
from agentgit.next_steps import Next, Reason
from agentgit.rollback.crash_recovery import require_idle
from agentgit.rollback.files import FoundFiles, RollbackFiles, why_not_restored
from agentgit.rollback.planner import Planner, Refusals
from agentgit.rollback.report import at_switch, store_notes
from agentgit.rollback.request import ConfirmedPlan, Request, SwitchRequest
from agentgit.sessions.session import REPLAYING
from agentgit.store.queries.graph_points import moved_to
from agentgit.store.records.json_columns import read_meta, read_request
from agentgit.store.records.operations import NewOperation
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback, require_real, require_whole_rerun
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store

Authorize = Callable[[Reading, int], None]
"""A function that raises if the user may not change the session with this id."""


class StalePlan(Exception):
    """The plan has a new reversal whose precheck has not run; plan again."""


class Starter:
    """Records operations before they run."""

    def __init__(self, store: Store, planner: Planner, files: RollbackFiles, authorize: Authorize) -> None:
        self.authorize = authorize
        self.store = store
        self.planner = planner
        self.files = files

    def record_rollback(
        self,
        transaction: Writing,
        request: Request,
        owner: str,
        precheck_answers: dict[int, str],
        snapshot: SnapshotRef | None,
        files: FileChanges | None,
        found: FoundFiles | None,
    ) -> tuple[int, bool]:
        """Record a rollback and its branch, which is not published yet."""
        target = request.target
        session_id = target.external_session_id
        self.authorize(transaction, session_id)
        self.store.sessions.lock(transaction, session_id)
        if (earlier_id := self.find_earlier(transaction, request, snapshot)) is not None:
            return earlier_id, False
        require_idle(self.store, transaction, session_id)
        if request.epoch not in (None, self.store.sessions.branch(transaction, request.source_id).epoch):
            raise Conflict("The branch has run in the meantime. Nothing was done.")
        if request.only_from_current:
            self.store.sessions.require_current(transaction, session_id, request.source_id)
        self.store.checkpoints.require_exists(transaction, target, request.label)
        plan = self.planner.plan_request(transaction, request, filter_refusals(precheck_answers))
        self._require_prechecks(plan, precheck_answers)
        plan = self.files.add_to_plan(plan, session_id, snapshot, files)
        place = request.source_id, target.internal_session_id, target.position
        plan = self._require_admissible(transaction, plan, request, place, filter_refusals(precheck_answers))
        if request.conversation:
            branch_id = self._create_branch(transaction, target, request.name, request.source_id)
        else:
            branch_id = request.source_id
            require_no_unfinished_rollback(self.store.sessions.branch(transaction, branch_id))
            self.store.sessions.set_status(transaction, branch_id, REPLAYING)
        new_operation = NewOperation(
            kind=ROLLBACK,
            external_session_id=session_id,
            user_id=request.user_id,
            source_id=request.source_id,
            target_id=target.id,
            internal_session_id=branch_id,
            request_id=request.request_id,
            request={
                "tools": request.tools,
                "replay": request.replay,
                "point": moved_to(target),
                "undoes": request.undoes,
                "accepted": sorted(self.planner.accepted_ids(transaction, request.source_id)),
                **self._request_fields(transaction, session_id, request, snapshot, plan, found),
            },
        )
        return self.store.operations.begin(transaction, new_operation, owner), True

    def find_earlier(self, transaction: Reading, request: Request, snapshot: SnapshotRef | None) -> int | None:
        """Return the operation that was recorded for the same request before; None if there is none."""
        if request.request_id is None:
            return None
        session_id = request.target.external_session_id
        earlier = self.store.operations.find_by_request_id(transaction, session_id, request.request_id)
        return self._require_same_request(earlier, request, snapshot) if earlier is not None else None

    def record_switch(
        self,
        transaction: Writing,
        request: SwitchRequest,
        owner: str,
        precheck_answers: dict[int, str],
        snapshot: SnapshotRef | None,
        files: FileChanges | None,
        found: FoundFiles | None,
    ) -> int:
        """Record a switch, block its branch until the switch is done, and return the id of the operation."""
        self.authorize(transaction, request.branch.external_session_id)
        self.store.sessions.lock(transaction, request.branch.external_session_id)
        branch = self.store.sessions.branch(transaction, request.branch.id)
        require_idle(self.store, transaction, branch.external_session_id)
        require_no_unfinished_rollback(branch)
        if request.sync != "world":
            require_real(branch)
        require_whole_rerun(branch)
        if request.only_from_current:
            self.store.sessions.require_current(transaction, branch.external_session_id, request.source_id, branch.id)
        refusals = filter_refusals(precheck_answers)
        plan = self.planner.plan_switch(transaction, branch, refusals, why_not_restored(files))
        store_notes(self.store, transaction, branch, at_switch(read_meta(branch), plan, request.sync))
        if request.sync == "world":
            self._require_prechecks(plan, precheck_answers)
            plan = self.files.add_to_plan(plan, branch.external_session_id, snapshot, files)
            place = branch.id, branch.id, None
            plan = self._require_admissible(transaction, plan, request, place, refusals)
        else:
            plan = replace(plan, steps=[])
        self.store.sessions.set_status(transaction, branch.id, REPLAYING)
        new_operation = NewOperation(
            kind=SWITCH,
            external_session_id=branch.external_session_id,
            user_id=request.user_id,
            source_id=request.source_id,
            target_id=branch.head_id,
            internal_session_id=branch.id,
            request_id=None,
            request={
                "sync": request.sync,
                "seen": self.store.world.last_seq(transaction, branch.external_session_id),
                "current": request.current,
                **self._request_fields(transaction, branch.external_session_id, request, snapshot, plan, found),
            },
        )
        return self.store.operations.begin(transaction, new_operation, owner)

    def _request_fields(
        self,
        transaction: Writing,
        session_id: int,
        request: Request | SwitchRequest,
        snapshot: SnapshotRef | None,
        plan: RollbackPlan,
        found: FoundFiles | None,
    ) -> dict[str, Any]:
        overwrites, files = request.overwrites_files, plan.files
        problem = Reason.of(files.problem).message if files is not None else ""
        return {
            "on_error": request.on_error,
            "on_drift": request.on_drift,
            "force": request.force,
            "leaves_files": bool(problem),
            "files_left": problem if found is None else "",
            **self.files.request_fields(transaction, session_id, snapshot, plan, found, overwrites=overwrites),
            "conflicts": plan.conflict_ids(),
            "steps": plan.as_request(),
        }

    @staticmethod
    def _require_prechecks(plan: RollbackPlan, precheck_answers: dict[int, str]) -> None:
        if any(step.invocation.id not in precheck_answers for step in plan.reversals):
            raise StalePlan

    @staticmethod
    def _require_same_request(earlier_operation: StoredRow, request: Request, snapshot: SnapshotRef | None) -> int:
        earlier_request = read_request(earlier_operation)
        conversation = earlier_operation.internal_session_id != earlier_operation.source_id
        earlier_files = earlier_request.get("files")
        options = {"tools": request.tools, "replay": request.replay, "point": moved_to(request.target)}
        options["files"] = vars(snapshot) if snapshot else None
        place = earlier_operation.kind, earlier_operation.target_id, conversation
        is_same = all(earlier_request.get(name) == option for name, option in options.items())
        if not is_same or place != (ROLLBACK, request.target.id, request.conversation):
            raise InvalidInput(
                f"request_id {request.request_id!r} was used for a {earlier_operation.kind} to checkpoint "
                f"{earlier_operation.target_id} with other options "
                f"(tools: {earlier_request.get('tools')}, replay: {earlier_request.get('replay')}, "
                f"conversation: {'yes' if conversation else 'no'}, files: {'yes' if earlier_files else 'no'}); use "
                "another one."
            )
        return int(earlier_operation.id)

    def _require_admissible(
        self,
        transaction: Reading,
        plan: RollbackPlan,
        request: Request | SwitchRequest,
        place: tuple[int, int, int | None],
        refusals: Refusals,
    ) -> RollbackPlan:
        """Return what is to be done; raise if it is not what a person confirmed, or if it is blocked."""
        is_forcible = not plan.forced().blockers
        refusal = None
        if plan.blockers and not (request.force and is_forcible):
            nearest = (
                self.planner.find_nearest(transaction, request, refusals) if isinstance(request, Request) else None
            )
            hint = "" if nearest is None else f" The nearest checkpoint to roll back to is {_checkpoint_name(nearest)}."
            unskippable = "" if is_forcible else " A simulated call cannot be skipped."
            refusal = RollbackBlocked(
                f"Nothing was done. {plan.blocking_reasons}.{hint}{unskippable}",
                *plan.next,
                *([Next("force")] if is_forcible else []),
                plan=self.planner.complete(transaction, plan, *place),
                nearest=f"{nearest.branch_name}#{nearest.number}" if nearest is not None else None,
            )
        if request.plan is not None and not is_confirmed(request.plan, plan):
            plan = self.planner.complete(transaction, plan, *place)
            asked = plan.forced() if request.force else plan
            raise plan_refused(plan, refusal) if refusal is not None else plan_changed(asked)
        if refusal is not None:
            raise refusal
        return plan.forced() if plan.blockers else plan

    def _create_branch(self, transaction: Writing, target: StoredRow, name: str | None, source_id: int) -> int:
        """Create the new branch with the state of its branch point, not open yet, and return its id."""
        sessions, session_id = self.store.sessions, target.external_session_id
        branch = sessions.create_branch(
            transaction,
            session_id,
            sessions.choose_branch_name(transaction, session_id, name, sessions.branch(transaction, source_id).name),
            status=REPLAYING,
            parent_id=target.internal_session_id,
            branch_point_id=target.id,
            inherited=target.position,
        )
        if target.graph_checkpoint_id is not None:
            thread_id = branch.thread_id
            self.store.graphs.owners.add(thread_id, session_id)
            self.store.graphs.fork(transaction, target.thread_id, target.graph_checkpoint_id, thread_id, target.pending)
        return int(branch.id)


def is_confirmed(confirmed: ConfirmedPlan, plan: RollbackPlan) -> bool:
    """Return whether a plan is the one that a person confirmed."""
    return bool(plan.identity == getattr(confirmed, "identity", confirmed))


NOT_CONFIRMED = "Nothing was done: the confirmed plan is not what would be done now."


def plan_changed(plan: RollbackPlan, next: Next | None = None) -> PlanChanged:
    """Return the error for a confirmed plan that is not what would be done now."""
    return PlanChanged(NOT_CONFIRMED, next or Next("confirm"), plan=plan)


def plan_refused(plan: RollbackPlan, refusal: AgentGitError) -> PlanChanged:
    """Return the error for a confirmed plan in place of which one is refused now, with the way out of the refusal."""
    cause = refusal.message.removeprefix("Nothing was done. ")
    return PlanChanged(f"{NOT_CONFIRMED} {cause}", *refusal.next, plan=plan)


def filter_refusals(precheck_answers: dict[int, str]) -> dict[int, str]:
    """Return only the answers of prechecks that refuse a reversal."""
    return {id: reason for id, reason in precheck_answers.items() if reason}


def _checkpoint_name(row: StoredRow) -> str:
    reference = f"{row.branch_name}#{row.number}"
    return f"{row.name!r} ({reference})" if row.name else reference
