"""The one writer of the files of a workspace: it never leaves the workspace, and loses nothing.

Paths are relative to the workspace. Each directory of a path is opened below its parent and no symbolic link is
followed, so that a link which another process puts there cannot lead out of the workspace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO

from agentgit.workspace.exchange import DirectoryEntry
from agentgit.workspace.locations import require_not_moved
from agentgit.workspace.objects import BLOB, PackWriter, naming, object_id
from agentgit.workspace.trees import LINK_MODE, PLAIN_DIRECTORY, TreeEntry

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open each directory of a path, without following a symbolic link."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""The flags to open a file for reading, without blocking if another process replaces it with a pipe."""

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

USABLE = stat.S_IRWXU
"""The permission bits that a directory needs while its entries are changed."""

ASIDE = b".agentgit-aside"
"""The directory in the workspace for items moved aside if the storage is on another file system; never captured."""


def open_folder(root: int, path: bytes) -> int:
    """Open a directory below an open one, and return its descriptor."""
    descriptor = os.dup(root)
    for name in path.split(b"/") if path else ():
        parent = descriptor
        try:
            descriptor = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        finally:
            os.close(parent)
    return descriptor


def folder_mode(parent: int, name: bytes) -> int:
    """Return the mode of a directory; if it has just gone, an ordinary one."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return PLAIN_DIRECTORY


@contextmanager
def open_regular(parent: int, name: bytes) -> Iterator[tuple[BinaryIO, os.stat_result] | None]:
    """Open a file for reading; yield it with its status, or None if it is not a regular file."""
    with open(os.open(name, READ_FLAGS, dir_fd=parent), "rb") as file:
        status = os.fstat(file.fileno())
        yield (file, status) if stat.S_ISREG(status.st_mode) else None


class Disk:
    def __init__(self, root: bytes, aside: bytes = b"", modes: Mapping[bytes, int] | None = None) -> None:
        require_not_moved(root)
        self._root = root
        self._places = (aside, os.path.join(root, ASIDE, os.path.basename(aside)))
        self.modes = dict(modes or {})
        self.created: list[bytes] = []

    def read_entry(self, path: bytes, writer: PackWriter | None = None) -> TreeEntry | None:
        """Return the entry at a path; None if there is none. Only readable files and links have an id."""
        with naming(path), self._open_parent(path) as parent:
            return None if parent is None else _read_entry_at(parent, os.path.basename(path), writer)

    def read(self, path: bytes) -> bytes:
        """Read a file or a link; return no bytes if it does not exist any more."""
        with naming(path), self._open_parent(path) as parent, suppress(FileNotFoundError, NotADirectoryError):
            name = os.path.basename(path)
            if parent is None:
                return b""
            if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
                return os.readlink(name, dir_fd=parent)
            with open_regular(parent, name) as opened:
                return b"" if opened is None else opened[0].read()
        return b""

    def put(self, path: bytes, entry: TreeEntry, data: bytes, expected: TreeEntry | None) -> bool:
        """Write a file or a link atomically. A file is always a new one, so other hard links keep the old contents."""
        self.make_folder(os.path.dirname(path))
        with naming(path), self._open_entry(path) as directory_entry:
            parent, name = directory_entry.parent, directory_entry.name
            create: Callable[[bytes], None]
            if entry.is_link:
                create = partial(os.symlink, data, dir_fd=parent)
            else:
                create = partial(_write, parent, data=data, mode=entry.mode, owner=_owner(parent, name))
            return directory_entry.put(create, entry, expected)

    def unlink(self, path: bytes, expected: TreeEntry) -> bool:
        """Remove the file or link that was seen at a path; return False if something else is there by now."""
        with naming(path), self._open_entry(path) as directory_entry:
            return directory_entry.remove(expected)

    def recover(self, path: bytes, *known: TreeEntry) -> bytes | None:
        """Clean up after a process that was killed while it changed a path; see `DirectoryEntry.recover`."""
        with naming(path), self._open_parent(path) as parent:
            if parent is None:
                return None
            self._make_usable(parent, os.path.dirname(path))
            return self._entry(parent, path).recover(*known)

    def remove_folder(self, path: bytes) -> bool:
        """Remove a directory if it is empty and not a mount point; return whether it was removed."""
        with naming(path), self._open_parent(path) as parent:
            if parent is None:
                return False
            self._make_usable(parent, os.path.dirname(path))
            try:
                os.rmdir(os.path.basename(path), dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    return False
                raise
            return True

    def make_folder(self, path: bytes) -> None:
        """Create a directory and its parents; move aside anything else that is in the way."""
        names = path.split(b"/") if path else []
        for end in range(1, len(names) + 1):
            folder, name = b"/".join(names[:end]), names[end - 1]
            with naming(folder), self._open_entry(folder) as directory_entry:
                parent = directory_entry.parent
                with suppress(FileNotFoundError):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        continue
                    self._move_in(parent, name, folder)
                os.mkdir(name, dir_fd=parent)
                _set_mode(parent, name, PLAIN_DIRECTORY)
                self.created.append(folder)

    def move_aside(self, path: bytes) -> None:
        """Move the item at a path, with everything in it, out of the workspace."""
        with naming(path), self._open_entry(path) as directory_entry:
            self._move_in(directory_entry.parent, directory_entry.name, path)

    def set_mode(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a directory if they differ, without following a link.

        The bits of a file are never changed in place, because it may have hard links outside the workspace.
        """
        with naming(path), self._open_parent(path) as parent, suppress(FileNotFoundError, NotADirectoryError):
            name = os.path.basename(path) or b"."
            if parent is not None and os.lstat(name, dir_fd=parent).st_mode != mode:
                self._make_usable(parent, os.path.dirname(path))
                _set_mode(parent, name, mode)

    def restore_modes(self) -> None:
        """Set the modes of the directories that were opened for a change, the deepest first."""
        for path in sorted(self.modes, key=len, reverse=True):
            self.set_mode(path, self.modes[path])

    def _move_in(self, parent: int, name: bytes, path: bytes) -> bytes:
        """Move an item aside, to the storage or to a place on its own file system, and return its new path."""
        status = os.lstat(name, dir_fd=parent)
        is_closed = stat.S_ISDIR(status.st_mode) and can_be_opened(status)
        if is_closed:  # only a writable directory can be moved to another one
            _set_mode(parent, name, status.st_mode | USABLE)
        for place in self._places:
            destination = _unused_path(os.path.join(place, path))
            try:
                os.makedirs(os.path.dirname(destination), mode=0o700, exist_ok=True)
                os.rename(name, destination, src_dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EXDEV or place == self._places[-1]:
                    raise
                continue
            break
        if is_closed:
            os.chmod(destination, stat.S_IMODE(status.st_mode))
        return destination

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the files that were moved aside: the original path and the current path of each."""
        items = []
        for place in self._places:
            for parent, folders, names in os.walk(place):
                links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
                leaves = names + links if names or folders or parent == place else [b""]
                paths = [os.path.join(parent, name).rstrip(b"/") for name in leaves]
                items += [(os.path.relpath(path, place), path) for path in paths]
        return sorted(items)

    def _entry(self, parent: int, path: bytes) -> DirectoryEntry:
        return DirectoryEntry(parent, os.path.basename(path), path, _read_entry_at, self._move_in)

    @contextmanager
    def _open_entry(self, path: bytes) -> Iterator[DirectoryEntry]:
        """Open the directory of a path for changes, and yield the entry of the path."""
        with self._open_parent(path, required=True) as parent:
            assert parent is not None  # noqa: S101 - `required` guarantees it
            self._make_usable(parent, os.path.dirname(path))
            yield self._entry(parent, path)

    def _make_usable(self, descriptor: int, path: bytes) -> None:
        """Let the owner change the entries of a directory. `restore_modes` sets the mode back."""
        status = os.fstat(descriptor)
        if can_be_opened(status):
            self.modes.setdefault(path, status.st_mode)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | USABLE)

    @contextmanager
    def _open_parent(self, path: bytes, *, required: bool = False) -> Iterator[int | None]:
        """Open the directory of a path; yield None if it does not exist, or is a link or a file."""
        root = os.open(self._root, FOLDER_FLAGS)
        descriptor = None
        try:
            descriptor = open_folder(root, os.path.dirname(path))
        except OSError as error:
            if required or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        finally:
            os.close(root)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _read_entry_at(parent: int, name: bytes, writer: PackWriter | None = None) -> TreeEntry | None:
    try:
        status = os.lstat(name, dir_fd=parent)
        if stat.S_ISLNK(status.st_mode):
            return TreeEntry(LINK_MODE, _identify(os.readlink(name, dir_fd=parent), writer))
        if not stat.S_ISREG(status.st_mode):
            return TreeEntry(status.st_mode)
        with open_regular(parent, name) as opened:
            if opened is None:
                return TreeEntry(stat.S_IFIFO)
            file, status = opened
            return TreeEntry(status.st_mode, _identify(file.read(), writer))
    except FileNotFoundError:
        return None
    except PermissionError:
        if writer is not None:
            raise
        return TreeEntry(stat.S_IFREG)  # unknown contents must equal neither the old entry nor the new one
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):  # since `lstat`, a file became a link, or a link a file
            return _read_entry_at(parent, name, writer)
        raise


def _identify(data: bytes, writer: PackWriter | None) -> bytes:
    return object_id(BLOB, data) if writer is None else writer.put(BLOB, data)


def _write(parent: int, name: bytes, *, data: bytes, mode: int, owner: tuple[int, int]) -> None:
    with open(os.open(name, CREATE_FLAGS, 0o600, dir_fd=parent), "wb") as file:
        file.write(data)
        file.flush()
        if os.geteuid() == 0:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def _owner(parent: int, name: bytes) -> tuple[int, int]:
    """Return the owner for a new file: that of the item that it replaces, or else that of the directory."""
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        status = os.fstat(parent)
    return status.st_uid, status.st_gid


def _set_mode(parent: int, name: bytes, mode: int) -> None:
    descriptor = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        os.fchmod(descriptor, stat.S_IMODE(mode))
    finally:
        os.close(descriptor)


def can_be_opened(status: os.stat_result) -> bool:
    """Return whether a directory restricts this user, who may change that."""
    return status.st_mode & USABLE != USABLE and status.st_uid == os.geteuid() != 0


def _unused_path(path: bytes) -> bytes:
    """Return an unused path for an item, so that items moved earlier are not overwritten."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path + b".%d" % number
    return candidate
