"""The files of a workspace: captured into trees, compared, and restored. The caller must hold the lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.workspace.catalog import Catalog, CatalogRow, Index
from agentgit.workspace.diff import compare, decode_paths
from agentgit.workspace.disk import ASIDE, Disk
from agentgit.workspace.left_out import (
    Chosen,
    IgnoreRules,
    LeftOutPaths,
    compare_left_out,
    containing_path,
    is_selected,
    parent_folders,
    paths_displacing,
    paths_in_the_way,
    report_left_out,
)
from agentgit.workspace.locations import require_not_moved
from agentgit.workspace.objects import Objects
from agentgit.workspace.restore import Choose, KeptPaths, PendingRestore, Restore, leaves, plan_steps, select_changes
from agentgit.workspace.scan import Scan
from agentgit.workspace.trees import Changes, Trees, is_directory, is_leaf
from agentgit.workspace.values import Options, Restored, WorkspaceDiff

MAX_FILE_SIZE = 100_000_000
"""The default maximum size of files in snapshots, in bytes: enough for most databases, models and tables."""


@dataclass(frozen=True)
class Captured:
    """The files as they are now, and the index."""

    tree: str
    left_out: LeftOutPaths = field(default_factory=dict)
    index: Index | None = None


Taken = Captured | CatalogRow


class Files:
    def __init__(
        self, settings: Options, objects: Objects, catalog: Catalog, outside: Callable[[], set[bytes]]
    ) -> None:
        self._settings, self.objects, self._catalog, self._outside = settings, objects, catalog, outside
        self._root, self._trees = os.fsencode(settings.workspace), Trees(objects)
        self.cached_index: Index | None = None
        """None to read it from the storage again."""
        IgnoreRules(self._root, settings.exclude_patterns)  # refuse invalid patterns now

    # -- capturing

    def capture(self) -> Captured:
        """Store the contents of the files. The caller stores the index, and then sets `cached_index`."""
        self.cached_index = self._catalog.load_index(self.cached_index)
        index = self._store(self.cached_index)
        return Captured(index.tree.hex(), index.left_out(), index=index)

    def _store(self, last: Index, only: Collection[bytes] | None = None) -> Index:
        require_not_moved(self._root)
        with self.objects.writing() as writer:
            index = Scan(self._settings, last, self._outside(), writer, only).run()
            if index.tree != last.tree:
                writer.named.add(index.tree)
        return index

    @property
    def tree(self) -> str:
        """The tree of the files as they were last saved or restored."""
        self.cached_index = self._catalog.load_index(self.cached_index)
        return self.cached_index.tree.hex()

    def captures(self, path: bytes) -> bool:
        """Return whether snapshots have a file, as far as its path decides it."""
        if is_selected(tuple(self._outside()), path) or not path:
            return not path
        rules = IgnoreRules(self._root, self._settings.exclude_patterns)
        is_folder = os.path.isdir(os.path.join(self._root, path))
        is_inside = any(rules.ignored(parent, directory=True) for parent in parent_folders(path))
        return not (is_inside or rules.ignored(path, directory=is_folder))

    # -- comparing

    def _differences(self, before: Taken | None, after: Taken) -> Changes:
        """Return what differs, without paths that do not belong to the workspace; an older snapshot may have some."""
        first, outside = bytes.fromhex(before.tree) if before is not None else None, self._outside()
        try:
            changes = self._trees.differences(first, bytes.fromhex(after.tree))
        except Corrupt:
            self._store_anew()
            self._require_whole(*(one for one in (before, after) if one is not None))
            changes = self._trees.differences(first, bytes.fromhex(after.tree))
        return {path: change for path, change in changes.items() if path not in outside}

    def _store_anew(self) -> None:
        """Store the current files again, as far as their objects are damaged."""
        with self.objects.writing(self.objects.can_read) as writer:
            Scan(self._settings, Index(), self._outside(), writer, None).run()

    def _require_whole(self, *snapshots: Taken) -> None:
        for one in snapshots:
            try:
                self._trees.differences(None, bytes.fromhex(one.tree))
            except Corrupt as error:
                name = f"snapshot {one.snapshot.id}" if isinstance(one, CatalogRow) else "the current files"
                text = f"The directories of {name} are lost: {error.message}"
                raise Corrupt(text, Next("restore_other"), row=error.row) from error

    def _left_out(self, snapshot: Taken | None) -> LeftOutPaths:
        outside, left_out = self._outside(), snapshot.left_out if snapshot is not None else {}
        return {path: one for path, one in left_out.items() if path not in outside}

    def changed(self, since: Taken | None, now: Captured) -> list[bytes]:
        """Return the paths of the files that differ from a snapshot; of a damaged one, they are not known."""
        with suppress(Corrupt):
            return leaves(self._differences(since, now))
        return []

    def _unsaved(self, now: Captured) -> Iterator[bytes]:
        """Yield the paths that differ from the files as they were last saved or restored, and changed left-out ones."""
        last = self.cached_index
        before = Captured(last.tree.hex(), last.left_out()) if last is not None and last.tree else None
        yield from leaves(self._differences(before, now))
        for group in compare_left_out(self._left_out(before), now.left_out, self._root):
            yield from group

    def _changes(
        self, row: CatalogRow, now: Taken, paths: Chosen, choose: Choose, moved: Collection[bytes] | None = None
    ) -> tuple[Changes, Changes, dict[bytes, str], KeptPaths]:
        """Return how the files differ from a snapshot, what restoring it changes, what it cannot reach, and what stays.

        `moved` are the paths that were moved aside; None before a restore.
        """
        differing = self._differences(now, row)
        changes, unreachable = plan_steps(select_changes(differing, paths), row.left_out, now.left_out)
        before = self._in_the_way(changes, now)[0] if moved is None else paths_in_the_way(now.left_out, changes)
        displacing = paths_displacing({*before, *(moved or ())}, changes)
        kept = choose(changes, displacing, self._trees, self._tree_of, bytes.fromhex(now.tree))
        return differing, {path: one for path, one in changes.items() if path not in kept.paths}, unreachable, kept

    def prepare(self, choose: Choose, row: CatalogRow, now: Captured, paths: Chosen) -> KeptPaths:
        """Choose the paths that restoring a snapshot leaves as they are, and make sure that the others are stored."""
        _, changes, _, kept = self._changes(row, now, paths, choose)
        if not all(self.objects.can_read(before.oid) for before, _ in changes.values() if is_leaf(before)):
            self._store_anew()
        return kept

    def _in_the_way(self, changes: Changes, now: Taken) -> tuple[set[bytes], set[bytes]]:
        """Return the paths in no snapshot that a restore must move aside, and those that are as it wants them."""
        disk = Disk(self._root)
        inside = {path: disk.read_entry(path) for path in changes if containing_path(path, now.left_out) is not None}
        done = {path for path, found in inside.items() if found == changes[path].after}
        taken = {path for path, one in inside.items() if is_leaf(one) or (one and is_leaf(changes[path].after))}
        return {*paths_in_the_way(now.left_out, changes), *taken} - done, done

    def _tree_of(self, snapshot: str) -> bytes | None:
        row = self._catalog.get_row(snapshot)
        return bytes.fromhex(row.tree) if row is not None else None

    def plan(self, row: CatalogRow, paths: Chosen, choose: Choose) -> Restored:
        """Return what a restore would do; see `Workspace.plan_restore`."""
        now = self.capture()
        differing, changes, unreachable, kept = self._changes(row, now, paths, choose)
        aside, done = self._in_the_way(changes, now)
        found: dict[str, Iterable[Any]] = {
            **_leaf_changes({path: one for path, one in changes.items() if path not in done}),
            "moved_aside": [(path, ASIDE) for path in sorted(aside)],
            "changed": self._unsaved(now),
            "impossible": [*self._impossible(changes, done, aside), *unreachable.items()],
        }
        versions = sha256(repr(sorted(changes.items())).encode()).hexdigest()
        return replace(self._result(row, now, differing, paths, aside, kept, found), replaced_versions=versions)

    def done(self, row: CatalogRow, found: CatalogRow, choose: Choose, aside: str) -> Restored:
        """Return what restores have done by now to the files that were found, whether or not they ended."""
        disk, still = Disk(self._root, os.fsencode(aside)), self._differences(self.capture(), row)
        moved = dict(disk.moved())
        differing, changes, _, kept = self._changes(row, found, None, choose, moved)
        done = {path: one for path, one in changes.items() if path not in still or disk.read_entry(path) == one.after}
        listed = {**_leaf_changes(done), "moved_aside": moved.items()}
        in_the_way = {*paths_in_the_way(found.left_out, changes), *moved}
        result = self._result(row, found, differing, None, in_the_way, kept, listed)
        return replace(result, safety=found.snapshot.id)

    def _result(
        self,
        row: CatalogRow,
        now: Taken,
        differing: Changes,
        paths: Chosen,
        aside: Collection[bytes],
        kept: KeptPaths,
        found: Mapping[str, Iterable[Any]],
    ) -> Restored:
        """Return a plan or a report, with the paths that the snapshot left out."""
        left_out = {path: one for path, one in now.left_out.items() if path not in aside}
        missing, left, unseen = report_left_out(self._left_out(row), left_out, self._root, differing, paths)
        pairs = {"missing": missing.items(), "left": {**left, **kept.left}.items()}
        pairs["conflicts"] = {**dict(found.get("conflicts", ())), **kept.conflicts}.items()
        fields: dict[str, Any] = {name: decode_paths(values) for name, values in {**found, **pairs}.items()}
        origin = row.snapshot
        fields |= {"name": origin.name, "message": origin.message, "time_str": origin.time, "unseen": unseen}
        return Restored(origin.id, **fields)

    def _impossible(
        self, changes: Changes, done: Collection[bytes], aside: Collection[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        self.objects.refresh()
        place = os.path.join(self._root, ASIDE)
        if (os.path.lexists(place) and not _is_folder(place)) or not _can_write_in(place):
            yield from ((path, ASIDE + b" is not a directory that can be written") for path in sorted(aside))
        for path, (_, after) in changes.items():
            if not _can_write_in(os.path.dirname(os.path.join(self._root, path))):
                yield path, b"its directory cannot be written"
            elif is_leaf(after) and path not in done and not self.objects.can_read(after.oid):
                yield path, b"its stored contents are lost"

    def diff(self, old: CatalogRow | None, new: CatalogRow | None, paths: Chosen) -> WorkspaceDiff:
        """Return the differences between two snapshots: None is an empty one first, and then the current files."""
        after, root = (new, None) if new is not None else (self.capture(), self._root)
        changes = select_changes(self._differences(old, after), paths)
        found = compare(self._left_out(old), self._left_out(after), changes, root, paths, self.objects)
        from_id, to_id = (one.snapshot.id if one is not None else None for one in (old, new))
        return replace(found, from_id=from_id, to_id=to_id)

    # -- restoring

    def restore(self, row: CatalogRow, safety: CatalogRow, pending: PendingRestore, *, is_resumed: bool) -> Restored:
        """Change the files from one snapshot, of what is there now, to another."""
        differing, changes, unreachable, kept = self._changes(row, safety, pending.paths, lambda *_: pending.kept, ())
        disk = Disk(self._root, os.fsencode(pending.aside))
        displacing = paths_displacing(self._in_the_way(changes, safety)[0], changes)
        restore = Restore(disk, self.objects, changes, displacing, is_resumed=is_resumed)
        restore.run()
        self._update_index(changes)
        found: dict[str, Iterable[Any]] = {
            **restore.done,
            "moved_aside": disk.moved(),
            "conflicts": {**unreachable, **restore.conflicts}.items(),
        }
        aside = set(paths_in_the_way(safety.left_out, changes))
        result = self._result(row, safety, differing, pending.paths, aside, kept, found)
        return replace(result, safety=safety.snapshot.id)

    def _update_index(self, changes: Changes) -> None:
        folders = {path for path, change in changes.items() if is_directory(change.after)}
        folders |= {path.rpartition(b"/")[0] for path in changes}
        index = self._store(self._catalog.load_index(self.cached_index), folders)
        self._catalog.store_index(index)
        self.cached_index = index

    # -- the store

    def collect(self, trees: set[str]) -> int:
        """Remove stored objects that nothing needs, and return the number of bytes freed."""
        index = self._catalog.load_index(self.cached_index)
        needed = {*map(bytes.fromhex, trees), *({index.tree} - {b""})}
        known = {one.oid for folder in index.folders.values() for one in folder.files.values()}  # below a damaged tree
        return self.objects.collect(needed, self._trees.reachable(needed) | known)

    def copy(self, source: Objects, trees: Collection[bytes]) -> None:
        with self.objects.writing() as writer:
            missing = [oid for oid in Trees(source).reachable(trees) if not writer.has(oid)]
            for oid, raw, _ in source.read_packed(missing):
                writer.put_packed(oid, raw)
            writer.named.update(trees)


def _leaf_changes(changes: Changes) -> dict[str, Iterable[Any]]:
    return {
        "restored": [path for path, one in changes.items() if is_leaf(one.after)],
        "deleted": [path for path, one in changes.items() if is_leaf(one.before) and not is_leaf(one.after)],
    }


def _is_folder(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _can_write_in(folder: bytes) -> bool:
    """Return whether a directory can be written; one that is not there yet is made in the nearest one above."""
    while not _is_folder(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)
