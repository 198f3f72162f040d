"""The files of a workspace: captured into trees, compared, and restored. The caller must hold the lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from agentgit.errors import Corrupt
from agentgit.workspace.catalog import Catalog, CatalogRow, Index
from agentgit.workspace.diff import Side, compare, decode_paths
from agentgit.workspace.disk import Disk
from agentgit.workspace.left_out import (
    UNREADABLE,
    IgnoreRules,
    LeftOutPaths,
    LeftOutReport,
    compare_left_out,
    containing_path,
    is_selected,
    parent_folders,
    paths_in_the_way,
    report_left_out,
)
from agentgit.workspace.locations import require_not_moved
from agentgit.workspace.objects import Objects
from agentgit.workspace.restore import FileHistory, Restore, leaves, plan_steps, select_changes
from agentgit.workspace.scan import Scan
from agentgit.workspace.trees import Changes, Trees, is_directory, is_leaf
from agentgit.workspace.values import Options, Restored, RestorePlan, WorkspaceDiff

Chosen = tuple[bytes, ...] | None

MAX_FILE_SIZE = 100_000_000
"""The default maximum size of files in snapshots, in bytes: enough for most databases, models and tables."""


@dataclass(frozen=True)
class Captured:
    """The files as they are now, those that changed since another snapshot, and the index."""

    tree: str
    left_out: LeftOutPaths = field(default_factory=dict)
    changed: Collection[bytes] = ()
    index: Index | None = None


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

    def capture(self, since: CatalogRow | None) -> Captured:
        """Store the files as they are now. The index is not stored yet."""
        index = self.cached_index = self._store(self._catalog.load_index(self.cached_index))
        tree, changed = index.tree or b"", list[bytes]()
        with suppress(Corrupt):  # what changed since a damaged snapshot is not known
            changed = leaves(self._trees.differences(since and bytes.fromhex(since.tree), tree))
        return Captured(tree.hex(), index.left_out(), changed, index)

    def _store(self, index: Index, only: Collection[bytes] | None = None) -> Index:
        require_not_moved(self._root)
        with self.objects.writing() as writer:
            scan = Scan(self._settings, index, self._outside(), writer, only)
            scan.run()
            if scan.index.tree != index.tree and scan.index.tree is not None:
                writer.named.add(scan.index.tree)
        return scan.index

    def captures(self, path: bytes) -> bool:
        """Return whether snapshots have a file, as far as its path decides it."""
        if is_selected(tuple(self._outside()), path) or not path:
            return not path
        rules = IgnoreRules(self._root, self._settings.exclude_patterns)
        is_folder = os.path.isdir(os.path.join(self._root, path))
        is_inside = any(rules.ignored(parent, directory=True) for parent in parent_folders(path))
        return not (is_inside or rules.ignored(path, directory=is_folder))

    # -- comparing

    def _look(self) -> tuple[Index, Index]:
        """Store the contents of the files, but no snapshot; return the index of the last one, and that of now."""
        index = self.cached_index = self._catalog.load_index(self.cached_index)
        return index, self._store(index)

    def _changes(
        self, row: CatalogRow, now: bytes | None, left_out: LeftOutPaths, paths: Chosen
    ) -> tuple[Changes, list[bytes]]:
        """Return what restoring a snapshot changes, and the paths that it cannot reach."""
        differences = self._inside(self._trees.differences(now, bytes.fromhex(row.tree)))
        return plan_steps(select_changes(differences, paths), row.left_out, left_out)

    def kept(self, history: FileHistory, row: CatalogRow, now: Captured, paths: Chosen) -> set[bytes]:
        """Return the paths that restoring a snapshot leaves as they are, because others changed them."""
        tree = bytes.fromhex(now.tree)
        changes, _ = self._changes(row, tree, now.left_out, paths)
        return history.kept(changes, self._trees, self._tree_of, tree)

    def _tree_of(self, snapshot: str) -> bytes | None:
        row = self._catalog.get_row(snapshot)
        return bytes.fromhex(row.tree) if row is not None else None

    def plan(self, row: CatalogRow, paths: Chosen = None, history: FileHistory | None = None) -> RestorePlan:
        """Return what a restore would do; see `Workspace.plan_restore`."""
        last, index = self._look()
        now = index.left_out()
        changes, _ = self._changes(row, index.tree, now, paths)
        if history is not None and index.tree is not None:
            kept = history.kept(changes, self._trees, self._tree_of, index.tree)
            changes = {path: change for path, change in changes.items() if path not in kept}
        disk = Disk(self._root)
        left_out_now = [path for path in changes if containing_path(path, now) is not None]
        done = {path for path in left_out_now if disk.read_entry(path) == changes[path].after}
        written = [path for path, change in changes.items() if is_leaf(change.after) and path not in done]
        deleted = [path for path, change in changes.items() if is_leaf(change.before) and not is_leaf(change.after)]
        aside = [path for path in paths_in_the_way(now, changes) if path not in done]
        report = self._report(row, {path: one for path, one in now.items() if path not in aside}, paths)
        if history is not None:
            changed, report = history.conflicts, report._replace(left=history.with_left(report.left))
        else:
            changed = self._changed(last, index)
        return RestorePlan(
            row.snapshot.id,
            decode_paths(written),
            decode_paths(deleted),
            decode_paths(changed),
            decode_paths(aside),
            impossible=self._impossible(changes, done),
            **report._asdict(),
        )

    def _report(self, row: CatalogRow, now: LeftOutPaths, paths: Chosen) -> LeftOutReport:
        """Return what a plan or a report says of paths that a snapshot left out."""
        find = partial(self._trees.entry, bytes.fromhex(row.tree))
        return report_left_out(row.left_out, now, self._root, find, paths)

    def _impossible(self, changes: Changes, done: Collection[bytes]) -> tuple[tuple[str, str], ...]:
        self.objects.refresh()
        reasons = {
            path: "its stored contents are lost"
            for path, (_, after) in changes.items()
            if after is not None and is_leaf(after) and path not in done and after.oid not in self.objects
        }
        for path in changes:
            folder = os.path.dirname(os.path.join(self._root, path))
            if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
                reasons[path] = "its directory cannot be written"
        return tuple((os.fsdecode(path), reasons[path]) for path in sorted(reasons))

    def _changed(self, old: Index, new: Index) -> list[bytes]:
        """Return the paths of the files that differ from an index, and of changed paths that it left out."""
        changes = self._inside(self._trees.differences(old.tree, new.tree))
        left_out = compare_left_out(old.left_out(), new.left_out(), self._root)
        return [*leaves(changes), *(path for group in left_out for path in group)]

    def diff(self, old: CatalogRow | None, new: CatalogRow | None, paths: Chosen) -> WorkspaceDiff:
        """Return the differences between two snapshots: None is an empty one first, and then the current files."""
        old_tree = bytes.fromhex(old.tree) if old is not None else None
        old_side = Side(old.snapshot.id if old else None, old.left_out if old else {})
        if new is not None:
            new_tree, new_side, root = bytes.fromhex(new.tree), Side(new.snapshot.id, new.left_out), None
        else:
            _, now = self._look()
            new_tree, new_side, root = now.tree or b"", Side(None, now.left_out()), self._root
        changes = select_changes(self._inside(self._trees.differences(old_tree, new_tree)), paths)
        return compare(old_side, new_side, changes, root, partial(is_selected, paths), self.objects.read)

    def _inside(self, changes: Changes) -> Changes:
        """Return the changes without paths that do not belong to the workspace; an older snapshot may contain some."""
        outside = self._outside()
        return {path: change for path, change in changes.items() if path not in outside}

    # -- restoring

    def restore(
        self,
        row: CatalogRow,
        safety: CatalogRow,
        aside: str,
        paths: Chosen,
        kept: Collection[bytes],
        *,
        is_resumed: bool,
    ) -> Restored:
        """Change the files from one snapshot, of what is there now, to another, and update the index."""
        changes, unreachable = self._changes(row, bytes.fromhex(safety.tree), safety.left_out, paths)
        changes = {path: change for path, change in changes.items() if path not in kept}
        disk = Disk(self._root, os.fsencode(aside))
        restore = Restore(disk, self.objects, changes, is_resumed=is_resumed)
        restore.run()
        self._update_index(changes)
        moved = set(paths_in_the_way(safety.left_out, changes))
        report = self._report(row, {path: one for path, one in safety.left_out.items() if path not in moved}, paths)
        return Restored(
            row.snapshot.id,
            safety.snapshot.id,
            decode_paths(restore.restored),
            decode_paths(restore.deleted),
            decode_paths(disk.created),
            decode_paths(restore.removed_folders),
            tuple((os.fsdecode(path), os.fsdecode(destination)) for path, destination in disk.moved()),
            tuple((os.fsdecode(path), why) for path, why in restore.conflicts.items())
            + tuple((os.fsdecode(path), UNREADABLE) for path in unreachable),
            name=row.snapshot.name,
            message=row.snapshot.message,
            time_str=row.snapshot.time,
            **report._asdict(),
        )

    def _update_index(self, changes: Changes) -> None:
        index = self._catalog.load_index(self.cached_index)
        if index.tree is not None:
            folders = {path for path, change in changes.items() if is_directory(change.after)}
            folders |= {path.rpartition(b"/")[0] for path in changes}
            self.cached_index = self._store(index, folders)
            self._catalog.store_index(self.cached_index)

    # -- the store

    def collect(self, trees: set[str]) -> int:
        """Remove stored objects that nothing needs, and return the number of bytes freed."""
        index = self._catalog.load_index(self.cached_index)
        needed = {bytes.fromhex(tree) for tree in trees} | ({index.tree} if index.tree is not None else set())
        return self.objects.collect(needed, self._trees.reachable(needed))

    def copy(self, source: Objects, trees: Collection[bytes]) -> None:
        with self.objects.writing() as writer:
            missing = [oid for oid in Trees(source).reachable(trees) if not writer.has(oid)]
            for packed in source.read_packed(missing):
                writer.put_packed(*packed)
            writer.named.update(trees)
