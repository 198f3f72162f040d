"""Restores of a workspace: what one changes and what it must not change, and the work itself, which is idempotent.

A restore changes only paths that differ, and records no progress. Each path is in one of three states: as before the
restore (the restore changes it), as wanted (it is done), or different from both because another process changed it
(the restore skips and reports it). An interrupted restore is therefore run again from the beginning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, Unavailable
from agentgit.values import escape_path
from agentgit.workspace.disk import Disk
from agentgit.workspace.left_out import UNREADABLE, LeftOutPaths, containing_path, is_selected, parent_folders
from agentgit.workspace.objects import Objects
from agentgit.workspace.trees import Changes, TreeChange, is_directory, is_leaf
from agentgit.workspace.values import some

CHANGED = "changed during the restore"


def plan_steps(changes: Changes, snapshot: LeftOutPaths, now: LeftOutPaths) -> tuple[Changes, list[bytes]]:
    """Return what a restore changes, from the differences between the workspace and a snapshot, and what it cannot.

    What the snapshot left out stays. A directory that is left out now keeps its mode, because no snapshot holds it.
    """
    closed = {path for path, one in now.items() if one.why == UNREADABLE and stat.S_ISDIR(one.mode)}
    unreachable = [path for path in changes if containing_path(path, closed)] if closed else []
    skipped = set(unreachable)
    kept = {
        path: change
        for path, change in changes.items()
        if path not in skipped
        and not (change.after is None and containing_path(path, snapshot) is not None)
        and not (is_directory(change.after) and path in now and stat.S_ISDIR(now[path].mode))
    }
    return kept, unreachable


def select_changes(differences: Mapping[bytes, TreeChange], paths: tuple[bytes, ...] | None) -> Changes:
    """Return the differences at some paths and below them; None for all.

    They include what must be done to the parents of such a path, so that the snapshot's parents are there.
    """
    selected = {path: change for path, change in differences.items() if is_selected(paths, path)}
    for path in list(selected) if paths is not None else ():
        for parent in parent_folders(path):
            change = differences.get(parent, TreeChange(None, None))
            if is_directory(change.after) != is_directory(change.before) and not is_leaf(change.after):
                selected[parent] = change
    return selected


class Restore:
    def __init__(
        self,
        disk: Disk,
        objects: Objects,
        changes: Changes,
        *,
        is_resumed: bool = False,
    ) -> None:
        self._disk, self._objects, self._changes = disk, objects, changes
        self._is_resumed = is_resumed
        self._failures: dict[bytes, AgentGitError] = {}
        self.restored, self.deleted, self.removed_folders = list[bytes](), list[bytes](), list[bytes]()
        self.conflicts: list[tuple[bytes, str]] = []

    def run(self) -> None:
        """Run the restore, or the rest of an interrupted one. A path that fails does not stop the others."""
        if self._is_resumed:
            self._recover()
        self._remove_files()
        self._remove_folders()
        self._write_files()
        self._make_folders()
        self._set_modes()
        if self._failures:
            raise _combine_failures(list(self._failures.values()))

    def _recover(self) -> None:
        """Remove temporary files of a process killed during this restore, and keep what other processes wrote."""
        for path in sorted({*self._changes, *(parent for one in self._changes for parent in parent_folders(one))}):
            change = self._changes.get(path, TreeChange(None, None))
            with self._collecting_failures(path):
                aside = self._disk.recover(path, *(one for one in change if one is not None and not one.is_directory))
                if aside is not None:
                    reason = f"{CHANGED}; that version is now at {os.fsdecode(aside)}"
                    self.conflicts.append((path, reason))

    @contextmanager
    def _collecting_failures(self, path: bytes) -> Iterator[None]:
        """Record a failure at a path, and continue with the others."""
        try:
            yield
        except Corrupt as error:
            text = f"The contents of {escape_path(path)} in the snapshot are lost: {error} Restore another snapshot."
            self._failures.setdefault(path, Corrupt(text, row=error.row))
        except (Unavailable, InvalidInput) as error:
            self._failures.setdefault(path, error)

    def _remove_files(self) -> None:
        for path, (before, after) in self._changes.items():
            if before is None or before.is_directory or is_leaf(after):
                continue
            with self._collecting_failures(path):
                current = self._disk.read_entry(path)
                if current == before:
                    if self._disk.unlink(path, before):
                        self.deleted.append(path)
                    else:
                        self.conflicts.append((path, CHANGED))
                elif current is None and self._is_resumed:
                    self.deleted.append(path)
                elif current is not None and not current.is_directory:
                    self.conflicts.append((path, CHANGED))

    def _remove_folders(self) -> None:
        """Remove directories that are empty, the deepest first."""
        unwanted = {path for path, one in self._changes.items() if is_directory(one.before) > is_directory(one.after)}
        for path in sorted(unwanted, key=len, reverse=True):
            with self._collecting_failures(path):
                if self._disk.remove_folder(path):
                    self.removed_folders.append(path)

    def _write_files(self) -> None:
        paths = sorted(path for path, change in self._changes.items() if is_leaf(change.after))
        for path in paths:
            with self._collecting_failures(path):
                self._write_file(path, self._changes[path])

    def _write_file(self, path: bytes, change: TreeChange) -> None:
        """Write one file, unless another process changed it.

        The path is examined right before the write. An earlier check could lose a concurrent change.
        """
        before, after = change
        assert after is not None  # noqa: S101 - the caller has chosen it
        current = self._disk.read_entry(path)
        if current == after:
            if self._is_resumed:
                self.restored.append(path)
            return
        data = self._objects.read(after.oid)
        if current is not None and current != before and is_leaf(before) and not current.is_directory:
            self.conflicts.append((path, CHANGED))
            return
        if current is not None and not (current == before and is_leaf(current)):
            self._disk.move_aside(path)
            current = None
        if self._disk.put(path, after, data, current):
            self.restored.append(path)
        else:
            self.conflicts.append((path, CHANGED))

    def _make_folders(self) -> None:
        for path in sorted(path for path, change in self._changes.items() if is_directory(change.after)):
            with self._collecting_failures(path):
                self._disk.make_folder(path)

    def _set_modes(self) -> None:
        """Set the modes of directories, the deepest first, because a parent may become read-only."""
        modes = {path: after.mode for path, (_, after) in self._changes.items() if after and after.is_directory}
        for path in sorted(modes, key=len, reverse=True):
            with self._collecting_failures(path):
                self._disk.set_mode(path, modes[path])
                self._disk.modes.pop(path, None)
        self._disk.restore_modes()


def _combine_failures(failures: Collection[AgentGitError]) -> AgentGitError:
    """Combine several failures into one, with damaged contents first."""
    ordered = sorted(failures, key=lambda error: not isinstance(error, Corrupt))
    first = ordered[0]
    if len(ordered) == 1:
        return first
    text = f"{len(ordered)} paths were not restored; all others were. {some([*map(str, ordered)], ' ')}"
    return Corrupt(text, row=first.row) if isinstance(first, Corrupt) else Unavailable(text)
