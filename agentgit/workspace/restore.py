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
    NAME,
    ExcludedPath,
    ExcludedRecord,
    ExcludedReport,
    IgnoreRules,
    cannot_be_excluded,
    is_among,
    look,
    report_excluded,
    staying,
)
from agentgit.workspace.scan.index import PLAIN_DIRECTORY, within
from agentgit.workspace.scan.scan import EXCLUDED, UNREADABLE
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees

Paths = Iterable[bytes] | None


class RestoreSteps(NamedTuple):
    """The changes that a restore makes, and those that it must not make.

    Args:
        changes: The changes that the restore makes.
        stays: Entries that it does not remove, because the snapshot left them out.
        closed: Paths that it does not change, because they are in directories that cannot be read.
        ignored: Paths that it does not remove, because the snapshot's own `.gitignore` files exclude them.
        then: The paths that the snapshot left out.
        has: The paths at which the snapshot has an entry that differs from the current one.
    """

    changes: dict[bytes, TreeChange]
    stays: dict[bytes, TreeEntry]
    closed: list[bytes]
    ignored: set[bytes]
    then: ExcludedRecord
    has: set[bytes]


class RestorePlanner:
    """Plans restores of one workspace.

    Args:
        root: The workspace.
        trees: The store of the trees.
        catalog: The catalog, which stores the paths that each snapshot left out.
        patterns: The patterns of paths that are left out, in addition to those of `.gitignore` files.
    """

    def __init__(self, root: bytes, trees: Trees, catalog: Catalog, patterns: tuple[str, ...]) -> None:
        self._root, self._trees, self._catalog, self._patterns = root, trees, catalog, patterns

    def steps(self, snapshot: str, tree: str, changes: dict[bytes, TreeChange], now: ExcludedRecord) -> RestoreSteps:
        """Return the changes that a restore makes, and the paths that it must not change.

        Args:
            snapshot: The id of the snapshot to restore.
            tree: The key of its tree.
            changes: The differences between the workspace and the snapshot, at the paths to restore.
            now: The paths that are left out now.
        """
        then = self._catalog.excluded_from(snapshot)
        stays = staying(changes, then)
        unread = {path for path, one in now.items() if one.why == UNREADABLE and TreeEntry(one.mode).is_directory}
        closed = [path for path in changes if within(path, unread)] if unread else []
        does = {
            path: change
            for path, change in changes.items()
            if path not in stays and path not in closed and not _same_folder(change.after, now.get(path))
        }
        has = {path for path, change in changes.items() if change.after is not None}
        if (rules := self._rules(tree, changes)) is None:
            return RestoreSteps(does, stays, closed, set(), then, has)
        free = cannot_be_excluded(changes)
        ignored = {
            path
            for path, (before, after) in changes.items()
            if after is None and _leaf(before) and rules.ignored(path) and not free(path)
        }
        does = {path: change for path, change in does.items() if path not in ignored}
        stays = {path: entry for path, entry in stays.items() if path not in ignored}
        return RestoreSteps(does, stays, closed, ignored, then, has)

    def _rules(self, tree: str, changes: Mapping[bytes, TreeChange]) -> IgnoreRules | None:
        """Return the rules of a snapshot's own `.gitignore` files; None if they are the same as the current ones.

        A path that they exclude may have existed when the snapshot was taken, even if the snapshot does not list it.
        It is therefore not removed.
        """
        if not any(path.rpartition(b"/")[2] == NAME for path in changes):
            return None
        files = [
            (path, entry)
            for path, entry in sorted(self._trees.tree(tree).items())
            if path.rpartition(b"/")[2] == NAME and stat.S_ISREG(entry.mode)
        ]
        contents = {path: data for path, data in contents_of(self._trees, tree, files) if data is not None}
        return IgnoreRules(self._root, self._patterns, contents)

    def excluded_report(self, steps: RestoreSteps, now: ExcludedRecord, paths: Paths) -> ExcludedReport:
        """Return the paths left out of the snapshot: the missing ones, and those that the restore does not change."""
        among = partial(is_among, None if paths is None else tuple(paths))
        made = {path for path in steps.ignored if within(path, steps.then) is None}
        now = {**now, **{path: one._replace(why=EXCLUDED) for path in made if (one := look(self._root, path))}}
        return report_excluded(steps.then, now, self._root, has=steps.has, among=among)

    def already_restored(self, steps: RestoreSteps, now: ExcludedRecord) -> set[bytes]:
        """Return the paths that are left out now and whose current state is already what the restore would write."""
        wanted = [(path, steps.changes[path].after) for path in steps.changes if within(path, now)]
        with TemporaryPermissions(self._root, self._catalog) as permits:
            disk = Disk(self._root, b"", permits)
            return {path for path, after in wanted if _leaf(after) and disk.read_entry(path) == after}


def _same_folder(after: TreeEntry | None, now: ExcludedPath | None) -> bool:
    """Return whether the snapshot has a directory at a path where a directory is left out now.

    The current directory keeps its mode, because no snapshot holds it.
    """
    return after is not None and after.is_directory and now is not None and stat.S_ISDIR(now.mode)


def _leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and not entry.is_directory


CHANGED = "changed during the restore"

NAMED = 5
"""The maximum number of failures in one error message."""

Progress = Callable[[int, int], None]
"""A function that is called with the number of files done and their total."""


@dataclass
class RestoreOutcome:
    """The outcome of a restore, by path."""

    restored: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    folders_gone: list[bytes] = field(default_factory=list)
    conflicts: list[tuple[bytes, str]] = field(default_factory=list)


def limited(differences: Mapping[bytes, TreeChange], paths: Iterable[bytes] | None) -> dict[bytes, TreeChange]:
    """Return the differences at some paths and below them; None for all.

    They include a file or link that must be removed because the snapshot has a parent directory of such a path there.
    """
    if paths is None:
        return dict(differences)
    wanted = tuple(paths)
    found = {
        path: change
        for path, change in differences.items()
        if any(not one or path == one or path.startswith(one + b"/") for one in wanted)
    }
    for path in [path for path, change in found.items() if change.after is not None]:
        found.update(
            (one, differences[one]) for one in _above(path) if one in differences and _blocks(differences[one])
        )
    return found


class Restore:
    """One restore.

    Args:
        disk: The files of the workspace.
        trees: The store of the contents.
        target: The key of the tree to restore.
        differences: The differences between the tree when the restore began and the target.
        progress: The function to call with the number of files done and their total.
        again: True if a process was killed during this restore. The outcome then includes the changes that it made.
    """

    def __init__(
        self,
        disk: Disk,
        trees: Trees,
        target: str,
        differences: Mapping[bytes, TreeChange],
        progress: Progress | None = None,
        *,
        again: bool = False,
    ) -> None:
        self._again = again
        self._disk, self._trees, self._target, self._progress = disk, trees, target, progress
        self._changes = differences
        self._named = trees.directories(target)
        self._failed: dict[bytes, AgentGitError] = {}
        self.outcome = RestoreOutcome()

    def run(self) -> RestoreOutcome:
        """Run the restore, or the rest of an interrupted one. A path that fails does not stop the others.

        Raises:
            Unavailable: Some paths cannot be written. All others are done; run the restore again for the rest.
            Corrupt: Some contents are damaged. All other paths are done.
        """
        if self._again:
            self._recover()
        self._remove_files()
        self._remove_folders(below=[path for path, change in self._changes.items() if _leaf(change.after)])
        self._write_files()
        self._make_folders()
        self._remove_folders()
        self._set_modes()
        if self._failed:
            raise _all_in_one(list(self._failed.values()))
        return self.outcome

    def _recover(self) -> None:
        """Remove temporary files of a process killed during this restore, and keep what other processes wrote."""
        for path in sorted({*self._changes, *(folder for one in self._changes for folder in _above(one))}):
            change = self._changes.get(path, TreeChange(None, None))
            with self._collecting_failures(path):
                to = self._disk.recover(path, *(one for one in change if one is not None and not one.is_directory))
                if to is not None:
                    self.outcome.conflicts.append((path, f"{CHANGED}; that version is now at {os.fsdecode(to)}"))

    @contextmanager
    def _collecting_failures(self, path: bytes) -> Iterator[None]:
        """Record a failure at a path, and continue with the others."""
        try:
            yield
        except (Unavailable, InvalidInput) as error:
            self._failed.setdefault(path, error)

    def _remove_files(self) -> None:
        for path, (before, after) in self._changes.items():
            if before is not None and _leaf(before) and not _leaf(after):
                with self._collecting_failures(path):
                    self._remove_file(path, before, after)

    def _remove_file(self, path: bytes, before: TreeEntry, after: TreeEntry | None) -> None:
        found = self._disk.read_entry(path)
        if found == before:
            if self._disk.unlink(path, before):
                self.outcome.deleted.append(path)
            else:
                self.outcome.conflicts.append((path, CHANGED))
        elif found is None and self._again:
            self.outcome.deleted.append(path)
        elif found is not None and found != after and not stat.S_ISDIR(found.mode):
            self.outcome.conflicts.append((path, CHANGED))

    def _remove_folders(self, below: Iterable[bytes] | None = None) -> None:
        """Remove the directories that are empty and that the target does not have.

        Args:
            below: The paths to limit this to, each with everything below it; None for all.
        """
        gone = {path for path, (before, after) in self._changes.items() if _folder(before) and not _folder(after)}
        for path, (before, after) in self._changes.items():
            if before is not None and after is None:
                gone.update(_above(path))
        if below is not None:
            only = set(below)
            gone = {path for path in gone if path in only or any(one in only for one in _above(path))}
        for path in sorted(gone - self._named.keys(), key=len, reverse=True):
            with self._collecting_failures(path):
                if self._disk.remove_folder(path):
                    self.outcome.folders_gone.append(path)

    def _write_files(self) -> None:
        changes = sorted(self._changes.items())
        wanted = [(path, after) for path, (_, after) in changes if after is not None and not after.is_directory]
        done = 0
        while done < len(wanted):
            try:
                for path, entry, data in self._trees.contents(self._target, wanted[done:]):
                    done += 1
                    with self._collecting_failures(path):
                        self._write_file(path, entry, data)
                    if self._progress:
                        self._progress(done, len(wanted))
            except Corrupt as error:  # raised for the next path, after those that are done
                self._failed.setdefault(wanted[done][0], error)
                done += 1

    def _write_file(self, path: bytes, after: TreeEntry, data: Data) -> None:
        """Write one file, unless another process changed it.

        The path is examined right before the write. An earlier check could lose a concurrent change. A file is always
        replaced and its mode is never changed in place, because it may have hard links outside of the workspace.
        """
        before, found = self._changes[path].before, self._disk.read_entry(path)
        if found == after:
            if self._again:
                self.outcome.restored.append(path)
            return
        if found is not None and found != before and _leaf(before) and not stat.S_ISDIR(found.mode):
            self.outcome.conflicts.append((path, CHANGED))
            return
        if found is not None and not (found == before and _leaf(found)):
            self._disk.move_aside(path)
            found = None
        if self._disk.put(path, after, data, found):
            self.outcome.restored.append(path)
        else:
            self.outcome.conflicts.append((path, CHANGED))

    def _make_folders(self) -> None:
        for path in sorted(path for path, change in self._changes.items() if _folder(change.after)):
            with self._collecting_failures(path):
                if (found := self._disk.read_entry(path)) is None or not stat.S_ISDIR(found.mode):
                    self._disk.make_folder(path)

    def _set_modes(self) -> None:
        """Set the modes of directories, the deepest first, because a parent may become read-only."""
        for path in sorted(self._changes, key=len, reverse=True):
            before, after = self._changes[path]
            if after is not None and after.is_directory:
                mode = after.mode
            elif after is None and before is not None and before.is_directory and self._goes_on(path):
                mode = PLAIN_DIRECTORY
            else:
                continue
            with self._collecting_failures(path):
                found = self._disk.read_entry(path)
                if found and stat.S_ISDIR(found.mode) and found.mode != mode:
                    self._disk.set_folder_mode(path, mode)

    def _goes_on(self, path: bytes) -> bool:
        """Return whether the target has entries below a directory that has no entry of its own."""
        return any(one.startswith(path + b"/") for one in self._trees.tree(self._target))


def _all_in_one(failures: Sequence[AgentGitError]) -> AgentGitError:
    """Combine several failures into one, with damaged contents first."""
    first = next((one for one in failures if isinstance(one, Corrupt)), failures[0])
    if len(failures) == 1:
        return first
    others = [one for one in failures if one is not first][: NAMED - 1]
    more = len(failures) - 1 - len(others)
    said = " ".join([str(first), *map(str, others), *([f"And {more} more."] if more else [])])
    text = f"{len(failures)} paths were not restored; all others were. {said}"
    return Corrupt(text, row=first.row) if isinstance(first, Corrupt) else Unavailable(text)


def _blocks(change: TreeChange) -> bool:
    return _leaf(change.before) and not _leaf(change.after)


def _folder(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.is_directory


def _above(path: bytes) -> Iterator[bytes]:
    while path := os.path.dirname(path):
        yield path
