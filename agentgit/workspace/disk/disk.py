"""Changing the files of a workspace without ever leaving it: no symbolic link is followed, nothing is lost.

Each directory on the way to a path is opened by itself. What stands in the way and is in no snapshot is moved aside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from agentgit.workspace.disk.atomic_file import CHUNK, FOLDER, Data, parts, regular, remove_empty, set_mode, told, write
from agentgit.workspace.disk.move_aside import Aside
from agentgit.workspace.disk.permissions import READABLE, SEARCHABLE, WRITABLE, Permits
from agentgit.workspace.disk.single_file import DirectoryEntry
from agentgit.workspace.scan.index import PLAIN_DIRECTORY
from agentgit.workspace.trees import TreeEntry, digest, digest_of


class Disk:
    """The files of one workspace.

    Args:
        root: The workspace, without a `/` at its end.
        aside: The directory to move things to; it is made when it is needed.
        permits: Lets its owner look into, and change, what he has closed to himself.
    """

    def __init__(self, root: bytes, aside: bytes, permits: Permits) -> None:
        self._root, self._aside, self._permits = root, Aside(aside), permits
        self.created: list[bytes] = []

    def look(self, path: bytes) -> TreeEntry | None:
        """Return what stands at a path; something that is no file, link or directory has no `oid`."""
        with told(path), self._parent(path) as parent:
            folder, name = os.path.split(path)
            return None if parent is None else self._look(folder, parent, name)

    def read(self, path: bytes, most: int) -> bytes | None:
        """Read a file or a link; None if it is larger than so many bytes. What is gone by now is empty.

        Args:
            path: The path, relative to the workspace.
            most: The most to read, in bytes.
        """
        with told(path), self._parent(path) as parent, suppress(FileNotFoundError, NotADirectoryError):
            name = os.path.basename(path)
            if parent is None:
                return b""
            found = os.lstat(name, dir_fd=parent)
            if stat.S_ISLNK(found.st_mode):
                return os.readlink(name, dir_fd=parent)
            with self._permits.lent(path, READABLE), regular(parent, name) as opened:
                if opened is None:
                    return b""
                return opened[0].read() if opened[1].st_size <= most else None
        return b""

    def put(self, path: bytes, entry: TreeEntry, data: Data, seen: TreeEntry | None) -> bool:
        """Put a file or a link at a path in one step. A file is always a new one: other names of the old one keep it.

        Args:
            path: The path.
            entry: The entry to put there.
            data: The contents of a file, or the target of a link.
            seen: The thing seen there before: a file, a link, or nothing.

        Returns:
            False if something else stands there by now; that stays.
        """
        self.make_folder(os.path.dirname(path))
        with told(path), self._place(path, must=True) as place:
            assert place is not None  # noqa: S101 - made above
            if entry.is_link:
                return place.put(partial(os.symlink, b"".join(parts(data)), dir_fd=place.parent), entry, seen)
            owner = _owner(place.parent, place.name)
            return place.put(lambda name: write(place.parent, name, parts(data), entry.mode, owner), entry, seen)

    def set_folder_mode(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a directory, never through a link."""
        with told(path), self._parent(path, must=True) as parent:
            assert parent is not None  # noqa: S101 - it must be there
            set_mode(parent, os.path.basename(path), mode)
            self._permits.forget(path)

    def unlink(self, path: bytes, seen: TreeEntry) -> bool:
        """Remove the file or the link that was seen at a path; return False if something else stands there by now."""
        with told(path), self._place(path) as place:
            return place is None or place.take_away(seen)

    def recover(self, path: bytes, *known: TreeEntry) -> bytes | None:
        """Clear away what a process left that was killed while it changed a path; see `Place.recover`."""
        with told(path), self._place(path) as place:
            return None if place is None else place.recover(*known)

    def remove_folder(self, path: bytes) -> bool:
        """Remove a directory if it is empty; tell whether it was."""
        with told(path), self._parent(path, change=True) as parent:
            return parent is not None and remove_empty(parent, os.path.basename(path))

    def make_folder(self, path: bytes) -> None:
        """Make a directory and those above it; what is no directory and in the way is moved aside."""
        names = path.split(b"/") if path else []
        for end in range(1, len(names) + 1):
            at = b"/".join(names[:end])
            with told(at), self._parent(at, must=True, change=True) as parent:
                name = names[end - 1]
                assert parent is not None  # noqa: S101 - it was made before
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
        """Move what stands at a path out of the workspace, with all that is in it."""
        with told(path), self._place(path, must=True) as place:
            assert place is not None  # noqa: S101 - it must be there
            found = os.lstat(place.name, dir_fd=place.parent)
            # A directory that may not be written cannot be moved; its mode goes along.
            given = stat.S_ISDIR(found.st_mode) and self._permits.give(path, WRITABLE)
            to = place.move_aside()
            if given:
                os.chmod(to, stat.S_IMODE(found.st_mode))
                self._permits.forget(path)

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return what this restore moved aside: the path of each file that it had, and where it is now."""
        return self._aside.moved()

    def _look(self, folder: bytes, parent: int, name: bytes) -> TreeEntry | None:
        """Return what stands at a name of an open directory.

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
        except PermissionError:  # nobody knows what is in it; it is neither what was there nor what is wanted
            return TreeEntry(before.st_mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):  # a file became a link since, or a link a file
                return self._look(folder, parent, name)
            raise

    def _hashed(self, path: bytes, parent: int, before: os.stat_result) -> TreeEntry:
        bits = 0 if before.st_mode & READABLE else READABLE
        with self._permits.lent(path, bits), regular(parent, os.path.basename(path)) as opened:
            if opened is None:
                return TreeEntry(stat.S_IFIFO)
            file, found = opened
            mode = before.st_mode if found.st_ino == before.st_ino else found.st_mode
            return TreeEntry(mode, digest_of(iter(partial(file.read, CHUNK), b""), found.st_size))

    @contextmanager
    def _place(self, path: bytes, *, must: bool = False) -> Iterator[DirectoryEntry[TreeEntry | None] | None]:
        """Open the directory that a path is in to change it, and give the place of its name there."""
        with self._parent(path, must=must, change=True) as parent:
            folder, name = os.path.split(path)
            look = partial(self._look, folder)
            yield None if parent is None else DirectoryEntry(parent, name, path, look, None, self._aside)

    @contextmanager
    def _parent(self, path: bytes, *, must: bool = False, change: bool = False) -> Iterator[int | None]:
        """Open the directory that a path is in; None if it is not there, or a link or a file is in its place.

        Args:
            path: The path, relative to the workspace.
            must: True to fail instead.
            change: True to add names to it, or take some away.
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
                    self._permits.give(way, WRITABLE)
                yield at
                return
            yield None
        finally:
            os.close(at)

    def _open(self, at: int | None, name: bytes, path: bytes) -> int:
        """Open one directory on the way; its owner may also do so if he has closed it to himself."""
        try:
            below = os.open(name, FOLDER, dir_fd=at)
        except PermissionError:
            if not self._permits.give(path, SEARCHABLE):
                raise
            below = os.open(name, FOLDER, dir_fd=at)
        if os.fstat(below).st_mode & SEARCHABLE != SEARCHABLE:  # it can be listed, and nothing in it be looked at
            self._permits.give(path, SEARCHABLE)
        return below


def _owner(parent: int, name: bytes) -> tuple[int, int]:
    """Return the owner of a file to write: that of the item that stands there, or that of the directory."""
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        found = os.fstat(parent)
    return found.st_uid, found.st_gid
