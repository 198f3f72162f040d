"""Snapshots in exports: written with each file's contents once and each tree as its changes, and read again.

Snapshots are read from the storage of a workspace, whose directory need not exist. No lock is needed, because a
snapshot that a checkpoint uses is never collected.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, Self

from agentgit.errors import Corrupt, Unavailable
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
from agentgit.workspace.api import Workspace, engine_of
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.engine import StoredTree
from agentgit.workspace.left_out import LeftOut
from agentgit.workspace.locations import recorded_workspace
from agentgit.workspace.objects import Objects
from agentgit.workspace.packs import BLOB, PackWriter, iter_chunks
from agentgit.workspace.trees import LINK_MODE, TreeEntry, Trees

PERMISSION_BITS = 0o777

SPECIAL_BITS = "has a setuid, setgid or sticky bit"
TOO_LARGE = f"is larger than {MAX_FILE_BYTES:,} bytes"

MAX_WHY_LENGTH = 200


class ExportedTree(NamedTuple):
    """The result for a snapshot: the number of its tree in the export, or the reason why it was not exported."""

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
        catalog_path, folder = os.path.join(storage, "catalog.db"), os.path.join(storage, environment)
        if not os.path.isfile(catalog_path) or not os.path.isdir(folder):
            return ExportedTree(None, NO_LONGER_STORED)
        if recorded_workspace(storage) is None:  # a path from a row is not trusted: see `require_known_storage`
            return ExportedTree(None, UNREGISTERED_STORAGE)
        with closing(Catalog(catalog_path)) as catalog:
            row = next((row for row in catalog.find(snapshot) if row.snapshot.id == snapshot), None)
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
            found = _portable(path, entries[path], objects)
            why = found if isinstance(found, str) else tree.find_problem(path, found)
            if isinstance(found, TreeItem) and not why and found.file is not None:
                if (content_hash := self._write_contents(objects, found.file)) is None:
                    why = TOO_LARGE
                else:
                    found = found._replace(file=content_hash)
            if why or isinstance(found, str):
                excluded[path] = why[:MAX_WHY_LENGTH]
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

    def _write_contents(self, objects: Objects, oid: bytes) -> bytes | None:
        """Write contents unless they were already written, and return their hash; None if they are too large."""
        if oid not in self._hashes:
            data = objects.read(oid)
            if len(data) > MAX_FILE_BYTES:
                return None
            contents = b"".join(iter_chunks(data))
            self._hashes[oid] = content_hash = sha256(contents).digest()
            record = {"record": "file", "id": content_hash.hex(), "size": len(contents)}
            for part in records_with_contents(record, contents, is_text=True):
                self._write(part)
        return self._hashes[oid]


def _portable(path: bytes, entry: TreeEntry, objects: Objects) -> TreeItem | str:
    """Return the item for an entry, with the id of a file, or the reason why it cannot be exported."""
    mode = stat.S_IMODE(entry.mode)
    if why := paths.path_problem(paths.text_of(path)) or (SPECIAL_BITS if mode > PERMISSION_BITS else ""):
        return why
    if entry.is_link:
        target = objects.read_bytes(entry.oid)
        return paths.link_problem(path, target) or TreeItem(PERMISSION_BITS, link=target)
    return TreeItem(mode) if entry.is_directory else TreeItem(mode, file=entry.oid)


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
        self._oids: dict[bytes, bytes] = {}
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
        ids = engine_of(workspace).store_trees(self._trees, holder)
        self._stored_ids = list(ids.values())
        return ids

    def remove(self, workspace: Workspace) -> None:
        """Remove the stored snapshots from a workspace after a failed import."""
        engine_of(workspace).catalog.remove(self._stored_ids)
        self._stored_ids = []

    def _trees(self, writer: PackWriter) -> Iterator[StoredTree]:
        """Store the contents of the buffered trees, and yield the trees."""
        self._flush_open_tree()
        with _converting_errors():
            self._contents.flush()
            self._changes.seek(0)
        entries: dict[bytes, TreeEntry] = {}
        left_out: dict[bytes, LeftOut] = {}
        number = None
        for line in self._changes:
            values = json.loads(line)
            if len(values) != 3:
                self._apply(entries, writer, *values)
                continue
            if number is not None:
                yield StoredTree(number, dict(entries), dict(left_out))
            number, base, reasons = values
            if base is None:
                entries, left_out = {}, {}
            for path, why in reasons.items():  # an export does not contain their status
                left_out.pop(path.encode("latin-1"), None)
                if why is not None:
                    left_out[path.encode("latin-1")] = LeftOut(why)
        if number is not None:
            yield StoredTree(number, entries, left_out)

    def _apply(
        self, entries: dict[bytes, TreeEntry], writer: PackWriter, path: str, file: str | None, link: str | None,
        mode: int | None,
    ) -> None:  # fmt: skip
        """Apply one change to the entries of a tree."""
        name = path.encode("latin-1")
        if mode is None:
            entries.pop(name, None)
        elif link is not None:
            entries[name] = TreeEntry(LINK_MODE, writer.put(BLOB, link.encode("latin-1")))
        elif file is None:
            entries[name] = TreeEntry(stat.S_IFDIR | mode)
        else:
            id = file.encode("latin-1")
            if id not in self._oids:
                self._oids[id] = writer.put(BLOB, self._read_file(id))
            entries[name] = TreeEntry(stat.S_IFREG | mode, self._oids[id])

    def _read_file(self, id: bytes) -> bytes:
        buffered = self._files[id]
        self._contents.seek(buffered.start)
        return self._contents.read(buffered.size)


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
