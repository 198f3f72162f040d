"""The files of a turn: a snapshot where it begins, one where it ends, and what each tool is about to change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan
from agentgit.effects.files import FileChanges, FilesAt, Keeper
from agentgit.errors import AgentGitError
from agentgit.rollback import Planner
from agentgit.rollback.files import not_done
from agentgit.store.records.sessions import Found
from agentgit.store.records.workspace_snapshots import files_of
from agentgit.store.store import Store
from agentgit.values import shown

LOG = logging.getLogger("agentgit")


class TurnFiles:
    """The files of one turn; of a session without a workspace there are none, and nothing is done.

    Snapshots are taken while no transaction is open; `see` only writes down which one it was.

    Args:
        store: The store that records it.
        keeper: The workspace; None if none is attached.
        branch_id: The branch of the turn.
    """

    def __init__(self, store: Store, keeper: Keeper | None, branch_id: int) -> None:
        self.store = store
        self.keeper = keeper if keeper is not None and keeper.is_automatic else None
        self.branch_id = branch_id
        self.now: FilesAt | None = None
        """The files as they were last kept; None if there is no workspace, or if they could not be kept."""
        self._after: dict[int, FilesAt | None] = {}
        self._back: FileChanges | None = None
        self._lock = threading.Lock()

    def begin(self, title: str | None) -> None:
        """Keep the files as the turn finds them, and look whether another branch has changed them.

        Raises:
            AgentGitError: They cannot be kept; nothing was run.
        """
        if self.keeper is None:
            return
        self.now = self.keeper.take(f"before: {title}" if title else "before a turn")
        with self.store.database.reading() as connection:
            branch = self.store.sessions.branch(connection, self.branch_id)
            own = self.store.snapshots.of_branch(connection, branch)
            last = self.store.snapshots.last(connection, branch.external_session_id)
        if own is None or last is None or last.internal_session_id == own.internal_session_id:
            return  # what a person changes between two turns is for the model to see
        if files_of(last).is_imported:
            return  # no branch has changed anything here yet
        if own.snapshot not in (last.snapshot, self.now.snapshot):
            self._back = self._way_back(self.keeper, files_of(own))

    @staticmethod
    def _way_back(keeper: Keeper, at: FilesAt) -> FileChanges:
        try:
            return keeper.plan(at)
        except AgentGitError as error:
            return not_done(at, error)

    def divergence(self, connection: Connection, branch: Found, planner: Planner, last: int) -> RollbackPlan | None:
        """Return what would bring the world back to a branch, files and all; None if it is as the branch left it.

        Args:
            connection: An open connection; the transaction may be read-only.
            branch: The row of the branch.
            planner: The planner of its session.
            last: The length of the world log.
        """
        # Most turns find the log as their branch left it, and need not look who made it longer.
        plan = planner.divergence(connection, branch) if last != branch.world_seen else None
        back = self._back
        if back is None or not back.is_needed:
            return plan
        return replace(plan or planner.switch(connection, branch), files=back)

    @staticmethod
    def changes(plan: RollbackPlan) -> list[str]:
        """List the files that a plan would bring back."""
        back = plan.files
        return [] if back is None else [back.problem or ", ".join(shown(c.path) for c in back.changes[:5])]

    def see(self, connection: Connection, branch: Found, batch: int | None = None) -> int | None:
        """Write down which files the branch has; give the id of the row.

        Args:
            connection: A connection in a transaction that writes.
            branch: The row of the turn's branch.
            batch: The files are those that its calls left; None for those that were kept last.
        """
        files = self.now if batch is None else self._after.get(batch, self.now)
        return None if files is None else self.store.snapshots.see(connection, branch, files)

    def before(self, tool_name: str, args: Mapping[str, Any]) -> None:
        """Keep what a tool call is about to change, so that it alone can be undone.

        Raises:
            AgentGitError: It cannot be kept; the tool is not run.
        """
        if self.keeper is not None:
            self.keeper.before(tool_name, args)

    def after(self, batch: int) -> None:
        """Keep the files as the calls of a batch left them, for a checkpoint that is made before the turn ends."""
        with self._lock:
            self._keep("after a tool")
            self._after[batch] = self.now

    def end(self) -> None:
        """Keep the files as the turn leaves them; what the turn did is recorded also if that fails."""
        self._keep("after a turn")

    def _keep(self, why: str) -> None:
        if self.keeper is None:
            return
        try:
            self.now = self.keeper.take(why)
        except (AgentGitError, OSError) as error:
            LOG.warning("No snapshot of the files could be taken %s: %s", why, error)
            self.now = None
