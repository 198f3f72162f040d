"""Snapshots on their way into an export: contents once, and each tree as what it changes of the one before.

They are read from the storage of a workspace; its directory need not be there. Nothing is locked: a snapshot that a
checkpoint has is not collected.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple

from agentgit.errors import NotFound
from agentgit.exports import paths
from agentgit.exports.trees import GONE, LARGEST_FILE, ODD, OWN, PART_BYTES, Item, Tree
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.copies import Copies
from agentgit.workspace.git_trees import GitTrees
from agentgit.workspace.trees import Change, Entry, Trees

ENGINES: Mapping[str, Callable[[str], Trees]] = {"git": GitTrees, "directory": Copies}


class Sent(NamedTuple):
    """What became of a snapshot: the number of its tree in the export, or why it has none."""

    tree: int | None
    why: str | None = None


class _At(NamedTuple):
    """Where a tree is: its storage, what reads that, and its key there."""

    storage: str
    trees: Trees
    key: str


class Outgoing:
    """Writes the snapshots of one export.

    Args:
        write: writes one record.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._sent: dict[tuple[str, str], Sent] = {}
        self._engines: dict[str, Trees] = {}
        self._names: dict[tuple[str, str], bytes] = {}
        self._written: set[bytes] = set()
        self._number = 0
        self._last: _At | None = None
        self._tree = Tree()

    def send(self, settings: Mapping[str, Any], snapshot: str) -> Sent:
        """Write the tree of a snapshot, unless that was done before.

        Args:
            settings: what opens its workspace.
            snapshot: its id there.

        Raises:
            Corrupt: contents are gone, or are not what was written.
            Unavailable: the storage cannot be read.
        """
        storage = str(settings.get("storage"))
        if (storage, snapshot) not in self._sent:
            at = self._find(storage, str(settings.get("environment")), snapshot)
            self._sent[storage, snapshot] = self._send(at) if isinstance(at, _At) else Sent(None, at)
        return self._sent[storage, snapshot]

    def _find(self, storage: str, environment: str, snapshot: str) -> _At | str:
        """Find a snapshot; else tell why it cannot be had. Nothing is made that is not there."""
        if environment not in ENGINES:
            return OWN
        catalog, folder = os.path.join(storage, "catalog.db"), os.path.join(storage, environment)
        if not os.path.isfile(catalog) or not os.path.isdir(folder):
            return GONE
        with closing(Catalog(catalog)) as opened:
            rows = [row for row in opened.find(snapshot) if row.snapshot.id == snapshot]
        if not rows:
            return GONE
        if storage not in self._engines:
            self._engines[storage] = ENGINES[environment](folder)
        return _At(storage, self._engines[storage], rows[0].tree)

    def _send(self, at: _At) -> Sent:
        """Write a tree as what it changes of the last one, if that is in the same storage."""
        before = self._last if self._last is not None and self._last.storage == at.storage else None
        self._last = None  # until this one is whole
        if before is None:
            self._tree = Tree()
        try:
            changes = _between(at, before)
            items = dict(self._items(at, changes))
            self._tree.begin()
            for path, item in items.items():
                paths.path(paths.text_of(path))
                self._tree.change(path, item)
        except NotFound:
            return Sent(None, GONE)
        except ValueError:
            return Sent(None, ODD)
        self._last, self._number = at, self._number + 1
        self._write({"record": "tree", "id": self._number, "base": self._number - 1 if before is not None else None})
        for path, item in items.items():
            self._write({"record": "path", "path": paths.text_of(path), **_shown(item)})
        return Sent(self._number)

    def _items(self, at: _At, changes: Mapping[bytes, Change]) -> Iterator[tuple[bytes, Item | None]]:
        """Give what goes, then what comes; contents that were not written before are written on the way."""
        yield from ((path, None) for path in sorted(changes) if changes[path].after is None)
        coming = {path: change.after for path, change in sorted(changes.items()) if change.after is not None}
        for path, entry in coming.items():
            if stat.S_IMODE(entry.mode) > 0o777:
                raise ValueError("it would run as its owner")
            if entry.is_directory:
                yield path, Item(stat.S_IMODE(entry.mode))
        for path, data in self._links(at, coming):
            yield path, Item(0o777, link=data)
        self._contents(at, coming)
        for path, entry in coming.items():
            if stat.S_ISREG(entry.mode):
                yield path, Item(stat.S_IMODE(entry.mode), file=self._names[at.storage, entry.oid])

    def _links(self, at: _At, coming: Mapping[bytes, Entry]) -> Iterator[tuple[bytes, bytes]]:
        links = [(path, entry) for path, entry in coming.items() if entry.is_link]
        for path, _, data in at.trees.contents(at.key, links):
            paths.link(paths.text_of(data))
            yield path, data

    def _contents(self, at: _At, coming: Mapping[bytes, Entry]) -> None:
        """Write the contents that are new."""
        files = {entry.oid: (path, entry) for path, entry in coming.items() if stat.S_ISREG(entry.mode)}
        wanted = [found for oid, found in files.items() if (at.storage, oid) not in self._names]
        for _, entry, data in at.trees.contents(at.key, wanted):
            if len(data) > LARGEST_FILE:
                raise ValueError("a file is too large")
            self._names[at.storage, entry.oid] = name = sha256(data).digest()
            if name not in self._written:
                self._written.add(name)
                self._file(name, data)

    def _file(self, name: bytes, data: bytes) -> None:
        body: dict[str, Any] = {"text": None, "data": None, "parts": None}
        record: dict[str, Any] = {"record": "file", "id": name.hex(), "size": len(data), **body}
        starts = range(0, len(data), PART_BYTES)
        if len(starts) < 2:
            self._write(record | _body(data))
            return
        self._write(record | {"parts": len(starts)})
        for start in starts:
            self._write({"record": "part", "data": _base64(data[start : start + PART_BYTES])})


def _between(at: _At, before: _At | None) -> Mapping[bytes, Change]:
    if before is None:
        return {path: Change(None, entry) for path, entry in at.trees.tree(at.key).items()}
    return at.trees.differences(before.key, at.key)


def _shown(item: Item | None) -> dict[str, Any]:
    if item is None:
        return {"mode": None, "file": None, "link": None}
    return {
        "mode": item.mode,
        "file": item.file.hex() if item.file is not None else None,
        "link": paths.text_of(item.link) if item.link is not None else None,
    }


def _body(data: bytes) -> dict[str, str]:
    """Write what is text so that a person can read it."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
