"""Restores a workspace to a snapshot, planned from the differences between the two. A restore is idempotent.

A plan also names the paths that the restore must not change because the snapshot left them out.

A restore changes only paths that differ, and records no progress. Each path is in one of three states: as before the
restore (the restore changes it), as in the snapshot (it is done), or different from both because another process
changed it (the restore skips and reports it). An interrupted restore is therefore run again from the beginning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, Unavailable
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.diff import contents_of
from agentgit.workspace.disk.atomic_file import Data
from agentgit.workspace.disk.disk import Disk
from agentgit.workspace.disk.permissions import TemporaryPermissions
from agentgit.workspace.scan.excluded import (
    GITIGNORE,
    ExcludedPath,
    ExcludedRecord,
    ExcludedReport,
    IgnoreRules,
    cannot_be_excluded,
    entries_to_keep,
    is_selected,
    read_status,
    report_excluded,
)
from agentgit.workspace.scan.index import PLAIN_DIRECTORY, containing_path
from agentgit.workspace.scan.scan import EXCLUDED, UNREADABLE
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees

Paths = Iterable[bytes] | None


class RestoreSteps(NamedTuple):
    """The changes that a restore makes, and those that it must not make."""

    changes: dict[bytes, TreeChange]
    kept_entries: dict[bytes, TreeEntry]
    unreadable: list[bytes]
    ignored: set[bytes]
    snapshot_excluded: ExcludedRecord
    target_paths: set[bytes]


class RestorePlanner:
    """Plans restores of one workspace."""

    def __init__(self, root: bytes, trees: Trees, catalog: Catalog, patterns: tuple[str, ...]) -> None:
        self._root, self._trees, self._catalog, self._patterns = root, trees, catalog, patterns

    def steps(
        self, snapshot_id: str, tree: str, changes: dict[bytes, TreeChange], current_excluded: ExcludedRecord
    ) -> RestoreSteps:
        """Return the changes that a restore makes, and the paths that it must not change."""
        snapshot_excluded = self._catalog.excluded_from(snapshot_id)
        kept_entries = entries_to_keep(changes, snapshot_excluded)
        unreadable_folders = {
            path
            for path, excluded in current_excluded.items()
            if excluded.why == UNREADABLE and TreeEntry(excluded.mode).is_directory
        }
        unreadable = (
            [path for path in changes if containing_path(path, unreadable_folders)] if unreadable_folders else []
        )
        planned = {
            path: change
            for path, change in changes.items()
            if path not in kept_entries
            and path not in unreadable
            and not _is_same_folder(change.after, current_excluded.get(path))
        }
        target_paths = {path for path, change in changes.items() if change.after is not None}
        if (rules := self._snapshot_rules(tree, changes)) is None:
            return RestoreSteps(planned, kept_entries, unreadable, set(), snapshot_excluded, target_paths)
        is_never_excluded = cannot_be_excluded(changes)
        ignored = {
            path
            for path, (before, after) in changes.items()
            if after is None and _is_leaf(before) and rules.ignored(path) and not is_never_excluded(path)
        }
        planned = {path: change for path, change in planned.items() if path not in ignored}
        kept_entries = {path: entry for path, entry in kept_entries.items() if path not in ignored}
        return RestoreSteps(planned, kept_entries, unreadable, ignored, snapshot_excluded, target_paths)

    def _snapshot_rules(self, tree: str, changes: Mapping[bytes, TreeChange]) -> IgnoreRules | None:
        """Return the rules of a snapshot's own `.gitignore` files; None if they are the same as the current ones.

        A path that they exclude may have existed when the snapshot was taken, even if the snapshot does not list it.
        It is therefore not removed.
        """
        if not any(path.rpartition(b"/")[2] == GITIGNORE for path in changes):
            return None
        files = [
            (path, entry)
            for path, entry in sorted(self._trees.tree(tree).items())
            if path.rpartition(b"/")[2] == GITIGNORE and stat.S_ISREG(entry.mode)
        ]
        contents = {path: data for path, data in contents_of(self._trees, tree, files) if data is not None}
        return IgnoreRules(self._root, self._patterns, contents)

    def excluded_report(self, steps: RestoreSteps, current_excluded: ExcludedRecord, paths: Paths) -> ExcludedReport:
        """Return the paths left out of the snapshot: the missing ones, and those that the restore does not change."""
        is_included = partial(is_selected, None if paths is None else tuple(paths))
        newly_ignored = {path for path in steps.ignored if containing_path(path, steps.snapshot_excluded) is None}
        current_excluded = {
            **current_excluded,
            **{
                path: excluded_path._replace(why=EXCLUDED)
                for path in newly_ignored
                if (excluded_path := read_status(self._root, path))
            },
        }
        return report_excluded(
            steps.snapshot_excluded,
            current_excluded,
            self._root,
            target_paths=steps.target_paths,
            is_included=is_included,
        )

    def already_restored(self, steps: RestoreSteps, current_excluded: ExcludedRecord) -> set[bytes]:
        """Return the paths that are left out now and whose current state is already what the restore would write."""
        entries = [
            (path, steps.changes[path].after) for path in steps.changes if containing_path(path, current_excluded)
        ]
        with TemporaryPermissions(self._root, self._catalog) as permissions:
            disk = Disk(self._root, b"", permissions)
            return {path for path, after in entries if _is_leaf(after) and disk.read_entry(path) == after}


def _is_same_folder(after: TreeEntry | None, excluded_path: ExcludedPath | None) -> bool:
    """Return whether the snapshot has a directory at a path where a directory is left out now.

    The current directory keeps its mode, because no snapshot holds it.
    """
    return after is not None and after.is_directory and excluded_path is not None and stat.S_ISDIR(excluded_path.mode)


def _is_leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and not entry.is_directory


CHANGED = "changed during the restore"

MAX_NAMED_FAILURES = 5
"""The maximum number of failures in one error message."""

RestoreProgress = Callable[[int, int], None]
"""A function that is called with the number of files done and their total."""


@dataclass
class RestoreOutcome:
    """The outcome of a restore, by path."""

    restored: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    removed_folders: list[bytes] = field(default_factory=list)
    conflicts: list[tuple[bytes, str]] = field(default_factory=list)


def select_changes(differences: Mapping[bytes, TreeChange], paths: Iterable[bytes] | None) -> dict[bytes, TreeChange]:
    """Return the differences at some paths and below them; None for all.

    They include a file or link that must be removed because the snapshot has a parent directory of such a path there.
    """
    if paths is None:
        return dict(differences)
    selected_paths = tuple(paths)
    selected = {
        path: change
        for path, change in differences.items()
        if any(not one or path == one or path.startswith(one + b"/") for one in selected_paths)
    }
    for path in [path for path, change in selected.items() if change.after is not None]:
        selected.update(
            (one, differences[one])
            for one in _parent_folders(path)
            if one in differences and _is_blocking(differences[one])
        )
    return selected


class Restore:
    """One restore."""

    def __init__(
        self,
        disk: Disk,
        trees: Trees,
        target: str,
        differences: Mapping[bytes, TreeChange],
        progress: RestoreProgress | None = None,
        *,
        is_resumed: bool = False,
    ) -> None:
        self._is_resumed = is_resumed
        self._disk, self._trees, self._target, self._progress = disk, trees, target, progress
        self._changes = differences
        self._target_directories = trees.directories(target)
        self._failures: dict[bytes, AgentGitError] = {}
        self.outcome = RestoreOutcome()

    def run(self) -> RestoreOutcome:
        """Run the restore, or the rest of an interrupted one. A path that fails does not stop the others."""
        if self._is_resumed:
            self._recover()
        self._remove_files()
        self._remove_folders(limit_to=[path for path, change in self._changes.items() if _is_leaf(change.after)])
        self._write_files()
        self._make_folders()
        self._remove_folders()
        self._set_modes()
        if self._failures:
            raise _combine_failures(list(self._failures.values()))
        return self.outcome

    def _recover(self) -> None:
        """Remove temporary files of a process killed during this restore, and keep what other processes wrote."""
        for path in sorted({*self._changes, *(folder for one in self._changes for folder in _parent_folders(one))}):
            change = self._changes.get(path, TreeChange(None, None))
            with self._collecting_failures(path):
                aside_path = self._disk.recover(
                    path, *(one for one in change if one is not None and not one.is_directory)
                )
                if aside_path is not None:
                    self.outcome.conflicts.append(
                        (path, f"{CHANGED}; that version is now at {os.fsdecode(aside_path)}")
                    )

    @contextmanager
    def _collecting_failures(self, path: bytes) -> Iterator[None]:
        """Record a failure at a path, and continue with the others."""
        try:
            yield
        except (Unavailable, InvalidInput) as error:
            self._failures.setdefault(path, error)

    def _remove_files(self) -> None:
        for path, (before, after) in self._changes.items():
            if before is not None and _is_leaf(before) and not _is_leaf(after):
                with self._collecting_failures(path):
                    self._remove_file(path, before, after)

    def _remove_file(self, path: bytes, before: TreeEntry, after: TreeEntry | None) -> None:
        current = self._disk.read_entry(path)
        if current == before:
            if self._disk.unlink(path, before):
                self.outcome.deleted.append(path)
            else:
                self.outcome.conflicts.append((path, CHANGED))
        elif current is None and self._is_resumed:
            self.outcome.deleted.append(path)
        elif current is not None and current != after and not stat.S_ISDIR(current.mode):
            self.outcome.conflicts.append((path, CHANGED))

    def _remove_folders(self, limit_to: Iterable[bytes] | None = None) -> None:
        """Remove the directories that are empty and that the target does not have."""
        candidates = {
            path
            for path, (before, after) in self._changes.items()
            if _is_directory(before) and not _is_directory(after)
        }
        for path, (before, after) in self._changes.items():
            if before is not None and after is None:
                candidates.update(_parent_folders(path))
        if limit_to is not None:
            allowed_paths = set(limit_to)
            candidates = {
                path
                for path in candidates
                if path in allowed_paths or any(one in allowed_paths for one in _parent_folders(path))
            }
        for path in sorted(candidates - self._target_directories.keys(), key=len, reverse=True):
            with self._collecting_failures(path):
                if self._disk.remove_folder(path):
                    self.outcome.removed_folders.append(path)

    def _write_files(self) -> None:
        changes = sorted(self._changes.items())
        entries = [(path, after) for path, (_, after) in changes if after is not None and not after.is_directory]
        processed = 0
        while processed < len(entries):
            try:
                for path, entry, data in self._trees.contents(self._target, entries[processed:]):
                    processed += 1
                    with self._collecting_failures(path):
                        self._write_file(path, entry, data)
                    if self._progress:
                        self._progress(processed, len(entries))
            except Corrupt as error:  # raised for the next path, after those that are done
                self._failures.setdefault(entries[processed][0], error)
                processed += 1

    def _write_file(self, path: bytes, after: TreeEntry, data: Data) -> None:
        """Write one file, unless another process changed it.

        The path is examined right before the write. An earlier check could lose a concurrent change. A file is always
        replaced and its mode is never changed in place, because it may have hard links outside of the workspace.
        """
        before, current = self._changes[path].before, self._disk.read_entry(path)
        if current == after:
            if self._is_resumed:
                self.outcome.restored.append(path)
            return
        if current is not None and current != before and _is_leaf(before) and not stat.S_ISDIR(current.mode):
            self.outcome.conflicts.append((path, CHANGED))
            return
        if current is not None and not (current == before and _is_leaf(current)):
            self._disk.move_aside(path)
            current = None
        if self._disk.put(path, after, data, current):
            self.outcome.restored.append(path)
        else:
            self.outcome.conflicts.append((path, CHANGED))

    def _make_folders(self) -> None:
        for path in sorted(path for path, change in self._changes.items() if _is_directory(change.after)):
            with self._collecting_failures(path):
                if (current := self._disk.read_entry(path)) is None or not stat.S_ISDIR(current.mode):
                    self._disk.make_folder(path)

    def _set_modes(self) -> None:
        """Set the modes of directories, the deepest first, because a parent may become read-only."""
        for path in sorted(self._changes, key=len, reverse=True):
            before, after = self._changes[path]
            if after is not None and after.is_directory:
                mode = after.mode
            elif after is None and before is not None and before.is_directory and self._target_has_below(path):
                mode = PLAIN_DIRECTORY
            else:
                continue
            with self._collecting_failures(path):
                current = self._disk.read_entry(path)
                if current and stat.S_ISDIR(current.mode) and current.mode != mode:
                    self._disk.set_folder_mode(path, mode)

    def _target_has_below(self, path: bytes) -> bool:
        """Return whether the target has entries below a directory that has no entry of its own."""
        return any(one.startswith(path + b"/") for one in self._trees.tree(self._target))


def _combine_failures(failures: Sequence[AgentGitError]) -> AgentGitError:
    """Combine several failures into one, with damaged contents first."""
    first = next((one for one in failures if isinstance(one, Corrupt)), failures[0])
    if len(failures) == 1:
        return first
    others = [one for one in failures if one is not first][: MAX_NAMED_FAILURES - 1]
    omitted = len(failures) - 1 - len(others)
    messages = " ".join([str(first), *map(str, others), *([f"And {omitted} more."] if omitted else [])])
    text = f"{len(failures)} paths were not restored; all others were. {messages}"
    return Corrupt(text, row=first.row) if isinstance(first, Corrupt) else Unavailable(text)


def _is_blocking(change: TreeChange) -> bool:
    return _is_leaf(change.before) and not _is_leaf(change.after)


def _is_directory(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.is_directory


def _parent_folders(path: bytes) -> Iterator[bytes]:
    while path := os.path.dirname(path):
        yield path
