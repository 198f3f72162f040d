"""Saving the point where a branch stands, and making branches there, without a graph."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR
from agentgit.checkpoints import Checkpoint
from agentgit.effects.files import FilesAt
from agentgit.errors import AgentGitError, Conflict, Corrupt, Unavailable
from agentgit.handles.context import SessionAccess
from agentgit.handles.rollbacks import where
from agentgit.sessions.session import RUNNING
from agentgit.store.maintenance import retention
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.records.sessions import Found, require_whole


class Branching(SessionAccess):
    """Checkpoints and branches that are made where a branch of a session stands. The world stays as it is."""

    def files(self, why: str) -> FilesAt | None:
        """Keep the files of the session's workspace as they are now; None if it has none.

        Raises:
            Unavailable: The workspace is not here, or its files cannot be kept.
        """
        try:
            return self.context.engine().files.take(self.session_id, why)
        except AgentGitError as error:
            raise Unavailable(
                f"Nothing was done. The files of the session cannot be kept: {str(error).rstrip('.')}. With "
                "files=False the point is saved without them."
            ) from error

    def save(self, branch_id: int, label: Label, files: FilesAt | None) -> Checkpoint:
        """Save the point where a branch stands; what it keeps of files was taken before.

        If its last turn broke off inside a batch of tool calls, the point is before that batch.

        Args:
            branch_id: The id of the branch.
            label: The label of the checkpoint.
            files: Those that it keeps.

        Raises:
            Conflict: The branch is running.
        """

        def write(connection: Connection) -> tuple[Found, int]:
            self.context.store.sessions.lock(connection, self._editable(connection, branch_id).external_session_id)
            row = self.context.store.recover(connection, self.context.store.sessions.branch(connection, branch_id))
            if row.status == RUNNING:
                raise Conflict(f"Branch {row.name} is running. Make the checkpoint when its turn has ended.")
            require_whole(row)
            point = self._standing(connection, row, files)
            made = self._point(connection, self.context.store.checkpoints.add(connection, row.id, point, label))
            with suppress(Corrupt):  # what is damaged is no reason to lose this point
                self.context.store.texts.follow(connection, row.id)
            return made, retention.automatic(connection, self.context.store, row.external_session_id)

        made, thinned = self.context.store.database.write(write, durable=True)
        if thinned:
            self.context.engine().files.release()
        return self.context.views.checkpoint(made)

    def _editable(self, connection: Connection, branch_id: int) -> Found:
        """Read a branch, if the principal still may change the session."""
        row = self.context.store.sessions.branch(connection, branch_id)
        self.context.authorize(connection, row.external_session_id)
        return row

    def _point(self, connection: Connection, checkpoint_id: int) -> Found:
        return self.context.store.checkpoints.by_id(connection, checkpoint_id)

    def _standing(self, connection: Connection, row: Found, files: FilesAt | None) -> Snapshot:
        """Return where a branch stands, and write down which files it has."""
        now = self.context.store.moment(connection, row).snapshot
        if files is None:
            return now
        return replace(now, workspace_snapshot_id=self.context.store.snapshots.see(connection, row, files))

    def fork(self, branch_id: int, to: CheckpointRef | None, name: str | None, files: FilesAt | None) -> int:
        """Make a branch that leaves from another one; return its id.

        Args:
            branch_id: The id of the branch that is left.
            to: The point; None is where it stands now.
            name: The name of the new branch; None for a free one.
            files: Those of the workspace now, where it leaves from now.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `Session.fork`.
        """

        def make(connection: Connection) -> int:
            left = self.context.store.sessions.branch(connection, branch_id)
            session = self.context.lookup.session(connection, left.external_session_id, EDITOR)
            self.context.store.sessions.lock(connection, session.id)
            if to is None:
                target = self.here(connection, branch_id, files)
            else:
                target = self.context.lookup.target(connection, session, left, to)[0]
            return self.context.engine().fork(connection, target, name, branch_id, self.context.user.id)

        return self.context.store.database.write(make, durable=True)

    def here(self, connection: Connection, branch_id: int, files: FilesAt | None) -> Found:
        """Return the checkpoint where a branch stands, making one if there is none; while it runs, its head.

        Args:
            connection: A connection in a transaction that writes.
            branch_id: The id of the branch.
            files: Those of the workspace now; None if there are none.
        """
        row = self.context.store.recover(connection, self.context.store.sessions.branch(connection, branch_id))
        require_whole(row)
        head = self._point(connection, row.head_id) if row.head_id else None
        now = self._standing(connection, row, files)
        if head is not None and (row.status == RUNNING or _stands_at(head, now)):
            return head
        label = Label(kind="after", user_id=self.context.user.id)
        return self._point(connection, self.context.store.checkpoints.add(connection, row.id, now, label))


def _stands_at(head: Found, now: Snapshot) -> bool:
    """Return whether a branch stands where its head was made, with the same files."""
    same = head.graph_checkpoint_id == now.graph_checkpoint_id and where(head) == where(now)
    return same and now.workspace_snapshot_id in (None, head.workspace_snapshot_id)
