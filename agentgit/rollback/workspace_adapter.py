"""A workspace, as turns and rollbacks use it."""

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
    FilesAt,
)
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.values import shown
from agentgit.workspace.api import AUTO, Workspace
from agentgit.workspace.locations import require_noted
from agentgit.workspace.modified_files import paths_of
from agentgit.workspace.values import Restored, RestorePlan

HOLDER = "holder"
"""The setting of a keeper that names the holder of its snapshots."""


class WorkspaceKeeper:
    """Keeps the files of a session in the store of a workspace; see `agentgit.effects.files.Keeper`.

    Args:
        workspace: The workspace.
        holder: The holder that needs the snapshots: the same workspace may belong to sessions in several databases.
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
        """True if snapshots are taken without being asked for."""
        return self.workspace.auto_checkpoint

    def take(self, why: str) -> FilesAt:
        """Take a snapshot, or name the one that the files stand at; it is kept as long as a checkpoint may need it."""
        found = self.workspace.keep(why, kind=AUTO, holder=self.holder)
        return FilesAt(snapshot=found.id, settings=self.settings)

    def before(self, tool_name: str, args: Mapping[str, Any]) -> None:
        """Put what a tool call is about to change on the undo stack, as far as it is in the workspace."""
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
        except InvalidInput:  # it names a directory, or what is no path at all
            stack.snapshot(label)

    def _places(self, path: str) -> list[str]:
        """Return where in the workspace a path may lead: from its directory, or from where the process works."""
        places = dict.fromkeys([os.path.join(self.workspace.workspace_dir, path), os.path.abspath(path)])
        return [place for place in places if self.workspace.holds(place)]

    def plan(self, at: FilesAt, known: FilesAt | None = None) -> FileChanges:
        """Return what `bring` would do."""
        self._have(at)
        since, is_imported = None, known is not None and known.is_imported
        if known is not None and not is_imported and (self._is_here(known) or self._was_moved(known)):
            self._have(known)
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
        """Return the paths at which something exists; an imported session owns none of it."""
        return {path for path in paths if os.path.lexists(os.path.join(self.workspace.workspace_dir, path))}

    def expect(self, at: FilesAt) -> None:
        """Check that `bring` can be done.

        Raises:
            AgentGitError: The snapshot or the directory is gone.
        """
        self._have(at)
        self.workspace.expect(at.snapshot)

    def bring(self, at: FilesAt, known: FilesAt | None = None) -> FileChanges:
        """Bring the files back. That nobody else has changed them was made sure before, or is forced."""
        self._have(at)
        done: Restored = self.workspace.restore(at.snapshot)
        changes = [FileChange(action=WRITE, path=path) for path in done.restored]
        changes += [FileChange(action=DELETE, path=path) for path in done.deleted]
        changes += [FileChange(action=ASIDE, path=path, why=f"now at {to}") for path, to in done.moved_aside]
        changes += [FileChange(action=CONFLICT, path=path, why=why) for path, why in done.conflicts]
        changes += _of_left_out(done)
        changes += [
            FileChange(action=OVERWRITTEN, path=path, why=_kept_in(done.safety, path))
            for path in self._overwritten(done, known)
        ]
        return FileChanges(
            workspace=self.workspace.workspace_dir,
            snapshot=at.snapshot,
            changes=changes,
            safety=done.safety or "",
            everything=done.everything,
        )

    def _overwritten(self, done: Restored, known: FilesAt | None) -> list[str]:
        """Name what a restore replaced or deleted that somebody else had written since the session last looked."""
        touched = [*done.restored, *done.deleted]
        if known is None or done.safety is None or not touched:
            return []
        before = done.id if known.is_imported else known.snapshot  # of imported files none stood here
        try:
            self._have(known)
            found = self.workspace.diff(before, done.safety, paths=touched)
        except AgentGitError:  # what the session left cannot be read: the files are back, and `safety` is named
            return []
        return sorted({*found.added_files, *found.modified_files} & set(touched))

    def _is_here(self, at: FilesAt) -> bool:
        """Return whether a snapshot was taken by this workspace."""
        return bool(at.settings.get("storage") == self.settings["storage"])

    def _was_moved(self, at: FilesAt) -> bool:
        """Return whether the directory of a snapshot is gone; then it is taken to be this one."""
        return not self._is_here(at) and not os.path.isdir(str(at.settings.get("workspace")))

    def _have(self, at: FilesAt) -> None:
        """Get the snapshot of another workspace here, also if its directory was moved and only its store is there."""
        if self._is_here(at):
            return
        to = self.workspace.workspace_dir if self._was_moved(at) else None
        with closing(_opened(at.settings, to)) as source:
            self.workspace.adopt(source, at.snapshot, pinned=True)

    def diff(self, a: FilesAt, b: FilesAt) -> Mapping[str, Any]:
        """Compare two snapshots; the fields of a `Diff` of checkpoints, by their names."""
        self._have(a)
        self._have(b)
        found = self.workspace.diff(a.snapshot, b.snapshot)
        return {
            "added_files": list(found.added_files),
            "modified_files": list(found.modified_files),
            "deleted_files": list(found.deleted_files),
            "diff_content": found.diff_content,
        }

    def release(self, at: FilesAt) -> None:
        """Let a snapshot go when its time comes; one that is gone is gone."""
        self.workspace.release_snapshot(at.snapshot, self.holder)

    def hold(self, at: FilesAt) -> None:
        """Keep a snapshot that was let go of too early."""
        self.workspace.hold(at.snapshot, self.holder)

    def collect(self) -> None:
        """Free the space of what no snapshot has any more."""
        self.workspace.gc()


def _of_left_out(value: Restored | RestorePlan) -> list[FileChange]:
    """Name what a snapshot left out and is missing, or stays as it is though it changed."""
    missing = [FileChange(action=MISSING, path=path, why=why) for path, why in value.missing]
    return missing + [FileChange(action=LEFT, path=path, why=why) for path, why in value.left]


def _kept_in(safety: str | None, path: str) -> str:
    return (
        f"somebody else had changed it; that version is in snapshot {safety}. To restore it: "
        f"Workspace.restore({safety!r}, paths=[{path!r}]), or agentgit workspace restore {safety} PATH"
    )


def attached(
    workspace: str | os.PathLike[str] | Workspace, *, holder: str, without: Sequence[str] = ()
) -> WorkspaceKeeper:
    """Return the keeper of a workspace, or of a directory, which is made if it is not there.

    Args:
        workspace: The workspace.
        holder: The name of the holder that needs its snapshots.
        without: Files that are none of the session's, wherever they are: those of the database.
    """
    if not isinstance(workspace, Workspace):
        os.makedirs(workspace, exist_ok=True)
        workspace = Workspace(workspace)
    workspace.leave_out(without)
    return WorkspaceKeeper(workspace, holder)


def reopen(settings: Mapping[str, Any]) -> WorkspaceKeeper:
    """Return the keeper of a workspace that another process had attached.

    Raises:
        InvalidInput: Its directory is not here, or these are no settings.
        NotAllowed: No program of this user has opened it.
    """
    return WorkspaceKeeper(_opened(settings), str(settings.get(HOLDER)))


def _opened(settings: Mapping[str, Any], moved_to: str | None = None) -> Workspace:
    """Open a workspace that a database names.

    Args:
        settings: As they are stored.
        moved_to: The present path of its directory, if it was moved.
    """
    storage, workspace = str(settings.get("storage")), str(settings.get("workspace"))
    if settings.get("environment"):
        require_noted(storage, None if moved_to is not None else workspace)
    options = {name: value for name, value in settings.items() if name not in (HOLDER, IMPORTED)}
    try:
        return Workspace.of({**options, "storage": storage, "workspace": moved_to or workspace})
    except TypeError as error:
        raise InvalidInput(f"The settings of the workspace {shown(workspace)} are invalid: {error}.") from error
