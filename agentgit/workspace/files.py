"""The engine of a workspace of files: takes snapshots, restores them, tells what differs. Its caller has the lock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from agentgit.errors import WorkspaceChanged
from agentgit.workspace.catalog import Catalog, Restoring, Row
from agentgit.workspace.comparing import compared
from agentgit.workspace.disk import Disk
from agentgit.workspace.ignore import NAME, Rules
from agentgit.workspace.known import PLAIN_DIRECTORY, Known, Seen
from agentgit.workspace.restore import Outcome, Progress, Restore, limited
from agentgit.workspace.scan import Scan
from agentgit.workspace.scan import read as read_file
from agentgit.workspace.trees import Change, Entry, Trees, Written
from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, WorkspaceDiff

Paths = Iterable[bytes] | None

NAMED = 5
"""How many paths a failure names."""


class Expected(NamedTuple):
    """What a caller knows to stand in the workspace: what it calls that, and the key of the tree."""

    name: str
    tree: str


@dataclass(frozen=True)
class Target:
    """What a restore is to do.

    Args:
        row: the snapshot that is wanted.
        paths: only these and what is below them; None is everything.
        expected: what its caller knows to stand in the workspace; None is whatever does.
    """

    row: Row
    paths: tuple[bytes, ...] | None = None
    expected: Expected | None = None


class Looked(NamedTuple):
    """What a look at the workspace found.

    Args:
        known: what was known before it.
        changes: what stands now at each path that is otherwise; None if nothing does.
    """

    known: Known
    changes: dict[bytes, Entry | None]


class Files:
    """The files of one workspace and their snapshots.

    Args:
        root: the workspace.
        storage: its storage.
        trees: keeps the snapshots.
        catalog: lists them.
        patterns: what is left out.
        max_file_size: a greater file is left out, in bytes.
    """

    def __init__(
        self, root: str, storage: str, trees: Trees, catalog: Catalog, patterns: tuple[str, ...], max_file_size: int
    ) -> None:
        self._root, self._storage = os.fsencode(root), os.fsencode(storage)
        self._trees, self._catalog = trees, catalog
        self._patterns, self._most = patterns, max_file_size
        self._known: Known | None = None

    def snapshot(
        self, made: Callable[[int], FileCheckpoint], paths: Paths = None, progress: Progress | None = None, *,
        anew: bool = True,
    ) -> FileCheckpoint:  # fmt: skip
        """Take a snapshot, and enter it in the catalog.

        Args:
            made: makes the value, given how many files changed.
            paths: look only at these.
            progress: is told how far it is.
            anew: False to give the newest snapshot that holds the files as they are, if there is one.
        """
        known = self._now(self._look(paths), progress)
        held = None if anew else self._catalog.of_tree(known.key or "")
        snapshot = held or made(self._changed)
        self._catalog.enter(snapshot if held is None else None, known)
        self._known = known
        return snapshot

    def adopt(self, source: Files, tree: str, made: Callable[[int], FileCheckpoint]) -> FileCheckpoint:
        """Copy a snapshot of another workspace into the storage of this one."""
        entries = sorted(source._trees.tree(tree).items())
        folders = (Written(path, entry) for path, entry in entries if entry.is_directory)
        files = source._trees.contents(tree, [(path, entry) for path, entry in entries if not entry.is_directory])
        snapshot = made(sum(not entry.is_directory for _, entry in entries))
        self.put(snapshot, None, chain(folders, (Written(*one) for one in files)))
        return snapshot

    def put(self, snapshot: FileCheckpoint, base: str | None, changes: Iterable[Written]) -> str:
        """Store a snapshot of files that did not stand here; give the key of its tree.

        Args:
            snapshot: as it is to be listed.
            base: the key of the tree to begin with; None begins with nothing.
            changes: what to take away first, then what to put there.
        """
        key = secrets.token_hex(8)
        self._trees.write(key, base, changes)
        self._catalog.add(snapshot, key)
        return key

    def restore(self, target: Target, safety: Callable[[int], FileCheckpoint], progress: Progress | None) -> Restored:
        """Go to a snapshot, after a safety snapshot of what stands now.

        Raises:
            WorkspaceChanged: what is to be touched is not what was expected; nothing was touched.
            Unavailable: a path cannot be written; what is done stays, and restoring again goes on from there.
        """
        known = self._now(self._look(None), progress)
        self._known, before = known, known.key or ""
        if target.expected is not None:
            self._check(target, before)
        held = self._catalog.of_tree(before)
        kept = held or safety(self._changed)
        self._catalog.enter(kept if held is None else None, known)
        snapshot, tree = target.row.snapshot.id, target.row.tree
        number = self._catalog.begin(snapshot, tree, kept.id, before, target.paths)
        return self._run(Restoring(number, snapshot, tree, kept.id, before, target.paths), progress)

    def finish(self) -> list[Restored]:
        """Finish the restores that were killed on the way."""
        return [self._run(one, None) for one in self._catalog.unfinished()]

    def plan(self, target: Row, paths: Paths, since: Row | None = None) -> RestorePlan:
        """Tell what a restore would do.

        Args:
            target: the snapshot.
            paths: only these and what is below them; None is everything.
            since: the snapshot that `changed` is told against; None is the last one.
        """
        now = self._unwritten()
        differences = self._differences_to_now(target.tree, now)
        changes = self._limited({path: Change(after, before) for path, (before, after) in differences.items()}, paths)
        put = [path for path, (_, after) in changes.items() if after and not after.is_directory]
        wanted = self._wanted(target.tree, changes)
        gone = [path for path, (before, after) in wanted.items() if before and not before.is_directory and not after]
        changed = self._files_among(now) if since is None else self._files_since(since, now)
        return RestorePlan(target.snapshot.id, _texts(put), _texts(gone), changed)

    def changed(self) -> tuple[str, ...]:
        """Give the paths of the files that changed since they were last saved or restored."""
        return self._files_among(self._unwritten())

    def diff(self, a: Row | None, b: Row | None, paths: Paths) -> WorkspaceDiff:
        """Tell how two snapshots differ; None for the second is the workspace as it is now."""
        new: dict[bytes, bytes] = {}
        first = a.tree if a else None
        if b is not None:
            changes = self._limited(self._between(first, b.tree), paths)
            new = self._contents(b.tree, {path: change.after for path, change in changes.items()})
        else:
            changes = self._limited(self._differences_to_now(first, self._unwritten()), paths)
            new = {path: self._read(path) for path, change in changes.items() if _leaf(change.after)}
        old = self._contents(first, {path: change.before for path, change in changes.items()}) if first else {}
        ids = [row.snapshot.id if row else None for row in (a, b)]
        return compared(ids[0], ids[1], changes, old, new)

    def collect(self) -> int:
        """Remove what no snapshot needs; give how many bytes that freed."""
        waste = self._catalog.waste()
        freed = self._trees.collect(self._catalog.trees())
        self._catalog.gone(waste)
        return freed

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Give the paths that no snapshot holds, as they were last seen, each with the reason."""
        known = self._known or self._catalog.known(None)
        return tuple(sorted((os.fsdecode(path), skipped.why) for path, skipped in known.skipped.items()))

    def forget(self) -> None:
        """Look again at what is stored: an operation was broken off."""
        self._known = None

    def _scan(self, known: Known, paths: Paths) -> Scan:
        rules = Rules(self._root, self._patterns)
        outside = self._outside()
        settings = repr((self._patterns, self._most, outside))
        return Scan(self._root, known, rules, self._most, settings=settings, paths=paths, outside=outside)

    def _outside(self) -> tuple[bytes, ...]:
        """Give the absolute paths that are not to be touched, wherever they are."""
        return (self._storage, *(os.path.join(self._root, os.fsencode(path)) for path in self._catalog.left_out()))

    def _limited(self, differences: Mapping[bytes, Change], paths: Paths) -> dict[bytes, Change]:
        """Give the differences at some paths, without those paths that are left out now and were not always."""
        outside = {os.path.relpath(path, self._root) for path in self._outside()}
        return {path: change for path, change in limited(differences, paths).items() if path not in outside}

    def _look(self, paths: Paths) -> tuple[Known, Scan]:
        known = self._catalog.known(self._known)
        self._known = None  # until it is stored
        return known, self._scan(known, None if known.key is None else paths)

    def _now(self, looked: tuple[Known, Scan], progress: Progress | None) -> Known:
        """Write what stands now, if it is not what was last written."""
        known, scan = looked
        changes = _counted(scan.changes(), scan.candidates, progress)
        first = next(changes, None)
        if first is not None or known.key is None:
            key = secrets.token_hex(8)
            self._trees.write(key, known.key, chain(() if first is None else (first,), changes))
            known.key = key
            known.dirty.add(b"")
        self._changed = scan.files_changed
        return known

    def _check(self, target: Target, now: str) -> None:
        assert target.expected is not None  # noqa: S101 - its caller looked
        touched = self._limited(self._trees.differences(now, target.row.tree), target.paths)
        moved = self._between(target.expected.tree or None, now)
        if both := sorted(touched.keys() & moved.keys()):
            more = f" and {len(both) - NAMED} more" if len(both) > NAMED else ""
            raise WorkspaceChanged(
                f"Changed since {target.expected.name}: {', '.join(_texts(both[:NAMED]))}{more}. "
                "Nothing was touched. Save them first, or restore with force=True: a safety snapshot holds them then."
            )

    def _run(self, restoring: Restoring, progress: Progress | None) -> Restored:
        aside = os.path.join(self._storage, b"aside", b"%d" % restoring.id)
        disk = Disk(self._root, aside)
        try:
            differences = self._limited(self._trees.differences(restoring.before, restoring.target), restoring.paths)
            wanted = self._wanted(restoring.target, differences)
            outcome = Restore(disk, self._trees, restoring.target, wanted, progress).run()
        except Exception:
            self._catalog.end(restoring.id, "failed")
            raise
        if restoring.paths is None and not outcome.conflicts:
            known = self._catalog.known(self._known)
            _arrived(known, restoring.target, differences, self._trees.directories(restoring.target))
            self._catalog.enter(None, known)
            self._known = known
        elif touched := [*outcome.restored, *outcome.deleted, *outcome.folders_gone, *disk.created]:
            self._known = self._now(self._look(touched), None)
            self._catalog.enter(None, self._known)
        self._catalog.end(restoring.id, "done")
        return self._told(restoring, disk, outcome)

    def _wanted(self, target: str, differences: dict[bytes, Change]) -> dict[bytes, Change]:
        """Let files stay that a snapshot has not because its `.gitignore` files name them: they may have been there."""
        if not any(path.rpartition(b"/")[2] == NAME for path in differences):
            return differences
        tree = self._trees.tree(target)
        files = {path: entry for path, entry in tree.items() if path.rpartition(b"/")[2] == NAME and not entry.is_link}
        rules = Rules(self._root, self._patterns, self._contents(target, {**files}))
        return {
            path: change
            for path, change in differences.items()
            if change.after is not None or not _leaf(change.before) or not rules.ignored(path)
        }

    def _told(self, restoring: Restoring, disk: Disk, outcome: Outcome) -> Restored:
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
        )

    def _between(self, a: str | None, b: str) -> dict[bytes, Change]:
        if a is None:
            return {path: Change(None, entry) for path, entry in self._trees.tree(b).items()}
        return self._trees.differences(a, b)

    def _unwritten(self) -> Looked:
        """Look at the workspace without writing anything."""
        known = self._catalog.known(self._known)
        return Looked(known, {path: entry for path, entry, _ in self._scan(known.copy(), None).changes()})

    @staticmethod
    def _files_among(now: Looked) -> tuple[str, ...]:
        """Name the files among what changed."""
        named = now.known.directories()
        return _texts(
            path
            for path, entry in now.changes.items()
            if not (entry.is_directory if entry is not None else path in named)
        )

    def _files_since(self, since: Row, now: Looked) -> tuple[str, ...]:
        """Name the files that are not as in a snapshot."""
        found = self._limited(self._differences_to_now(since.tree, now), None)
        return _texts(path for path, (before, after) in found.items() if _leaf(before) or _leaf(after))

    def _differences_to_now(self, a: str | None, now: Looked) -> dict[bytes, Change]:
        """Tell how the workspace differs from a snapshot."""
        known = now.known
        if known.key is None:  # this workspace has never been looked at; the snapshot is of another one
            found = {path: Change(entry, None) for path, entry in (self._trees.tree(a) if a else {}).items()}
        else:
            found = self._between(a, known.key)
        entries = {path: seen.entry for path, seen in known.files.items()} | known.directories()
        for path, entry in now.changes.items():
            before = found[path].before if path in found else entries.get(path) if a else None
            found[path] = Change(before, entry)
        return {path: change for path, change in found.items() if change.before != change.after}

    def _contents(self, tree: str, entries: dict[bytes, Entry | None]) -> dict[bytes, bytes]:
        wanted = [(path, entry) for path, entry in sorted(entries.items()) if entry and not entry.is_directory]
        return {path: data for path, _, data in self._trees.contents(tree, wanted)}

    def _read(self, path: bytes) -> bytes:
        try:
            return read_file(os.path.join(self._root, path))[1]
        except FileNotFoundError:  # it went meanwhile
            return b""


def _arrived(known: Known, key: str, differences: dict[bytes, Change], named: dict[bytes, Entry]) -> None:
    """Bring what is known to a snapshot that was restored; what was touched is to be looked at again."""
    for path, (_, after) in differences.items():
        known.dirty.add(path)
        known.files.pop(path, None)
        if after is not None and not after.is_directory:
            known.files[path] = Seen(after, None)
    folders = set(named)
    for path in [*known.files, *named]:
        while (path := path.rpartition(b"/")[0]) and path not in folders:
            folders.add(path)
    known.dirty |= folders ^ known.folders.keys()
    modes = {path: named.get(path, Entry(PLAIN_DIRECTORY)) for path in folders}
    before, known.folders = known.folders, {b"": Seen(Entry(PLAIN_DIRECTORY), None)}
    for path, entry in modes.items():
        seen = before.get(path)
        known.folders[path] = seen if seen and seen.entry == entry else Seen(entry, None)
    known.key = key
    known.dirty.add(b"")


def _counted(changes: Iterator[Written], most: int, progress: Progress | None) -> Iterator[Written]:
    for number, change in enumerate(changes, 1):
        yield change
        if progress:
            progress(min(number, most), most)


def _leaf(entry: Entry | None) -> bool:
    return entry is not None and not entry.is_directory


def _texts(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(set(paths)))
