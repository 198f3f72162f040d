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
    FOLDER,
    Data,
    converting_errors,
    open_regular,
    parts,
    remove_empty,
    set_mode,
    write,
)
from agentgit.workspace.disk.move_aside import Aside
from agentgit.workspace.disk.permissions import READABLE, SEARCHABLE, WRITABLE, TemporaryPermissions
from agentgit.workspace.disk.single_file import DirectoryEntry
from agentgit.workspace.scan.index import PLAIN_DIRECTORY
from agentgit.workspace.trees import TreeEntry, digest, digest_of


class Disk:
    """The files of one workspace.

    Args:
        root: The workspace, without a trailing `/`.
        aside: The directory for items that are moved aside; it is created when needed.
        permits: Grants permissions temporarily, so that the owner can read and change files whose modes deny it.
    """

    def __init__(self, root: bytes, aside: bytes, permits: TemporaryPermissions) -> None:
        self._root, self._aside, self._permits = root, Aside(aside), permits
        self.created: list[bytes] = []

    def read_entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry at a path; None if there is none. Only readable files and links have an `oid`."""
        with converting_errors(path), self._parent(path) as parent:
            folder, name = os.path.split(path)
            return None if parent is None else self._look(folder, parent, name)

    def read(self, path: bytes, most: int) -> bytes | None:
        """Read a file or a link; return None if the file is too large, and no bytes if it does not exist any more.

        Args:
            path: The path, relative to the workspace.
            most: The maximum size of a file, in bytes.
        """
        with converting_errors(path), self._parent(path) as parent, suppress(FileNotFoundError, NotADirectoryError):
            name = os.path.basename(path)
            if parent is None:
                return b""
            found = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(found.st_mode):
                return os.readlink(name, dir_fd=parent)
            with self._permits.grant_temporarily(path, READABLE), open_regular(parent, name) as opened:
                if opened is None:
                    return b""
                return opened[0].read() if opened[1].st_size <= most else None
        return b""

    def put(self, path: bytes, entry: TreeEntry, data: Data, seen: TreeEntry | None) -> bool:
        """Write a file or a link atomically. A file is always a new one, so other hard links keep the old contents.

        Args:
            path: The path, relative to the workspace.
            entry: The entry to write.
            data: The contents of a file, or the target of a link.
            seen: The entry that was seen at the path before: a file, a link, or None for nothing.

        Returns:
            False if something else is at the path by now; it is kept.
        """
        self.make_folder(os.path.dirname(path))
        with converting_errors(path), self._place(path, must=True) as place:
            assert place is not None  # noqa: S101 - created above
            if entry.is_link:
                return place.put(partial(os.symlink, b"".join(parts(data)), dir_fd=place.parent), entry, seen)
            owner = _owner(place.parent, place.name)
            return place.put(lambda name: write(place.parent, name, parts(data), entry.mode, owner), entry, seen)

    def set_folder_mode(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a directory, without following a link."""
        with converting_errors(path), self._parent(path, must=True) as parent:
            assert parent is not None  # noqa: S101 - `must` guarantees it
            set_mode(parent, os.path.basename(path), mode)
            self._permits.forget(path)

    def unlink(self, path: bytes, seen: TreeEntry) -> bool:
        """Remove the file or link that was seen at a path; return False if something else is there by now."""
        with converting_errors(path), self._place(path) as place:
            return place is None or place.remove(seen)

    def recover(self, path: bytes, *known: TreeEntry) -> bytes | None:
        """Clean up after a process that was killed while it changed a path; see `DirectoryEntry.recover`."""
        with converting_errors(path), self._place(path) as place:
            return None if place is None else place.recover(*known)

    def remove_folder(self, path: bytes) -> bool:
        """Remove a directory if it is empty; return whether it was removed."""
        with converting_errors(path), self._parent(path, change=True) as parent:
            return parent is not None and remove_empty(parent, os.path.basename(path))

    def make_folder(self, path: bytes) -> None:
        """Create a directory and its parents; move aside anything else that is in the way."""
        names = path.split(b"/") if path else []
        for end in range(1, len(names) + 1):
            at = b"/".join(names[:end])
            with converting_errors(at), self._parent(at, must=True, change=True) as parent:
                name = names[end - 1]
                assert parent is not None  # noqa: S101 - created before
                try:
                    os.mkdir(name, dir_fd=parent)
                    set_mode(parent, name, PLAIN_DIRECTORY)
                    self.created.append(at)
                    continue
                except FileExistsError:
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        continue
            self.move_aside(at)
            self.make_folder(at)

    def move_aside(self, path: bytes) -> None:
        """Move the item at a path, with everything in it, out of the workspace."""
        with converting_errors(path), self._place(path, must=True) as place:
            assert place is not None  # noqa: S101 - `must` guarantees it
            found = os.lstat(place.name, dir_fd=place.parent)
            # A directory without write permission cannot be moved. Its mode is restored after the move.
            given = stat.S_ISDIR(found.st_mode) and self._permits.grant(path, WRITABLE)
            to = place.move_aside()
            if given:
                os.chmod(to, stat.S_IMODE(found.st_mode))
                self._permits.forget(path)

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the files that were moved aside: the original path and the current path of each."""
        return self._aside.moved()

    def _look(self, folder: bytes, parent: int, name: bytes) -> TreeEntry | None:
        """Return the entry of a name in an open directory; None if there is none.

        Args:
            folder: The path of the directory.
            parent: The open directory.
            name: The name in it.
        """
        path = os.path.join(folder, name)
        try:
            found = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(found.st_mode):
                return TreeEntry(stat.S_IFLNK | 0o777, digest(os.readlink(name, dir_fd=parent)))
            before = self._permits.before(path) or found
            return self._hashed(path, parent, before) if stat.S_ISREG(found.st_mode) else TreeEntry(before.st_mode)
        except FileNotFoundError:
            return None
        except PermissionError:  # unknown contents must equal neither the old entry nor the new one
            return TreeEntry(before.st_mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):  # since `lstat`, a file became a link, or a link a file
                return self._look(folder, parent, name)
            raise

    def _hashed(self, path: bytes, parent: int, before: os.stat_result) -> TreeEntry:
        bits = 0 if before.st_mode & READABLE else READABLE
        with self._permits.grant_temporarily(path, bits), open_regular(parent, os.path.basename(path)) as opened:
            if opened is None:
                return TreeEntry(stat.S_IFIFO)
            file, found = opened
            mode = before.st_mode if found.st_ino == before.st_ino else found.st_mode
            return TreeEntry(mode, digest_of(iter(partial(file.read, CHUNK), b""), found.st_size))

    @contextmanager
    def _place(self, path: bytes, *, must: bool = False) -> Iterator[DirectoryEntry[TreeEntry | None] | None]:
        """Open the directory of a path for changes, and yield the entry of the path in it; None as for `_parent`."""
        with self._parent(path, must=must, change=True) as parent:
            folder, name = os.path.split(path)
            look = partial(self._look, folder)
            yield None if parent is None else DirectoryEntry(parent, name, path, look, None, self._aside)

    @contextmanager
    def _parent(self, path: bytes, *, must: bool = False, change: bool = False) -> Iterator[int | None]:
        """Open the directory of a path; yield None if it does not exist, or is a link or a file.

        Args:
            path: The path, relative to the workspace.
            must: True to raise an error instead of yielding None.
            change: True to make the directory writable, if needed, so that names can be added or removed.
        """
        at, way = self._open(None, self._root, b""), b""
        try:
            for name in path.split(b"/")[:-1]:
                way = os.path.join(way, name)
                try:
                    below = self._open(at, name, way)
                except OSError as error:
                    if must or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    break
                os.close(at)
                at = below
            else:
                if change and os.fstat(at).st_mode & WRITABLE != WRITABLE:
                    self._permits.grant(way, WRITABLE)
                yield at
                return
            yield None
        finally:
            os.close(at)

    def _open(self, at: int | None, name: bytes, path: bytes) -> int:
        """Open one directory of a path. If its mode denies this to the owner, grant the permission temporarily."""
        try:
            below = os.open(name, FOLDER, dir_fd=at)
        except PermissionError:
            if not self._permits.grant(path, SEARCHABLE):
                raise
            below = os.open(name, FOLDER, dir_fd=at)
        if os.fstat(below).st_mode & SEARCHABLE != SEARCHABLE:  # it can be listed, but its entries cannot be accessed
            self._permits.grant(path, SEARCHABLE)
        return below


def _owner(parent: int, name: bytes) -> tuple[int, int]:
    """Return the owner for a new file: that of the item that it replaces, or else that of the directory."""
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        found = os.fstat(parent)
    return found.st_uid, found.st_gid
