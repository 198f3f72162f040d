"""Restores of a workspace: what one changes and what it must not change, and the work itself, which is idempotent.

A restore changes only paths that differ, and records no progress. Each path is in one of three states: as before the
restore (the restore changes it), as wanted (it is done), or different from both because another process changed it
(the restore skips and reports it). An interrupted restore is therefore run again from the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import NamedTuple

import ormsgpack

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, Unavailable
from agentgit.next_steps import Next
from agentgit.values import escape_path
from agentgit.workspace.disk import Disk, Place
from agentgit.workspace.left_out import UNREADABLE, Chosen, LeftOutPaths, containing_path, is_selected, parent_folders
from agentgit.workspace.objects import Objects
from agentgit.workspace.trees import Changes, TreeChange, Trees, is_directory, is_leaf
from agentgit.workspace.values import some

CHANGED = "changed during the restore"


def plan_steps(changes: Changes, snapshot: LeftOutPaths, now: LeftOutPaths) -> tuple[Changes, dict[bytes, str]]:
    """Return what a restore changes, from the differences between the workspace and a snapshot, and what it cannot."""
    closed = {path for path, one in now.items() if one.why == UNREADABLE and one.is_folder}
    unreachable = {path: UNREADABLE for path in changes if closed and containing_path(path, closed) is not None}
    kept = {
        path: change
        for path, change in changes.items()
        if path not in unreachable
        and not (change.after is None and containing_path(path, snapshot) is not None)
        # A directory that is left out now keeps its mode, because no snapshot holds it.
        and not (is_directory(change.after) and path in now and now[path].is_folder)
    }
    return kept, unreachable


def select_changes(differences: Mapping[bytes, TreeChange], paths: Chosen) -> Changes:
    """Return the differences at some paths and below them, and what must be done to their parents; None for all."""
    selected = {path: change for path, change in differences.items() if is_selected(paths, path)}
    for path in list(selected) if paths is not None else ():
        for parent in parent_folders(path):
            change = differences.get(parent, TreeChange(None, None))
            if is_directory(change.after) != is_directory(change.before) and not is_leaf(change.after):
                selected[parent] = change
    return selected


class KeptPaths(NamedTuple):
    """The paths that a restore leaves as they are; of those to report, the reasons why they stay or conflict."""

    paths: Collection[bytes] = ()
    left: Mapping[bytes, str] = {}
    conflicts: Mapping[bytes, str] = {}


Choose = Callable[[Changes, Set[bytes], Trees, Callable[[str], bytes | None], bytes], KeptPaths]
"""Chooses from what a restore changes; also given: the paths at which it would displace what no snapshot holds, trees,
the tree of a snapshot by its id, and that of the files."""


def keep_nothing(*_: object) -> KeptPaths:
    return KeptPaths()


class PendingRestore(NamedTuple):
    """A restore that has begun; the catalog has it until it is finished."""

    snapshot: str
    safety: str
    aside: str
    paths: Chosen
    kept: KeptPaths
    is_undo: bool

    def encode(self) -> str:
        fields = [*self[:4], [list(self.kept.paths), self.kept.left, self.kept.conflicts], self.is_undo]
        return ormsgpack.packb(fields, option=ormsgpack.OPT_NON_STR_KEYS).hex()

    @classmethod
    def decode(cls, text: str) -> PendingRestore:
        fields = ormsgpack.unpackb(bytes.fromhex(text), option=ormsgpack.OPT_NON_STR_KEYS)
        snapshot, safety, aside, paths, (kept, *reasons), is_undo = fields
        chosen = None if paths is None else tuple(paths)
        return cls(snapshot, safety, aside, chosen, KeptPaths(set(kept), *reasons), is_undo)


def leaves(changes: Changes) -> list[bytes]:
    return [path for path, change in changes.items() if is_leaf(change.before) or is_leaf(change.after)]


class Restore:
    def __init__(
        self, disk: Disk, objects: Objects, changes: Changes, displacing: Set[bytes], *, is_resumed: bool = False
    ) -> None:
        self._disk, self._objects, self._changes, self._is_resumed = disk, objects, changes, is_resumed
        self._displacing = displacing
        self._failures: dict[bytes, AgentGitError] = {}
        self.done: dict[str, list[bytes]] = {}
        """The paths that were changed, by the fields of `Restored`."""
        self.conflicts: dict[bytes, str] = {}

    def run(self) -> None:
        """Run the restore, or the rest of an interrupted one. A path that fails does not stop the others."""
        changes = dict(sorted(self._changes.items()))
        modes = {path: after.mode for path, (_, after) in changes.items() if is_directory(after)}
        files = [path for path, (_, after) in changes.items() if is_leaf(after)]
        gone = [path for path, (before, after) in changes.items() if is_leaf(before) and not is_leaf(after)]
        emptied = [path for path, (before, _) in changes.items() if is_directory(before) and path not in modes]

        def set_mode(path: bytes, place: Place | None) -> None:
            if place is not None:
                place.set_mode(modes[path])

        if self._is_resumed:
            self._each(changes, self._recover)
        self.done = {
            "deleted": self._each(gone, self._replace),
            "deleted_directories": self._each(reversed(emptied), lambda _, place: place and place.remove_folder()),
            "created_directories": self._each(modes, self._make_folder, is_made=True),
            "restored": self._each(files, self._replace, is_made=True),
        }
        self._each(reversed(modes), set_mode)  # the deepest first, because a parent may become read-only
        if self._failures:
            raise _combine_failures(list(self._failures.values()))

    def _each(
        self, paths: Iterable[bytes], act: Callable[[bytes, Place | None], object], *, is_made: bool = False
    ) -> list[bytes]:
        """Act at each path, and return those at which it is done."""
        done = []
        for path in paths:
            with self._collecting(path), self._disk.at(path, is_made=is_made) as place:
                if act(path, place):
                    done.append(path)
        return done

    @contextmanager
    def _collecting(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except Corrupt as error:
            text = f"The contents of {escape_path(path)} in the snapshot are lost: {error}"
            self._failures.setdefault(path, Corrupt(text, Next("restore_other"), row=error.row))
        except (Unavailable, InvalidInput) as error:
            self._failures.setdefault(path, error)

    def _recover(self, path: bytes, place: Place | None) -> None:
        """Remove temporary files of a process killed during this restore, and keep what other processes wrote."""
        aside = place.recover(*filter(is_leaf, self._changes[path])) if place is not None else None
        if aside is not None:
            self.conflicts[path] = f"{CHANGED}; that version is now at {os.fsdecode(aside)}"

    def _make_folder(self, path: bytes, place: Place | None) -> bool:
        if place is not None and path in self._displacing and is_leaf(place.look()):
            place.move_aside(place.name)
        return place is not None and place.make_folder()

    def _replace(self, path: bytes, place: Place | None) -> bool:
        """Write or delete one file, unless another process changed it; an earlier check could lose its change."""
        before, after = (one if is_leaf(one) else None for one in self._changes[path])
        current = place.look() if place is not None else None
        if current == after:
            return self._is_resumed
        if after is None and current is not None and current.is_directory:
            return False
        data = self._objects.read(after.oid) if after is not None else b""
        is_known = before is not None and current == before
        is_taken = current is not None and not is_known
        if place is not None and (not is_taken or path in self._displacing):
            if is_taken:
                place.move_aside(place.name)
            if place.replace(before if is_known else None, after, data):
                return True
        self.conflicts.setdefault(path, CHANGED)
        return False


def _combine_failures(failures: Collection[AgentGitError]) -> AgentGitError:
    """Combine several failures into one, with damaged contents first."""
    first, *others = ordered = sorted(failures, key=lambda error: not isinstance(error, Corrupt))
    if not others:
        return first
    causes = some([error.message for error in ordered], " ")
    text = f"{len(ordered)} paths were not restored; all others were. {causes}"
    return Corrupt(text, *first.next, row=first.row) if isinstance(first, Corrupt) else Unavailable(text)
