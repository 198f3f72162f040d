"""The start of a rollback or a switch: the operation is recorded before any step runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan
from agentgit.effects.files import SnapshotRef
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.errors import InvalidInput, NotFound, RollbackBlocked
from agentgit.rollback import notes
from agentgit.rollback.crash_recovery import require_idle
from agentgit.rollback.files import RollbackFiles
from agentgit.rollback.planner import Planner, Refusals
from agentgit.rollback.request import Request, SwitchRequest
from agentgit.sessions.session import REPLAYING
from agentgit.store.records.operations import NewOperation
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Store
from agentgit.values import as_object

Authorize = Callable[[Connection, int], None]
"""A function that raises if the user may not change the session with this id."""


class Stale(Exception):
    """The plan has a new reversal whose precheck has not run; plan again."""


class Starter:
    """Records operations before they run.

    Args:
        store: The store of the database.
        planner: The planner of the operations.
        files: The planner and restorer of workspace files.
        admit: A function that refuses users without permission.
    """

    def __init__(self, store: Store, planner: Planner, files: RollbackFiles, admit: Authorize) -> None:
        self.admit = admit
        self.store = store
        self.planner = planner
        self.files = files

    def rollback(
        self,
        connection: Connection,
        request: Request,
        owner: str,
        precheck_answers: dict[int, str],
        files: SnapshotRef | None,
    ) -> tuple[int, bool]:
        """Record a rollback and its branch, which is not published yet.

        Returns:
            The id of the operation, and False if an earlier request with the same `request_id` recorded it.
        """
        target = request.target
        session_id = target.external_session_id
        self.admit(connection, session_id)
        self.store.sessions.lock(connection, session_id)
        if request.request_id is not None:
            earlier = self.store.operations.find_by_request_id(connection, session_id, request.request_id)
            if earlier is not None:
                return self._same(earlier, request, files), False
        require_idle(self.store, connection, session_id)
        self.require_checkpoint_exists(connection, target, request.label)
        plan = self.planner.plan_request(connection, request, refusals(precheck_answers))
        self._require_asked(plan, precheck_answers)
        plan = self._admitted(connection, plan, request, refusals(precheck_answers))
        if request.conversation:
            branch_id = self.branch(connection, target, request.name, request.source_id)
        else:
            branch_id = request.source_id
            require_no_unfinished_rollback(self.store.sessions.branch(connection, branch_id))
            self.store.sessions.set_status(connection, branch_id, REPLAYING)
        begun = NewOperation(
            kind=ROLLBACK,
            session_id=session_id,
            user_id=request.user_id,
            source_id=request.source_id,
            target_id=target.id,
            branch_id=branch_id,
            request_id=request.request_id,
            owner=owner,
            request={
                "on_error": request.on_error,
                "on_drift": request.on_drift,
                "tools": request.tools,
                "replay": request.replay,
                "force": request.force,
                "accepted": sorted(self.planner.accepted(connection, request.source_id)),
                **self.files.as_request(connection, session_id, files),
                "steps": plan.as_request(),
            },
        )
        return self.store.operations.begin(connection, begun), True

    def switch(
        self,
        connection: Connection,
        request: SwitchRequest,
        owner: str,
        precheck_answers: dict[int, str],
        files: SnapshotRef | None,
    ) -> int:
        """Record a switch, block its branch until the switch is done, and return the id of the operation."""
        self.admit(connection, request.branch.external_session_id)
        self.store.sessions.lock(connection, request.branch.external_session_id)
        branch = self.store.sessions.branch(connection, request.branch.id)
        require_idle(self.store, connection, branch.external_session_id)
        require_no_unfinished_rollback(branch)
        plan = self.planner.switch(connection, branch, refusals(precheck_answers))
        notes.store_notes(self.store, connection, branch, notes.at_switch(as_object(branch.meta), plan, request.sync))
        if request.sync == "world":
            self._require_asked(plan, precheck_answers)
            plan = self._admitted(connection, plan, request, refusals(precheck_answers))
        else:
            plan = replace(plan, steps=[])
        self.store.sessions.set_status(connection, branch.id, REPLAYING)
        begun = NewOperation(
            kind=SWITCH,
            session_id=branch.external_session_id,
            user_id=request.user_id,
            source_id=request.source_id,
            target_id=branch.head_id or 0,
            branch_id=branch.id,
            request_id=None,
            owner=owner,
            request={
                "sync": request.sync,
                "seen": self.store.world.last_seq(connection, branch.external_session_id),
                "current": request.current,
                "on_error": request.on_error,
                "on_drift": request.on_drift,
                "force": request.force,
                **self.files.as_request(connection, branch.external_session_id, files),
                "steps": plan.as_request(),
            },
        )
        return self.store.operations.begin(connection, begun)

    @staticmethod
    def _require_asked(plan: RollbackPlan, said: dict[int, str]) -> None:
        if any(step.invocation.id not in said for step in plan.reversals):
            raise Stale

    @staticmethod
    def _same(earlier: StoredRow, request: Request, files: SnapshotRef | None) -> int:
        asked = as_object(earlier.request)
        conversation, brought = earlier.internal_session_id != earlier.source_id, asked.get("files")
        was = (earlier.kind, earlier.target_id, conversation, asked.get("tools"), asked.get("replay"), brought)
        now = (request.target.id, request.conversation, request.tools, request.replay, vars(files) if files else None)
        if was != (ROLLBACK, *now):
            raise InvalidInput(
                f"request_id {request.request_id!r} was used for a {earlier.kind} to checkpoint {earlier.target_id} "
                f"with tools={asked.get('tools')!r}, files={brought is not None}, conversation={conversation}, "
                f"replay={asked.get('replay')!r}; use another one."
            )
        return int(earlier.id)

    def _admitted(
        self, connection: Connection, plan: RollbackPlan, request: Request | SwitchRequest, cannot: Refusals
    ) -> RollbackPlan:
        if plan.is_admissible:
            return plan
        if request.force:
            return plan.forced()
        why = "; ".join(f"{step.invocation}: {step.why}" for step in plan.blockers)
        near = self.planner.nearest(connection, request, cannot) if isinstance(request, Request) else None
        hint = "" if near is None else f" The nearest checkpoint to roll back to is {_called(near)}."
        raise RollbackBlocked(
            f"Nothing was done. {why}.{hint} force=True keeps what cannot be reversed.",
            plan,
            nearest=f"{near.branch_name}#{near.number}" if near is not None else None,
        )

    def require_checkpoint_exists(self, connection: Connection, target: StoredRow, label: str) -> None:
        """Check that a checkpoint still exists. The session is locked, so nobody else can delete it any more.

        Raises:
            NotFound: The checkpoint was deleted, by a person or by retention.
        """
        if not self.store.checkpoints.find(connection, CHECKPOINT.c.id == target.id):
            raise NotFound(f"Checkpoint {label} has been deleted. To list the others, run agentgit log.")

    def branch(self, connection: Connection, target: StoredRow, name: str | None, source_id: int) -> int:
        """Create the new branch with the state of its branch point, not open yet, and return its id."""
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
            self.store.graphs.fork(connection, target.thread_id, target.graph_checkpoint_id, thread_id, target.pending)
        return branch_id


def refusals(said: dict[int, str]) -> dict[int, str]:
    """Return only the answers of prechecks that refuse a reversal."""
    return {id: why for id, why in said.items() if why}


def _called(row: StoredRow) -> str:
    place = f"{row.branch_name}#{row.number}"
    return f"{row.name!r} ({place})" if row.name else place
