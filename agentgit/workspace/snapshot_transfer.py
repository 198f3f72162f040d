"""Snapshots in exports: written with each file's contents once and each tree as its changes, and read again.

Snapshots are read from the storage of a workspace, whose directory need not exist. No lock is needed, because a
snapshot that a checkpoint uses is never collected.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, Self

from agentgit.errors import NotFound, Unavailable
from agentgit.store.transfer import paths
from agentgit.store.transfer.file_trees import (
    CUSTOM_ENVIRONMENT,
    MAX_FILE_BYTES,
    NO_LONGER_STORED,
    UNREGISTERED_STORAGE,
    FileTree,
    TreeItem,
)
from agentgit.store.transfer.lines import records_with_contents
from agentgit.workspace.api import Workspace
from agentgit.workspace.base import StoredTree
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.disk.atomic_file import iter_chunks
from agentgit.workspace.engines.directory import DirectoryTrees
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.locations import recorded_workspace
from agentgit.workspace.scan.excluded import ExcludedPath, ExcludedRecord
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees, TreeWrite, digest

TREE_STORES: Mapping[str, Callable[[str], Trees]] = {"git": GitTrees, "directory": DirectoryTrees}


PERMISSION_BITS = 0o777

SPECIAL_BITS = "has a setuid, setgid or sticky bit"
TOO_LARGE = f"is larger than {MAX_FILE_BYTES:,} bytes"

MAX_WHY_LENGTH = 200


class ExportedTree(NamedTuple):
    """The result for a snapshot: the number of its tree in the export, or the reason why it was not exported."""

    tree: int | None
    why: str | None = None


class _TreeLocation(NamedTuple):
    """The location of a tree: its storage, the store that reads it, its key, and the paths left out of the snapshot."""

    storage: str
    trees: Trees
    key: str
    excluded: Mapping[bytes, str]


class _ExcludedItem(NamedTuple):
    """The reason why a path cannot be exported. `item` is set if the only reason is a conflict with other paths."""

    why: str
    item: TreeItem | None = None


class SnapshotExporter:
    """Writes the snapshots of one export."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._results: dict[tuple[str, str], ExportedTree] = {}
        self._tree_stores: dict[str, Trees] = {}
        self._hashes: dict[tuple[str, str], bytes] = {}
        self._written_hashes: set[bytes] = set()
        self._last_number = 0
        self._last_location: _TreeLocation | None = None
        self._tree = FileTree()
        self._excluded: dict[bytes, _ExcludedItem] = {}
        self._written_excluded: dict[bytes, str] = {}

    def export(self, settings: Mapping[str, Any], snapshot: str) -> ExportedTree:
        """Write the tree of a snapshot, unless it was already written."""
        storage = str(settings.get("storage"))
        if (storage, snapshot) not in self._results:
            location = self._find_location(storage, str(settings.get("environment")), snapshot)
            self._results[storage, snapshot] = (
                self._write_tree(location) if isinstance(location, _TreeLocation) else ExportedTree(None, location)
            )
        return self._results[storage, snapshot]

    def _find_location(self, storage: str, environment: str, snapshot: str) -> _TreeLocation | str:
        """Return the location of a snapshot, or the reason why it is not available. Never create a missing storage."""
        if environment not in TREE_STORES:
            return CUSTOM_ENVIRONMENT
        catalog_path, folder = os.path.join(storage, "catalog.db"), os.path.join(storage, environment)
        if not os.path.isfile(catalog_path) or not os.path.isdir(folder):
            return NO_LONGER_STORED
        if recorded_workspace(storage) is None:
            return UNREGISTERED_STORAGE  # a path from a row is not trusted: see `require_known_storage`
        with closing(Catalog(catalog_path)) as catalog:
            rows = [row for row in catalog.find(snapshot) if row.snapshot.id == snapshot]
            excluded = catalog.excluded_from(snapshot)
        if not rows:
            return NO_LONGER_STORED
        if storage not in self._tree_stores:
            self._tree_stores[storage] = TREE_STORES[environment](folder)
        return _TreeLocation(
            storage,
            self._tree_stores[storage],
            rows[0].tree,
            {path: excluded_path.why for path, excluded_path in excluded.items()},
        )

    def _write_tree(self, location: _TreeLocation) -> ExportedTree:
        """Write a tree, as changes to the last one if both are in the same storage."""
        base = (
            self._last_location
            if self._last_location is not None and self._last_location.storage == location.storage
            else None
        )
        self._last_location = None  # not valid until this tree is complete
        if base is None:
            self._tree, self._excluded, self._written_excluded = FileTree(), {}, {}
        try:
            items = self._apply_changes(location, _changes_between(location, base))
        except NotFound:
            return ExportedTree(None, NO_LONGER_STORED)
        self._last_location, self._last_number = location, self._last_number + 1
        self._write(
            {"record": "tree", "id": self._last_number, "base": self._last_number - 1 if base is not None else None}
        )
        self._write_excluded(location)
        for path, item in items.items():
            self._write({"record": "path", "path": paths.text_of(path), **_item_fields(item)})
        return ExportedTree(self._last_number)

    def _apply_changes(
        self, location: _TreeLocation, changes: Mapping[bytes, TreeChange]
    ) -> dict[bytes, TreeItem | None]:
        """Apply changes to the tree, except paths that cannot be exported. Write new contents; return the changes."""
        self._tree.begin()
        items: dict[bytes, TreeItem | None] = {}
        unaffected = {path: one for path, one in self._excluded.items() if path not in changes}
        self._excluded = {path: one for path, one in unaffected.items() if one.item is None}
        new_entries = {path: change.after for path, change in sorted(changes.items()) if change.after is not None}
        new_items = dict(self._tree_items(location, new_entries))
        for path in changes:
            if not isinstance(new_items.get(path), TreeItem) and self._tree.has_path(path):
                self._tree.change(path, None)
                items[path] = None
        self._excluded |= {path: _ExcludedItem(one) for path, one in new_items.items() if isinstance(one, str)}
        candidates = {path: one.item for path, one in unaffected.items() if one.item is not None}
        candidates |= {path: one for path, one in new_items.items() if isinstance(one, TreeItem)}
        existing = {path for path in candidates if self._tree.has_path(path)}
        for path in sorted(
            candidates, key=lambda path: (path not in existing, path)
        ):  # paths already in the tree have priority
            if why := self._tree.find_problem(path, candidates[path]):
                self._excluded[path] = _ExcludedItem(why, candidates[path])
                if path in existing:
                    self._tree.change(path, None)
                    items[path] = None
            else:
                self._tree.change(path, candidates[path])
                items[path] = candidates[path]
        return self._write_contents(location, items, existing)

    def _write_excluded(self, location: _TreeLocation) -> None:
        """Write the changes to the list of paths that are left out, since the last tree."""
        excluded = {path: why for path, why in location.excluded.items() if not self._tree.has_path(path)}
        excluded |= {path: one.why[:MAX_WHY_LENGTH] for path, one in self._excluded.items()}
        for path in sorted(self._written_excluded.keys() | excluded.keys()):
            if self._written_excluded.get(path) != excluded.get(path):
                self._write({"record": "left", "path": paths.text_of(path), "why": excluded.get(path)})
        self._written_excluded = excluded

    def _tree_items(
        self, location: _TreeLocation, entries: Mapping[bytes, TreeEntry]
    ) -> Iterator[tuple[bytes, TreeItem | str]]:
        """Yield an item for each entry, or the reason why it cannot be exported. Files keep the hash of the storage."""
        links: dict[bytes, TreeEntry] = {}
        files: dict[bytes, TreeEntry] = {}
        for path, entry in entries.items():
            mode = stat.S_IMODE(entry.mode)
            if why := paths.path_problem(paths.text_of(path)) or (SPECIAL_BITS if mode > PERMISSION_BITS else ""):
                yield path, why
            elif entry.is_directory:
                yield path, TreeItem(mode)
            else:
                (links if entry.is_link else files)[path] = entry
        for path, _, data in location.trees.contents(location.key, links.items()):
            target = b"".join(iter_chunks(data))
            yield path, paths.link_problem(path, target) or TreeItem(PERMISSION_BITS, link=target)
        for path, entry in files.items():
            yield path, TreeItem(stat.S_IMODE(entry.mode), file=entry.oid.encode())

    def _write_contents(
        self, location: _TreeLocation, items: Mapping[bytes, TreeItem | None], existing: Collection[bytes]
    ) -> dict[bytes, TreeItem | None]:
        """Write new contents, and return the items with each file named by its SHA-256, as in the export."""
        files = {path: item.file.decode() for path, item in items.items() if item is not None and item.file is not None}
        by_oid = {oid: (path, TreeEntry(stat.S_IFREG, oid)) for path, oid in files.items()}
        missing = [found for oid, found in by_oid.items() if (location.storage, oid) not in self._hashes]
        for _, entry, data in location.trees.contents(location.key, missing):
            if len(data) <= MAX_FILE_BYTES:
                contents = b"".join(iter_chunks(data))
                self._hashes[location.storage, entry.oid] = content_hash = sha256(contents).digest()
                if content_hash not in self._written_hashes:
                    self._written_hashes.add(content_hash)
                    self._write_file(content_hash, contents)
        result = dict(items)
        for path, oid in files.items():
            known_hash, item = self._hashes.get((location.storage, oid)), result.pop(path)
            if known_hash is not None and item is not None:
                result[path] = item._replace(file=known_hash)
                continue
            self._excluded[path] = _ExcludedItem(TOO_LARGE)
            self._tree.forget(path)
            if path in existing:
                result[path] = None
        return result

    def _write_file(self, content_hash: bytes, data: bytes) -> None:
        record = {"record": "file", "id": content_hash.hex(), "size": len(data)}
        for part in records_with_contents(record, data, is_text=True):
            self._write(part)


def _changes_between(location: _TreeLocation, base: _TreeLocation | None) -> Mapping[bytes, TreeChange]:
    if base is None:
        return {path: TreeChange(None, entry) for path, entry in location.trees.tree(location.key).items()}
    return location.trees.differences(base.key, location.key)


def _item_fields(item: TreeItem | None) -> dict[str, Any]:
    if item is None:
        return {"mode": None, "file": None, "link": None}
    return {
        "mode": item.mode,
        "file": item.file.hex() if item.file is not None else None,
        "link": paths.text_of(item.link) if item.link is not None else None,
    }


class _BufferedFile(NamedTuple):
    """The offset of a file's contents in the buffer, and their size, both in bytes."""

    start: int
    size: int


class SnapshotImporter:
    """A buffer for the files of one export. A context manager; see `agentgit.store.transfer.file_trees.FileSink`."""

    def __init__(self) -> None:
        self._contents = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._changes = tempfile.TemporaryFile()  # noqa: SIM115  # as above
        self._files: dict[bytes, _BufferedFile] = {}
        self._contents_size = 0
        self._open_tree: list[Any] | None = None
        self._stored_ids: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._contents), closing(self._changes):
            self._files.clear()

    def data(self, part: bytes) -> None:
        """Store a part of the contents of a file."""
        with _converting_errors():
            self._contents.write(part)

    def file(self, id: bytes, size: int) -> None:
        """Combine the parts since the last file into one file."""
        self._files[id] = _BufferedFile(self._contents_size, size)
        self._contents_size += size

    def tree(self, id: int, base: int | None) -> None:
        """Begin a tree, to which the following changes belong."""
        self._flush_open_tree()
        self._open_tree = [id, base, {}]

    def left(self, path: bytes, why: str | None) -> None:
        """Record the reason why the tree leaves out a path; None if it no longer does."""
        assert self._open_tree is not None  # noqa: S101  # the checker ensures that a tree was begun and has no changes yet
        self._open_tree[2][path.decode("latin-1")] = why

    def change(self, path: bytes, item: TreeItem | None) -> None:
        """Add or replace the item at a path; None removes it."""
        self._flush_open_tree()
        values = (path, *(item[1:] if item is not None else (None, None)))
        encoded = [part.decode("latin-1") if part is not None else None for part in values]
        self._write_line([*encoded, item.mode if item is not None else None])

    def _flush_open_tree(self) -> None:
        if self._open_tree is not None:
            self._write_line(self._open_tree)
        self._open_tree = None

    def _write_line(self, values: list[Any]) -> None:
        with _converting_errors():
            self._changes.write(json.dumps(values).encode() + b"\n")

    # -- into a workspace

    def store_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        ids = workspace.store_trees(self._trees(), holder)
        self._stored_ids = list(ids.values())
        return ids

    def remove(self, workspace: Workspace) -> None:
        """Remove the stored snapshots from a workspace after a failed import."""
        workspace.discard(self._stored_ids)
        self._stored_ids = []

    def _trees(self) -> Iterator[StoredTree]:
        """Yield the buffered trees. Consume the changes of each tree before the next one."""
        self._flush_open_tree()
        with _converting_errors():
            self._contents.flush()
            self._changes.seek(0)
        lines = map(json.loads, self._changes)
        tree_line = next(lines, None)
        excluded: dict[bytes, ExcludedPath] = {}
        while tree_line is not None:
            next_tree: list[Any] = []
            number, base, changed_reasons = tree_line
            excluded = _update_excluded(excluded if base is not None else {}, changed_reasons)
            yield StoredTree(number, base, self._tree_writes(lines, next_tree), excluded)
            tree_line = next_tree[0] if next_tree else None

    def _tree_writes(self, lines: Iterator[list[Any]], next_tree: list[Any]) -> Iterator[TreeWrite]:
        for values in lines:
            if len(values) == 3:
                next_tree.append(values)
                return
            path, file, link, mode = values
            yield self._tree_write(path.encode("latin-1"), file, link, mode)

    def _tree_write(self, path: bytes, file: str | None, link: str | None, mode: int | None) -> TreeWrite:
        if mode is None:
            return TreeWrite(path, None)
        if link is not None:
            target = link.encode("latin-1")
            return TreeWrite(path, TreeEntry(stat.S_IFLNK | 0o777, digest(target)), target)
        if file is None:
            return TreeWrite(path, TreeEntry(stat.S_IFDIR | mode))
        data = self._read_file(file.encode("latin-1"))
        return TreeWrite(path, TreeEntry(stat.S_IFREG | mode, digest(data)), data)

    def _read_file(self, id: bytes) -> bytes:
        buffered = self._files[id]
        self._contents.seek(buffered.start)
        return self._contents.read(buffered.size)


def _update_excluded(
    base_excluded: ExcludedRecord, changed_reasons: Mapping[str, str | None]
) -> dict[bytes, ExcludedPath]:
    """Return the paths that a tree leaves out, from those of its base. An export does not contain their status."""
    reasons = {path.encode("latin-1"): why for path, why in changed_reasons.items()}
    unchanged = {path: excluded for path, excluded in base_excluded.items() if path not in reasons}
    return unchanged | {path: ExcludedPath(why, 0, 0, 0) for path, why in reasons.items() if why is not None}


@contextmanager
def _converting_errors() -> Iterator[None]:
    """Convert an operating-system error into one that explains how to make space for the buffers."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"The files of the export cannot be stored in {tempfile.gettempdir()}: {error.strerror}. Free some space "
            "there, or set $TMPDIR to another folder, then import again."
        ) from error
