"""Moves items out of a workspace into its storage without data loss, also to another file system."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from agentgit.workspace.disk.atomic_file import (
    CHUNK,
    CREATE,
    FOLDER,
    backup_name,
    converting_errors,
    open_regular,
    rename_to_free,
)
from agentgit.workspace.disk.permissions import O_PATH, READABLE, SEARCHABLE

IMMOVABLE = {stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
"""The kinds of files that cannot be recreated on another file system."""


class Aside:
    """A directory in the storage that receives items moved out of the workspace.

    Args:
        folder: The directory. It is created when the first item is moved.
    """

    def __init__(self, folder: bytes) -> None:
        self._folder = folder

    def take(self, parent: int, name: bytes, path: bytes) -> bytes:
        """Move an item here, with everything below it, and return its new path.

        Args:
            parent: The open directory that contains the item.
            name: The name of the item in that directory.
            path: The path of the item in the workspace.

        Raises:
            Unavailable: The item cannot be moved and is still in its place. The error names the path that failed.
        """
        to = self._free(path)
        with converting_errors(path):
            os.makedirs(os.path.dirname(to), mode=0o700, exist_ok=True)
            try:
                os.rename(name, to, src_dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _carry(parent, name, path, to)
        return to

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the items that were moved here, each as its original path and its new path."""
        found = []
        for parent, folders, names in os.walk(self._folder):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            leaves = names + links if names or folders or parent == self._folder else [b""]
            for name in leaves:
                to = os.path.join(parent, name) if name else parent
                found.append((os.path.relpath(to, self._folder), to))
        return sorted(found)

    def _free(self, path: bytes) -> bytes:
        """Return an unused path for an item, so that items moved earlier are not overwritten."""
        to = first = os.path.join(self._folder, path)
        number = 0
        while os.path.lexists(to):
            number += 1
            to = first + b".%d" % number
        return to


def _carry(parent: int, name: bytes, path: bytes, to: bytes) -> None:
    """Move an item to another file system.

    The item is renamed first, so that other processes do not write to it while it is copied.
    """
    hidden = backup_name(name)
    if name != hidden:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    try:
        _copy(parent, hidden, path, to)
    except BaseException:
        with suppress(OSError):
            _remove(None, to)
        if name != hidden:
            rename_to_free(parent, hidden, name)
        raise
    _remove(parent, hidden)


def _copy(parent: int, name: bytes, path: bytes, to: bytes) -> None:
    """Copy an item to another file system. A named pipe is recreated and never read.

    Raises:
        Unavailable: An item cannot be copied. The error names its path.
    """
    with converting_errors(path):
        found = os.lstat(name, dir_fd=parent)
        kind = stat.S_IFMT(found.st_mode)
        if kind in IMMOVABLE:
            raise OSError(errno.EXDEV, f"{IMMOVABLE[kind]} is in the way, and cannot be moved to the storage")
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=parent), to)
        elif kind == stat.S_IFIFO:
            os.mkfifo(to, stat.S_IMODE(found.st_mode))
        elif kind == stat.S_IFDIR:
            with _with_permission(parent, name, found, SEARCHABLE):
                _copy_folder(parent, name, path, to, stat.S_IMODE(found.st_mode))
        else:
            with _with_permission(parent, name, found, READABLE):
                _copy_file(parent, name, to, stat.S_IMODE(found.st_mode))


def _copy_folder(parent: int, name: bytes, path: bytes, to: bytes, mode: int) -> None:
    os.mkdir(to, 0o700)
    below = os.open(name, FOLDER, dir_fd=parent)
    try:
        for one in os.listdir(below):
            part = os.fsencode(one)
            _copy(below, part, os.path.join(path, part), os.path.join(to, part))
        os.chmod(to, mode)
    finally:
        os.close(below)


def _copy_file(parent: int, name: bytes, to: bytes, mode: int) -> None:
    with open_regular(parent, name) as opened:
        if opened is None:
            raise OSError(errno.EAGAIN, "it changed while it was being moved")
        file, found = opened
        with open(os.open(to, CREATE, 0o600), "wb") as copy:
            copy.writelines(iter(partial(file.read, CHUNK), b""))
            copy.flush()
            os.fchmod(copy.fileno(), mode)
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def _remove(parent: int | None, name: bytes) -> None:
    """Remove an item and everything below it, including directories that their owner has no permission to read."""
    found = os.lstat(name, dir_fd=parent)
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    with _with_permission(parent, name, found, stat.S_IRWXU):
        below = os.open(name, FOLDER, dir_fd=parent)
        try:
            for one in os.listdir(below):
                _remove(below, os.fsencode(one))
        finally:
            os.close(below)
    os.rmdir(name, dir_fd=parent)


@contextmanager
def _with_permission(parent: int | None, name: bytes, found: os.stat_result, bits: int) -> Iterator[None]:
    """Add permission bits until the block ends, if this user owns the item and a file has no other hard links."""
    lacks = found.st_mode & bits != bits and found.st_uid == os.geteuid() != 0
    if not lacks or O_PATH is None or (found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode)):
        yield
        return
    at = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{at}", stat.S_IMODE(found.st_mode) | bits)
        yield
    finally:
        os.chmod(f"/proc/self/fd/{at}", stat.S_IMODE(found.st_mode))
        os.close(at)
