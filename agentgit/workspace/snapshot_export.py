"""Writes snapshots into an export: each file's contents once, and each tree as the changes to the previous one.

Snapshots are read from the storage of a workspace, whose directory need not exist. No lock is needed, because a
snapshot that a checkpoint uses is never collected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple

from agentgit.errors import NotFound
from agentgit.store.transfer import paths
from agentgit.store.transfer.file_trees import (
    CUSTOM_ENVIRONMENT,
    GONE,
    LARGEST_FILE,
    UNREGISTERED_STORAGE,
    FileTree,
    TreeItem,
)
from agentgit.store.transfer.lines import with_contents
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.disk.atomic_file import parts
from agentgit.workspace.engines.directory import DirectoryTrees
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.locations import recorded_workspace
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees

ENGINES: Mapping[str, Callable[[str], Trees]] = {"git": GitTrees, "directory": DirectoryTrees}


PERMISSIONS = 0o777

SPECIAL_BITS = "has a setuid, setgid or sticky bit"
TOO_LARGE = f"is larger than {LARGEST_FILE:,} bytes"

LONGEST_WHY = 200


class ExportedTree(NamedTuple):
    """The result for a snapshot: the number of its tree in the export, or the reason why it was not exported."""

    tree: int | None
    why: str | None = None


class _TreeLocation(NamedTuple):
    """The location of a tree: its storage, the store that reads it, its key, and the paths left out of the snapshot."""

    storage: str
    trees: Trees
    key: str
    left: Mapping[bytes, str]


class _Left(NamedTuple):
    """The reason why a path cannot be exported. `item` is set if the only reason is a conflict with other paths."""

    why: str
    item: TreeItem | None = None


class SnapshotExporter:
    """Writes the snapshots of one export.

    Args:
        write: The function that writes one record.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._sent: dict[tuple[str, str], ExportedTree] = {}
        self._engines: dict[str, Trees] = {}
        self._names: dict[tuple[str, str], bytes] = {}
        self._written: set[bytes] = set()
        self._number = 0
        self._last: _TreeLocation | None = None
        self._tree = FileTree()
        self._left: dict[bytes, _Left] = {}
        self._named: dict[bytes, str] = {}

    def send(self, settings: Mapping[str, Any], snapshot: str) -> ExportedTree:
        """Write the tree of a snapshot, unless it was already written.

        Args:
            settings: The settings that open the workspace of the snapshot.
            snapshot: The id of the snapshot in that workspace.

        Raises:
            Corrupt: Contents are missing, or were modified after they were written.
            Unavailable: The storage cannot be read.
        """
        storage = str(settings.get("storage"))
        if (storage, snapshot) not in self._sent:
            at = self._find(storage, str(settings.get("environment")), snapshot)
            self._sent[storage, snapshot] = self._send(at) if isinstance(at, _TreeLocation) else ExportedTree(None, at)
        return self._sent[storage, snapshot]

    def _find(self, storage: str, environment: str, snapshot: str) -> _TreeLocation | str:
        """Return the location of a snapshot, or the reason why it is not available. Never create a missing storage."""
        if environment not in ENGINES:
            return CUSTOM_ENVIRONMENT
        catalog, folder = os.path.join(storage, "catalog.db"), os.path.join(storage, environment)
        if not os.path.isfile(catalog) or not os.path.isdir(folder):
            return GONE
        if recorded_workspace(storage) is None:
            return UNREGISTERED_STORAGE  # a path from a row is not trusted: see `require_noted`
        with closing(Catalog(catalog)) as opened:
            rows = [row for row in opened.find(snapshot) if row.snapshot.id == snapshot]
            left = opened.excluded_from(snapshot)
        if not rows:
            return GONE
        if storage not in self._engines:
            self._engines[storage] = ENGINES[environment](folder)
        return _TreeLocation(
            storage, self._engines[storage], rows[0].tree, {path: one.why for path, one in left.items()}
        )

    def _send(self, at: _TreeLocation) -> ExportedTree:
        """Write a tree, as changes to the last one if both are in the same storage."""
        before = self._last if self._last is not None and self._last.storage == at.storage else None
        self._last = None  # not valid until this tree is complete
        if before is None:
            self._tree, self._left, self._named = FileTree(), {}, {}
        try:
            items = self._change(at, _between(at, before))
        except NotFound:
            return ExportedTree(None, GONE)
        self._last, self._number = at, self._number + 1
        self._write({"record": "tree", "id": self._number, "base": self._number - 1 if before is not None else None})
        self._name(at)
        for path, item in items.items():
            self._write({"record": "path", "path": paths.text_of(path), **_shown(item)})
        return ExportedTree(self._number)

    def _change(self, at: _TreeLocation, changes: Mapping[bytes, TreeChange]) -> dict[bytes, TreeItem | None]:
        """Apply changes to the tree, except paths that cannot be exported. Write new contents; return the changes."""
        self._tree.begin()
        items: dict[bytes, TreeItem | None] = {}
        left = {path: one for path, one in self._left.items() if path not in changes}
        self._left = {path: one for path, one in left.items() if one.item is None}
        coming = {path: change.after for path, change in sorted(changes.items()) if change.after is not None}
        made = dict(self._made(at, coming))
        for path in changes:
            if not isinstance(made.get(path), TreeItem) and self._tree.has_path(path):
                self._tree.change(path, None)
                items[path] = None
        self._left |= {path: _Left(one) for path, one in made.items() if isinstance(one, str)}
        fit = {path: one.item for path, one in left.items() if one.item is not None}
        fit |= {path: one for path, one in made.items() if isinstance(one, TreeItem)}
        stood = {path for path in fit if self._tree.has_path(path)}
        for path in sorted(fit, key=lambda path: (path not in stood, path)):  # paths already in the tree have priority
            if why := self._tree.problem(path, fit[path]):
                self._left[path] = _Left(why, fit[path])
                if path in stood:
                    self._tree.change(path, None)
                    items[path] = None
            else:
                self._tree.change(path, fit[path])
                items[path] = fit[path]
        return self._with_contents(at, items, stood)

    def _name(self, at: _TreeLocation) -> None:
        """Write the changes to the list of paths that are left out, since the last tree."""
        named = {path: why for path, why in at.left.items() if not self._tree.has_path(path)}
        named |= {path: one.why[:LONGEST_WHY] for path, one in self._left.items()}
        for path in sorted(self._named.keys() | named.keys()):
            if self._named.get(path) != named.get(path):
                self._write({"record": "left", "path": paths.text_of(path), "why": named.get(path)})
        self._named = named

    def _made(self, at: _TreeLocation, coming: Mapping[bytes, TreeEntry]) -> Iterator[tuple[bytes, TreeItem | str]]:
        """Yield an item for each entry, or the reason why it cannot be exported. Files keep the hash of the storage."""
        links: dict[bytes, TreeEntry] = {}
        files: dict[bytes, TreeEntry] = {}
        for path, entry in coming.items():
            mode = stat.S_IMODE(entry.mode)
            if why := paths.problem(paths.text_of(path)) or (SPECIAL_BITS if mode > PERMISSIONS else ""):
                yield path, why
            elif entry.is_directory:
                yield path, TreeItem(mode)
            else:
                (links if entry.is_link else files)[path] = entry
        for path, _, data in at.trees.contents(at.key, links.items()):
            target = b"".join(parts(data))
            yield path, paths.link_problem(path, target) or TreeItem(PERMISSIONS, link=target)
        for path, entry in files.items():
            yield path, TreeItem(stat.S_IMODE(entry.mode), file=entry.oid.encode())

    def _with_contents(
        self, at: _TreeLocation, items: Mapping[bytes, TreeItem | None], stood: Collection[bytes]
    ) -> dict[bytes, TreeItem | None]:
        """Write new contents, and return the items with each file named by its SHA-256, as in the export."""
        files = {path: item.file.decode() for path, item in items.items() if item is not None and item.file is not None}
        by_oid = {oid: (path, TreeEntry(stat.S_IFREG, oid)) for path, oid in files.items()}
        wanted = [found for oid, found in by_oid.items() if (at.storage, oid) not in self._names]
        for _, entry, data in at.trees.contents(at.key, wanted):
            if len(data) <= LARGEST_FILE:
                whole = b"".join(parts(data))
                self._names[at.storage, entry.oid] = name = sha256(whole).digest()
                if name not in self._written:
                    self._written.add(name)
                    self._file(name, whole)
        found = dict(items)
        for path, oid in files.items():
            known, item = self._names.get((at.storage, oid)), found.pop(path)
            if known is not None and item is not None:
                found[path] = item._replace(file=known)
                continue
            self._left[path] = _Left(TOO_LARGE)
            self._tree.forget(path)
            if path in stood:
                found[path] = None
        return found

    def _file(self, name: bytes, data: bytes) -> None:
        record = {"record": "file", "id": name.hex(), "size": len(data)}
        for part in with_contents(record, data, is_text=True):
            self._write(part)


def _between(at: _TreeLocation, before: _TreeLocation | None) -> Mapping[bytes, TreeChange]:
    if before is None:
        return {path: TreeChange(None, entry) for path, entry in at.trees.tree(at.key).items()}
    return at.trees.differences(before.key, at.key)


def _shown(item: TreeItem | None) -> dict[str, Any]:
    if item is None:
        return {"mode": None, "file": None, "link": None}
    return {
        "mode": item.mode,
        "file": item.file.hex() if item.file is not None else None,
        "link": paths.text_of(item.link) if item.link is not None else None,
    }
