"""The end of a rollback, a switch or a fork: its branch is opened, and its report is recorded."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agentgit.effects.effects import READ_ONLY
from agentgit.effects.files import FileChanges, SnapshotRef
from agentgit.effects.plan import ANSWER, GONE, KEEP, REVERSE, ROLLBACK, SWITCH
from agentgit.effects.report import ReportItem
from agentgit.rollback import notes
from agentgit.rollback.executor import RerunTrack, stops_at
from agentgit.rollback.files import RollbackFiles
from agentgit.rollback.report import Reports
from agentgit.rollback.resume import Resumption
from agentgit.sessions import operation
from agentgit.sessions.session import OPEN, PARTIAL
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.values import as_object


class Finisher:
    """Publishes the results of operations.

    Args:
        store: The store of the database.
        reports: The reader of the outcome of each step.
        resumption: The reader of operations.
        files: The planner and restorer of workspace files.
        rerun_track: Puts calls that ran again on the track of their branch.
    """

    def __init__(
        self, store: Store, reports: Reports, resumption: Resumption, files: RollbackFiles, rerun_track: RerunTrack
    ) -> None:
        self.store = store
        self.reports = reports
        self.resumption = resumption
        self.files = files
        self.rerun_track = rerun_track

    def end(self, connection: Connection, operation_id: int, owner: str, files: FileChanges | None) -> str:
        """Publish the branch if all steps are done, record the report in any case, and return the status.

        Raises:
            Conflict: Another process has taken over the operation.
        """
        sessions = self.store.sessions
        sessions.lock(connection, self.resumption.find(connection, operation_id).external_session_id)
        self.store.operations.require_held(connection, operation_id, owner)
        row = self.resumption.find(connection, operation_id)
        groups, request = self.reports.outcome(connection, row), as_object(row.request)
        waits = request.get("files") is not None and (files is None or bool(files.problem))
        if request.get("give_up"):
            row, waits = self._skip_failed_steps(connection, row, groups), False
            groups = self.reports.outcome(connection, row)
        at = self.files.after(row, files)
        waits |= any(stops_at(row, item.invocation) for item in groups["drifted"])
        status = operation.PARTIAL if groups["failed"] or groups["remaining"] or waits else operation.DONE
        if status != operation.DONE:
            told = [item.invocation.id for item in groups["drifted"]]
            self.store.operations.set_request(connection, row.id, as_object(row.request) | {"told": told})
            sessions.set_status(connection, row.internal_session_id, PARTIAL)
        elif row.kind == ROLLBACK and row.internal_session_id != row.source_id:
            session = sessions.one(connection, row.external_session_id)
            # Somebody may have moved the session to another branch before a stopped rollback was resumed.
            still_here = session.current_branch_id == row.source_id
            self.branch(connection, row.internal_session_id, row.user_id, at, current=still_here, made_by=row)
        else:
            current = row.kind == SWITCH and request["current"]
            # With "note" and "ignore", the branch has seen the world only as it was when the switch began.
            seen = request.get("seen") if request.get("sync") in ("note", "ignore") else None
            self._open(connection, row.internal_session_id, at, current=current, seen=seen)
        if status == operation.DONE and groups["drifted"]:
            branch = sessions.branch(connection, row.internal_session_id)
            notes.store_notes(
                self.store, connection, branch, notes.after_drift(as_object(branch.meta), groups["drifted"])
            )
        report: dict[str, Any] = {
            group: [{"invocation": item.invocation.id, "reason": item.reason} for item in items]
            for group, items in groups.items()
        }
        report["files"] = files.to_dict() if files is not None else None
        self.store.operations.end(connection, operation_id, status, report)
        return status

    def _skip_failed_steps(
        self, connection: Connection, row: StoredRow, groups: dict[str, list[ReportItem]]
    ) -> StoredRow:
        """Replace the steps that could not be done by steps that leave the world unchanged."""
        undone = {item.invocation.id: item.reason for item in [*groups["failed"], *groups["remaining"]]}
        request = as_object(row.request)
        for step in request["steps"]:
            if step["invocation"] in undone:
                left = KEEP if step["action"] == REVERSE else self._left(connection, row, step["invocation"])
                step |= {"action": left, "why": f"forced: {undone[step['invocation']]}"}
        self.store.operations.set_request(connection, row.id, request)
        return self.resumption.find(connection, row.id)

    def _left(self, connection: Connection, row: StoredRow, invocation_id: int) -> str:
        """Return the action for a call that was to run again and did not; the record answers for an existing effect."""
        call = self.store.journal.invocations(connection, [invocation_id])[invocation_id]
        stands = call.effect == READ_ONLY or self.store.world.may_be_in_world(connection, call)
        return ANSWER if stands and self.rerun_track.is_of(row) else GONE

    def branch(
        self,
        connection: Connection,
        branch_id: int,
        user_id: int,
        at: SnapshotRef | None,
        *,
        current: bool,
        made_by: StoredRow | None = None,
    ) -> None:
        """Open a branch at its branch point, or at the state that its calls produced when they ran again.

        Args:
            connection: A connection in a transaction that writes.
            branch_id: The branch.
            user_id: The id of the user who asked for it.
            at: The current files of the branch; None if it has none.
            current: True to make it the session's current branch.
            made_by: The operation that created it; None for a fork.

        Raises:
            Corrupt: The state of the branch differs from the state of its branch point.
        """
        branch = self.store.sessions.branch(connection, branch_id)
        point = self.store.checkpoints.one(connection, branch.branch_point_id)
        self.store.verify_state(connection, branch, point.state_hash)
        state_hash, graph_checkpoint_id = point.state_hash, point.graph_checkpoint_id
        if made_by is not None and self.rerun_track.is_of(made_by):
            self.rerun_track.replace_calls(connection, made_by)
            head = self.store.graphs.head(connection, branch.thread_id)
            if head is not None:
                state_hash, graph_checkpoint_id = head.state_hash, head.checkpoint_id
        snapshot = Snapshot(
            graph_checkpoint_id=graph_checkpoint_id,
            state_hash=state_hash,
            position=point.position,
            message_count=point.message_count,
            workspace_snapshot_id=self.store.snapshots.record(connection, branch, at) if at is not None else None,
            pending=self.store.pending(connection, branch, point.graph_checkpoint_id),
        )
        label = Label(kind="branch", user_id=user_id, description=point.name or point.description)
        self.store.checkpoints.add(connection, branch_id, snapshot, label)
        self._open(connection, branch_id, at, current=current)

    def _open(
        self, connection: Connection, branch_id: int, at: SnapshotRef | None, *, current: bool, seen: int | None = None
    ) -> None:
        """Open a branch and record that it has seen the world log up to `seen`, or up to its end."""
        sessions = self.store.sessions
        branch = sessions.branch(connection, branch_id)
        if at is not None:
            self.store.snapshots.record(connection, branch, at)
        if seen is None:
            seen = self.store.world.last_seq(connection, branch.external_session_id)
        sessions.set_world_seen(connection, branch, seen)
        sessions.set_status(connection, branch_id, OPEN)
        if current:
            sessions.set_current(connection, branch.external_session_id, branch_id)
