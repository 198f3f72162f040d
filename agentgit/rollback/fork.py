"""Forks: a new branch at a checkpoint, while the world stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from agentgit.effects import RollbackReport
from agentgit.effects.files import STORED, TURN, SnapshotRef
from agentgit.effects.report import ReportItem
from agentgit.rollback.planner import Planner
from agentgit.rollback.report import REPLAYED, undelivered_notes
from agentgit.sessions.session import DONE, PARTIAL, REPLAYING
from agentgit.store.audit.trail import know_names
from agentgit.store.queries.graph_points import BranchHead
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.operations import NewOperation
from agentgit.store.records.sessions import StoredRow, require_real
from agentgit.store.records.workspace_snapshots import snapshot_ref_from_row
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.transaction import Writing
from agentgit.store.threads.fork import CopiedState


class Fork:
    """A fork of a session that is locked: from a branch that `find_branch` has read, at a checkpoint."""

    head: BranchHead
    operation_id: int

    def __init__(self, planner: Planner, transaction: Writing, source: StoredRow, target: StoredRow) -> None:
        self.store, self.planner, self.transaction = planner.store, planner, transaction
        self.source, self.target = source, target
        self.session_id: int = target.external_session_id
        self.parent = source
        if target.internal_session_id != source.id:
            self.parent = self.store.sessions.require_branch(transaction, self.session_id, target.internal_session_id)
        require_real(self.parent)

    def make(
        self,
        name: str | None,
        snapshot: SnapshotRef | None = None,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Self:
        """Create the branch."""
        sessions, transaction, target = self.store.sessions, self.transaction, self.target
        notes = undelivered_notes(read_meta(self.parent)) if target.id == self.parent.head_id else {}
        branch = sessions.create_branch(
            transaction,
            self.session_id,
            sessions.choose_branch_name(transaction, self.session_id, name, self.source.name),
            meta={**notes, **(meta or {})},
            head_id=new_id(),
            parent_id=self.parent.id,
            branch_point_id=target.id,
            inherited=target.position,
            world_seen=self._world_seen(),
            searched=1,  # its first checkpoint has no text that its branch point has not
        )
        self.head = BranchHead(branch, target.graph_checkpoint_id)
        know_names(transaction, branch.id, lambda: self.source._replace(branch_name=branch.name))
        copied = self._copy_state(branch)
        accepted_ids = self.planner.accepted_ids(transaction, self.parent.id, only_done=True)
        new_operation = NewOperation(
            kind="fork",
            external_session_id=self.session_id,
            user_id=self.planner.user_id,
            source_id=self.source.id,
            target_id=target.id,
            internal_session_id=branch.id,
            request_id=request_id,
            request={"accepted": sorted(accepted_ids), "steps": []},
        )
        self.operation_id = self.store.operations.record_done(transaction, new_operation)
        self._add_checkpoint(branch, copied, self._record_files(branch, snapshot))
        return self

    def _world_seen(self) -> int:
        """Return how much of the world log a fork has seen: all, or if the world has changed, what its parent has."""
        parent, last_seq = self.parent, self.parent.world_seq or 0
        if last_seq == parent.world_seen:
            return int(last_seq)
        is_unfinished = parent.status in (REPLAYING, PARTIAL)  # it has not seen what its own operation changed
        has_diverged = is_unfinished or self.planner.divergence(self.transaction, parent) is not None
        return int(parent.world_seen if has_diverged else last_seq)

    def _copy_state(self, branch: Any) -> CopiedState:
        graphs, target, copied = self.store.graphs, self.target, CopiedState()
        if target.graph_checkpoint_id is not None:
            graphs.owners.add(branch.thread_id, self.session_id)
            place = target.thread_id, target.graph_checkpoint_id, branch.thread_id
            copied = graphs.fork(self.transaction, *place, target.pending)
        self.store.require_state(branch, copied.state_hash, target.state_hash)
        return copied

    def _record_files(self, branch: Any, snapshot: SnapshotRef | None) -> int | None:
        """Record the files of the branch: those that are given, or the last ones of the session."""
        snapshots, place = self.store.snapshots, (self.transaction, self.session_id)
        last = snapshots.newest_of_session(*place)
        if snapshot is None:
            return snapshots.add(*place, branch.id, snapshot_ref_from_row(last), TURN) if last is not None else None
        files_id = snapshots.add(*place, branch.id, snapshot, STORED)
        if last is not None:  # the files on disk are still the last ones
            snapshots.add(*place, last.internal_session_id, snapshot_ref_from_row(last), TURN)
        return files_id

    def _add_checkpoint(self, branch: Any, copied: CopiedState, files_id: int | None) -> None:
        target = self.target
        state = CheckpointState(
            graph_checkpoint_id=target.graph_checkpoint_id,
            state_hash=target.state_hash,
            position=target.position,
            message_count=target.message_count,
            workspace_snapshot_id=files_id,
            pending=copied.pending,
        )
        description = target.name or target.description
        label = Label(kind="branch", user_id=self.planner.user_id, description=description, id=branch.head_id)
        self.store.checkpoints.add(self.transaction, branch.id, state, label, last_number=0, moves_head=False)

    def report(self) -> RollbackReport:
        """Return the report of the fork."""
        parent, position, branch, journal = self.parent, self.target.position, self.head.row, self.store.journal
        track = []
        if position:
            own = TrackPart(branch_id=branch.id, before=position, count=0)
            runs = journal.newest_runs(self.transaction, self.session_id)
            parts = [*self.store.track_parts(self.transaction, parent, position), own]
            track = journal.live_track(self.transaction, runs, parts)
        is_own = parent.session_owner == self.planner.user_id
        return RollbackReport(
            operation_id=self.operation_id,
            status=DONE,
            checkpoint_id=self.target.id,
            branch=branch.name,
            kind="fork",
            session_name=parent.session_name
            if is_own
            else self.planner.name_session(self.transaction, self.session_id),
            replayed=[ReportItem(invocation=call, reason=REPLAYED) for call in track],
        )
