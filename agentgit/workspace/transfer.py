"""Snapshots on their way into an export and out of one: contents once, each tree as what it changes.

Snapshots on their way into an export: contents once, and each tree as what it changes of the one before. They are read
from the storage of a workspace; its directory need not be there. Nothing is locked: a snapshot that a checkpoint has
is not collected.

Snapshots on their way out of an export: kept aside while the export is checked, then put into a workspace's storage.
What is kept aside is in files without a name: they are gone with the process, however it ends. The directory of the
workspace is not touched.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, Self

from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.store.transfer import paths
from agentgit.store.transfer.file_trees import GONE, LARGEST_FILE, NOT_KNOWN, OWN, PART_BYTES, FileTree, TreeItem
from agentgit.workspace.api import AUTO, Workspace
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.disk.atomic_file import parts
from agentgit.workspace.engines.directory import Copies
from agentgit.workspace.engines.files import Files
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.locations import noted_workspace
from agentgit.workspace.scan.excluded import ExcludedPaths, Left
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees, WrittenTree, digest

ENGINES: Mapping[str, Callable[[str], Trees]] = {"git": GitTrees, "directory": Copies}


PERMISSIONS = 0o777

SPECIAL_BITS = "has a mode with which it would run as its owner, or another special bit"
TOO_LARGE = f"is larger than {LARGEST_FILE:,} bytes"

LONGEST_WHY = 200


class Sent(NamedTuple):
    """The outcome for a snapshot: the number of its tree in the export, or the reason why it has none."""

    tree: int | None
    why: str | None = None


class _At(NamedTuple):
    """The place of a tree: its storage, what reads that, its key there, and what it left out when it was taken."""

    storage: str
    trees: Trees
    key: str
    left: Mapping[bytes, str]


class _Left(NamedTuple):
    """The reason why a path cannot travel, and the entry it would have, if only what stands beside it is against it."""

    why: str
    item: TreeItem | None = None


class Outgoing:
    """Writes the snapshots of one export.

    Args:
        write: The function that writes one record.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._sent: dict[tuple[str, str], Sent] = {}
        self._engines: dict[str, Trees] = {}
        self._names: dict[tuple[str, str], bytes] = {}
        self._written: set[bytes] = set()
        self._number = 0
        self._last: _At | None = None
        self._tree = FileTree()
        self._left: dict[bytes, _Left] = {}
        self._named: dict[bytes, str] = {}

    def send(self, settings: Mapping[str, Any], snapshot: str) -> Sent:
        """Write the tree of a snapshot, unless that was done before.

        Args:
            settings: The settings that open its workspace.
            snapshot: The id of the snapshot there.

        Raises:
            Corrupt: Contents are gone, or are not what was written.
            Unavailable: The storage cannot be read.
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
        if noted_workspace(storage) is None:
            return NOT_KNOWN  # a row alone has nothing opened: see `require_noted`
        with closing(Catalog(catalog)) as opened:
            rows = [row for row in opened.find(snapshot) if row.snapshot.id == snapshot]
            left = opened.left(snapshot) or {}
        if not rows:
            return GONE
        if storage not in self._engines:
            self._engines[storage] = ENGINES[environment](folder)
        return _At(storage, self._engines[storage], rows[0].tree, {path: one.why for path, one in left.items()})

    def _send(self, at: _At) -> Sent:
        """Write a tree as what it changes of the last one, if that is in the same storage."""
        before = self._last if self._last is not None and self._last.storage == at.storage else None
        self._last = None  # until this one is whole
        if before is None:
            self._tree, self._left, self._named = FileTree(), {}, {}
        try:
            items = self._change(at, _between(at, before))
        except NotFound:
            return Sent(None, GONE)
        self._last, self._number = at, self._number + 1
        self._write({"record": "tree", "id": self._number, "base": self._number - 1 if before is not None else None})
        self._name(at)
        for path, item in items.items():
            self._write({"record": "path", "path": paths.text_of(path), **_shown(item)})
        return Sent(self._number)

    def _change(self, at: _At, changes: Mapping[bytes, TreeChange]) -> dict[bytes, TreeItem | None]:
        """Change the tree, and leave out what cannot travel; give what changes. New contents are written on the way."""
        self._tree.begin()
        items: dict[bytes, TreeItem | None] = {}
        left = {path: one for path, one in self._left.items() if path not in changes}
        self._left = {path: one for path, one in left.items() if one.item is None}
        coming = {path: change.after for path, change in sorted(changes.items()) if change.after is not None}
        made = dict(self._made(at, coming))
        for path in changes:
            if not isinstance(made.get(path), TreeItem) and self._tree.holds(path):
                self._tree.change(path, None)
                items[path] = None
        self._left |= {path: _Left(one) for path, one in made.items() if isinstance(one, str)}
        fit = {path: one.item for path, one in left.items() if one.item is not None}
        fit |= {path: one for path, one in made.items() if isinstance(one, TreeItem)}
        stood = {path for path in fit if self._tree.holds(path)}
        for path in sorted(fit, key=lambda path: (path not in stood, path)):  # what is there stays there
            if why := self._tree.problem(path, fit[path]):
                self._left[path] = _Left(why, fit[path])
                if path in stood:
                    self._tree.change(path, None)
                    items[path] = None
            else:
                self._tree.change(path, fit[path])
                items[path] = fit[path]
        return self._with_contents(at, items, stood)

    def _name(self, at: _At) -> None:
        """Write which paths are left out, and were not in the tree before; and the other way round."""
        named = {path: why for path, why in at.left.items() if not self._tree.holds(path)}
        named |= {path: one.why[:LONGEST_WHY] for path, one in self._left.items()}
        for path in sorted(self._named.keys() | named.keys()):
            if self._named.get(path) != named.get(path):
                self._write({"record": "left", "path": paths.text_of(path), "why": named.get(path)})
        self._named = named

    def _made(self, at: _At, coming: Mapping[bytes, TreeEntry]) -> Iterator[tuple[bytes, TreeItem | str]]:
        """Make items, of files with the names that their contents have there; or tell why one cannot travel."""
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
        self, at: _At, items: Mapping[bytes, TreeItem | None], stood: Collection[bytes]
    ) -> dict[bytes, TreeItem | None]:
        """Write the contents that are new; give the items with the names that contents have in the export."""
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
        body: dict[str, Any] = {"text": None, "data": None, "parts": None}
        record: dict[str, Any] = {"record": "file", "id": name.hex(), "size": len(data), **body}
        starts = range(0, len(data), PART_BYTES)
        if len(starts) < 2:
            self._write(record | _body(data))
            return
        self._write(record | {"parts": len(starts)})
        for start in starts:
            self._write({"record": "part", "data": _base64(data[start : start + PART_BYTES])})


def _between(at: _At, before: _At | None) -> Mapping[bytes, TreeChange]:
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


def _body(data: bytes) -> dict[str, str]:
    """Write what is text so that a person can read it."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class _Kept(NamedTuple):
    """The place of a file's contents, and their size in bytes."""

    start: int
    size: int


class Incoming:
    """The files of one export; see `agentgit.store.transfer.file_trees.Keeps`. A context manager."""

    def __init__(self) -> None:
        self._contents = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._changes = tempfile.TemporaryFile()  # noqa: SIM115  # as above
        self._kept: dict[bytes, _Kept] = {}
        self._end = 0
        self._tree: list[Any] | None = None
        self._put: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._contents), closing(self._changes):
            self._kept.clear()

    def data(self, part: bytes) -> None:
        """Keep a part of the contents of a file."""
        with _told():
            self._contents.write(part)

    def file(self, id: bytes, size: int) -> None:
        """Take note that the parts since the last file are one, whose contents have this hash."""
        self._kept[id] = _Kept(self._end, size)
        self._end += size

    def tree(self, id: int, base: int | None) -> None:
        """Begin a tree: that of another number, or an empty one, with the changes that come."""
        self._note_tree()
        self._tree = [id, base, {}]

    def left(self, path: bytes, why: str | None) -> None:
        """Take note that the tree leaves out what stands at a path, and why; None if it does not any more."""
        assert self._tree is not None  # noqa: S101  # it was checked that a tree came, and no change of it
        self._tree[2][path.decode("latin-1")] = why

    def change(self, path: bytes, item: TreeItem | None) -> None:
        """Put something at a path, or take away what stands there."""
        self._note_tree()
        parts = (path, *(item[1:] if item is not None else (None, None)))
        shown = [part.decode("latin-1") if part is not None else None for part in parts]
        self._note([*shown, item.mode if item is not None else None])

    def _note_tree(self) -> None:
        if self._tree is not None:
            self._note(self._tree)
        self._tree = None

    def _note(self, values: list[Any]) -> None:
        with _told():
            self._changes.write(json.dumps(values).encode() + b"\n")

    # -- into a workspace

    def put_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots; give the id of each. If one fails there is none.

        Args:
            workspace: The workspace.
            holder: The holder that needs them.

        Raises:
            InvalidInput: Its environment is its user's own.
            Unavailable: It cannot be written.
        """
        with workspace._working():
            engine = workspace._engine
            if not isinstance(engine, Files):
                raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')
            made: dict[int, str] = {}
            keys: dict[int, str] = {}
            left: dict[bytes, ExcludedPaths] = {}
            try:
                for id, base, changed, changes in self._trees():
                    left = _following(left if base is not None else {}, changed)
                    new = workspace._new("imported", AUTO)
                    keys[id] = engine.put(new, keys[base] if base is not None else None, changes, left)
                    made[id] = new.id
                    self._put.append(new.id)
                    workspace._catalog.hold(new.id, holder)
            except BaseException:
                self.remove(workspace)
                raise
        return made

    def remove(self, workspace: Workspace) -> None:
        """Remove what was put into a workspace: the import failed."""
        workspace._catalog.remove(self._put)
        self._put = []

    def _trees(self) -> Iterator[tuple[int, int | None, Mapping[str, str | None], Iterator[WrittenTree]]]:
        """Read the trees back; the changes of each are to be read before the next one."""
        self._note_tree()
        with _told():
            self._contents.flush()
            self._changes.seek(0)
        lines = map(json.loads, self._changes)
        head = next(lines, None)
        while head is not None:
            following: list[Any] = []
            yield *head, self._of_tree(lines, following)
            head = following[0] if following else None

    def _of_tree(self, lines: Iterator[list[Any]], following: list[Any]) -> Iterator[WrittenTree]:
        for values in lines:
            if len(values) == 3:
                following.append(values)
                return
            path, file, link, mode = values
            yield self._written(path.encode("latin-1"), file, link, mode)

    def _written(self, path: bytes, file: str | None, link: str | None, mode: int | None) -> WrittenTree:
        if mode is None:
            return WrittenTree(path, None)
        if link is not None:
            target = link.encode("latin-1")
            return WrittenTree(path, TreeEntry(stat.S_IFLNK | 0o777, digest(target)), target)
        if file is None:
            return WrittenTree(path, TreeEntry(stat.S_IFDIR | mode))
        data = self._read(file.encode("latin-1"))
        return WrittenTree(path, TreeEntry(stat.S_IFREG | mode, digest(data)), data)

    def _read(self, id: bytes) -> bytes:
        kept = self._kept[id]
        self._contents.seek(kept.start)
        return self._contents.read(kept.size)


def _following(left: Left, changed: Mapping[str, str | None]) -> dict[bytes, ExcludedPaths]:
    """Return what a tree leaves out: what the one before does, with changes. How it looked did not travel."""
    named = {path.encode("latin-1"): why for path, why in changed.items()}
    kept = {path: one for path, one in left.items() if path not in named}
    return kept | {path: ExcludedPaths(why, 0, 0, 0) for path, why in named.items() if why is not None}


@contextmanager
def _told() -> Iterator[None]:
    """Convert an operating-system error into advice for files that cannot be kept aside.

    Raises:
        Unavailable: The operating system reported an error.
    """
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"The files of the export cannot be kept in {tempfile.gettempdir()}: {error.strerror}. Free some space "
            "there, or set $TMPDIR to another folder; then import again."
        ) from error
