"""Forks: a new branch at a checkpoint, while the world stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
from agentgit.store.records.operations import NewOperation
from agentgit.store.records.sessions import StoredRow, require_real
from agentgit.store.records.workspace_snapshots import snapshot_ref_from_row
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.fork import CopiedState
from agentgit.values import as_object


class Fork(NamedTuple):
    """A branch that was just made, its operation, and the branch and checkpoint at which it begins."""

    head: BranchHead
    operation_id: int
    parent: StoredRow
    target: StoredRow


class Forks:
    """Makes forks. The session must be locked before the rows are read that a fork is given."""

    def __init__(self, store: Store, planner: Planner) -> None:
        self.store = store
        self.planner = planner

    def make(
        self,
        transaction: Writing,
        source: StoredRow,
        target: StoredRow,
        name: str | None,
        user_id: int,
        snapshot: SnapshotRef | None = None,
        meta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Fork:
        """Create a branch at a checkpoint; `source` is the branch from which that was asked for, as `find_branch`."""
        store, session_id, parent = self.store, target.external_session_id, source
        if target.internal_session_id != source.id:
            parent = store.sessions.require_branch(transaction, session_id, target.internal_session_id)
        require_real(parent)
        world_seen = self._world_seen(transaction, parent)
        if target.id == parent.head_id:
            meta = {**undelivered_notes(as_object(parent.meta)), **(meta or {})}
        branch = store.sessions.create_branch(
            transaction,
            session_id,
            store.sessions.choose_branch_name(transaction, session_id, name, source.name),
            meta=meta,
            head_id=new_id(),
            parent_id=parent.id,
            branch_point_id=target.id,
            inherited=target.position,
            world_seen=world_seen,
            searched=1,  # its first checkpoint has no text that its branch point has not
        )
        know_names(transaction, branch.id, source._replace(branch_name=branch.name))
        copied = self._copy_state(transaction, branch, target)
        operation_id = self._record(transaction, source.id, branch, parent, target, user_id, request_id)
        files_id = self._record_files(transaction, branch, snapshot)
        self._add_checkpoint(transaction, branch, target, copied, files_id, user_id)
        return Fork(BranchHead(branch, target.graph_checkpoint_id), operation_id, parent, target)

    def _world_seen(self, transaction: Reading, parent: StoredRow) -> int:
        """Return how much of the world log a fork has seen: all, or if the world has changed, what its parent has."""
        if parent.world_seq in (None, parent.world_seen):
            return int(parent.world_seen)
        is_unfinished = parent.status in (REPLAYING, PARTIAL)  # it has not seen what its own operation changed
        has_diverged = is_unfinished or self.planner.divergence(transaction, parent) is not None
        return int(parent.world_seen if has_diverged else parent.world_seq)

    def _copy_state(self, transaction: Writing, branch: Any, target: StoredRow) -> CopiedState:
        store, copied = self.store, CopiedState()
        if target.graph_checkpoint_id is not None:
            store.graphs.owners.add(branch.thread_id, branch.external_session_id)
            copied = store.graphs.fork(
                transaction, target.thread_id, target.graph_checkpoint_id, branch.thread_id, target.pending
            )
        store.require_state(branch, copied.state_hash, target.state_hash)
        return copied

    def _record(
        self,
        transaction: Writing,
        source_id: int,
        branch: Any,
        parent: StoredRow,
        target: StoredRow,
        user_id: int,
        request_id: str | None,
    ) -> int:
        accepted_ids = self.planner.accepted_ids(transaction, parent.id, only_done=True)
        new_operation = NewOperation(
            kind="fork",
            session_id=branch.external_session_id,
            user_id=user_id,
            source_id=source_id,
            target_id=target.id,
            branch_id=branch.id,
            request_id=request_id,
            request={"accepted": sorted(accepted_ids), "steps": []},
        )
        return self.store.operations.record_done(transaction, new_operation)

    def _record_files(self, transaction: Writing, branch: Any, snapshot: SnapshotRef | None) -> int | None:
        """Record the files of a new branch: those that are given, or the last ones of the session."""
        session_id, snapshots = branch.external_session_id, self.store.snapshots
        last = snapshots.newest_of_session(transaction, session_id)
        if last is None and snapshot is None:
            return None
        last_snapshot = snapshot_ref_from_row(last) if last is not None else None
        files, changed_by = (last_snapshot, TURN) if snapshot is None else (snapshot, STORED)
        assert files is not None  # noqa: S101  # one of the two is there
        files_id = snapshots.add(transaction, session_id, branch.id, files, changed_by)
        if snapshot is not None and last is not None and last_snapshot is not None:
            # The files on disk are still the last ones.
            snapshots.add(transaction, session_id, last.internal_session_id, last_snapshot)
        return files_id

    def _add_checkpoint(
        self,
        transaction: Writing,
        branch: Any,
        target: StoredRow,
        copied: CopiedState,
        files_id: int | None,
        user_id: int,
    ) -> None:
        state = CheckpointState(
            graph_checkpoint_id=target.graph_checkpoint_id,
            state_hash=target.state_hash,
            position=target.position,
            message_count=target.message_count,
            workspace_snapshot_id=files_id,
            pending=copied.pending,
        )
        description = target.name or target.description
        label = Label(kind="branch", user_id=user_id, description=description, id=branch.head_id)
        self.store.checkpoints.add(transaction, branch.id, state, label, last_number=0, moves_head=False)

    def report(self, transaction: Reading, fork: Fork) -> RollbackReport:
        """Return the report of a fork that was just made."""
        store, parent, position = self.store, fork.parent, fork.target.position
        session_id, branch = parent.external_session_id, fork.head.row
        track = []
        if position:
            own = TrackPart(branch_id=branch.id, before=position, count=0)
            runs = store.journal.newest_runs(transaction, session_id)
            parts = [*store.track_parts(transaction, parent, position), own]
            track = store.journal.live_track(transaction, runs, parts)
        is_own = parent.session_owner == self.planner.user_id
        return RollbackReport(
            operation_id=fork.operation_id,
            status=DONE,
            checkpoint_id=fork.target.id,
            branch=branch.name,
            kind="fork",
            session_name=parent.session_name if is_own else self.planner.name_session(transaction, session_id),
            replayed=[ReportItem(invocation=call, reason=REPLAYED) for call in track],
        )
