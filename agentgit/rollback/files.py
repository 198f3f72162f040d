"""Planning and restoring the files of a session's workspace in rollbacks and switches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select

from agentgit.checkpoints import Checkpoint
from agentgit.effects import RollbackPlan
from agentgit.effects.files import OVERWRITTEN, FileChange, FileChanges, SnapshotRef, WorkspaceAdapter
from agentgit.effects.plan import SWITCH
from agentgit.effects.registry import Registry
from agentgit.errors import AgentGitError, Unavailable, WorkspaceChanged
from agentgit.rollback.workspace_adapter import reopen
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.workspace_snapshots import files_of
from agentgit.store.store import Store
from agentgit.values import as_object, escape_path


class RollbackFiles:
    """Plans changes to the workspace files of sessions, and restores the files.

    Args:
        store: The store, which records the snapshot of each moment.
        registry: The registry of the workspaces that are attached in this process.
    """

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    def of_checkpoint(self, target: StoredRow) -> SnapshotRef | None:
        """Return the files at a checkpoint; None if it has none."""
        with self.store.database.reading() as connection:
            return self.store.snapshots.of_checkpoint(connection, target)

    def take(self, session_id: int, why: str) -> SnapshotRef | None:
        """Take a snapshot of the current files of a session; None if it has no files here.

        Raises:
            AgentGitError: The workspace cannot be read.
        """
        with self.store.database.reading() as connection:
            last = self.store.snapshots.last(connection, session_id)
        at = files_of(last) if last is not None else None
        return None if at is None or at.is_imported else self._keeper(session_id, at).take(why)

    def of_branch(self, branch: StoredRow) -> SnapshotRef | None:
        """Return the files that were last recorded for a branch; None if it has none."""
        with self.store.database.reading() as connection:
            row = self.store.snapshots.of_branch(connection, branch)
        return files_of(row) if row is not None else None

    def planned(self, plan: RollbackPlan, session_id: int, at: SnapshotRef | None) -> RollbackPlan:
        """Add the planned changes to the files to a plan."""
        return replace(plan, files=self.plan(session_id, at)) if at is not None else plan

    def plan(self, session_id: int, at: SnapshotRef) -> FileChanges:
        """Return what restoring the files would do, without doing anything."""
        with self.store.database.reading() as connection:
            last = self.store.snapshots.last(connection, session_id)
        try:
            return self._keeper(session_id, at).plan(at, files_of(last) if last is not None else None)
        except AgentGitError as error:
            return not_done(at, error)

    def require_own(self, session_id: int, at: SnapshotRef | None) -> None:
        """Check that the files can be restored and that nobody else has changed them.

        Raises:
            WorkspaceChanged: Somebody else has changed them; nothing was done.
            Unavailable: The workspace or the snapshot is missing; nothing was done.
        """
        if at is None:
            return
        try:
            self._keeper(session_id, at).require_restorable(at)
        except AgentGitError as error:
            raise Unavailable(
                f"Nothing was done. The files cannot be restored: {str(error).rstrip('.')}. To keep them, pass "
                "files=False, or sync='ignore' for a switch."
            ) from error
        changes = self.plan(session_id, at)
        if changes.conflicts:
            several = ", ".join(map(escape_path, changes.conflicts[:5])) + (", …" if len(changes.conflicts) > 5 else "")
            raise WorkspaceChanged(
                f"Nothing was done. Since this session last looked at {changes.workspace}, somebody else "
                f"(or a turn that was killed) has changed {several}. force=True restores the files anyway and "
                "keeps the changes in a snapshot."
            )

    def restore(self, row: StoredRow) -> FileChanges | None:
        """Restore the files that an operation leads to; None if it leaves them alone. Idempotent.

        Args:
            row: The row of the operation.
        """
        wanted = as_object(row.request).get("files")
        if wanted is None:
            return None
        at, known = SnapshotRef(**wanted), as_object(row.request).get("files_known")
        try:
            done = self._keeper(row.external_session_id, at).restore(
                at, SnapshotRef(**known) if known is not None else None
            )
            return replace(done, changes=[*done.changes, *self._overwritten_before(row)])
        except (AgentGitError, OSError) as error:
            return not_done(at, error)

    def _overwritten_before(self, row: StoredRow) -> list[FileChange]:
        """List what was overwritten by the rollback that a switch undoes; only its safety snapshot has that."""
        if row.kind != SWITCH:
            return []
        with self.store.database.reading() as connection:
            left = self.store.operations.left_by_rollback(connection, row.internal_session_id, row.id)
        files = as_object(left.report).get("files") if left is not None else None
        changes = FileChanges.from_dict(files).changes if files else []
        return [change for change in changes if change.action == OVERWRITTEN]

    def diff(self, a: Checkpoint, b: Checkpoint) -> dict[str, Any]:
        """Compare the files of two checkpoints; return the fields of a `Diff` by name, or `{}` if one has no files."""
        ids = [one.metadata.get("workspace_snapshot") for one in (a, b)]
        with self.store.database.reading() as connection:
            found = [self.store.snapshots.one(connection, one) for one in ids if one is not None]
        first, second = found if len(found) == 2 else (None, None)
        if first is None or second is None or first.snapshot == second.snapshot:
            return {}
        try:
            return dict(reopen(second.settings).diff(first, second))
        except AgentGitError as error:
            return {"diff_content": f"The files cannot be compared: {error}\n"}

    def release(self, *, collect: bool = False) -> int:
        """Release the snapshots that no checkpoint and no branch needs, if their workspace is available.

        Args:
            collect: True to also free the space of deleted snapshots in these workspaces.

        Returns:
            The number of released snapshots.
        """
        with self.store.database.reading() as connection:
            free = self.store.snapshots.find_unused(connection)
        gone, keepers = dict[int, SnapshotRef](), dict[str, WorkspaceAdapter]()
        for row_id, at in free:
            place = str(at.settings.get("storage"))
            try:
                keepers[place] = keepers.get(place) or reopen(at.settings)
                keepers[place].release(at)
            except AgentGitError:
                continue  # its workspace is elsewhere, and releases it there
            gone[row_id] = at
        if gone:
            self.store.database.write(lambda c: self.store.snapshots.delete(c, list(gone)))
            self.repin(gone.values())
        for keeper in keepers.values() if collect else ():
            keeper.collect()
        return len(gone)

    def repin(self, released: Collection[SnapshotRef]) -> None:
        """Hold released snapshots again that a row still uses: a row added meanwhile, or one of another user."""
        with self.store.all_users_database.reading() as connection:
            held = self.store.snapshots.in_use(connection, [at.snapshot for at in released])
        for at in released:
            if at.snapshot in held:
                reopen(at.settings).hold(at)

    def release_all(self, sessions: Select[int]) -> tuple[list[SnapshotRef], list[str]]:
        """Release the snapshots that only these sessions use.

        Returns:
            The released snapshots, and a message for each one that could not be reached.
        """
        with self.store.all_users_database.reading() as connection:  # includes the sessions of other users
            found = self.store.snapshots.exclusive_to(connection, sessions)
        gone, left, keepers = list[SnapshotRef](), list[str](), dict[str, WorkspaceAdapter]()
        for at in found:
            place = str(at.settings.get("storage"))
            try:
                keepers[place] = keepers.get(place) or reopen(at.settings)
                keepers[place].release(at)
                gone.append(at)
            except AgentGitError as error:
                left.append(f"The snapshot {at.snapshot} of its files stays in {place}: {error}")
        for keeper in keepers.values():
            keeper.collect()
        return gone, left

    def as_request(self, connection: Connection, session_id: int, at: SnapshotRef | None) -> dict[str, Any]:
        """Return what an operation records: the files to restore (None to leave them alone) and the current files."""
        known = self.store.snapshots.last(connection, session_id)
        return {
            "files": vars(at) if at is not None else None,
            "files_known": vars(files_of(known)) if known is not None else None,
        }

    def after(self, row: StoredRow, brought: FileChanges | None) -> SnapshotRef | None:
        """Return the files of an operation's branch when the operation ends."""
        request = as_object(row.request)
        if brought is not None and not brought.problem:
            return SnapshotRef(**request["files"]).without_import_mark() if request.get("files") is not None else None
        there = request.get("files_known")
        return SnapshotRef(**there) if there is not None else None

    def _keeper(self, session_id: int, at: SnapshotRef) -> WorkspaceAdapter:
        """Return the attached workspace of a session; if none is attached here, the workspace of the files."""
        return self.registry.workspace(session_id) or reopen(at.settings)


def not_done(at: SnapshotRef, error: Exception) -> FileChanges:
    """Return the result for files that cannot be restored."""
    return FileChanges(workspace=str(at.settings.get("workspace")), snapshot=at.snapshot, problem=str(error))
