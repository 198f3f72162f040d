"""Changes to the files of a workspace that never leave it and lose nothing.

Each directory of a path is opened separately, so that no symbolic link is followed. Items in the way that are in no
snapshot are moved aside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from agentgit.workspace.disk.atomic_file import (
    CHUNK,
    FOLDER_FLAGS,
    Data,
    converting_errors,
    iter_chunks,
    open_regular,
    remove_empty_folder,
    set_mode,
    write,
)
from agentgit.workspace.disk.move_aside import AsideFolder
from agentgit.workspace.disk.permissions import READABLE, SEARCHABLE, WRITABLE, TemporaryPermissions
from agentgit.workspace.disk.single_file import DirectoryEntry
from agentgit.workspace.scan.index import PLAIN_DIRECTORY
from agentgit.workspace.trees import TreeEntry, digest, digest_of


class Disk:
    """The files of one workspace."""

    def __init__(self, root: bytes, aside: bytes, permissions: TemporaryPermissions) -> None:
        self._root, self._aside_folder, self._permissions = root, AsideFolder(aside), permissions
        self.created: list[bytes] = []

    def read_entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry at a path; None if there is none. Only readable files and links have an `oid`."""
        with converting_errors(path), self._open_parent(path) as parent:
            folder, name = os.path.split(path)
            return None if parent is None else self._read_entry_at(folder, parent, name)

    def read(self, path: bytes, max_size: int) -> bytes | None:
        """Read a file or a link; return None if the file is too large, and no bytes if it does not exist any more."""
        with (
            converting_errors(path),
            self._open_parent(path) as parent,
            suppress(FileNotFoundError, NotADirectoryError),
        ):
            name = os.path.basename(path)
            if parent is None:
                return b""
            status = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(status.st_mode):
                return os.readlink(name, dir_fd=parent)
            with self._permissions.grant_temporarily(path, READABLE), open_regular(parent, name) as opened:
                if opened is None:
                    return b""
                return opened[0].read() if opened[1].st_size <= max_size else None
        return b""

    def put(self, path: bytes, entry: TreeEntry, data: Data, expected: TreeEntry | None) -> bool:
        """Write a file or a link atomically. A file is always a new one, so other hard links keep the old contents."""
        self.make_folder(os.path.dirname(path))
        with converting_errors(path), self._open_entry(path, required=True) as directory_entry:
            assert directory_entry is not None  # noqa: S101 - created above
            if entry.is_link:
                return directory_entry.put(
                    partial(os.symlink, b"".join(iter_chunks(data)), dir_fd=directory_entry.parent), entry, expected
                )
            owner = _owner(directory_entry.parent, directory_entry.name)
            return directory_entry.put(
                lambda name: write(directory_entry.parent, name, iter_chunks(data), entry.mode, owner), entry, expected
            )

    def set_folder_mode(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a directory, without following a link."""
        with converting_errors(path), self._open_parent(path, required=True) as parent:
            assert parent is not None  # noqa: S101 - `required` guarantees it
            set_mode(parent, os.path.basename(path), mode)
            self._permissions.forget(path)

    def unlink(self, path: bytes, expected: TreeEntry) -> bool:
        """Remove the file or link that was seen at a path; return False if something else is there by now."""
        with converting_errors(path), self._open_entry(path) as directory_entry:
            return directory_entry is None or directory_entry.remove(expected)

    def recover(self, path: bytes, *known: TreeEntry) -> bytes | None:
        """Clean up after a process that was killed while it changed a path; see `DirectoryEntry.recover`."""
        with converting_errors(path), self._open_entry(path) as directory_entry:
            return None if directory_entry is None else directory_entry.recover(*known)

    def remove_folder(self, path: bytes) -> bool:
        """Remove a directory if it is empty; return whether it was removed."""
        with converting_errors(path), self._open_parent(path, writable=True) as parent:
            return parent is not None and remove_empty_folder(parent, os.path.basename(path))

    def make_folder(self, path: bytes) -> None:
        """Create a directory and its parents; move aside anything else that is in the way."""
        names = path.split(b"/") if path else []
        for end in range(1, len(names) + 1):
            folder = b"/".join(names[:end])
            with converting_errors(folder), self._open_parent(folder, required=True, writable=True) as parent:
                name = names[end - 1]
                assert parent is not None  # noqa: S101 - created before
                try:
                    os.mkdir(name, dir_fd=parent)
                    set_mode(parent, name, PLAIN_DIRECTORY)
                    self.created.append(folder)
                    continue
                except FileExistsError:
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        continue
            self.move_aside(folder)
            self.make_folder(folder)

    def move_aside(self, path: bytes) -> None:
        """Move the item at a path, with everything in it, out of the workspace."""
        with converting_errors(path), self._open_entry(path, required=True) as directory_entry:
            assert directory_entry is not None  # noqa: S101 - `required` guarantees it
            status = os.lstat(directory_entry.name, dir_fd=directory_entry.parent)
            # A directory without write permission cannot be moved. Its mode is restored after the move.
            was_granted = stat.S_ISDIR(status.st_mode) and self._permissions.grant(path, WRITABLE)
            destination = directory_entry.move_aside()
            if was_granted:
                os.chmod(destination, stat.S_IMODE(status.st_mode))
                self._permissions.forget(path)

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the files that were moved aside: the original path and the current path of each."""
        return self._aside_folder.moved()

    def _read_entry_at(self, folder: bytes, parent: int, name: bytes) -> TreeEntry | None:
        """Return the entry of a name in an open directory; None if there is none."""
        path, original_status = os.path.join(folder, name), None
        try:
            status = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(status.st_mode):
                return TreeEntry(stat.S_IFLNK | 0o777, digest(os.readlink(name, dir_fd=parent)))
            original_status = self._permissions.original_status(path) or status
            return (
                self._hash_file(path, parent, original_status)
                if stat.S_ISREG(status.st_mode)
                else TreeEntry(original_status.st_mode)
            )
        except FileNotFoundError:
            return None
        except PermissionError:  # unknown contents must equal neither the old entry nor the new one
            return TreeEntry(stat.S_IFREG if original_status is None else original_status.st_mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):  # since `lstat`, a file became a link, or a link a file
                return self._read_entry_at(folder, parent, name)
            raise

    def _hash_file(self, path: bytes, parent: int, original_status: os.stat_result) -> TreeEntry:
        bits = 0 if original_status.st_mode & READABLE else READABLE
        with self._permissions.grant_temporarily(path, bits), open_regular(parent, os.path.basename(path)) as opened:
            if opened is None:
                return TreeEntry(stat.S_IFIFO)
            file, status = opened
            mode = original_status.st_mode if status.st_ino == original_status.st_ino else status.st_mode
            return TreeEntry(mode, digest_of(iter(partial(file.read, CHUNK), b""), status.st_size))

    @contextmanager
    def _open_entry(self, path: bytes, *, required: bool = False) -> Iterator[DirectoryEntry[TreeEntry | None] | None]:
        """Open the directory of a path for changes, and yield the entry of the path; None as for `_open_parent`."""
        with self._open_parent(path, required=required, writable=True) as parent:
            folder, name = os.path.split(path)
            read_state = partial(self._read_entry_at, folder)
            yield None if parent is None else DirectoryEntry(parent, name, path, read_state, None, self._aside_folder)

    @contextmanager
    def _open_parent(self, path: bytes, *, required: bool = False, writable: bool = False) -> Iterator[int | None]:
        """Open the directory of a path; yield None if it does not exist, or is a link or a file."""
        fd, opened_path = self._open_folder(None, self._root, b""), b""
        try:
            for name in path.split(b"/")[:-1]:
                opened_path = os.path.join(opened_path, name)
                try:
                    child_fd = self._open_folder(fd, name, opened_path)
                except OSError as error:
                    if required or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    break
                os.close(fd)
                fd = child_fd
            else:
                if writable and os.fstat(fd).st_mode & WRITABLE != WRITABLE:
                    self._permissions.grant(opened_path, WRITABLE)
                yield fd
                return
            yield None
        finally:
            os.close(fd)

    def _open_folder(self, parent: int | None, name: bytes, path: bytes) -> int:
        """Open one directory of a path. If its mode denies this to the owner, grant the permission temporarily."""
        try:
            fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except PermissionError:
            if not self._permissions.grant(path, SEARCHABLE):
                raise
            fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        if os.fstat(fd).st_mode & SEARCHABLE != SEARCHABLE:  # it can be listed, but its entries cannot be accessed
            self._permissions.grant(path, SEARCHABLE)
        return fd


def _owner(parent: int, name: bytes) -> tuple[int, int]:
    """Return the owner for a new file: that of the item that it replaces, or else that of the directory."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        status = os.fstat(parent)
    return status.st_uid, status.st_gid
