"""The files of a turn: a snapshot at its start, one at its end, and a backup of what each tool is about to change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan
from agentgit.effects.files import FileChanges, SnapshotRef, WorkspaceAdapter
from agentgit.errors import AgentGitError
from agentgit.rollback import Planner
from agentgit.rollback.files import not_done
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.workspace_snapshots import files_of
from agentgit.store.store import Store
from agentgit.values import escape_path

LOG = logging.getLogger("agentgit")


class TurnFiles:
    """The workspace files of one turn. Without a workspace the methods do nothing.

    Snapshots are taken while no transaction is open; `record_snapshot` only records which snapshot a branch has.

    Args:
        store: The store that records the snapshots.
        keeper: The workspace; None if none is attached.
        branch_id: The branch of the turn.
    """

    def __init__(self, store: Store, keeper: WorkspaceAdapter | None, branch_id: int) -> None:
        self.store = store
        self.keeper = keeper if keeper is not None and keeper.is_automatic else None
        self.branch_id = branch_id
        self.now: SnapshotRef | None = None
        """The files at the last snapshot; None if there is no workspace, or if the snapshot failed."""
        self._after: dict[int, SnapshotRef | None] = {}
        self._back: FileChanges | None = None
        self._lock = threading.Lock()

    def begin(self, title: str | None) -> None:
        """Take a snapshot of the files as the turn finds them, and check whether another branch has changed them.

        Raises:
            AgentGitError: The snapshot failed; nothing was run.
        """
        if self.keeper is None:
            return
        self.now = self.keeper.take(f"before: {title}" if title else "before a turn")
        with self.store.database.reading() as connection:
            branch = self.store.sessions.branch(connection, self.branch_id)
            own = self.store.snapshots.of_branch(connection, branch)
            last = self.store.snapshots.last(connection, branch.external_session_id)
        if own is None or last is None or last.internal_session_id == own.internal_session_id:
            return  # the model should see what a person changed between two turns
        if files_of(last).is_imported:
            return  # no branch has changed anything here yet
        if own.snapshot not in (last.snapshot, self.now.snapshot):
            self._back = self._plan_restore(self.keeper, files_of(own))

    @staticmethod
    def _plan_restore(keeper: WorkspaceAdapter, at: SnapshotRef) -> FileChanges:
        try:
            return keeper.plan(at)
        except AgentGitError as error:
            return not_done(at, error)

    def divergence(self, connection: Connection, branch: StoredRow, planner: Planner, last: int) -> RollbackPlan | None:
        """Return the plan that would restore the world of a branch, files included; None if the world is unchanged.

        Args:
            connection: An open connection; the transaction may be read-only.
            branch: The row of the branch.
            planner: The planner of its session.
            last: The length of the world log.
        """
        # In most turns the log is as the branch left it, so there is no need to find out who extended it.
        plan = planner.divergence(connection, branch) if last != branch.world_seen else None
        back = self._back
        if back is None or not back.is_needed:
            return plan
        return replace(plan or planner.switch(connection, branch), files=back)

    @staticmethod
    def changes(plan: RollbackPlan) -> list[str]:
        """Describe the files that a plan would restore: at most one text, with up to five paths or the problem."""
        back = plan.files
        return [] if back is None else [back.problem or ", ".join(escape_path(c.path) for c in back.changes[:5])]

    def record_snapshot(self, connection: Connection, branch: StoredRow, batch: int | None = None) -> int | None:
        """Record which files the branch has, and return the id of the row.

        Args:
            connection: A connection in a transaction that writes.
            branch: The row of the turn's branch.
            batch: The batch whose snapshot is recorded; None for the last snapshot.
        """
        files = self.now if batch is None else self._after.get(batch, self.now)
        return None if files is None else self.store.snapshots.record(connection, branch, files)

    def back_up(self, tool_name: str, args: Mapping[str, Any]) -> None:
        """Back up what a tool call is about to change, so that this call alone can be undone.

        Raises:
            AgentGitError: The backup failed; the tool is not run.
        """
        if self.keeper is not None:
            self.keeper.back_up(tool_name, args)

    def snapshot_batch(self, batch: int) -> None:
        """Take a snapshot after the calls of a batch, for a checkpoint that is made before the turn ends."""
        with self._lock:
            self._keep("after a tool")
            self._after[batch] = self.now

    def end(self) -> None:
        """Take a snapshot at the end of the turn; the turn is recorded even if the snapshot fails."""
        self._keep("after a turn")

    def _keep(self, why: str) -> None:
        if self.keeper is None:
            return
        try:
            self.now = self.keeper.take(why)
        except (AgentGitError, OSError) as error:
            LOG.warning("No snapshot of the files could be taken %s: %s", why, error)
            self.now = None
