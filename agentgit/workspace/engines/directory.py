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
from agentgit.workspace.disk.atomic_file import IN_MEMORY, Data, LargeContents, flush, iter_chunks
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
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        with _converting_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, key: str, base: str | None, changes: Iterable[TreeWrite]) -> None:
        """Write a snapshot as another one with changes; see `Trees.write`."""
        base_entries = self.tree(base) if base is not None else {}
        new_folder = self._folder / f"{UNFINISHED}{key}"
        with _converting_errors(new_folder):
            shutil.rmtree(new_folder, ignore_errors=True)
            try:
                (new_folder / os.fsdecode(FILES)).mkdir(parents=True, mode=0o700)
                base_files = self._files_path(base) if base is not None else None
                writer = _SnapshotWriter(os.fsencode(new_folder) + b"/" + FILES, base_files, base_entries)
                _write(os.fsencode(new_folder / INDEX), _encode_index(writer.write(changes)))
                flush(*writer.folders, new_folder)
                new_folder.rename(self._folder / key)
                flush(self._folder)
            except BaseException:
                shutil.rmtree(new_folder, ignore_errors=True)
                raise

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all entries of a snapshot, by path."""
        path = self._folder / key / INDEX
        try:
            return _decode_index(path.read_bytes())
        except FileNotFoundError as error:
            raise NotFound(f"There is no snapshot {key} in {self._folder}.") from error
        except ValueError as error:
            raise Corrupt(f"{path} is damaged: {error}. Delete this snapshot; others are intact.", row=key) from error
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}. Grant the permission.") from error

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that have an entry in a snapshot."""
        return {path: entry for path, entry in self.tree(key).items() if entry.is_directory}

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ."""
        old, new = self.tree(before), self.tree(after)
        return {
            path: TreeChange(old.get(path), new.get(path))
            for path in old.keys() | new.keys()
            if old.get(path) != new.get(path)
        }

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot one by one, and yield each with its contents."""
        for path, entry in entries:
            copy_path = self._files_path(key) + b"/" + path
            try:
                data = os.readlink(copy_path) if entry.is_link else _read_copy(copy_path)
            except OSError as error:
                raise Corrupt(f"{escape_path(copy_path)} is missing: {error.strerror}.", row=key) from error
            if digest_of(iter_chunks(data), len(data)) != entry.oid:
                raise Corrupt(f"{escape_path(copy_path)} was modified after it was written.", row=key)
            yield path, entry, data

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots except `keep`, and remains of killed processes; return the number of bytes freed."""
        freed = 0
        with _converting_errors(self._folder):
            for folder in self._folder.iterdir():
                if folder.name not in keep:
                    freed += _unshared_size(folder)
                    # Renamed first, so that a process that is killed meanwhile leaves no partial snapshot.
                    unfinished = folder.rename(self._folder / f"{UNFINISHED}{folder.name.removeprefix(UNFINISHED)}")
                    shutil.rmtree(unfinished)
        return freed

    def _files_path(self, key: str) -> bytes:
        return os.fsencode(self._folder / key) + b"/" + FILES


class _SnapshotWriter:
    """The writer of one snapshot."""

    def __init__(self, new_folder: bytes, base_folder: bytes | None, base_entries: dict[bytes, TreeEntry]) -> None:
        self._new_folder, self._base_folder = new_folder, base_folder
        self._index = dict(base_entries)
        self._copies = {entry.oid: path for path, entry in base_entries.items() if stat.S_ISREG(entry.mode)}
        self._created_folders = {b""}

    @property
    def folders(self) -> list[bytes]:
        """The directories that were created, including the one that contains all copies."""
        return [os.path.join(self._new_folder, path) for path in self._created_folders]

    def write(self, changes: Iterable[TreeWrite]) -> dict[bytes, TreeEntry]:
        """Write the base snapshot with changes, and return the entries of the new snapshot."""
        for path, entry in self._index.items():
            self._add_entry(path, entry)
        for path, new_entry, data in changes:
            self._remove_entry(path)
            if new_entry is not None:
                self._index[path] = new_entry
                self._add_entry(path, new_entry, data)
        return self._index

    def _add_entry(self, path: bytes, entry: TreeEntry, data: Data | None = None) -> None:
        new_path = self._new_folder + b"/" + path
        self._make_folder(path if entry.is_directory else os.path.dirname(path))
        if entry.is_directory:
            return
        if entry.is_link:
            os.symlink(os.readlink(self._source_path(path)) if data is None else b"".join(iter_chunks(data)), new_path)
        elif (copy := self._copies.get(entry.oid)) is not None:
            _link(self._source_path(copy), new_path)
        else:
            _write(new_path, data or b"")

    def _source_path(self, path: bytes) -> bytes:
        return (self._base_folder or self._new_folder) + b"/" + path

    def _make_folder(self, path: bytes) -> None:
        if path not in self._created_folders:
            os.makedirs(self._new_folder + b"/" + path, mode=0o700, exist_ok=True)
            self._created_folders.add(path)

    def _remove_entry(self, path: bytes) -> None:
        """Remove a path, and its parent directories that are then empty."""
        entry = self._index.pop(path, None)
        if entry is None:
            return
        new_path = self._new_folder + b"/" + path
        if not entry.is_directory:
            os.unlink(new_path)
            new_path = os.path.dirname(new_path)
        with suppress(OSError):  # stops at the first directory that is not empty
            while new_path != self._new_folder:
                os.rmdir(new_path)
                self._created_folders.discard(new_path[len(self._new_folder) + 1 :])
                new_path = os.path.dirname(new_path)


def _link(copy: bytes, target: bytes) -> None:
    try:
        os.link(copy, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _write(target, _read_copy(copy))


def _write(path: bytes, data: Data) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, READ_ONLY), "wb") as file:
        file.writelines(iter_chunks(data))
        file.flush()
        os.fsync(file.fileno())


def _read_copy(path: bytes) -> Data:
    file = open(path, "rb")  # noqa: SIM115 - `LargeContents` reads from it later
    size = os.fstat(file.fileno()).st_size
    if size > IN_MEMORY:
        return LargeContents(file, size)
    with file:
        return file.read()


def _unshared_size(folder: Path) -> int:
    """Return the size in bytes of the files in a directory that have no other hard link."""
    statuses = (
        os.lstat(os.path.join(parent, name)) for parent, _, names in os.walk(os.fsencode(folder)) for name in names
    )
    return sum(status.st_size for status in statuses if status.st_nlink == 1)


def _encode_index(tree: dict[bytes, TreeEntry]) -> bytes:
    return orjson.dumps([(path.decode("latin-1"), entry.mode, entry.oid) for path, entry in tree.items()])


def _decode_index(data: bytes) -> dict[bytes, TreeEntry]:
    return {path.encode("latin-1"): TreeEntry(mode, oid) for path, mode, oid in orjson.loads(data)}


@contextmanager
def _converting_errors(path: Path) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        location = escape_path(error.filename if error.filename else str(path))
        raise Unavailable(f"{location}: {error.strerror}. Free some space or grant the permission.") from error
