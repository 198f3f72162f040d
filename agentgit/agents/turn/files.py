"""The files of a turn: snapshots at its start, before calls and at its end, and backups of what tools change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgit.effects import RollbackPlan
from agentgit.effects.files import TURN, FileChanges, SnapshotRef
from agentgit.errors import AgentGitError
from agentgit.rollback import Planner
from agentgit.rollback.files import RollbackFiles
from agentgit.rollback.workspace_adapter import WorkspaceAdapter
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.workspace_snapshots import snapshot_ref_from_row
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store

LOG = logging.getLogger("agentgit")


class TurnFiles:
    """The workspace files of one turn. Snapshots are taken while no transaction is open."""

    def __init__(
        self, store: Store, workspace: WorkspaceAdapter | None, session_id: int, branch_id: int, files: RollbackFiles
    ) -> None:
        self.store, self._files = store, files
        self.workspace = workspace if workspace is not None and workspace.is_automatic else None
        self.session_id, self.branch_id = session_id, branch_id
        self.last_snapshot: SnapshotRef | None = None
        """The files at the last snapshot; None if there is no workspace, or if the snapshot failed."""
        self._found: dict[int, SnapshotRef | None] = {}
        """The files that each batch of calls which may change them found."""
        self._restore_changes: FileChanges | None = None
        self._lock = threading.RLock()

    def begin(self, title: str | None) -> None:
        """Take a snapshot of the files as the turn finds them, and check whether another branch has changed them."""
        if self.workspace is None:
            return
        self._files.require_no_half_restore(self.session_id)
        self.last_snapshot = self.workspace.take_snapshot(f"before: {title}" if title else "before a turn")
        with self.store.database.reading() as transaction:
            branch = self.store.sessions.branch(transaction, self.branch_id)
            own_row = self.store.snapshots.newest_of_branch(transaction, branch)
            last_row = self.store.snapshots.newest_of_session(transaction, branch.external_session_id)
        if own_row is None or last_row is None or last_row.internal_session_id == own_row.internal_session_id:
            return  # the model should see what a person changed between two turns
        if snapshot_ref_from_row(last_row).is_imported:
            return  # no branch has changed anything here yet
        if own_row.snapshot not in (last_row.snapshot, self.last_snapshot.snapshot):
            self._restore_changes = self._files.plan(branch.external_session_id, snapshot_ref_from_row(own_row))

    def divergence(
        self, transaction: Reading, branch: StoredRow, planner: Planner, last_seq: int
    ) -> RollbackPlan | None:
        """Return the plan that would restore the world of a branch, files included; None if the world is unchanged."""
        # In most turns the log is as the branch left it, so there is no need to find out who extended it.
        plan = planner.divergence(transaction, branch) if last_seq != branch.world_seen else None
        file_changes = self._restore_changes
        if file_changes is None or not file_changes.is_needed:
            return plan
        return replace(plan or planner.plan_switch(transaction, branch), files=file_changes)

    def record_snapshot(
        self, transaction: Writing, branch: StoredRow, batch: int | None = None, changed_by: str = TURN
    ) -> int | None:
        """Record the newest files of the branch, or those that a batch has left, and return the id of the row."""
        later = [other for other in self._found if batch is not None and other > batch]
        snapshot = self._found[min(later)] if later else self.last_snapshot
        if snapshot is not None:
            return self.store.snapshots.record(transaction, branch, snapshot, changed_by)
        if self.workspace is not None:
            self.store.snapshots.record_crash(transaction, branch.external_session_id)
        return None

    def begin_batch(self, branch: StoredRow, batch: int) -> None:
        """Record the files that the first call of a batch finds."""
        with self._lock:
            if self.workspace is None or batch in self._found:
                return
            if self._found:  # else they are as the turn found them
                self.take_snapshot("before tools")
                self.store.database.write(lambda transaction: self.record_snapshot(transaction, branch))
            self._found[batch] = self.last_snapshot

    def back_up(self, tool_name: str, effect: str, args: Mapping[str, Any]) -> None:
        """Back up what a tool call is about to change, so that this call alone can be undone."""
        if self.workspace is not None:
            self.workspace.back_up(tool_name, effect, args)

    def take_snapshot(self, reason: str) -> None:
        """Take a snapshot during the turn or at its end; the turn is recorded even if that fails."""
        if self.workspace is None:
            return
        with self._lock:
            try:
                self.last_snapshot = self.workspace.take_snapshot(reason)
            except (AgentGitError, OSError) as error:
                LOG.warning("No snapshot of the files could be taken %s: %s", reason, error)
                self.last_snapshot = None
