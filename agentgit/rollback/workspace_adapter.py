"""The adapter between a workspace and the turns and rollbacks that use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
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
from agentgit.errors import AgentGitError, InvalidInput, NotAllowed
from agentgit.next_steps import Next, Reason
from agentgit.rollback.file_history import KEPT_IN, FileHistory
from agentgit.rollback.modified_files import named_paths, paths_of
from agentgit.values import escape_path
from agentgit.workspace.api import Workspace, engine_of
from agentgit.workspace.engine import AUTO, new_snapshot, owner_of
from agentgit.workspace.locations import require_directory
from agentgit.workspace.values import Restored, some

HOLDER = "holder"
"""The key in the settings of a keeper for the holder of its snapshots."""


class WorkspaceAdapter:
    """Takes and restores snapshots of the files of a session in a workspace."""

    def __init__(self, workspace: Workspace, holder: str) -> None:
        self.workspace, self.engine = workspace, engine_of(workspace)
        self.holder = holder

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that `reopen` takes."""
        return {**self.workspace.settings, HOLDER: self.holder}

    @property
    def is_automatic(self) -> bool:
        """True if snapshots are taken automatically."""
        return bool(self.workspace.settings["auto_checkpoint"])

    @property
    def is_custom(self) -> bool:
        """True if an environment of the user has the files, of which single paths are not known."""
        return self.engine.custom is not None

    def take_snapshot(self, reason: str) -> SnapshotRef:
        """Take a snapshot, or return the one that matches the files; it is pinned while a checkpoint may need it."""
        with self.engine.locked():
            snapshot = self.engine.save(new_snapshot(reason, AUTO), is_new=False)
            self.engine.catalog.hold(snapshot.id, self.holder)
        return SnapshotRef(snapshot=snapshot.id, settings=self.settings)

    def holds(self, path: str) -> bool:
        """Return whether a path is among the files that snapshots have, links included."""
        return self.engine.captures(path) and self.engine.captures(os.path.realpath(path))

    def covers(self, args: Mapping[str, Any]) -> bool:
        """Return whether every file that the arguments of a call name is in the workspace."""
        if self.is_custom:
            return True  # only a custom environment knows what it restores
        return all(any(map(self.holds, self._candidate_paths(path))) for path in named_paths(args))

    def outside(self, tool_name: str, effect: str, args: Mapping[str, Any]) -> list[str]:
        """Return the paths that a tool call may have changed, and that are not in the workspace."""
        modified = None if self.is_custom else paths_of(tool_name, effect, args)
        candidates = {path: map(os.path.realpath, self._candidate_paths(path)) for path in modified or ()}
        return [path for path, real in candidates.items() if not any(map(self.engine.paths.holds, real))]

    def back_up(self, tool_name: str, effect: str, args: Mapping[str, Any]) -> None:
        """Save the files of the workspace that a tool call is about to change on the undo stack."""
        modified = paths_of(tool_name, effect, args)
        if modified is None or self.is_custom:
            return
        stack = self.workspace.undo_stack
        if not modified:
            stack.snapshot(tool_name)
            return
        paths = [path for path in modified if self._candidate_paths(path)]
        if not paths:
            return
        label = f"{tool_name}: {', '.join(paths)}"
        try:
            stack.snapshot(label, [candidate for path in paths for candidate in self._candidate_paths(path)])
        except InvalidInput:  # a path leads out of the workspace: save everything
            stack.snapshot(label)

    def _candidate_paths(self, path: str) -> list[str]:
        """Return the paths in the workspace that a path may mean, relative to it or to the working directory."""
        candidates = dict.fromkeys([os.path.join(self.workspace.workspace_dir, path), os.path.abspath(path)])
        return [candidate for candidate in candidates if self.engine.paths.holds(candidate)]

    def plan(self, snapshot: SnapshotRef, history: FileHistory) -> FileChanges:
        """Return what `restore` would do."""
        self._fetch_snapshot(snapshot)
        if self.engine.custom is not None:
            self.engine.custom.call("check", self.engine.require(snapshot.snapshot).tree)
            return FileChanges(workspace=self.workspace.workspace_dir, snapshot=snapshot.snapshot, everything=True)
        plan = self.engine.plan(snapshot.snapshot, choose=history.choose)
        return self._file_changes(plan, history, "a safety snapshot will have the other's version")

    def restore(self, snapshot: SnapshotRef, history: FileHistory, found: str, aside: str) -> FileChanges:
        """Restore the files, except those that belong to others; return all that was done to the files found."""
        self._fetch_snapshot(snapshot)
        with self.engine.locked():
            if self.is_custom:
                return self._file_changes(self.engine.restore(snapshot.snapshot), history, "")
            result, problem, now = None, "", ""
            try:
                result = self.engine.restore(snapshot.snapshot, choose=history.choose, aside=aside)
            except (AgentGitError, OSError) as error:
                problem = describe_problem(error)
            changes = self.done(snapshot, history, found, aside, result)
            with suppress(*[AgentGitError] * bool(problem)):  # there may be no space for it
                if problem or not self.engine.is_at(snapshot.snapshot):
                    now = self.take_snapshot("after a rollback").snapshot
        return replace(changes, problem=problem, now=now)

    def done(
        self, snapshot: SnapshotRef, history: FileHistory, found: str, aside: str, last: Restored | None = None
    ) -> FileChanges:
        """Return what an operation has done by now to the files that it found; `last` is how it ended."""
        history, row = history.until(found), self.engine.require(snapshot.snapshot)
        done = self.engine.files_for("a report").done(row, self.engine.require(found), history.choose, aside)
        if last is not None:
            named = {os.fsdecode(path): KEPT_IN.format(id or found) for path, id in history.overwritten.items()}
            conflicts = tuple((path, f"{why}; {named[path]}" if path in named else why) for path, why in last.conflicts)
            done = replace(last, safety=found, restored=done.restored, deleted=done.deleted, conflicts=conflicts)
        return self._file_changes(done, history, KEPT_IN.format(found))

    def _file_changes(self, result: Restored, history: FileHistory, where: str) -> FileChanges:
        """Convert a plan or a report; `where` says where the version of others is that a restore replaces."""
        replaced = {os.fsdecode(path): KEPT_IN.format(id) if id else where for path, id in history.overwritten.items()}
        deleted = {os.fsdecode(path): why for path, why in history.deleted.items()}
        pairs = [(WRITE, path) for path in result.restored] + [(DELETE, path) for path in result.deleted]
        listed = [
            (OVERWRITTEN, path, replaced[path]) if path in replaced else (action, path, deleted.get(path, ""))
            for action, path in pairs
        ]
        listed += [
            (ASIDE, path, f"now at {new}" if result.safety else "no snapshot holds it")
            for path, new in result.moved_aside
        ]
        listed += [(CONFLICT, *one) for one in result.conflicts]
        listed += [(MISSING, *one) for one in result.missing] + [(LEFT, *one) for one in result.left]
        return FileChanges(
            workspace=self.workspace.workspace_dir,
            snapshot=result.id,
            changes=[FileChange(action=action, path=path, why=why) for action, path, why in listed],
            problem=some([f"{escape_path(path)} ({why})" for path, why in result.impossible]),
            safety=result.safety or "",
            everything=result.everything,
            replaced_versions=result.replaced_versions,
            unseen=list(result.unseen),
        )

    def _is_own_snapshot(self, snapshot: SnapshotRef) -> bool:
        """Return whether a snapshot was taken by this workspace."""
        return bool(snapshot.settings.get("storage") == self.settings["storage"])

    def _is_of_this_directory(self, snapshot: SnapshotRef) -> bool:
        """Return whether a snapshot in another storage is of this directory, or of a missing one: it was moved here."""
        directory = str(snapshot.settings.get("workspace"))
        is_here = directory == self.workspace.workspace_dir or not os.path.isdir(directory)
        return is_here and not self._is_own_snapshot(snapshot)

    def fetch_own(self, snapshot: SnapshotRef) -> None:
        """Copy a snapshot of this directory here from another storage."""
        if self._is_of_this_directory(snapshot) and not snapshot.is_imported:
            self._fetch_snapshot(snapshot)

    def _fetch_snapshot(self, snapshot: SnapshotRef) -> None:
        """Copy a snapshot of another workspace here, even if its directory was moved and only its storage is left."""
        if self._is_own_snapshot(snapshot) or self.engine.catalog.get_row(snapshot.snapshot) is not None:
            return
        moved_to = self.workspace.workspace_dir if self._is_of_this_directory(snapshot) else None
        with closing(_open_workspace(snapshot.settings, moved_to)) as source:
            self.engine.adopt(engine_of(source), snapshot.snapshot, self.holder)

    def diff(self, a: SnapshotRef, b: SnapshotRef) -> Mapping[str, Any]:
        """Compare two snapshots, and return the fields of a `Diff` of checkpoints by name."""
        self._fetch_snapshot(a)
        self._fetch_snapshot(b)
        difference = self.workspace.diff(a.snapshot, b.snapshot)
        return {
            "added_files": list(difference.added_files),
            "modified_files": list(difference.modified_files),
            "deleted_files": list(difference.deleted_files),
            "diff_content": difference.diff_content,
        }

    def release(self, snapshot: SnapshotRef) -> None:
        """Release this holder's pin on a snapshot. No-op if the snapshot was deleted."""
        self.engine.catalog.release(snapshot.snapshot, self.holder)

    def hold(self, snapshot: SnapshotRef) -> None:
        """Pin a snapshot again that was released too early."""
        self.engine.catalog.hold(snapshot.snapshot, self.holder)

    def collect(self) -> None:
        """Free the space that no snapshot needs."""
        self.workspace.gc()


def describe_problem(error: Exception) -> str:
    """Describe why files cannot be restored, without the step to restore others: a rollback has no such choice."""
    if not isinstance(error, AgentGitError):
        return str(error)
    return Reason(error.message, *(step for step in error.next if step.verb != "restore_other"))


def attach_workspace(
    workspace: str | os.PathLike[str] | Workspace, *, holder: str, excluded_paths: Sequence[str] = ()
) -> WorkspaceAdapter:
    """Return the keeper of a workspace or of a directory, which is created if it does not exist."""
    if not isinstance(workspace, Workspace):
        os.makedirs(workspace, exist_ok=True)
        workspace = Workspace(workspace)
    engine_of(workspace).leave_out(excluded_paths)
    return WorkspaceAdapter(workspace, holder)


def reopen(settings: Mapping[str, Any]) -> WorkspaceAdapter:
    """Return the keeper of a workspace that another process attached."""
    return WorkspaceAdapter(_open_workspace(settings), str(settings.get(HOLDER)))


def _open_workspace(settings: Mapping[str, Any], moved_to: str | None = None) -> Workspace:
    """Open a workspace that a database names."""
    storage, workspace = str(settings.get("storage")), str(settings.get("workspace"))
    if not settings.get("environment"):
        raise InvalidInput(f"Wrap the graph with the workspace {workspace} and its own environment.")
    if owner_of(storage) not in (workspace, moved_to or workspace):  # files are written where the row says
        raise NotAllowed(
            f"{escape_path(storage)} has no snapshots that this user took of {escape_path(workspace)}, and a path that "
            "is only stored is not trusted.",
            Next("keep_files"),
        )
    require_directory(moved_to or workspace)
    options = {name: settings[name] for name in settings.keys() - {HOLDER, IMPORTED, "workspace", "storage"}}
    try:
        return Workspace(moved_to or workspace, storage, **options)
    except TypeError as error:
        raise InvalidInput(f"The settings of the workspace {escape_path(workspace)} are invalid: {error}.") from error
