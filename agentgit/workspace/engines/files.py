"""The engine of a workspace of files: takes, restores and compares snapshots. The caller must hold the lock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from agentgit.errors import WorkspaceChanged
from agentgit.values import escape_path
from agentgit.workspace.catalog import Catalog, CatalogRow, RestoreRecord
from agentgit.workspace.diff import ExcludedSides, PathContents, compare_snapshots, contents_of, differs
from agentgit.workspace.disk.atomic_file import IN_MEMORY
from agentgit.workspace.disk.disk import Disk
from agentgit.workspace.disk.permissions import TemporaryPermissions
from agentgit.workspace.locations import require_not_moved
from agentgit.workspace.restore import (
    Restore,
    RestoreOutcome,
    RestorePlanner,
    RestoreProgress,
    RestoreSteps,
    select_changes,
)
from agentgit.workspace.scan.excluded import (
    GIT,
    ExcludedRecord,
    ExcludedReport,
    IgnoreRules,
    compare_excluded,
    excluded_paths,
    is_selected,
    parent_folders,
    paths_in_the_way,
)
from agentgit.workspace.scan.index import (
    PLAIN_DIRECTORY,
    IndexEntry,
    SkippedPath,
    WorkspaceIndex,
    containing_path,
    stamp_of,
)
from agentgit.workspace.scan.scan import EXCLUDED, UNREADABLE, Scan
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees, TreeWrite
from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, WorkspaceDiff

Paths = Iterable[bytes] | None

MAX_NAMED_PATHS = 5
"""The maximum number of paths in an error message."""


class ExpectedState(NamedTuple):
    """The state that a caller expects in the workspace: a name for error messages, and the key of the tree."""

    name: str
    tree: str


@dataclass(frozen=True)
class RestoreTarget:
    """The goal of a restore."""

    row: CatalogRow
    paths: tuple[bytes, ...] | None = None
    expected: ExpectedState | None = None


class ScanResult(NamedTuple):
    """The result of a scan of the workspace."""

    old_index: WorkspaceIndex
    changes: dict[bytes, TreeEntry | None]
    excluded: ExcludedRecord


class FileEngine:
    """The files of one workspace and their snapshots."""

    def __init__(
        self, root: str, storage: str, trees: Trees, catalog: Catalog, patterns: tuple[str, ...], max_file_size: int
    ) -> None:
        self._root, self._storage = os.fsencode(root), os.fsencode(storage)
        self._trees, self._catalog = trees, catalog
        self._patterns, self._max_file_size = patterns, max_file_size
        self._planner = RestorePlanner(self._root, trees, catalog, patterns)
        self._cached_index: WorkspaceIndex | None = None

    def take_snapshot(
        self,
        new_snapshot: FileCheckpoint,
        paths: Paths = None,
        progress: RestoreProgress | None = None,
        *,
        always_new: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot, and add it to the catalog."""
        index = self._write_current_tree(paths, progress)
        excluded = self._excluded_paths(index)
        existing = None if always_new else self._catalog.find_by_tree(index.key or "", excluded)
        snapshot = existing or new_snapshot.with_changes(self._changed_paths)
        self._catalog.store_snapshot(snapshot if existing is None else None, index, excluded)
        self._cached_index = index
        return snapshot

    def adopt(self, source: FileEngine, row: CatalogRow, new_snapshot: FileCheckpoint) -> FileCheckpoint:
        """Copy a snapshot of another workspace into the storage of this one."""
        entries = source._trees.tree(row.tree)
        snapshot = new_snapshot.with_changes([path for path, entry in entries.items() if not entry.is_directory])
        excluded = source._catalog.excluded_from(row.snapshot.id)
        self.store_snapshot(snapshot, None, source._tree_writes(row.tree, entries), excluded)
        return snapshot

    def store_snapshot(
        self, snapshot: FileCheckpoint, base: str | None, changes: Iterable[TreeWrite], excluded: ExcludedRecord
    ) -> str:
        """Store a snapshot that was taken elsewhere, and return the key of its tree."""
        key = secrets.token_hex(8)
        self._trees.write(key, base, changes)
        self._catalog.add(snapshot, key, excluded)
        return key

    def _tree_writes(self, tree: str, entries: Mapping[bytes, TreeEntry]) -> Iterator[TreeWrite]:
        """Yield entries of a snapshot as changes for another one: directories first, then files with their contents."""
        yield from (TreeWrite(path, entry) for path, entry in sorted(entries.items()) if entry.is_directory)
        files = [(path, entry) for path, entry in sorted(entries.items()) if not entry.is_directory]
        yield from (TreeWrite(*one) for one in self._trees.contents(tree, files))

    def restore(self, target: RestoreTarget, new_safety: FileCheckpoint, progress: RestoreProgress | None) -> Restored:
        """Restore a snapshot, after a safety snapshot of the current files."""
        index = self._write_current_tree(None, progress)
        self._cached_index, current_tree = index, index.key or ""
        excluded = self._excluded_paths(index)
        if target.expected is not None:
            self._require_expected(target, current_tree, excluded)
        existing = self._catalog.find_by_tree(current_tree, excluded)
        safety_snapshot = existing or new_safety.with_changes(self._changed_paths)
        self._catalog.store_snapshot(safety_snapshot if existing is None else None, index, excluded)
        snapshot_id, target_tree = target.row.snapshot.id, target.row.tree
        restore_id = self._catalog.begin(snapshot_id, target_tree, safety_snapshot.id, current_tree, target.paths)
        return self._run_restore(
            RestoreRecord(restore_id, snapshot_id, target_tree, safety_snapshot.id, current_tree, target.paths),
            progress,
        )

    def recover(self) -> list[Restored]:
        """Restore modes that a killed process changed temporarily, and finish its interrupted restores."""
        TemporaryPermissions(self._root, self._catalog).recover()
        return [self._run_restore(one, None, is_resumed=True) for one in self._catalog.unfinished_restores()]

    def plan(self, target: CatalogRow, paths: Paths, since: CatalogRow | None = None) -> RestorePlan:
        """Return what a restore would do."""
        scan_result = self._scan_without_writing()
        differences = self._differences_to_workspace(target.tree, scan_result)
        changes = self._select_changes(
            {path: TreeChange(after, before) for path, (before, after) in differences.items()}, paths
        )
        steps = self._planner.steps(target.snapshot.id, target.tree, changes, scan_result.excluded)
        already_restored = self._planner.already_restored(steps, scan_result.excluded)
        written = [
            path for path, (_, after) in steps.changes.items() if _is_leaf(after) and path not in already_restored
        ]
        deleted = [path for path, (before, after) in steps.changes.items() if _is_leaf(before) and not _is_leaf(after)]
        changed = self._changed_files(scan_result) if since is None else self._files_changed_since(since, scan_result)
        aside = [path for path in paths_in_the_way(scan_result.excluded, steps.changes) if path not in already_restored]
        remaining = {path: one for path, one in scan_result.excluded.items() if path not in aside}
        report = self._planner.excluded_report(steps, remaining, paths)
        return RestorePlan(
            target.snapshot.id, _decode_paths(written), _decode_paths(deleted), changed, _decode_paths(aside), *report
        )

    def changed(self) -> tuple[str, ...]:
        """Return the paths of the files that changed since they were last saved or restored."""
        return self._changed_files(self._scan_without_writing())

    def diff(self, a: CatalogRow | None, b: CatalogRow | None, paths: Paths) -> WorkspaceDiff:
        """Return the differences between two snapshots.

        None for the first is an empty tree. None for the second is the workspace as it is now.
        """
        old_tree = a.tree if a else None
        old_excluded = self._catalog.excluded_from(a.snapshot.id) if a else {}
        if b is not None:
            changes = self._changes_between(old_tree, b.tree)
            sides = ExcludedSides(old_excluded, self._catalog.excluded_from(b.snapshot.id), None)
        else:
            scan_result = self._scan_without_writing()
            changes = self._differences_to_workspace(old_tree, scan_result)
            sides = ExcludedSides(old_excluded, scan_result.excluded, self._root)
        changes = self._select_changes(changes, paths)
        content_changes = [(path, change) for path, change in sorted(changes.items()) if differs(change)]
        old_entries = [
            (path, entry) for path, (entry, _) in content_changes if entry is not None and not entry.is_directory
        ]
        new_entries = [
            (path, entry) for path, (_, entry) in content_changes if entry is not None and not entry.is_directory
        ]
        with (
            closing(contents_of(self._trees, old_tree, old_entries)) as old_contents,
            closing(
                contents_of(self._trees, b.tree, new_entries) if b else self._read_files(new_entries)
            ) as new_contents,
        ):
            is_included = partial(is_selected, None if paths is None else tuple(paths))
            ids = [row.snapshot.id if row else None for row in (a, b)]
            return compare_snapshots(ids[0], ids[1], changes, (old_contents, new_contents), sides, is_included)

    def collect(self) -> int:
        """Remove stored data that no snapshot needs, and return the number of bytes freed."""
        unneeded = self._catalog.unneeded_trees()
        freed = self._trees.collect(self._catalog.needed_trees())
        self._catalog.forget_trees(unneeded)
        return freed

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return the paths that the last scan left out, each with the reason."""
        index = self._cached_index or self._catalog.load_index(None)
        return tuple(sorted((os.fsdecode(path), skipped.why) for path, skipped in index.skipped.items()))

    def captures(self, path: bytes) -> bool:
        """Return whether snapshots have a file, as far as its path decides it."""
        absolute = os.path.join(self._root, path)
        if any(absolute == outside or absolute.startswith(outside + b"/") for outside in self._outside_paths()):
            return False
        return not IgnoreRules(self._root, self._patterns).ignored(path, directory=os.path.isdir(absolute))

    def discard_cache(self) -> None:
        """Discard the cached index after an interrupted operation, so that it is read from storage again."""
        self._cached_index = None

    def _scan(self, index: WorkspaceIndex, permissions: TemporaryPermissions, paths: Paths) -> Scan:
        require_not_moved(self._root)
        rules, outside = IgnoreRules(self._root, self._patterns), self._outside_paths()
        settings = repr((GIT, self._patterns, self._max_file_size, outside))
        arguments = (self._root, index, permissions, self._storage, rules, self._max_file_size)
        return Scan(*arguments, settings=settings, paths=paths, outside=outside)

    def _excluded_paths(self, index: WorkspaceIndex) -> ExcludedRecord:
        """Return the paths that are left out, except those that do not belong to the workspace."""
        return excluded_paths(index.skipped, {os.path.relpath(path, self._root) for path in self._outside_paths()})

    def _outside_paths(self) -> tuple[bytes, ...]:
        """Return the absolute paths that must never be captured or changed, such as the storage."""
        return (self._storage, *(os.path.join(self._root, os.fsencode(path)) for path in self._catalog.left_out()))

    def _select_changes(self, differences: Mapping[bytes, TreeChange], paths: Paths) -> dict[bytes, TreeChange]:
        """Return the differences at some paths, without paths that do not belong to the workspace.

        An older snapshot may contain such a path.
        """
        outside = {os.path.relpath(path, self._root) for path in self._outside_paths()}
        return {path: change for path, change in select_changes(differences, paths).items() if path not in outside}

    def _write_current_tree(self, paths: Paths, progress: RestoreProgress | None) -> WorkspaceIndex:
        """Write a tree of the current files if they differ from the last tree, and return the updated index."""
        index = self._catalog.load_index(self._cached_index)
        self._cached_index = None  # not valid until it is stored
        with TemporaryPermissions(self._root, self._catalog) as permissions:
            scan = self._scan(index, permissions, None if index.key is None else paths)
            changes = _report_progress(scan.changes(), scan.candidates, progress)
            first = next(changes, None)
            if first is not None or index.key is None:
                key = secrets.token_hex(8)
                self._trees.write(key, index.key, chain(() if first is None else (first,), changes))
                index.key = key
                index.dirty.add(b"")
            self._changed_paths = scan.files_changed
        return index

    def _require_expected(self, target: RestoreTarget, current_tree: str, excluded: ExcludedRecord) -> None:
        assert target.expected is not None  # noqa: S101 - checked by the caller
        touched = self._select_changes(self._trees.differences(current_tree, target.row.tree), target.paths)
        touched = self._planner.steps(target.row.snapshot.id, target.row.tree, touched, excluded).changes
        changed = self._changes_between(target.expected.tree or None, current_tree)
        if conflicts := sorted(touched.keys() & changed.keys()):
            more = f" and {len(conflicts) - MAX_NAMED_PATHS} more" if len(conflicts) > MAX_NAMED_PATHS else ""
            raise WorkspaceChanged(
                f"Changed since {target.expected.name}: "
                f"{', '.join(map(escape_path, conflicts[:MAX_NAMED_PATHS]))}{more}. "
                "Nothing was changed. Save them first, or restore with force=True to keep them in a safety snapshot."
            )

    def _run_restore(
        self, record: RestoreRecord, progress: RestoreProgress | None, *, is_resumed: bool = False
    ) -> Restored:
        require_not_moved(self._root)
        aside_folder = os.path.join(self._storage, b"aside", b"%d" % record.id)
        excluded = self._excluded_paths(self._cached_index or self._catalog.load_index(None))
        try:
            differences = self._select_changes(
                self._trees.differences(record.before_tree, record.target_tree), record.paths
            )
            steps = self._planner.steps(record.snapshot_id, record.target_tree, differences, excluded)
            with TemporaryPermissions(self._root, self._catalog) as permissions:
                disk = Disk(self._root, aside_folder, permissions)
                outcome = Restore(
                    disk, self._trees, record.target_tree, steps.changes, progress, is_resumed=is_resumed
                ).run()
        except Exception:
            self._catalog.end(record.id, "failed")
            raise
        outcome.conflicts += [(path, UNREADABLE) for path in steps.unreadable]
        if record.paths is None and not outcome.conflicts:
            self._update_index(record, differences, steps)
        elif touched := [*outcome.restored, *outcome.deleted, *outcome.removed_folders, *disk.created]:
            self._cached_index = self._write_current_tree(touched, None)
            self._catalog.store_snapshot(None, self._cached_index)
        self._catalog.end(record.id, "done")
        moved_aside = set(paths_in_the_way(excluded, steps.changes))
        excluded = {path: one for path, one in excluded.items() if path not in moved_aside}
        return self._result(record, disk, outcome, self._planner.excluded_report(steps, excluded, record.paths))

    def _update_index(self, record: RestoreRecord, differences: dict[bytes, TreeChange], steps: RestoreSteps) -> None:
        """Update the index after a complete restore.

        If paths stay that the snapshot does not have, write a new tree that includes them.
        """
        index, key = self._catalog.load_index(self._cached_index), record.target_tree
        if steps.kept_entries:
            key = secrets.token_hex(8)
            filled_folders = {one for path in steps.kept_entries for one in parent_folders(path)}
            target_directories = self._trees.directories(record.target_tree)
            removals = [
                TreeWrite(path, None)
                for path in filled_folders
                if target_directories.get(path) == TreeEntry(PLAIN_DIRECTORY)
            ]
            additions = self._tree_writes(record.before_tree, steps.kept_entries)
            self._trees.write(key, record.target_tree, chain(removals, additions))
        applied = {path: change for path, change in differences.items() if path not in steps.kept_entries}
        _update_to_snapshot(index, key, applied, self._trees.directories(key))
        written = {path for path, change in steps.changes.items() if change.after is not None}
        for path in {*paths_in_the_way(index.skipped, steps.changes), *(written & index.skipped.keys())}:
            del index.skipped[path]  # it was moved aside, or it is part of the snapshot
            index.dirty.add(path)
        for path in {containing_path(path, steps.snapshot_excluded) or path for path in steps.ignored}:
            with suppress(FileNotFoundError):
                index.skipped[path] = SkippedPath(EXCLUDED, stamp_of(os.lstat(os.path.join(self._root, path))))
                index.dirty.add(path)
        self._catalog.store_snapshot(None, index)
        self._cached_index = index

    def _result(self, record: RestoreRecord, disk: Disk, outcome: RestoreOutcome, report: ExcludedReport) -> Restored:
        return Restored(
            id=record.snapshot_id,
            safety=record.safety_id,
            restored=_decode_paths(outcome.restored),
            deleted=_decode_paths(outcome.deleted),
            created_directories=_decode_paths(disk.created),
            deleted_directories=_decode_paths(outcome.removed_folders),
            moved_aside=tuple((os.fsdecode(path), os.fsdecode(destination)) for path, destination in disk.moved()),
            skipped=self.skipped(),
            conflicts=tuple((os.fsdecode(path), why) for path, why in outcome.conflicts),
            missing=report.missing,
            left=report.left,
        )

    def _changes_between(self, old_tree: str | None, new_tree: str) -> dict[bytes, TreeChange]:
        if old_tree is None:
            return {path: TreeChange(None, entry) for path, entry in self._trees.tree(new_tree).items()}
        return self._trees.differences(old_tree, new_tree)

    def _scan_without_writing(self) -> ScanResult:
        """Scan the workspace without writing anything."""
        index = self._catalog.load_index(self._cached_index)
        new_index = index.copy()
        with TemporaryPermissions(self._root, self._catalog) as permissions:
            changes = {path: entry for path, entry, _ in self._scan(new_index, permissions, None).changes()}
        return ScanResult(index, changes, self._excluded_paths(new_index))

    def _changed_files(self, scan_result: ScanResult) -> tuple[str, ...]:
        """Return the paths of the files that a scan found changed, and of changed paths that are left out."""
        files = [
            path
            for path, entry in scan_result.changes.items()
            if path in scan_result.old_index.files or _is_leaf(entry)
        ]
        return _decode_paths(
            chain(
                files, *compare_excluded(self._excluded_paths(scan_result.old_index), scan_result.excluded, self._root)
            )
        )

    def _files_changed_since(self, since: CatalogRow, scan_result: ScanResult) -> tuple[str, ...]:
        """Return the paths of the files that differ from a snapshot, and of changed paths that it left out."""
        changes = self._select_changes(self._differences_to_workspace(since.tree, scan_result), None)
        files = [path for path, (before, after) in changes.items() if _is_leaf(before) or _is_leaf(after)]
        excluded = self._catalog.excluded_from(since.snapshot.id)
        imported = {path for path, one in excluded.items() if not one.has_status}
        return _decode_paths(
            path
            for path in chain(files, *compare_excluded(excluded, scan_result.excluded, self._root))
            if path not in imported
        )

    def _differences_to_workspace(self, tree: str | None, scan_result: ScanResult) -> dict[bytes, TreeChange]:
        """Return the differences between a snapshot and the workspace as it is now."""
        index = scan_result.old_index
        if index.key is None:  # this workspace was never scanned: the snapshot is from another one
            changes = {
                path: TreeChange(entry, None) for path, entry in (self._trees.tree(tree) if tree else {}).items()
            }
        else:
            changes = self._changes_between(tree, index.key)
        entries = {path: index_entry.entry for path, index_entry in index.files.items()} | index.directories()
        for path, entry in scan_result.changes.items():
            before = changes[path].before if path in changes else entries.get(path) if tree else None
            changes[path] = TreeChange(before, entry)
        return {path: change for path, change in changes.items() if change.before != change.after}

    def _read_files(self, entries: Iterable[tuple[bytes, TreeEntry]]) -> Generator[PathContents, None, None]:
        """Read files of the workspace; the counterpart of `contents_of` for a snapshot."""
        with TemporaryPermissions(self._root, self._catalog) as permissions:
            disk = Disk(self._root, b"", permissions)
            for path, _ in entries:
                yield path, disk.read(path, IN_MEMORY)


def _update_to_snapshot(
    index: WorkspaceIndex, key: str, differences: dict[bytes, TreeChange], directories: dict[bytes, TreeEntry]
) -> None:
    """Update an index to a restored snapshot. Changed files get no stamp, so that the next scan reads them again."""
    for path, (_, after) in differences.items():
        index.dirty.add(path)
        index.files.pop(path, None)
        if after is not None and not after.is_directory:
            index.files[path] = IndexEntry(after, None)
    folders = set(directories)
    for path in [*index.files, *directories]:
        while (path := path.rpartition(b"/")[0]) and path not in folders:
            folders.add(path)
    index.dirty |= folders ^ index.folders.keys()
    modes = {path: directories.get(path, TreeEntry(PLAIN_DIRECTORY)) for path in folders}
    old_folders, index.folders = index.folders, {b"": IndexEntry(TreeEntry(PLAIN_DIRECTORY), None)}
    for path, entry in modes.items():
        old_entry = old_folders.get(path)
        index.folders[path] = old_entry if old_entry and old_entry.entry == entry else IndexEntry(entry, None)
    index.key = key
    index.dirty.add(b"")


def _report_progress(changes: Iterator[TreeWrite], total: int, progress: RestoreProgress | None) -> Iterator[TreeWrite]:
    for number, change in enumerate(changes, 1):
        yield change
        if progress:
            progress(min(number, total), total)


def _is_leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and not entry.is_directory


def _decode_paths(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(set(paths)))
