"""The changes of files since a snapshot: those that a restore takes back, and those that it leaves as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from agentgit.workspace.left_out import Pairs, parent_folders
from agentgit.workspace.trees import Changes, TreeChange, Trees, is_leaf
from agentgit.workspace.values import Restored

OWN, THEIRS, EITHER = "own", "theirs", "either"
"""Who changed the files between two states: the session, somebody else, or both."""

LEFT_WHY = "somebody else changed it while no turn ran"
CONFLICT_WHY = "a turn changed it, and so did somebody else"


class FileState(NamedTuple):
    """A snapshot of a directory, and who changed its files since the state before."""

    snapshot: str
    changed_by: str


class FileHistory:
    """The states of a directory since the snapshot that is restored, oldest first.

    What only somebody else changed stays. A file that both changed is a conflict, and stays unless `overwrites`; if it
    is gone, it is restored, because that replaces nothing.
    """

    def __init__(self, states: Sequence[FileState], changed_since: str, *, overwrites: bool = False) -> None:
        self._states, self._changed_since, self._overwrites = states, changed_since, overwrites
        self.left: list[bytes] = []
        self.conflicts: list[bytes] = []
        self.overwritten: list[bytes] = []

    def kept(self, changes: Changes, trees: Trees, tree_of: Callable[[str], bytes | None], now: bytes) -> set[bytes]:
        """Return the paths that a restore leaves as they are; `now` is the tree of the directory."""
        theirs, own = set[bytes](), set[bytes]()
        for before, after, changed_by in self._intervals(tree_of, now):
            changed = trees.differences(before, after).keys()
            theirs |= changed if changed_by != OWN else set()
            own |= changed if changed_by != THEIRS else set()
        left = changes.keys() & theirs - own
        both = {path for path in theirs & own & changes.keys() if changes[path].before is not None}
        kept = left if self._overwrites else left | both
        kept |= _blocked_by(kept, changes)
        self.left, self.conflicts, self.overwritten = (
            _leaves(paths, changes) for paths in (left, kept - left, both - kept)
        )
        return kept

    def _intervals(self, tree_of: Callable[[str], bytes | None], now: bytes) -> Iterator[tuple[bytes, bytes, str]]:
        """Yield the trees between which the files changed, without detours that ended where they began."""
        path: dict[bytes, str] = {}
        missed = set[str]()
        for snapshot, changed_by in [*self._states, FileState("", self._changed_since)]:
            tree = tree_of(snapshot) if snapshot else now
            missed.add(changed_by)
            if tree is None:  # the snapshot is gone; its changes count with those of the next state
                continue
            if tree not in path:
                path[tree] = changed_by if len(missed) == 1 else EITHER
            while next(reversed(path)) != tree:
                path.popitem()
            missed.clear()
        (before, _), *steps = path.items()
        for by, group in groupby(steps, key=itemgetter(1)):
            *_, (after, _) = group
            yield before, after, by
            before = after

    def add_to(self, result: Restored) -> Restored:
        conflicts = (*result.conflicts, *((os.fsdecode(path), CONFLICT_WHY) for path in self.conflicts))
        return replace(result, left=self.with_left(result.left), conflicts=conflicts)

    def with_left(self, left: Pairs) -> Pairs:
        """Return paths that stay, each with the reason, and those that stay because somebody else changed them."""
        return *left, *((os.fsdecode(path), LEFT_WHY) for path in self.left)


def _blocked_by(kept: set[bytes], changes: Changes) -> set[bytes]:
    """Return the paths that cannot be written because a path that is kept is above or below them."""
    kept_files = {path for path in kept if is_leaf(changes[path].before)}
    parents = {parent for path in kept_files for parent in parent_folders(path)}
    return {
        path
        for path, change in changes.items()
        if path not in kept
        and ((is_leaf(change.after) and path in parents) or any(one in kept_files for one in parent_folders(path)))
    }


def _leaves(paths: Iterable[bytes], changes: Changes) -> list[bytes]:
    def has_file(change: TreeChange) -> bool:
        return is_leaf(change.before) or is_leaf(change.after)

    return sorted(path for path in paths if has_file(changes[path]))
