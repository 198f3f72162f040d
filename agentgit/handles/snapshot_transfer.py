"""Snapshots in exports: each file's contents and each directory are written once, and read again.

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
from typing import Any, Self

from agentgit.errors import Corrupt
from agentgit.store.records.json_shapes import encode_bytes
from agentgit.store.transfer.file_trees import (
    CUSTOM_ENVIRONMENT,
    FILE,
    FOLDER,
    LEFT,
    LINK,
    MAX_FILE_BYTES,
    MOST_PATHS,
    NO_LONGER_STORED,
    PART_BYTES,
    TOO_MANY_PATHS,
    UNOPENED_STORAGE,
    FileSink,
    Item,
    format_path,
)
from agentgit.store.transfer.paths import LONGEST_PATH, fold_name, link_problem, name_problem, text_of
from agentgit.workspace.api import Workspace, engine_of
from agentgit.workspace.catalog import Catalog, CatalogRow
from agentgit.workspace.engine import AUTO, CATALOG, new_snapshot, owner_of
from agentgit.workspace.left_out import LeftOut
from agentgit.workspace.locations import naming
from agentgit.workspace.objects import BLOB, TREE, Objects, PackWriter
from agentgit.workspace.trees import LINK_MODE, TreeEntry, Trees, encode_tree

PERMISSION_BITS = 0o777

SPECIAL_BITS = "has a setuid, setgid or sticky bit"
TOO_LARGE, TOO_LONG = f"is larger than {MAX_FILE_BYTES:,} bytes", f"is longer than {LONGEST_PATH:,} bytes"

MAX_WHY_LENGTH = 200


ExportedItem = tuple[str, str | int, int]
"""The kind, the value and the permission bits of an item of a directory."""


ExportedTree = tuple[int | None, str | None]
"""The number of a snapshot's tree, or the reason why there is none."""


class SnapshotExporter:
    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._stores: dict[str, Objects] = {}
        self._hashes: dict[bytes, str] = {}
        self._folders: dict[tuple[object, ...], int] = {}

    def export(self, settings: Mapping[str, Any], snapshot: str) -> ExportedTree:
        """Write the tree of a snapshot, unless it was already written. Never create a missing storage."""
        storage, environment = str(settings.get("storage")), str(settings.get("environment"))
        if environment not in ("git", "directory"):
            return None, CUSTOM_ENVIRONMENT
        catalog_path, folder = os.path.join(storage, CATALOG), os.path.join(storage, environment)
        if not os.path.isfile(catalog_path) or not os.path.isdir(folder):
            return None, NO_LONGER_STORED
        if owner_of(storage) is None:  # a path from a row is not trusted
            return None, UNOPENED_STORAGE
        with closing(Catalog(catalog_path)) as catalog:
            row = catalog.get_row(snapshot)
        if row is None:
            return None, NO_LONGER_STORED
        objects = self._stores.setdefault(storage, Objects(folder, is_repository=False))
        tree, left_out = bytes.fromhex(row.tree), {path: one.why for path, one in row.left_out.items()}
        try:
            if len(Trees(objects).differences(None, tree)) + len(left_out) > MOST_PATHS:
                return None, TOO_MANY_PATHS
            return self._folder(objects, tree, b"", left_out), None
        except Corrupt:
            return None, NO_LONGER_STORED

    def _folder(self, objects: Objects, oid: bytes, prefix: bytes, left_out: Mapping[bytes, str]) -> int:
        """Write a directory, unless it was already written, and return its number; `prefix` is its path with a `/`."""
        left_out = {path: why for path, why in left_out.items() if path.startswith(prefix)}
        key = oid, prefix, *sorted(left_out.items())
        if key not in self._folders:
            names = {path[len(prefix) :]: why[:MAX_WHY_LENGTH] for path, why in left_out.items()}
            items: dict[str, ExportedItem] = {
                text_of(name): (LEFT, why, 0) for name, why in names.items() if b"/" not in name
            }
            spellings = dict[str, bytes]()
            for name, entry in sorted(Trees(objects).folder(oid).items(), reverse=True):
                path, spelling = prefix + name, fold_name(text_of(name))
                if spelling in spellings:
                    item: ExportedItem = (LEFT, f"is the same as {format_path(spellings[spelling])} on some systems", 0)
                else:
                    item = self._item(objects, path, entry, left_out)
                if item[0] != LEFT:
                    spellings[spelling] = path
                items[text_of(name)] = item
            self._write({"record": "folder", "id": len(self._folders) + 1, "items": dict(sorted(items.items()))})
            self._folders[key] = len(self._folders) + 1
        return self._folders[key]

    def _item(self, objects: Objects, path: bytes, entry: TreeEntry, left_out: Mapping[bytes, str]) -> ExportedItem:
        """Write the contents of an entry; return its kind, value and mode, or why it cannot be exported."""
        why, mode = name_problem(text_of(os.path.basename(path))), stat.S_IMODE(entry.mode)
        mode &= PERMISSION_BITS if entry.is_directory else mode
        why = why or (TOO_LONG if len(path) > LONGEST_PATH else SPECIAL_BITS if mode > PERMISSION_BITS else "")
        if entry.is_link and not why:
            link = objects.read(entry.oid)
            why = link_problem(link, path.count(b"/"))
            return (LEFT, why, 0) if why else (LINK, text_of(link), PERMISSION_BITS)
        if entry.is_directory and not why:
            return FOLDER, self._folder(objects, entry.oid, path + b"/", left_out), mode
        if not why and entry.oid not in self._hashes:
            contents = objects.read(entry.oid)
            if len(contents) > MAX_FILE_BYTES:
                return LEFT, TOO_LARGE, 0
            self._hashes[entry.oid] = sha256(contents).hexdigest()
            for start in range(0, len(contents), PART_BYTES):
                self._write({"record": "part", "data": encode_bytes(contents[start : start + PART_BYTES])})
            self._write({"record": "file", "id": self._hashes[entry.oid], "size": len(contents)})
        return (LEFT, why[:MAX_WHY_LENGTH], 0) if why else (FILE, self._hashes[entry.oid], mode)


class SnapshotImporter(FileSink):
    """Holds the files of one export in a temporary store. A context manager; it is the `FileSink` of the check."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agentgit-")
        with naming(self._folder.name):
            self._objects = Objects(self._folder.name, is_repository=False)
        self._writer = PackWriter(self._objects.pack_folder, lambda _: False)
        self._parts: list[bytes] = []
        self._oids: dict[bytes, bytes] = {}
        self._folders: list[tuple[bytes, dict[bytes, LeftOut]]] = []
        self._trees: set[int] = set()

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

    def folder(self, _id: int, items: Mapping[bytes, Item]) -> None:
        entries, left_out = dict[bytes, TreeEntry](), dict[bytes, LeftOut]()
        for name, (kind, value, mode) in items.items():
            if kind == LEFT:  # an export does not contain its status
                left_out[name] = LeftOut(value)
            elif kind == FILE:
                entries[name] = TreeEntry(stat.S_IFREG | mode, self._oids[value])
            elif kind == LINK:
                entries[name] = TreeEntry(LINK_MODE, self._put(BLOB, value))
            else:
                oid, below = self._folders[value - 1]
                entries[name] = TreeEntry(stat.S_IFDIR | mode, oid)
                left_out |= {name + b"/" + path: one for path, one in below.items()}
        self._folders.append((self._put(TREE, encode_tree(entries)), left_out))

    def tree(self, id: int) -> None:
        self._trees.add(id)

    def _put(self, kind: int, data: bytes) -> bytes:
        with naming(self._folder.name):
            return self._writer.put(kind, data)

    def store_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        with naming(self._folder.name):
            self._writer.finish()
            self._objects.refresh()
        rows = dict[int, CatalogRow]()
        for number in self._trees:
            tree, left_out = self._folders[number - 1]
            snapshot = new_snapshot("imported", AUTO).with_left_out((), left_out)
            rows[number] = CatalogRow(snapshot, tree.hex(), left_out)
        engine_of(workspace).copy(self._objects, list(rows.values()), holder)
        return {number: row.snapshot.id for number, row in rows.items()}
