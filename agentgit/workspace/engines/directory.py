"""Snapshots as directories, for systems without git. Unchanged files are hard links to copies of an older snapshot."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from agentgit.errors import Corrupt, NotFound, Unavailable
from agentgit.values import escape_path
from agentgit.workspace.disk.atomic_file import IN_MEMORY, Data, Large, flush, parts
from agentgit.workspace.trees import TreeChange, TreeEntry, TreeWrite, digest_of

FILES, INDEX = b"files", "tree.json"
"""The contents of a snapshot's directory: the copies, and an index with the mode and hash of each path."""

UNFINISHED = ".new-"
"""The prefix of the directory of a snapshot that is being written or removed."""

READ_ONLY = 0o444
"""The permission bits of copies. Snapshots share copies, so that an accidental write would damage several."""

NO_LINKS = (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of a file system that does not support hard links, or allows no more of them for a file."""


class DirectoryTrees:
    """A store of snapshots that keeps each one as a directory of copies.

    A copy is never a hard link to a file of the workspace.

    Args:
        folder: The directory that holds the snapshots. It is created if it does not exist.

    Raises:
        Unavailable: The directory cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        with _converting_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, key: str, base: str | None, changes: Iterable[TreeWrite]) -> None:
        """Write a snapshot as another one with changes; see `Trees.write`."""
        known = self.tree(base) if base is not None else {}
        new = self._folder / f"{UNFINISHED}{key}"
        with _converting_errors(new):
            shutil.rmtree(new, ignore_errors=True)
            try:
                (new / os.fsdecode(FILES)).mkdir(parents=True, mode=0o700)
                old = self._files(base) if base is not None else None
                writing = _SnapshotWriter(os.fsencode(new) + b"/" + FILES, old, known)
                _write(os.fsencode(new / INDEX), _packed(writing.write(changes)))
                flush(*writing.folders, new)
                new.rename(self._folder / key)
                flush(self._folder)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all entries of a snapshot, by path.

        Raises:
            NotFound: There is no snapshot under this key.
            Corrupt: The index of the snapshot cannot be parsed.
            Unavailable: The index of the snapshot cannot be read.
        """
        path = self._folder / key / INDEX
        try:
            return _unpacked(path.read_bytes())
        except FileNotFoundError as error:
            raise NotFound(f"There is no snapshot {key} in {self._folder}.") from error
        except ValueError as error:
            raise Corrupt(f"{path} is damaged: {error}. Delete this snapshot; others are intact.", row=key) from error
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}. Grant the permission.") from error

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that have an entry in a snapshot.

        Raises:
            NotFound: There is no snapshot under this key.
        """
        return {path: entry for path, entry in self.tree(key).items() if entry.is_directory}

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ.

        Raises:
            NotFound: There is no snapshot under one of the keys.
        """
        one, other = self.tree(before), self.tree(after)
        return {
            path: TreeChange(one.get(path), other.get(path))
            for path in one.keys() | other.keys()
            if one.get(path) != other.get(path)
        }

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot one by one, and yield each with its contents.

        Raises:
            Corrupt: The contents are missing, or were modified after they were written.
        """
        for path, entry in entries:
            at = self._files(key) + b"/" + path
            try:
                data = os.readlink(at) if entry.is_link else _read(at)
            except OSError as error:
                raise Corrupt(f"{escape_path(at)} is missing: {error.strerror}.", row=key) from error
            if digest_of(parts(data), len(data)) != entry.oid:
                raise Corrupt(f"{escape_path(at)} was modified after it was written.", row=key)
            yield path, entry, data

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots except `keep`, and remains of killed processes; return the number of bytes freed."""
        freed = 0
        with _converting_errors(self._folder):
            for folder in self._folder.iterdir():
                if folder.name not in keep:
                    freed += _last_links(folder)
                    # Renamed first, so that a process that is killed meanwhile leaves no partial snapshot.
                    doomed = folder.rename(self._folder / f"{UNFINISHED}{folder.name.removeprefix(UNFINISHED)}")
                    shutil.rmtree(doomed)
        return freed

    def _files(self, key: str) -> bytes:
        return os.fsencode(self._folder / key) + b"/" + FILES


class _SnapshotWriter:
    """The writer of one snapshot.

    Args:
        new: The directory for the copies of the new snapshot. It is empty.
        old: The directory of the copies of the base snapshot; None if there is none.
        known: The entries of the base snapshot.
    """

    def __init__(self, new: bytes, old: bytes | None, known: dict[bytes, TreeEntry]) -> None:
        self._new, self._old = new, old
        self._index = dict(known)
        self._copies = {entry.oid: path for path, entry in known.items() if stat.S_ISREG(entry.mode)}
        self._made = {b""}

    @property
    def folders(self) -> list[bytes]:
        """The directories that were created, including the one that contains all copies."""
        return [os.path.join(self._new, path) for path in self._made]

    def write(self, changes: Iterable[TreeWrite]) -> dict[bytes, TreeEntry]:
        """Write the base snapshot with changes, and return the entries of the new snapshot."""
        for path, entry in self._index.items():
            self._place(path, entry)
        for path, entry_now, data in changes:
            self._take_away(path)
            if entry_now is not None:
                self._index[path] = entry_now
                self._place(path, entry_now, data)
        return self._index

    def _place(self, path: bytes, entry: TreeEntry, data: Data | None = None) -> None:
        at = self._new + b"/" + path
        self._make_folder(path if entry.is_directory else os.path.dirname(path))
        if entry.is_directory:
            return
        if entry.is_link:
            os.symlink(os.readlink(self._known(path)) if data is None else b"".join(parts(data)), at)
        elif (copy := self._copies.get(entry.oid)) is not None:
            _link(self._known(copy), at)
        else:
            _write(at, data or b"")

    def _known(self, path: bytes) -> bytes:
        return (self._old or self._new) + b"/" + path

    def _make_folder(self, path: bytes) -> None:
        if path not in self._made:
            os.makedirs(self._new + b"/" + path, mode=0o700, exist_ok=True)
            self._made.add(path)

    def _take_away(self, path: bytes) -> None:
        """Remove a path, and its parent directories that are then empty."""
        gone = self._index.pop(path, None)
        if gone is None:
            return
        at = self._new + b"/" + path
        if not gone.is_directory:
            os.unlink(at)
            at = os.path.dirname(at)
        with suppress(OSError):  # stops at the first directory that is not empty
            while at != self._new:
                os.rmdir(at)
                self._made.discard(at[len(self._new) + 1 :])
                at = os.path.dirname(at)


def _link(copy: bytes, at: bytes) -> None:
    try:
        os.link(copy, at)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _write(at, _read(copy))


def _write(at: bytes, data: Data) -> None:
    with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, READ_ONLY), "wb") as file:
        file.writelines(parts(data))
        file.flush()
        os.fsync(file.fileno())


def _read(at: bytes) -> Data:
    file = open(at, "rb")  # noqa: SIM115 - `Large` reads from it later
    size = os.fstat(file.fileno()).st_size
    if size > IN_MEMORY:
        return Large(file, size)
    with file:
        return file.read()


def _last_links(folder: Path) -> int:
    """Return the size in bytes of the files in a directory that have no other hard link."""
    found = (os.lstat(os.path.join(at, name)) for at, _, names in os.walk(os.fsencode(folder)) for name in names)
    return sum(one.st_size for one in found if one.st_nlink == 1)


def _packed(tree: dict[bytes, TreeEntry]) -> bytes:
    return orjson.dumps([(path.decode("latin-1"), entry.mode, entry.oid) for path, entry in tree.items()])


def _unpacked(data: bytes) -> dict[bytes, TreeEntry]:
    return {path.encode("latin-1"): TreeEntry(mode, oid) for path, mode, oid in orjson.loads(data)}


@contextmanager
def _converting_errors(path: Path) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        where = escape_path(error.filename if error.filename else str(path))
        raise Unavailable(f"{where}: {error.strerror}. Free some space or grant the permission.") from error
