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
    CREATE_FLAGS,
    FOLDER_FLAGS,
    backup_name,
    converting_errors,
    open_regular,
    rename_to_free,
)
from agentgit.workspace.disk.permissions import O_PATH, READABLE, SEARCHABLE

IMMOVABLE = {stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
"""The kinds of files that cannot be recreated on another file system."""


class AsideFolder:
    """A directory in the storage that receives items moved out of the workspace."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder

    def move_in(self, parent: int, name: bytes, path: bytes) -> bytes:
        """Move an item here, with everything below it, and return its new path."""
        destination = self._unused_path(path)
        with converting_errors(path):
            os.makedirs(os.path.dirname(destination), mode=0o700, exist_ok=True)
            try:
                os.rename(name, destination, src_dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _move_across_filesystems(parent, name, path, destination)
        return destination

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the items that were moved here, each as its original path and its new path."""
        items = []
        for parent, folders, names in os.walk(self._folder):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            leaves = names + links if names or folders or parent == self._folder else [b""]
            for name in leaves:
                destination = os.path.join(parent, name) if name else parent
                items.append((os.path.relpath(destination, self._folder), destination))
        return sorted(items)

    def _unused_path(self, path: bytes) -> bytes:
        """Return an unused path for an item, so that items moved earlier are not overwritten."""
        candidate = base = os.path.join(self._folder, path)
        number = 0
        while os.path.lexists(candidate):
            number += 1
            candidate = base + b".%d" % number
        return candidate


def _move_across_filesystems(parent: int, name: bytes, path: bytes, destination: bytes) -> None:
    """Move an item to another file system.

    The item is renamed first, so that other processes do not write to it while it is copied.
    """
    hidden = backup_name(name)
    if name != hidden:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    try:
        _copy(parent, hidden, path, destination)
    except BaseException:
        with suppress(OSError):
            _remove_tree(None, destination)
        if name != hidden:
            rename_to_free(parent, hidden, name)
        raise
    _remove_tree(parent, hidden)


def _copy(parent: int, name: bytes, path: bytes, destination: bytes) -> None:
    """Copy an item to another file system. A named pipe is recreated and never read."""
    with converting_errors(path):
        status = os.lstat(name, dir_fd=parent)
        kind = stat.S_IFMT(status.st_mode)
        if kind in IMMOVABLE:
            raise OSError(errno.EXDEV, f"{IMMOVABLE[kind]} is in the way, and cannot be moved to the storage")
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=parent), destination)
        elif kind == stat.S_IFIFO:
            os.mkfifo(destination, stat.S_IMODE(status.st_mode))
        elif kind == stat.S_IFDIR:
            with _with_permission(parent, name, status, SEARCHABLE):
                _copy_folder(parent, name, path, destination, stat.S_IMODE(status.st_mode))
        else:
            with _with_permission(parent, name, status, READABLE):
                _copy_file(parent, name, destination, stat.S_IMODE(status.st_mode))


def _copy_folder(parent: int, name: bytes, path: bytes, destination: bytes, mode: int) -> None:
    os.mkdir(destination, 0o700)
    fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        for child in os.listdir(fd):
            child_name = os.fsencode(child)
            _copy(fd, child_name, os.path.join(path, child_name), os.path.join(destination, child_name))
        os.chmod(destination, mode)
    finally:
        os.close(fd)


def _copy_file(parent: int, name: bytes, destination: bytes, mode: int) -> None:
    with open_regular(parent, name) as opened:
        if opened is None:
            raise OSError(errno.EAGAIN, "it changed while it was being moved")
        file, status = opened
        with open(os.open(destination, CREATE_FLAGS, 0o600), "wb") as copy:
            copy.writelines(iter(partial(file.read, CHUNK), b""))
            copy.flush()
            os.fchmod(copy.fileno(), mode)
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove_tree(parent: int | None, name: bytes) -> None:
    """Remove an item and everything below it, including directories that their owner has no permission to read."""
    status = os.lstat(name, dir_fd=parent)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    with _with_permission(parent, name, status, stat.S_IRWXU):
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        try:
            for child in os.listdir(fd):
                _remove_tree(fd, os.fsencode(child))
        finally:
            os.close(fd)
    os.rmdir(name, dir_fd=parent)


@contextmanager
def _with_permission(parent: int | None, name: bytes, status: os.stat_result, bits: int) -> Iterator[None]:
    """Add permission bits until the block ends, if this user owns the item and a file has no other hard links."""
    needs_bits = status.st_mode & bits != bits and status.st_uid == os.geteuid() != 0
    if not needs_bits or O_PATH is None or (status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)):
        yield
        return
    fd = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) | bits)
        yield
    finally:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode))
        os.close(fd)
