"""Temporary permission bits, which let an owner read and change, for example, a 0555 directory or a 0000 file.

Each change of a mode is journaled first. If the process is killed, the next process that uses the workspace restores
the mode.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from agentgit.workspace.catalog import Catalog

READABLE, SEARCHABLE, WRITABLE = stat.S_IRUSR, stat.S_IRUSR | stat.S_IXUSR, stat.S_IWUSR | stat.S_IXUSR

O_PATH: int | None = getattr(os, "O_PATH", None)
"""The flag that opens a path without read permission. On a system without it, no permission bits are added."""


class TemporaryPermissions:
    """The temporary permission bits of one workspace. A context manager that restores all modes at the end."""

    def __init__(self, root: bytes, journal: Catalog) -> None:
        self._root, self._journal = root, journal
        self._original_statuses: dict[bytes, os.stat_result] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grant(self, path: bytes, bits: int) -> bool:
        """Add permission bits to a path, if this user may change its mode; return whether they were added."""
        if os.geteuid() == 0:  # permission bits do not restrict root
            return False
        try:
            with _open_path(self._root, path) as (proc_path, status):
                if status.st_mode & bits == bits or not _is_mode_changeable(status):
                    return False
                if path not in self._original_statuses:
                    self._journal.record_mode(path, status.st_mode, status.st_ino)
                    self._original_statuses[path] = status
                os.chmod(proc_path, stat.S_IMODE(status.st_mode) | bits)
                return True
        except OSError:
            return False

    def original_status(self, path: bytes) -> os.stat_result | None:
        """Return the status of a path before bits were added to it; None if none were added."""
        return self._original_statuses.get(path)

    @contextmanager
    def grant_temporarily(self, path: bytes, bits: int) -> Iterator[bool]:
        """Add permission bits until the block ends; yield whether they were added."""
        was_granted = path not in self._original_statuses and self.grant(path, bits)
        try:
            yield was_granted
        finally:
            if was_granted:
                self._revoke(path)

    def forget(self, path: bytes) -> None:
        """Drop the original mode of a path, because its final mode has been set."""
        if self._original_statuses.pop(path, None):
            self._journal.delete_mode(path)

    def close(self) -> None:
        """Restore all modes, the deepest path first, because a path is reached through its parent directories."""
        for path in sorted(self._original_statuses, key=_depth, reverse=True):
            self._revoke(path)

    def recover(self) -> None:
        """Restore the modes that a killed process had changed."""
        for path, mode, inode in sorted(self._journal.recorded_modes(), key=lambda one: _depth(one[0]), reverse=True):
            _restore_mode(self._root, path, mode, inode)
            self._journal.delete_mode(path)

    def _revoke(self, path: bytes) -> None:
        status = self._original_statuses.pop(path)
        _restore_mode(self._root, path, status.st_mode, status.st_ino)
        self._journal.delete_mode(path)


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0


def _restore_mode(root: bytes, path: bytes, mode: int, inode: int) -> None:
    """Restore a mode, if the path still has the same inode and its other bits are unchanged."""
    with suppress(OSError), _open_path(root, path) as (proc_path, status):
        if status.st_ino == inode and status.st_mode & ~stat.S_IRWXU == mode & ~stat.S_IRWXU:
            os.chmod(proc_path, stat.S_IMODE(mode))


def _is_mode_changeable(status: os.stat_result) -> bool:
    """Return whether the mode of an item may be changed.

    A file with other hard links is refused, because one of them may be outside of the workspace.
    """
    return status.st_uid == os.geteuid() and (
        stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    )


@contextmanager
def _open_path(root: bytes, path: bytes) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a `/proc` path that sets the mode of a path without following links, and the status of the path."""
    if O_PATH is None:
        raise PermissionError("this system cannot set a mode without following links")
    flags = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(root, flags | os.O_DIRECTORY)
    try:
        names = path.split(b"/") if path else []
        for number, name in enumerate(names, 1):
            child_fd = os.open(name, flags | (os.O_DIRECTORY if number < len(names) else 0), dir_fd=fd)
            os.close(fd)
            fd = child_fd
        yield f"/proc/self/fd/{fd}", os.fstat(fd)
    finally:
        os.close(fd)
