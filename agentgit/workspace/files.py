"""The files of a workspace: captured into trees, compared, and restored. The caller must hold the lock."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgit.errors import WorkspaceChanged
from agentgit.values import escape_path
from agentgit.workspace.catalog import Catalog, CatalogRow
from agentgit.workspace.diff import Side, compare, decode_paths
from agentgit.workspace.disk import ASIDE, Disk, can_be_opened
from agentgit.workspace.ignore_rules import IgnoreRules
from agentgit.workspace.index import Index
from agentgit.workspace.left_out import (
    LeftOut,
    LeftOutPaths,
    LeftOutReport,
    compare_left_out,
    containing_path,
    is_selected,
    paths_in_the_way,
    report_left_out,
)
from agentgit.workspace.locations import require_not_moved
from agentgit.workspace.objects import Objects
from agentgit.workspace.packs import IN_MEMORY, LargeContents
from agentgit.workspace.restore import (
    Restore,
    RestoreOutcome,
    RestoreSteps,
    closed_folders,
    plan_steps,
    select_changes,
)
from agentgit.workspace.scan import Progress, Scan
from agentgit.workspace.trees import (
    Changes,
    TreeChange,
    TreeEntry,
    Trees,
    decode_entries,
    encode_entries,
    is_directory,
    is_leaf,
)
from agentgit.workspace.values import Restored, RestorePlan, WorkspaceDiff

Paths = tuple[bytes, ...] | None

MAX_FILE_SIZE = 100_000_000
"""The default maximum size of files in snapshots, in bytes: enough for most databases, models and tables."""

MAX_NAMED_PATHS = 5


@dataclass(frozen=True)
class Captured:
    """The files as they are now: their tree, what is left out, the files that changed, and the index."""

    tree: str
    left_out: dict[bytes, LeftOut]
    changed: Collection[bytes]
    index: Index | None = None


@dataclass(frozen=True)
class RestoreRecord:
    """A restore that begins: everything that finishing it after a kill needs."""

    snapshot: str
    safety: str
    changes: Changes
    modes: dict[bytes, int]
    aside: str
    unreachable: tuple[bytes, ...] = ()
    paths: Paths = None
    undo: tuple[int, int] | None = None

    def encode(self) -> str:
        before = encode_entries({path: change.before for path, change in self.changes.items()})
        after = encode_entries({path: change.after for path, change in self.changes.items()})
        modes = encode_entries({path: TreeEntry(mode) for path, mode in self.modes.items()})
        paths = None if self.paths is None else encode_entries(dict.fromkeys(self.paths))
        unreachable = encode_entries(dict.fromkeys(self.unreachable))
        return json.dumps([self.snapshot, self.safety, self.aside, self.undo, before, after, modes, paths, unreachable])

    @classmethod
    def decode(cls, text: str) -> RestoreRecord:
        snapshot, safety, aside, undo, before, after, modes, paths, unreachable = json.loads(text)
        old, new = decode_entries(before), decode_entries(after)
        return cls(
            snapshot,
            safety,
            {path: TreeChange(old[path], new[path]) for path in old},
            {path: entry.mode for path, entry in decode_entries(modes).items() if entry is not None},
            aside,
            tuple(decode_entries(unreachable)),
            None if paths is None else tuple(decode_entries(paths)),
            None if undo is None else tuple(undo),
        )


class Files:
    def __init__(
        self,
        root: str,
        storage: str,
        objects: Objects,
        catalog: Catalog,
        patterns: tuple[str, ...],
        max_file_size: int,
        outside: Callable[[], set[bytes]],
    ) -> None:
        self._root, self._storage, self.objects = os.fsencode(root), os.fsencode(storage), objects
        self._catalog, self._patterns, self._max_file_size = catalog, patterns, max_file_size
        self._outside = outside
        self._cached_index: Index | None = None
        IgnoreRules(self._root, patterns)  # refuse invalid patterns now

    # -- capturing

    def capture(self, progress: Progress | None = None) -> Captured:
        """Store the files as they are now. The index is not stored yet."""
        index, self._cached_index = self._catalog.load_index(self._cached_index), None  # invalid until it is stored
        scan = self._store(index, None, progress)
        self._cached_index = scan.index
        assert scan.index.tree is not None  # noqa: S101 - a scan sets it
        return Captured(scan.index.tree.hex(), scan.index.left_out(), scan.changed, scan.index)

    def _store(self, index: Index, only: Collection[bytes] | None, progress: Progress | None = None) -> Scan:
        with self.objects.writing() as writer:
            scan = self._scan(index, writer=writer, only=only)
            scan.run(progress)
            if scan.index.tree != index.tree and scan.index.tree is not None:
                writer.name_tree(scan.index.tree)
        return scan

    def _scan(self, index: Index, **how: Any) -> Scan:
        require_not_moved(self._root)
        outside = self._outside() | {ASIDE}
        settings = repr((self._patterns, self._max_file_size, sorted(outside)))
        rules = IgnoreRules(self._root, self._patterns)
        return Scan(self._root, index, rules, self._max_file_size, settings=settings, outside=outside, **how)

    def discard_cache(self) -> None:
        """Read the index from the storage again, after an interrupted operation."""
        self._cached_index = None

    def captures(self, path: bytes) -> bool:
        """Return whether snapshots have a file, as far as its path decides it."""
        if is_selected(tuple(self._outside()), path) or not path:
            return not path
        return not IgnoreRules(self._root, self._patterns).ignored(
            path, directory=os.path.isdir(os.path.join(self._root, path))
        )

    # -- comparing

    def _look(self) -> tuple[Index, Scan, Trees]:
        """Scan the workspace without storing anything; return the old index, the scan, and trees of both."""
        index = self._catalog.load_index(self._cached_index)
        self._cached_index = index
        scan = self._scan(index, writer=None)
        scan.run()
        return index, scan, Trees(self.objects, scan.unstored_trees)

    def plan(self, row: CatalogRow, paths: Paths, since: CatalogRow | None) -> RestorePlan:
        index, scan, trees = self._look()
        now = scan.index.left_out()
        differences = self._inside(trees.differences(scan.index.tree, bytes.fromhex(row.tree)))
        steps = plan_steps(select_changes(differences, paths), row.left_out, now)
        disk = Disk(self._root)
        left_out_now = [path for path in steps.changes if containing_path(path, now) is not None]
        done = {path for path in left_out_now if disk.read_entry(path) == steps.changes[path].after}
        written = [path for path, change in steps.changes.items() if is_leaf(change.after) and path not in done]
        deleted = [p for p, change in steps.changes.items() if is_leaf(change.before) and not is_leaf(change.after)]
        aside = [path for path in paths_in_the_way(now, steps.changes) if path not in done]
        remaining = {path: one for path, one in now.items() if path not in aside}
        has = partial(trees.has, bytes.fromhex(row.tree))
        report = report_left_out(row.left_out, remaining, self._root, has, partial(is_selected, paths))
        changed = (
            self._changed(trees, scan, index.tree, index.left_out())
            if since is None
            else self._changed(trees, scan, bytes.fromhex(since.tree), since.left_out)
        )
        return RestorePlan(
            row.snapshot.id,
            decode_paths(written),
            decode_paths(deleted),
            decode_paths(changed),
            decode_paths(aside),
            *report,
            self._impossible(steps.changes, done),
        )

    def _impossible(self, changes: Changes, done: Collection[bytes]) -> tuple[tuple[str, str], ...]:
        """Return the paths that a restore cannot change, each with the reason."""
        self.objects.refresh()
        reasons = {
            path: "its stored contents are lost"
            for path, (_, after) in changes.items()
            if after is not None and is_leaf(after) and path not in done and after.oid not in self.objects
        }
        folders: dict[bytes, list[bytes]] = {}
        for path in changes:
            folders.setdefault(path.rpartition(b"/")[0], []).append(path)
        for folder, paths in folders.items():
            absolute = os.path.join(self._root, folder)
            is_closed = os.path.isdir(absolute) and not os.access(absolute, os.W_OK | os.X_OK)
            if is_closed and not can_be_opened(os.lstat(absolute)):
                reasons |= dict.fromkeys(paths, "its directory cannot be written")
        return tuple((os.fsdecode(path), reasons[path]) for path in sorted(reasons))

    def _changed(self, trees: Trees, scan: Scan, tree: bytes | None, left_out: LeftOutPaths) -> list[bytes]:
        """Return the paths of the files that differ from a tree, and of changed paths that were left out of it."""
        changes = self._inside(trees.differences(tree, scan.index.tree))
        files = [path for path, change in changes.items() if is_leaf(change.before) or is_leaf(change.after)]
        imported = {path for path, one in left_out.items() if not one.mode}
        others = (path for group in compare_left_out(left_out, scan.index.left_out(), self._root) for path in group)
        return [path for path in (*files, *others) if path not in imported]

    def diff(self, old: CatalogRow | None, new: CatalogRow | None, paths: Paths) -> WorkspaceDiff:
        """Return the differences between two snapshots: None is an empty one first, and then the current files."""
        old_tree = bytes.fromhex(old.tree) if old is not None else None
        old_side = Side(old.snapshot.id if old else None, old.left_out if old else {}, self._read_stored)
        if new is not None:
            changes = Trees(self.objects).differences(old_tree, bytes.fromhex(new.tree))
            new_side = Side(new.snapshot.id, new.left_out, self._read_stored)
        else:
            _, scan, trees = self._look()
            changes = trees.differences(old_tree, scan.index.tree)
            disk = Disk(self._root)
            new_side = Side(None, scan.index.left_out(), lambda path, _: disk.read(path, IN_MEMORY))
        changes = select_changes(self._inside(changes), paths)
        return compare(old_side, new_side, changes, None if new else self._root, partial(is_selected, paths))

    def _read_stored(self, path: bytes, entry: TreeEntry) -> bytes | None:
        data = self.objects.read(entry.oid)
        return None if isinstance(data, LargeContents) else data

    def _inside(self, changes: Changes) -> Changes:
        """Return the changes without paths that do not belong to the workspace; an older snapshot may contain some."""
        outside = self._outside()
        return {path: change for path, change in changes.items() if path not in outside}

    # -- restoring

    def prepare(self, row: CatalogRow, captured: Captured, paths: Paths) -> RestoreSteps:
        """Return what a restore changes in the files that were just captured."""
        differences = Trees(self.objects).differences(bytes.fromhex(captured.tree), bytes.fromhex(row.tree))
        return plan_steps(select_changes(self._inside(differences), paths), row.left_out, captured.left_out)

    def require_expected(self, steps: RestoreSteps, captured: Captured, expected: str, name: str) -> None:
        """Check that no file that a restore changes differs from a tree."""
        tree = bytes.fromhex(expected) or None
        changed = Trees(self.objects).differences(tree, bytes.fromhex(captured.tree))
        if conflicts := sorted(steps.changes.keys() & changed.keys()):
            more = f" and {len(conflicts) - MAX_NAMED_PATHS} more" if len(conflicts) > MAX_NAMED_PATHS else ""
            raise WorkspaceChanged(
                f"Changed since {name}: {', '.join(map(escape_path, conflicts[:MAX_NAMED_PATHS]))}{more}. "
                "Nothing was changed. Save them first, or restore with force=True to keep them in a safety snapshot."
            )

    def record(self, snapshot: str, safety: str, steps: RestoreSteps, **more: Any) -> RestoreRecord:
        modes, aside = closed_folders(self._root, steps.changes), secrets.token_hex(8)
        return RestoreRecord(snapshot, safety, steps.changes, modes, aside, tuple(steps.unreachable), **more)

    def run(
        self, record: RestoreRecord, progress: Progress | None, *, is_resumed: bool = False
    ) -> tuple[RestoreOutcome, Disk]:
        """Change the files, and update the index."""
        disk = Disk(self._root, os.path.join(self._storage, b"aside", record.aside.encode()), record.modes)
        try:
            outcome = Restore(disk, self.objects, record.changes, progress, is_resumed=is_resumed).run()
        finally:
            disk.restore_modes()
        outcome.conflicts += [(path, "cannot be read") for path in record.unreachable]
        index, self._cached_index = self._catalog.load_index(self._cached_index), None
        if index.tree is not None:
            now = index.left_out()
            moved = set(paths_in_the_way(now, record.changes))
            outcome.left_out = {path: one for path, one in now.items() if path not in moved}
            folders = {path for path, change in record.changes.items() if is_directory(change.after)}
            folders |= {path.rpartition(b"/")[0] for path in record.changes}
            index = self._store(index, folders).index
            self._catalog.store_index(index)
        self._cached_index = index
        return outcome, disk

    def result(self, record: RestoreRecord, row: CatalogRow | None, outcome: RestoreOutcome, disk: Disk) -> Restored:
        now = self._cached_index.left_out() if self._cached_index is not None else {}
        report = LeftOutReport((), ())
        if row is not None:
            has = partial(Trees(self.objects).has, bytes.fromhex(row.tree))
            is_included = partial(is_selected, record.paths)
            report = report_left_out(row.left_out, outcome.left_out, self._root, has, is_included)
        return Restored(
            record.snapshot,
            record.safety,
            decode_paths(outcome.restored),
            decode_paths(outcome.deleted),
            decode_paths(disk.created),
            decode_paths(outcome.removed_folders),
            tuple((os.fsdecode(path), os.fsdecode(destination)) for path, destination in disk.moved()),
            tuple(sorted((os.fsdecode(path), one.why) for path, one in now.items())),
            tuple((os.fsdecode(path), why) for path, why in outcome.conflicts),
            *report,
        )

    # -- the store

    def collect(self, trees: set[str], others: Iterable[bytes]) -> int:
        """Remove stored objects that nothing needs, and return the number of bytes freed."""
        index = self._catalog.load_index(self._cached_index)
        needed = {bytes.fromhex(tree) for tree in trees} | ({index.tree} if index.tree is not None else set())
        return self.objects.collect(needed, Trees(self.objects).reachable(needed).union(others))

    def copy(self, source: Files, tree: str) -> None:
        """Copy a tree and all that it has from the store of another workspace."""
        key = bytes.fromhex(tree)
        with self.objects.writing() as writer:
            missing = [oid for oid in Trees(source.objects).reachable([key]) if not writer.has(oid)]
            for oid, parts in source.objects.raw_objects(missing):
                writer.put_raw(oid, parts)
            writer.name_tree(key)
