"""The engine of a workspace of files: takes, restores and compares snapshots. The caller must hold the lock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from agentgit.errors import WorkspaceChanged
from agentgit.values import escape_path
from agentgit.workspace.catalog import Catalog, CatalogRow, Restoring
from agentgit.workspace.diff import ExcludedSides, Read, compare_snapshots, contents_of, differs
from agentgit.workspace.disk.atomic_file import IN_MEMORY
from agentgit.workspace.disk.disk import Disk
from agentgit.workspace.disk.permissions import TemporaryPermissions
from agentgit.workspace.locations import require_in_place
from agentgit.workspace.restore import Progress, Restore, RestoreOutcome, RestorePlanner, RestoreSteps, limited
from agentgit.workspace.scan.excluded import (
    GIT,
    ExcludedRecord,
    ExcludedReport,
    IgnoreRules,
    above,
    compare,
    in_the_way,
    is_among,
    left_of,
)
from agentgit.workspace.scan.index import PLAIN_DIRECTORY, IndexEntry, SkippedPath, WorkspaceIndex, stamp_of, within
from agentgit.workspace.scan.scan import EXCLUDED, UNREADABLE, Scan
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees, TreeWrite
from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, WorkspaceDiff

Paths = Iterable[bytes] | None

NAMED = 5
"""The maximum number of paths in an error message."""


class Expected(NamedTuple):
    """The state that a caller expects in the workspace: a name for error messages, and the key of the tree."""

    name: str
    tree: str


@dataclass(frozen=True)
class Target:
    """The goal of a restore.

    Args:
        row: The snapshot to restore.
        paths: The paths to restore, each with everything below it; None for all.
        expected: The state that the caller expects in the workspace; None for any state.
    """

    row: CatalogRow
    paths: tuple[bytes, ...] | None = None
    expected: Expected | None = None


class ScanResult(NamedTuple):
    """The result of a scan of the workspace.

    Args:
        known: The index before the scan.
        changes: The new entry of each changed path; None for a removed path.
        left: The paths that are left out now.
    """

    known: WorkspaceIndex
    changes: dict[bytes, TreeEntry | None]
    left: ExcludedRecord


class FileEngine:
    """The files of one workspace and their snapshots.

    Args:
        root: The workspace.
        storage: The storage of the workspace.
        trees: The store of the trees.
        catalog: The catalog that lists the snapshots.
        patterns: The patterns of paths that are left out.
        max_file_size: The maximum size of a file in bytes. Larger files are left out.
    """

    def __init__(
        self, root: str, storage: str, trees: Trees, catalog: Catalog, patterns: tuple[str, ...], max_file_size: int
    ) -> None:
        self._root, self._storage = os.fsencode(root), os.fsencode(storage)
        self._trees, self._catalog = trees, catalog
        self._patterns, self._most = patterns, max_file_size
        self._planner = RestorePlanner(self._root, trees, catalog, patterns)
        self._known: WorkspaceIndex | None = None

    def snapshot(
        self,
        new_snapshot: Callable[[int], FileCheckpoint],
        paths: Paths = None,
        progress: Progress | None = None,
        *,
        always_new: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot, and add it to the catalog.

        Args:
            new_snapshot: The function that creates the snapshot value, given the number of changed files.
            paths: The paths to scan; None for all.
            progress: The function to call with the number of files done and their total.
            always_new: False to return the newest snapshot with the current contents of the files, if there is one.
        """
        known = self._write_current_tree(paths, progress)
        left = self._left(known)
        held = None if always_new else self._catalog.find_by_tree(known.key or "", left)
        snapshot = held or new_snapshot(self._changed)
        self._catalog.store_snapshot(snapshot if held is None else None, known, left)
        self._known = known
        return snapshot

    def adopt(self, source: FileEngine, row: CatalogRow, made: Callable[[int], FileCheckpoint]) -> FileCheckpoint:
        """Copy a snapshot of another workspace into the storage of this one."""
        entries = source._trees.tree(row.tree)
        snapshot = made(sum(not entry.is_directory for entry in entries.values()))
        left = source._catalog.excluded_from(row.snapshot.id)
        self.put(snapshot, None, source._written(row.tree, entries), left)
        return snapshot

    def put(
        self, snapshot: FileCheckpoint, base: str | None, changes: Iterable[TreeWrite], left: ExcludedRecord
    ) -> str:
        """Store a snapshot that was taken elsewhere, and return the key of its tree.

        Args:
            snapshot: The snapshot value for the catalog.
            base: The key of the base tree; None for an empty tree.
            changes: The changes to the base tree: first the removals, then the additions.
            left: The paths that were left out when the snapshot was taken.
        """
        key = secrets.token_hex(8)
        self._trees.write(key, base, changes)
        self._catalog.add(snapshot, key, left)
        return key

    def _written(self, tree: str, entries: Mapping[bytes, TreeEntry]) -> Iterator[TreeWrite]:
        """Yield entries of a snapshot as changes for another one: directories first, then files with their contents."""
        yield from (TreeWrite(path, entry) for path, entry in sorted(entries.items()) if entry.is_directory)
        files = [(path, entry) for path, entry in sorted(entries.items()) if not entry.is_directory]
        yield from (TreeWrite(*one) for one in self._trees.contents(tree, files))

    def restore(self, target: Target, safety: Callable[[int], FileCheckpoint], progress: Progress | None) -> Restored:
        """Restore a snapshot, after a safety snapshot of the current files.

        Raises:
            WorkspaceChanged: A path that the restore would change is not in the expected state. Nothing was changed.
            Unavailable: A path cannot be written. Completed changes stay; a second restore makes the others.
        """
        known = self._write_current_tree(None, progress)
        self._known, before = known, known.key or ""
        left = self._left(known)
        if target.expected is not None:
            self._check(target, before, left)
        held = self._catalog.find_by_tree(before, left)
        kept = held or safety(self._changed)
        self._catalog.store_snapshot(kept if held is None else None, known, left)
        snapshot, tree = target.row.snapshot.id, target.row.tree
        number = self._catalog.begin(snapshot, tree, kept.id, before, target.paths)
        return self._run(Restoring(number, snapshot, tree, kept.id, before, target.paths), progress)

    def finish(self) -> list[Restored]:
        """Restore modes that a killed process changed temporarily, and finish its interrupted restores."""
        TemporaryPermissions(self._root, self._catalog).recover()
        return [self._run(one, None, again=True) for one in self._catalog.unfinished()]

    def plan(self, target: CatalogRow, paths: Paths, since: CatalogRow | None = None) -> RestorePlan:
        """Return what a restore would do.

        Args:
            target: The snapshot.
            paths: The paths to restore, each with everything below it; None for all.
            since: The snapshot that `changed` of the plan is relative to; None for the last one.
        """
        now = self._unwritten()
        differences = self._differences_to_now(target.tree, now)
        changes = self._limited(
            {path: TreeChange(after, before) for path, (before, after) in differences.items()}, paths
        )
        steps = self._planner.steps(target.snapshot.id, target.tree, changes, now.left)
        stands = self._planner.already_restored(steps, now.left)
        put = [path for path, (_, after) in steps.changes.items() if _leaf(after) and path not in stands]
        gone = [path for path, (before, after) in steps.changes.items() if _leaf(before) and not _leaf(after)]
        changed = self._files_among(now) if since is None else self._files_since(since, now)
        aside = [path for path in in_the_way(now.left, steps.changes) if path not in stands]
        stays = {path: one for path, one in now.left.items() if path not in aside}
        said = self._planner.excluded_report(steps, stays, paths)
        return RestorePlan(target.snapshot.id, _texts(put), _texts(gone), changed, _texts(aside), *said)

    def changed(self) -> tuple[str, ...]:
        """Return the paths of the files that changed since they were last saved or restored."""
        return self._files_among(self._unwritten())

    def diff(self, a: CatalogRow | None, b: CatalogRow | None, paths: Paths) -> WorkspaceDiff:
        """Return the differences between two snapshots.

        None for the first is an empty tree. None for the second is the workspace as it is now.
        """
        first = a.tree if a else None
        then = self._catalog.excluded_from(a.snapshot.id) if a else {}
        if b is not None:
            changes = self._between(first, b.tree)
            sides = ExcludedSides(then, self._catalog.excluded_from(b.snapshot.id), None)
        else:
            now = self._unwritten()
            changes = self._differences_to_now(first, now)
            sides = ExcludedSides(then, now.left, self._root)
        changes = self._limited(changes, paths)
        contents = [(path, change) for path, change in sorted(changes.items()) if differs(change)]
        old = [(path, entry) for path, (entry, _) in contents if entry is not None and not entry.is_directory]
        new = [(path, entry) for path, (_, entry) in contents if entry is not None and not entry.is_directory]
        with (
            closing(contents_of(self._trees, first, old)) as before,
            closing(contents_of(self._trees, b.tree, new) if b else self._read(new)) as after,
        ):
            among = partial(is_among, None if paths is None else tuple(paths))
            ids = [row.snapshot.id if row else None for row in (a, b)]
            return compare_snapshots(ids[0], ids[1], changes, (before, after), sides, among)

    def collect(self) -> int:
        """Remove stored data that no snapshot needs, and return the number of bytes freed."""
        waste = self._catalog.waste()
        freed = self._trees.collect(self._catalog.trees())
        self._catalog.forget_trees(waste)
        return freed

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return the paths that the last scan left out, each with the reason."""
        known = self._known or self._catalog.load_index(None)
        return tuple(sorted((os.fsdecode(path), skipped.why) for path, skipped in known.skipped.items()))

    def forget(self) -> None:
        """Discard the cached index after an interrupted operation, so that it is read from storage again."""
        self._known = None

    def _scan(self, known: WorkspaceIndex, permits: TemporaryPermissions, paths: Paths) -> Scan:
        require_in_place(self._root)
        rules, outside = IgnoreRules(self._root, self._patterns), self._outside()
        settings = repr((GIT, self._patterns, self._most, outside))
        places = (self._root, known, permits, self._storage, rules, self._most)
        return Scan(*places, settings=settings, paths=paths, outside=outside)

    def _left(self, known: WorkspaceIndex) -> ExcludedRecord:
        """Return the paths that are left out, except those that do not belong to the workspace."""
        return left_of(known.skipped, {os.path.relpath(path, self._root) for path in self._outside()})

    def _outside(self) -> tuple[bytes, ...]:
        """Return the absolute paths that must never be captured or changed, such as the storage."""
        return (self._storage, *(os.path.join(self._root, os.fsencode(path)) for path in self._catalog.left_out()))

    def _limited(self, differences: Mapping[bytes, TreeChange], paths: Paths) -> dict[bytes, TreeChange]:
        """Return the differences at some paths, without paths that do not belong to the workspace.

        An older snapshot may contain such a path.
        """
        outside = {os.path.relpath(path, self._root) for path in self._outside()}
        return {path: change for path, change in limited(differences, paths).items() if path not in outside}

    def _write_current_tree(self, paths: Paths, progress: Progress | None) -> WorkspaceIndex:
        """Write a tree of the current files if they differ from the last tree, and return the updated index.

        Args:
            paths: The paths to scan; None for all.
            progress: The function to call with the number of files done and their total.
        """
        known = self._catalog.load_index(self._known)
        self._known = None  # not valid until it is stored
        with TemporaryPermissions(self._root, self._catalog) as permits:
            scan = self._scan(known, permits, None if known.key is None else paths)
            changes = _counted(scan.changes(), scan.candidates, progress)
            first = next(changes, None)
            if first is not None or known.key is None:
                key = secrets.token_hex(8)
                self._trees.write(key, known.key, chain(() if first is None else (first,), changes))
                known.key = key
                known.dirty.add(b"")
            self._changed = scan.files_changed
        return known

    def _check(self, target: Target, now: str, left: ExcludedRecord) -> None:
        assert target.expected is not None  # noqa: S101 - checked by the caller
        touched = self._limited(self._trees.differences(now, target.row.tree), target.paths)
        touched = self._planner.steps(target.row.snapshot.id, target.row.tree, touched, left).changes
        moved = self._between(target.expected.tree or None, now)
        if both := sorted(touched.keys() & moved.keys()):
            more = f" and {len(both) - NAMED} more" if len(both) > NAMED else ""
            raise WorkspaceChanged(
                f"Changed since {target.expected.name}: {', '.join(map(escape_path, both[:NAMED]))}{more}. "
                "Nothing was changed. Save them first, or restore with force=True to keep them in a safety snapshot."
            )

    def _run(self, restoring: Restoring, progress: Progress | None, *, again: bool = False) -> Restored:
        require_in_place(self._root)
        aside = os.path.join(self._storage, b"aside", b"%d" % restoring.id)
        now = self._left(self._known or self._catalog.load_index(None))
        try:
            differences = self._limited(self._trees.differences(restoring.before, restoring.target), restoring.paths)
            steps = self._planner.steps(restoring.snapshot, restoring.target, differences, now)
            with TemporaryPermissions(self._root, self._catalog) as permits:
                disk = Disk(self._root, aside, permits)
                outcome = Restore(disk, self._trees, restoring.target, steps.changes, progress, again=again).run()
        except Exception:
            self._catalog.end(restoring.id, "failed")
            raise
        outcome.conflicts += [(path, UNREADABLE) for path in steps.closed]
        if restoring.paths is None and not outcome.conflicts:
            self._update_index(restoring, differences, steps)
        elif touched := [*outcome.restored, *outcome.deleted, *outcome.folders_gone, *disk.created]:
            self._known = self._write_current_tree(touched, None)
            self._catalog.store_snapshot(None, self._known)
        self._catalog.end(restoring.id, "done")
        moved = set(in_the_way(now, steps.changes))
        now = {path: one for path, one in now.items() if path not in moved}
        return self._result(restoring, disk, outcome, self._planner.excluded_report(steps, now, restoring.paths))

    def _update_index(self, restoring: Restoring, differences: dict[bytes, TreeChange], steps: RestoreSteps) -> None:
        """Update the index after a complete restore.

        If paths stay that the snapshot does not have, write a new tree that includes them.
        """
        known, key = self._catalog.load_index(self._known), restoring.target
        if steps.stays:
            key = secrets.token_hex(8)
            filled = {one for path in steps.stays for one in above(path)}
            named = self._trees.directories(restoring.target)
            away = [TreeWrite(path, None) for path in filled if named.get(path) == TreeEntry(PLAIN_DIRECTORY)]
            stays = self._written(restoring.before, steps.stays)
            self._trees.write(key, restoring.target, chain(away, stays))
        arrived = {path: change for path, change in differences.items() if path not in steps.stays}
        _arrived(known, key, arrived, self._trees.directories(key))
        put = {path for path, change in steps.changes.items() if change.after is not None}
        for path in {*in_the_way(known.skipped, steps.changes), *(put & known.skipped.keys())}:
            del known.skipped[path]  # it was moved aside, or it is part of the snapshot
            known.dirty.add(path)
        for path in {within(path, steps.then) or path for path in steps.ignored}:
            with suppress(FileNotFoundError):
                known.skipped[path] = SkippedPath(EXCLUDED, stamp_of(os.lstat(os.path.join(self._root, path))))
                known.dirty.add(path)
        self._catalog.store_snapshot(None, known)
        self._known = known

    def _result(self, restoring: Restoring, disk: Disk, outcome: RestoreOutcome, said: ExcludedReport) -> Restored:
        return Restored(
            id=restoring.snapshot,
            safety=restoring.safety,
            restored=_texts(outcome.restored),
            deleted=_texts(outcome.deleted),
            created_directories=_texts(disk.created),
            deleted_directories=_texts(outcome.folders_gone),
            moved_aside=tuple((os.fsdecode(path), os.fsdecode(to)) for path, to in disk.moved()),
            skipped=self.skipped(),
            conflicts=tuple((os.fsdecode(path), why) for path, why in outcome.conflicts),
            missing=said.missing,
            left=said.left,
        )

    def _between(self, a: str | None, b: str) -> dict[bytes, TreeChange]:
        if a is None:
            return {path: TreeChange(None, entry) for path, entry in self._trees.tree(b).items()}
        return self._trees.differences(a, b)

    def _unwritten(self) -> ScanResult:
        """Scan the workspace without writing anything."""
        known = self._catalog.load_index(self._known)
        seen = known.copy()
        with TemporaryPermissions(self._root, self._catalog) as permits:
            changes = {path: entry for path, entry, _ in self._scan(seen, permits, None).changes()}
        return ScanResult(known, changes, self._left(seen))

    def _files_among(self, now: ScanResult) -> tuple[str, ...]:
        """Return the paths of the files that a scan found changed, and of changed paths that are left out."""
        files = [path for path, entry in now.changes.items() if path in now.known.files or _leaf(entry)]
        return _texts(chain(files, *compare(self._left(now.known), now.left, self._root)))

    def _files_since(self, since: CatalogRow, now: ScanResult) -> tuple[str, ...]:
        """Return the paths of the files that differ from a snapshot, and of changed paths that it left out."""
        found = self._limited(self._differences_to_now(since.tree, now), None)
        files = [path for path, (before, after) in found.items() if _leaf(before) or _leaf(after)]
        then = self._catalog.excluded_from(since.snapshot.id)
        imported = {path for path, one in then.items() if not one.has_status}
        return _texts(path for path in chain(files, *compare(then, now.left, self._root)) if path not in imported)

    def _differences_to_now(self, a: str | None, now: ScanResult) -> dict[bytes, TreeChange]:
        """Return the differences between a snapshot and the workspace as it is now."""
        known = now.known
        if known.key is None:  # this workspace was never scanned: the snapshot is from another one
            found = {path: TreeChange(entry, None) for path, entry in (self._trees.tree(a) if a else {}).items()}
        else:
            found = self._between(a, known.key)
        entries = {path: seen.entry for path, seen in known.files.items()} | known.directories()
        for path, entry in now.changes.items():
            before = found[path].before if path in found else entries.get(path) if a else None
            found[path] = TreeChange(before, entry)
        return {path: change for path, change in found.items() if change.before != change.after}

    def _read(self, entries: Iterable[tuple[bytes, TreeEntry]]) -> Generator[Read, None, None]:
        """Read files of the workspace; the counterpart of `contents_of` for a snapshot."""
        with TemporaryPermissions(self._root, self._catalog) as permits:
            disk = Disk(self._root, b"", permits)
            for path, _ in entries:
                yield path, disk.read(path, IN_MEMORY)


def _arrived(
    known: WorkspaceIndex, key: str, differences: dict[bytes, TreeChange], named: dict[bytes, TreeEntry]
) -> None:
    """Update an index to a restored snapshot. Changed files get no stamp, so that the next scan reads them again."""
    for path, (_, after) in differences.items():
        known.dirty.add(path)
        known.files.pop(path, None)
        if after is not None and not after.is_directory:
            known.files[path] = IndexEntry(after, None)
    folders = set(named)
    for path in [*known.files, *named]:
        while (path := path.rpartition(b"/")[0]) and path not in folders:
            folders.add(path)
    known.dirty |= folders ^ known.folders.keys()
    modes = {path: named.get(path, TreeEntry(PLAIN_DIRECTORY)) for path in folders}
    before, known.folders = known.folders, {b"": IndexEntry(TreeEntry(PLAIN_DIRECTORY), None)}
    for path, entry in modes.items():
        seen = before.get(path)
        known.folders[path] = seen if seen and seen.entry == entry else IndexEntry(entry, None)
    known.key = key
    known.dirty.add(b"")


def _counted(changes: Iterator[TreeWrite], most: int, progress: Progress | None) -> Iterator[TreeWrite]:
    for number, change in enumerate(changes, 1):
        yield change
        if progress:
            progress(min(number, most), most)


def _leaf(entry: TreeEntry | None) -> bool:
    return entry is not None and not entry.is_directory


def _texts(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(set(paths)))
