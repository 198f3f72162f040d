"""Planning of a restore from the differences between the workspace and a snapshot.

A plan also names what the restore must leave because of what was left out.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from agentgit.workspace.catalog import Catalog
from agentgit.workspace.diff import contents_of
from agentgit.workspace.disk.disk import Disk
from agentgit.workspace.disk.permissions import Permits
from agentgit.workspace.scan.excluded import ExcludedPaths, Left, look, no_room, staying
from agentgit.workspace.scan.excluded_report import Named, is_among, of_left_out
from agentgit.workspace.scan.ignore import NAME, IgnoreRules
from agentgit.workspace.scan.index import within
from agentgit.workspace.scan.scan import EXCLUDED, UNREADABLE
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees

Paths = Iterable[bytes] | None


class RestoreSteps(NamedTuple):
    """The changes that a restore makes, and those that it must not make.

    Args:
        changes: The changes that it makes.
        stays: Entries that it does not remove, because the snapshot left them out.
        closed: Paths that it does not change, because they are in directories that cannot be read.
        ignored: Paths that it does not remove, because the snapshot's own `.gitignore` files name them.
        then: The paths that the snapshot left out.
        has: The paths at which the snapshot has something else than what stands now.
    """

    changes: dict[bytes, TreeChange]
    stays: dict[bytes, TreeEntry]
    closed: list[bytes]
    ignored: set[bytes]
    then: Left
    has: set[bytes]


class RestorePlanner:
    """Plans restores of one workspace.

    Args:
        root: The workspace.
        trees: The store of the trees.
        catalog: The catalog, which knows what each snapshot left out.
        patterns: The patterns of paths that are left out, besides those of `.gitignore` files.
    """

    def __init__(self, root: bytes, trees: Trees, catalog: Catalog, patterns: tuple[str, ...]) -> None:
        self._root, self._trees, self._catalog, self._patterns = root, trees, catalog, patterns

    def steps(self, snapshot: str, tree: str, changes: dict[bytes, TreeChange], now: Left) -> RestoreSteps:
        """Return what a restore does about the differences, and what it must leave.

        Args:
            snapshot: The id of the wanted snapshot.
            tree: The key of its tree.
            changes: The differences between what stands now and the snapshot, at the paths that are asked about.
            now: The paths that are left out now.
        """
        then = self._catalog.left(snapshot)
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
        free = no_room(changes)
        ignored = {
            path
            for path, (before, after) in changes.items()
            if after is None and _leaf(before) and rules.ignored(path) and not free(path)
        }
        does = {path: change for path, change in does.items() if path not in ignored}
        stays = {path: entry for path, entry in stays.items() if path not in ignored}
        return RestoreSteps(does, stays, closed, ignored, then, has)

    def _rules(self, tree: str, changes: Mapping[bytes, TreeChange]) -> IgnoreRules | None:
        """Return the rules of a snapshot's own `.gitignore` files; None if they are those that stand.

        What they name may have been there, also where the snapshot does not say so, and stays.
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

    def said(self, steps: RestoreSteps, now: Left, paths: Paths) -> Named:
        """Return what of the paths that are left out is missing, and what stays as it is."""
        among = partial(is_among, None if paths is None else tuple(paths))
        made = {path for path in steps.ignored if within(path, steps.then) is None}
        now = {**now, **{path: one._replace(why=EXCLUDED) for path in made if (one := look(self._root, path))}}
        return of_left_out(steps.then, now, self._root, has=steps.has, among=among)

    def standing(self, steps: RestoreSteps, now: Left) -> set[bytes]:
        """Return the paths at which stands already what a restore would put, though it is left out now."""
        wanted = [(path, steps.changes[path].after) for path in steps.changes if within(path, now)]
        with Permits(self._root, self._catalog) as permits:
            disk = Disk(self._root, b"", permits)
            return {path for path, after in wanted if _leaf(after) and disk.look(path) == after}


def _same_folder(after: TreeEntry | None, now: ExcludedPaths | None) -> bool:
    """Return whether a directory is wanted where one is left out now.

    The directory that is left out keeps its mode, which nothing else has.
    """
    return after is not None and after.is_directory and now is not None and stat.S_ISDIR(now.mode)


def _leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and not entry.is_directory
