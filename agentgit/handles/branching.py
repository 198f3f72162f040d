"""Creating checkpoints, tags and branches, and recovering abandoned branches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.auth.principal import EDITOR
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.queries import Tag, Tags
from agentgit.effects.files import SnapshotRef
from agentgit.errors import AgentGitError, Conflict, Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.handles.rollbacks import point_key
from agentgit.rollback.crash_recovery import mark_interrupted
from agentgit.sessions import InternalSession
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import note
from agentgit.store.maintenance import retention
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback
from agentgit.store.sql import process
from agentgit.store.sql.tables import CHECKPOINT


def recover(access: SessionAccess, branch: BranchRef, *, force: bool) -> InternalSession:
    """Recover a branch whose turn or rollback died.

    Args:
        access: The session.
        branch: The branch; None is the current one.
        force: True to recover it even if its process is alive on this machine.

    Raises:
        NotFound: There is no such branch.
        Conflict: Its process is alive on this machine; nothing was done.
    """
    context, store = access.context, access.context.store

    def take(connection: Connection) -> InternalSession:
        found = access.find(connection, EDITOR)
        store.sessions.lock(connection, found.id)
        row = context.lookup.branch(connection, found, branch)
        operations = [
            o for o in store.operations.running(connection, found.id).all() if o.internal_session_id == row.id
        ]
        if not force and any(map(process.is_here, [row.owner, *(one.owner for one in operations)])):
            raise Conflict(
                f"Branch {row.name} is running in a process on this machine. Wait until it ends, or end that "
                "process; force=True takes the branch from it."
            )
        store.journal.abandon(connection, row.id, row.owner)
        store.sessions.release(connection, row.id, row.owner)
        if row.status == RUNNING:
            note(connection, store.tenant_id, "turn.abandoned", branch_id=row.id, user_id=context.user.id)
        for operation in operations:
            mark_interrupted(store, connection, operation)
        return context.views.branch(connection, found, store.sessions.branch(connection, row.id))

    return context.change(take)


class Tagging(SessionAccess):
    """Adds, removes and lists the tags of a session."""

    def add(self, ref: CheckpointRef, name: str, branch: BranchRef, description: str | None) -> Tag:
        """Tag a checkpoint.

        Raises:
            InvalidInput, Conflict, NotFound, Ambiguous: As for `Session.tag`.
        """
        references.place_name(name, "tag")
        if description is not None and not isinstance(description, str):
            raise InvalidInput(f"description must be a string, not {description!r}.")
        store = self.context.store

        def give(connection: Connection) -> Tag:
            point = self.checkpoint(connection, ref, branch)
            self.context.authorize(connection, self.session_id)
            store.sessions.lock(connection, self.session_id)
            if not store.checkpoints.find(connection, CHECKPOINT.c.id == point.id):
                raise NotFound(f"Checkpoint {point.branch_name}#{point.number} has been deleted in the meantime.")
            if name in {row.name for row in store.sessions.branches(connection, self.session_id)}:
                raise Conflict(f"A branch is already called {name}. Choose another name.")
            return store.tags.add(connection, point, name, description, self.context.user.id)

        return self.context.change(give)

    def remove(self, name: str) -> Tag:
        """Remove a tag and return it.

        Raises:
            NotFound: The session has no such tag.
        """

        def take(connection: Connection) -> Tag:
            self.find(connection, EDITOR)
            tag = self.find_tag(connection, name)
            self.context.store.tags.remove(connection, self.session_id, name, self.context.user.id)
            return tag

        return self.context.change(take)

    def all(self) -> list[Tag]:
        """List the tags of the session, newest first."""
        return Tags(self.context.read(lambda c: self.context.store.tags.all(c, self.find(c).id)))

    def find_tag(self, connection: Connection, name: str) -> Tag:
        """Find a tag by its name.

        Raises:
            NotFound: The session has no such tag.
        """
        tags = self.context.store.tags
        found = tags.find(connection, self.session_id, references.place_name(name, "tag"))
        if found is None:
            names = [tag.name for tag in tags.all(connection, self.session_id)]
            raise NotFound(
                f"Session {self.find(connection).session_name} has no tag {name!r}. List them: session.tags(), or "
                "agentgit tag.",
                near=references.similar_names(name, names),
            )
        return found


class Branching(SessionAccess):
    """Creates checkpoints and branches at the current point of a branch. The world is not changed."""

    def take_snapshot(self, why: str) -> SnapshotRef | None:
        """Take a snapshot of the files in the session's workspace; return None if it has no workspace.

        Raises:
            Unavailable: The workspace is not available here, or its files cannot be saved.
        """
        try:
            return self.context.engine().files.take(self.session_id, why)
        except AgentGitError as error:
            raise Unavailable(
                f"Nothing was done. The session's files cannot be saved: {str(error).rstrip('.')}. To save the "
                "checkpoint without them, pass files=False."
            ) from error

    def save(self, branch_id: int, label: Label, files: SnapshotRef | None) -> Checkpoint:
        """Save the current point of a branch as a checkpoint.

        If the last turn stopped inside a batch of tool calls, the checkpoint is placed before that batch.

        Args:
            branch_id: The id of the branch.
            label: The label of the checkpoint.
            files: The snapshot of the files, taken before; None for none.

        Raises:
            Conflict: The branch is running.
        """

        def write(connection: Connection) -> tuple[StoredRow, int]:
            self.context.store.sessions.lock(connection, self._editable(connection, branch_id).external_session_id)
            row = self.context.store.recover(connection, self.context.store.sessions.branch(connection, branch_id))
            if row.status == RUNNING:
                raise Conflict(f"Branch {row.name} is running. Make the checkpoint when its turn has ended.")
            require_no_unfinished_rollback(row)
            point = self._current_point(connection, row, files)
            made = self._point(connection, self.context.store.checkpoints.add(connection, row.id, point, label))
            with suppress(Corrupt):  # damaged texts must not prevent the checkpoint
                self.context.store.texts.index_next(connection, row.id)
            return made, retention.apply_if_due(connection, self.context.store, row.external_session_id)

        made, thinned = self.context.store.database.write(write, durable=True)
        if thinned:
            self.context.engine().files.release()
        return self.context.views.checkpoint(made)

    def _editable(self, connection: Connection, branch_id: int) -> StoredRow:
        """Read a branch, after checking that the principal may still change the session."""
        row = self.context.store.sessions.branch(connection, branch_id)
        self.context.authorize(connection, row.external_session_id)
        return row

    def _point(self, connection: Connection, checkpoint_id: int) -> StoredRow:
        return self.context.store.checkpoints.by_id(connection, checkpoint_id)

    def _current_point(self, connection: Connection, row: StoredRow, files: SnapshotRef | None) -> Snapshot:
        """Return the current point of a branch, and record which files it has."""
        now = self.context.store.moment(connection, row).snapshot
        if files is None:
            return now
        return replace(now, workspace_snapshot_id=self.context.store.snapshots.record(connection, row, files))

    def fork(self, branch_id: int, to: CheckpointRef | None, name: str | None, files: SnapshotRef | None) -> int:
        """Create a branch from another one, and return its id.

        Args:
            branch_id: The id of the branch to fork.
            to: The checkpoint to fork from; None is the branch's current point.
            name: The name of the new branch; None for the next free one.
            files: The current files of the workspace, if `to` is None.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As for `Session.fork`.
        """

        def make(connection: Connection) -> int:
            left = self.context.store.sessions.branch(connection, branch_id)
            session = self.context.lookup.session(connection, left.external_session_id, EDITOR)
            self.context.store.sessions.lock(connection, session.id)
            if to is None:
                target = self.ensure_checkpoint(connection, branch_id, files)
            else:
                target = self.context.lookup.target(connection, session, left, to)[0]
            return self.context.engine().fork(connection, target, name, branch_id, self.context.user.id)

        return self.context.store.database.write(make, durable=True)

    def ensure_checkpoint(self, connection: Connection, branch_id: int, files: SnapshotRef | None) -> StoredRow:
        """Return a checkpoint of the current point of a branch; create one if needed.

        While the branch runs, return its head.

        Args:
            connection: A connection in a transaction that writes.
            branch_id: The id of the branch.
            files: The current files of the workspace; None if there are none.
        """
        row = self.context.store.recover(connection, self.context.store.sessions.branch(connection, branch_id))
        require_no_unfinished_rollback(row)
        head = self._point(connection, row.head_id) if row.head_id else None
        now = self._current_point(connection, row, files)
        if head is not None and (row.status == RUNNING or _is_at_head(head, now)):
            return head
        label = Label(kind="after", user_id=self.context.user.id)
        return self._point(connection, self.context.store.checkpoints.add(connection, row.id, now, label))


def _is_at_head(head: StoredRow, now: Snapshot) -> bool:
    """Return whether a branch is still at its head, with the same files."""
    same = head.graph_checkpoint_id == now.graph_checkpoint_id and point_key(head) == point_key(now)
    return same and now.workspace_snapshot_id in (None, head.workspace_snapshot_id)
