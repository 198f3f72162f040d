"""Who changed the files of a session since a snapshot, and what a rollback therefore leaves as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from agentgit.effects.files import PERSON, TURN, UNKNOWN
from agentgit.workspace.left_out import parent_folders
from agentgit.workspace.restore import KeptPaths, leaves
from agentgit.workspace.trees import Changes, Trees, is_leaf

LEFT_WHY = "somebody else changed it while no turn ran"
CONFLICT_WHY = "a turn changed it, and so did somebody else"


class FileState(NamedTuple):
    """A snapshot of a directory, and who changed its files since the state before: `TURN`, `PERSON` or `UNKNOWN`."""

    snapshot: str
    changed_by: str


class FileHistory:
    """The states of a directory since the snapshot that is restored, oldest first.

    What only somebody else changed stays. A file that both changed is a conflict, and stays unless `overwrites`; if it
    is gone, it is restored, because that replaces nothing.
    """

    def __init__(self, states: Sequence[FileState], changed_since: str, *, overwrites: bool = False) -> None:
        self._states, self._changed_since, self._overwrites = states, changed_since, overwrites
        self.overwritten = set[bytes]()

    def choose(self, changes: Changes, trees: Trees, tree_of: Callable[[str], bytes | None], now: bytes) -> KeptPaths:
        """Return the paths that a restore leaves as they are; `now` is the tree of the directory."""
        theirs, own = set[bytes](), set[bytes]()
        for before, after, changed_by in self._intervals(tree_of, now):
            changed = trees.differences(before, after).keys()
            theirs |= changed if changed_by != TURN else set()
            own |= changed if changed_by != PERSON else set()
        left = changes.keys() & theirs - own
        both = {path for path in theirs & own & changes.keys() if changes[path].before is not None}
        kept = left if self._overwrites else left | both
        kept |= _blocked_by(kept, changes)
        files = set(leaves(changes))
        self.overwritten = (both - kept) & files
        return KeptPaths(
            kept, dict.fromkeys(left & files, LEFT_WHY), dict.fromkeys((kept - left) & files, CONFLICT_WHY)
        )

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
                path[tree] = changed_by if len(missed) == 1 else UNKNOWN
            while next(reversed(path)) != tree:
                path.popitem()
            missed.clear()
        (before, _), *steps = path.items()
        for by, group in groupby(steps, key=itemgetter(1)):
            *_, (after, _) = group
            yield before, after, by
            before = after


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
