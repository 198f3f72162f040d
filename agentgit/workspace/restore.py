"""Going from what stands now to a snapshot: only what differs is touched, and doing it again does no harm.

Nothing is noted on the way: a path is as it was (then it is changed), as it is wanted (then it is done), or something
else, which somebody did meanwhile: then it is left and reported. So a restore that was killed is simply done again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentgit.workspace.disk import Disk
from agentgit.workspace.known import PLAIN_DIRECTORY
from agentgit.workspace.trees import Change, Entry, Trees

CHANGED = "changed meanwhile"

Progress = Callable[[int, int], None]
"""Is told how many of how many files are done."""


@dataclass
class Outcome:
    """What was done, by path."""

    restored: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    folders_gone: list[bytes] = field(default_factory=list)
    conflicts: list[tuple[bytes, str]] = field(default_factory=list)


def limited(differences: Mapping[bytes, Change], paths: Iterable[bytes] | None) -> dict[bytes, Change]:
    """Give the differences at some paths and below them; None gives all."""
    if paths is None:
        return dict(differences)
    wanted = tuple(paths)
    return {
        path: change
        for path, change in differences.items()
        if any(not one or path == one or path.startswith(one + b"/") for one in wanted)
    }


class Restore:
    """One restore.

    Args:
        disk: the workspace.
        trees: where the contents are.
        target: the key of the snapshot that is wanted.
        differences: between what stood when the restore began and the target.
        progress: is told how far it is.
    """

    def __init__(
        self,
        disk: Disk,
        trees: Trees,
        target: str,
        differences: Mapping[bytes, Change],
        progress: Progress | None = None,
    ) -> None:
        self._disk, self._trees, self._target, self._progress = disk, trees, target, progress
        self._changes = differences
        self._named = trees.directories(target)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Do it, or do the rest of it.

        Raises:
            Unavailable: a path cannot be written; what is done stays, and doing it again goes on from there.
            Corrupt: contents are damaged.
        """
        self._remove_files()
        self._remove_folders(below=[path for path, change in self._changes.items() if _leaf(change.after)])
        self._write_files()
        self._make_folders()
        self._remove_folders()
        self._set_modes()
        return self.outcome

    def _remove_files(self) -> None:
        for path, (before, after) in self._changes.items():
            if not _leaf(before) or _leaf(after):
                continue
            found = self._disk.look(path)
            if found == before:
                self._disk.unlink(path)
                self.outcome.deleted.append(path)
            elif found is not None and found != after and not stat.S_ISDIR(found.mode):
                self.outcome.conflicts.append((path, CHANGED))

    def _remove_folders(self, below: Iterable[bytes] | None = None) -> None:
        """Remove the directories that are empty now and that the target does not have.

        Args:
            below: only these and what is below them; None is all.
        """
        gone = {path for path, (before, after) in self._changes.items() if _folder(before) and not _folder(after)}
        for path, (before, after) in self._changes.items():
            if before is not None and after is None:
                gone.update(_above(path))
        if below is not None:
            only = set(below)
            gone = {path for path in gone if path in only or any(one in only for one in _above(path))}
        for path in sorted(gone - self._named.keys(), key=len, reverse=True):
            if self._disk.remove_folder(path):
                self.outcome.folders_gone.append(path)

    def _write_files(self) -> None:
        changes = sorted(self._changes.items())
        wanted = [(path, after) for path, (_, after) in changes if after is not None and not after.is_directory]
        for number, (path, entry, data) in enumerate(self._trees.contents(self._target, wanted), 1):
            self._write_file(path, entry, data)
            if self._progress:
                self._progress(number, len(wanted))

    def _write_file(self, path: bytes, after: Entry, data: bytes) -> None:
        """Put one file in its place. What stands there is looked at now: earlier, and somebody's change is lost."""
        before, found = self._changes[path].before, self._disk.look(path)
        if found == after:
            return
        if found is not None and found != before and _leaf(before) and not stat.S_ISDIR(found.mode):
            self.outcome.conflicts.append((path, CHANGED))
            return
        if found is not None and found == before and not after.is_link and found.oid == after.oid:
            self._disk.chmod(path, after.mode)
        else:
            if found is not None and not (found == before and _leaf(found)):
                self._disk.move_aside(path)
            self._disk.put(path, after, data)
        self.outcome.restored.append(path)

    def _make_folders(self) -> None:
        for path in sorted(path for path, change in self._changes.items() if _folder(change.after)):
            if (found := self._disk.look(path)) is None or not stat.S_ISDIR(found.mode):
                self._disk.make_folder(path)

    def _set_modes(self) -> None:
        """The deepest first, so that a directory that may not be written is written before."""
        for path in sorted(self._changes, key=len, reverse=True):
            before, after = self._changes[path]
            if after is not None and after.is_directory:
                mode = after.mode
            elif after is None and before is not None and before.is_directory and self._goes_on(path):
                mode = PLAIN_DIRECTORY
            else:
                continue
            found = self._disk.look(path)
            if found and stat.S_ISDIR(found.mode) and found.mode != mode:
                self._disk.chmod(path, mode)

    def _goes_on(self, path: bytes) -> bool:
        """Whether the target has something in a directory that it does not name."""
        return any(one.startswith(path + b"/") for one in self._trees.tree(self._target))


def _leaf(entry: Entry | None) -> bool:
    return entry is not None and not entry.is_directory


def _folder(entry: Entry | None) -> bool:
    return entry is not None and entry.is_directory


def _above(path: bytes) -> Iterator[bytes]:
    while path := os.path.dirname(path):
        yield path
