"""The adapter between a workspace and the turns and rollbacks that use it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from agentgit.effects.files import (
    ASIDE,
    CONFLICT,
    DELETE,
    IMPORTED,
    LEFT,
    MISSING,
    OVERWRITTEN,
    WRITE,
    FileChange,
    FileChanges,
    SnapshotRef,
)
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.values import escape_path
from agentgit.workspace.api import Workspace
from agentgit.workspace.base import AUTO
from agentgit.workspace.locations import require_known_storage
from agentgit.workspace.modified_files import paths_of
from agentgit.workspace.values import Restored, RestorePlan

HOLDER = "holder"
"""The key in the settings of a keeper for the holder of its snapshots."""


class LocalWorkspaceAdapter:
    """Snapshots and restores the files of a session in a workspace; see `agentgit.effects.files.WorkspaceAdapter`.

    Args:
        workspace: The workspace.
        holder: The holder that pins the snapshots. A workspace may belong to sessions in several databases.
    """

    def __init__(self, workspace: Workspace, holder: str) -> None:
        self.workspace = workspace
        self.holder = holder

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that `reopen` takes."""
        return {**self.workspace.settings, HOLDER: self.holder}

    @property
    def is_automatic(self) -> bool:
        """True if snapshots are taken automatically."""
        return self.workspace.auto_checkpoint

    def take(self, why: str) -> SnapshotRef:
        """Take a snapshot, or use the one that matches the files; it is pinned while a checkpoint may need it."""
        found = self.workspace.ensure_snapshot(why, kind=AUTO, holder=self.holder)
        return SnapshotRef(snapshot=found.id, settings=self.settings)

    def back_up(self, tool_name: str, args: Mapping[str, Any]) -> None:
        """Save the files of the workspace that a tool call is about to change on the undo stack."""
        modifies = paths_of(tool_name, None, args)
        if modifies is None:
            return
        stack = self.workspace.undo_stack
        if modifies.everything:
            stack.snapshot(tool_name)
            return
        inside = [path for path in modifies.paths if self._places(path)]
        if not inside:
            return
        label = f"{tool_name}: {', '.join(inside)}"
        try:
            stack.snapshot(label, [place for path in inside for place in self._places(path)])
        except InvalidInput:  # the path is a directory or not valid: save everything
            stack.snapshot(label)

    def _places(self, path: str) -> list[str]:
        """Return the paths in the workspace that a path may mean, relative to it or to the working directory."""
        places = dict.fromkeys([os.path.join(self.workspace.workspace_dir, path), os.path.abspath(path)])
        return [place for place in places if self.workspace.holds(place)]

    def plan(self, at: SnapshotRef, known: SnapshotRef | None = None) -> FileChanges:
        """Return what `restore` would do."""
        self._fetch_snapshot(at)
        since, is_imported = None, known is not None and known.is_imported
        if known is not None and not is_imported and (self._is_here(known) or self._was_moved(known)):
            self._fetch_snapshot(known)
            since = known.snapshot
        plan: RestorePlan = self.workspace.plan_restore(at.snapshot, since=since)
        changed = self._there((*plan.restore, *plan.delete)) if is_imported else plan.changed
        touched = {path: action for action, paths in ((WRITE, plan.restore), (DELETE, plan.delete)) for path in paths}
        changes = [
            FileChange(action=CONFLICT, path=path, why=f"to {action}; changed by somebody else")
            if path in changed
            else FileChange(action=action, path=path)
            for path, action in sorted(touched.items())
        ]
        changes += [FileChange(action=ASIDE, path=path, why="no snapshot holds it") for path in plan.aside]
        changes += _of_left_out(plan)
        return FileChanges(workspace=self.workspace.workspace_dir, snapshot=at.snapshot, changes=changes)

    def _there(self, paths: Iterable[str]) -> set[str]:
        """Return the paths that exist. An imported session owns none of them."""
        return {path for path in paths if os.path.lexists(os.path.join(self.workspace.workspace_dir, path))}

    def require_restorable(self, at: SnapshotRef) -> None:
        """Check that `restore` is possible.

        Raises:
            AgentGitError: The snapshot or the directory is missing.
        """
        self._fetch_snapshot(at)
        self.workspace.require_restorable(at.snapshot)

    def restore(self, at: SnapshotRef, expected: SnapshotRef | None = None) -> FileChanges:
        """Restore the files. The caller has checked that nobody else has changed them, or forces the restore."""
        self._fetch_snapshot(at)
        done: Restored = self.workspace.restore(at.snapshot)
        changes = [FileChange(action=WRITE, path=path) for path in done.restored]
        changes += [FileChange(action=DELETE, path=path) for path in done.deleted]
        changes += [FileChange(action=ASIDE, path=path, why=f"now at {to}") for path, to in done.moved_aside]
        changes += [FileChange(action=CONFLICT, path=path, why=why) for path, why in done.conflicts]
        changes += _of_left_out(done)
        changes += [
            FileChange(action=OVERWRITTEN, path=path, why=_kept_in(done.safety, path))
            for path in self._overwritten(done, expected)
        ]
        return FileChanges(
            workspace=self.workspace.workspace_dir,
            snapshot=at.snapshot,
            changes=changes,
            safety=done.safety or "",
            everything=done.everything,
        )

    def _overwritten(self, done: Restored, known: SnapshotRef | None) -> list[str]:
        """List the files that somebody else wrote since the session last looked, and that a restore overwrote."""
        touched = [*done.restored, *done.deleted]
        if known is None or done.safety is None or not touched:
            return []
        before = done.id if known.is_imported else known.snapshot  # imported files have never been here
        try:
            self._fetch_snapshot(known)
            found = self.workspace.diff(before, done.safety, paths=touched)
        except AgentGitError:  # `known` cannot be read; the files are restored, and the result names `safety`
            return []
        return sorted({*found.added_files, *found.modified_files} & set(touched))

    def _is_here(self, at: SnapshotRef) -> bool:
        """Return whether a snapshot was taken by this workspace."""
        return bool(at.settings.get("storage") == self.settings["storage"])

    def _was_moved(self, at: SnapshotRef) -> bool:
        """Return whether the directory of a snapshot is missing; it is then assumed to have been moved here."""
        return not self._is_here(at) and not os.path.isdir(str(at.settings.get("workspace")))

    def _fetch_snapshot(self, at: SnapshotRef) -> None:
        """Copy a snapshot of another workspace here, even if its directory was moved and only its storage is left."""
        if self._is_here(at):
            return
        to = self.workspace.workspace_dir if self._was_moved(at) else None
        with closing(_opened(at.settings, to)) as source:
            self.workspace.adopt(source, at.snapshot, pinned=True)

    def diff(self, a: SnapshotRef, b: SnapshotRef) -> Mapping[str, Any]:
        """Compare two snapshots, and return the fields of a `Diff` of checkpoints by name."""
        self._fetch_snapshot(a)
        self._fetch_snapshot(b)
        found = self.workspace.diff(a.snapshot, b.snapshot)
        return {
            "added_files": list(found.added_files),
            "modified_files": list(found.modified_files),
            "deleted_files": list(found.deleted_files),
            "diff_content": found.diff_content,
        }

    def release(self, at: SnapshotRef) -> None:
        """Release this holder's pin on a snapshot. No-op if the snapshot was deleted."""
        self.workspace.release_snapshot(at.snapshot, self.holder)

    def hold(self, at: SnapshotRef) -> None:
        """Pin a snapshot again that was released too early."""
        self.workspace.hold(at.snapshot, self.holder)

    def collect(self) -> None:
        """Free the space that no snapshot needs."""
        self.workspace.gc()


def _of_left_out(value: Restored | RestorePlan) -> list[FileChange]:
    """List the files that a snapshot left out: those that are missing, and those that stay although they changed."""
    missing = [FileChange(action=MISSING, path=path, why=why) for path, why in value.missing]
    return missing + [FileChange(action=LEFT, path=path, why=why) for path, why in value.left]


def _kept_in(safety: str | None, path: str) -> str:
    return (
        f"somebody else had changed it; that version is in snapshot {safety}. To restore it: "
        f"Workspace.restore({safety!r}, paths=[{path!r}]), or agentgit workspace restore {safety} PATH"
    )


def attached(
    workspace: str | os.PathLike[str] | Workspace, *, holder: str, without: Sequence[str] = ()
) -> LocalWorkspaceAdapter:
    """Return the keeper of a workspace or of a directory, which is created if it does not exist.

    Args:
        workspace: The workspace, or the path of a directory.
        holder: The name of the holder that pins its snapshots.
        without: Files that never belong to the session, such as those of the database.
    """
    if not isinstance(workspace, Workspace):
        os.makedirs(workspace, exist_ok=True)
        workspace = Workspace(workspace)
    workspace.leave_out(without)
    return LocalWorkspaceAdapter(workspace, holder)


def reopen(settings: Mapping[str, Any]) -> LocalWorkspaceAdapter:
    """Return the keeper of a workspace that another process attached.

    Raises:
        InvalidInput: The directory does not exist here, or the settings are not valid.
        NotAllowed: No program of this user has opened the workspace before.
    """
    return LocalWorkspaceAdapter(_opened(settings), str(settings.get(HOLDER)))


def _opened(settings: Mapping[str, Any], moved_to: str | None = None) -> Workspace:
    """Open a workspace that a database names.

    Args:
        settings: The settings, as stored.
        moved_to: The current path of its directory, if it was moved.
    """
    storage, workspace = str(settings.get("storage")), str(settings.get("workspace"))
    if settings.get("environment"):
        require_known_storage(storage, None if moved_to is not None else workspace)
    options = {name: value for name, value in settings.items() if name not in (HOLDER, IMPORTED)}
    try:
        return Workspace.of({**options, "storage": storage, "workspace": moved_to or workspace})
    except TypeError as error:
        raise InvalidInput(f"The settings of the workspace {escape_path(workspace)} are invalid: {error}.") from error
