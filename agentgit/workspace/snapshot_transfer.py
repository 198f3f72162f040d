"""Snapshots in exports: written with each file's contents once and each tree as its changes, and read again.

Snapshots are read from the storage of a workspace, whose directory need not exist. No lock is needed, because a
snapshot that a checkpoint uses is never collected.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple, Self

from agentgit.errors import Corrupt
from agentgit.store.transfer import paths
from agentgit.store.transfer.file_trees import (
    CUSTOM_ENVIRONMENT,
    FOREIGN_STORAGE,
    MAX_FILE_BYTES,
    NO_LONGER_STORED,
    FileTree,
    TreeItem,
)
from agentgit.store.transfer.lines import records_with_contents
from agentgit.workspace.api import Workspace, engine_of
from agentgit.workspace.catalog import Catalog, CatalogRow
from agentgit.workspace.engine import AUTO, CATALOG, new_snapshot, owner_of
from agentgit.workspace.left_out import LeftOut
from agentgit.workspace.locations import naming
from agentgit.workspace.objects import BLOB, Objects, PackWriter
from agentgit.workspace.trees import LINK_MODE, TreeEntry, Trees, put_tree

PERMISSION_BITS = 0o777

SPECIAL_BITS = "has a setuid, setgid or sticky bit"
TOO_LARGE = f"is larger than {MAX_FILE_BYTES:,} bytes"

MAX_WHY_LENGTH = 200


class ExportedTree(NamedTuple):
    tree: int | None
    why: str | None = None


class SnapshotExporter:
    """Writes the snapshots of one export: each content once, and each tree as changes to the one before."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._results: dict[tuple[str, str], ExportedTree] = {}
        self._stores: dict[str, Objects] = {}
        self._hashes: dict[bytes, bytes] = {}
        self._items: dict[bytes, TreeItem] = {}
        self._left_out: dict[bytes, str] = {}
        self._last_number = 0

    def export(self, settings: Mapping[str, Any], snapshot: str) -> ExportedTree:
        """Write the tree of a snapshot, unless it was already written."""
        storage = str(settings.get("storage"))
        if (storage, snapshot) not in self._results:
            self._results[storage, snapshot] = self._export(storage, str(settings.get("environment")), snapshot)
        return self._results[storage, snapshot]

    def _export(self, storage: str, environment: str, snapshot: str) -> ExportedTree:
        """Find a snapshot and write its tree. Never create a missing storage."""
        if environment not in ("git", "directory"):
            return ExportedTree(None, CUSTOM_ENVIRONMENT)
        catalog_path, folder = os.path.join(storage, CATALOG), os.path.join(storage, environment)
        if not os.path.isfile(catalog_path) or not os.path.isdir(folder):
            return ExportedTree(None, NO_LONGER_STORED)
        if owner_of(storage) is None:  # a path from a row is not trusted
            return ExportedTree(None, FOREIGN_STORAGE)
        with closing(Catalog(catalog_path)) as catalog:
            row = catalog.get_row(snapshot)
        if row is None:
            return ExportedTree(None, NO_LONGER_STORED)
        objects = self._stores.setdefault(storage, Objects(folder, is_repository=False))
        try:
            entries = dict(Trees(objects).entries(bytes.fromhex(row.tree)))
        except Corrupt:
            return ExportedTree(None, NO_LONGER_STORED)
        self._write_tree(objects, entries, {path: one.why for path, one in row.left_out.items()})
        return ExportedTree(self._last_number)

    def _write_tree(self, objects: Objects, entries: Mapping[bytes, TreeEntry], left_out: Mapping[bytes, str]) -> None:
        tree, items, excluded = FileTree(), dict[bytes, TreeItem](), dict[bytes, str]()
        for path in sorted(entries, key=lambda path: (path not in self._items, path)):  # the ones before have priority
            found = self._item(path, entries[path], objects, tree)
            if isinstance(found, str):
                excluded[path] = found[:MAX_WHY_LENGTH]
            else:
                tree.change(path, found)
                items[path] = found
        excluded |= {path: why for path, why in left_out.items() if path not in items and path not in excluded}
        base, self._last_number = self._last_number or None, self._last_number + 1
        self._write({"record": "tree", "id": self._last_number, "base": base})
        for path in sorted(self._left_out.keys() | excluded.keys()):
            if self._left_out.get(path) != excluded.get(path):
                self._write({"record": "left", "path": paths.text_of(path), "why": excluded.get(path)})
        changed = [path for path in self._items.keys() | items.keys() if self._items.get(path) != items.get(path)]
        for path in sorted(changed, key=lambda path: (path in items, path)):
            self._write({"record": "path", "path": paths.text_of(path), **_item_fields(items.get(path))})
        self._items, self._left_out = items, excluded

    def _item(self, path: bytes, entry: TreeEntry, objects: Objects, tree: FileTree) -> TreeItem | str:
        """Write the contents of an entry, and return the item for it, or the reason why it cannot be exported."""
        item = TreeItem(stat.S_IMODE(entry.mode))
        if entry.is_link:
            item = TreeItem(PERMISSION_BITS, link=objects.read(entry.oid))
        elif not entry.is_directory:
            item = item._replace(file=entry.oid)
        special = SPECIAL_BITS if item.mode > PERMISSION_BITS else ""
        if why := paths.path_problem(paths.text_of(path)) or special or tree.find_problem(path, item):
            return why
        if item.file is None:
            return item
        if entry.oid not in self._hashes:
            contents = objects.read(entry.oid)
            if len(contents) > MAX_FILE_BYTES:
                return TOO_LARGE
            self._hashes[entry.oid] = content_hash = sha256(contents).digest()
            record = {"record": "file", "id": content_hash.hex(), "size": len(contents)}
            for part in records_with_contents(record, contents, is_text=True):
                self._write(part)
        return item._replace(file=self._hashes[entry.oid])


def _item_fields(item: TreeItem | None) -> dict[str, Any]:
    if item is None:
        return {"mode": None, "file": None, "link": None}
    return {
        "mode": item.mode,
        "file": item.file.hex() if item.file is not None else None,
        "link": paths.text_of(item.link) if item.link is not None else None,
    }


class SnapshotImporter:
    """Holds the files of one export in a temporary store. A context manager; it is the `FileSink` of the check."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agentgit-")
        with naming(self._folder.name):
            self._objects = Objects(self._folder.name, is_repository=False)
        self._writer = PackWriter(self._objects.pack_folder, lambda _: False)
        self._parts: list[bytes] = []
        self._oids: dict[bytes, bytes] = {}
        self._entries: dict[bytes, TreeEntry] = {}
        self._left_out: dict[bytes, LeftOut] = {}
        self._number = 0
        self._trees: dict[int, tuple[bytes, dict[bytes, LeftOut]]] = {}
        self._stored_ids: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abandon()
        self._folder.cleanup()

    def data(self, part: bytes) -> None:
        self._parts.append(part)

    def file(self, id: bytes, _size: int) -> None:
        """Combine the parts since the last file into one file."""
        self._oids[id] = self._put(BLOB, b"".join(self._parts))
        self._parts.clear()

    def tree(self, id: int, base: int | None) -> None:
        self._finish_tree()
        self._number = id
        if base is None:
            self._entries, self._left_out = {}, {}

    def left(self, path: bytes, why: str | None) -> None:
        """Record the reason why the tree leaves out a path; None if it no longer does."""
        self._left_out.pop(path, None)
        if why is not None:  # an export does not contain their status
            self._left_out[path] = LeftOut(why)

    def change(self, path: bytes, item: TreeItem | None) -> None:
        if item is None:
            self._entries.pop(path, None)
        elif item.link is not None:
            self._entries[path] = TreeEntry(LINK_MODE, self._put(BLOB, item.link))
        elif item.file is None:
            self._entries[path] = TreeEntry(stat.S_IFDIR | item.mode)
        else:
            self._entries[path] = TreeEntry(stat.S_IFREG | item.mode, self._oids[item.file])

    def _put(self, kind: int, data: bytes) -> bytes:
        with naming(self._folder.name):
            return self._writer.put(kind, data)

    def _finish_tree(self) -> None:
        if self._number:
            with naming(self._folder.name):
                self._trees[self._number] = put_tree(self._writer, self._entries), dict(self._left_out)

    def store_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        self._finish_tree()
        with naming(self._folder.name):
            self._writer.finish()
            self._objects.refresh()
        rows = {
            number: CatalogRow(new_snapshot("imported", AUTO).with_left_out((), left_out), tree.hex(), left_out)
            for number, (tree, left_out) in self._trees.items()
        }
        engine_of(workspace).copy(self._objects, list(rows.values()), holder)
        ids = {number: row.snapshot.id for number, row in rows.items()}
        self._stored_ids = list(ids.values())
        return ids

    def remove(self, workspace: Workspace) -> None:
        """Remove the stored snapshots from a workspace after a failed import."""
        engine_of(workspace).catalog.remove(self._stored_ids)
        self._stored_ids = []
