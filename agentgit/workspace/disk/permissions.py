"""Permission bits that an owner gives himself for a while: to look into a 0555 directory or a 0000 file, and change it.

Each bit that is given is journaled before, so that the next user of the workspace puts it back after a kill.
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
"""Opens what may not be read, without following a link; a system without it gives no permissions here."""


class Permits:
    """The bits given in one workspace. A context manager that takes them all back.

    Args:
        root: The workspace.
        journal: The catalog of the workspace, which records them.
    """

    def __init__(self, root: bytes, journal: Catalog) -> None:
        self._root, self._journal = root, journal
        self._held: dict[bytes, os.stat_result] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def give(self, path: bytes, bits: int) -> bool:
        """Add permission bits to what stands at a path, if this user owns it and may; tell whether they were added.

        Args:
            path: The path, relative to the workspace. The workspace itself is `b""`.
            bits: The permission bits to add for its owner.
        """
        if os.geteuid() == 0:  # whom modes do not bind
            return False
        try:
            with _held(self._root, path) as (at, found):
                if found.st_mode & bits == bits or not _is_own(found):
                    return False
                if path not in self._held:
                    self._journal.permit(path, found.st_mode, found.st_ino)
                    self._held[path] = found
                os.chmod(at, stat.S_IMODE(found.st_mode) | bits)
                return True
        except OSError:
            return False

    def before(self, path: bytes) -> os.stat_result | None:
        """Return how something looked before a bit was given to it; None if none was."""
        return self._held.get(path)

    @contextmanager
    def lent(self, path: bytes, bits: int) -> Iterator[bool]:
        """Add permission bits until the block ends; tell whether they were added."""
        given = path not in self._held and self.give(path, bits)
        try:
            yield given
        finally:
            if given:
                self._take_back(path)

    def forget(self, path: bytes) -> None:
        """Take note that the mode of a path has been set to what it is to be."""
        if self._held.pop(path, None):
            self._journal.unpermit(path)

    def close(self) -> None:
        """Put all modes back, the deepest first: what is below is reached through what is above."""
        for path in sorted(self._held, key=_depth, reverse=True):
            self._take_back(path)

    def recover(self) -> None:
        """Put back the modes that a killed process had changed."""
        for path, mode, inode in sorted(self._journal.permits(), key=lambda one: _depth(one[0]), reverse=True):
            _put_back(self._root, path, mode, inode)
            self._journal.unpermit(path)

    def _take_back(self, path: bytes) -> None:
        found = self._held.pop(path)
        _put_back(self._root, path, found.st_mode, found.st_ino)
        self._journal.unpermit(path)


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0


def _put_back(root: bytes, path: bytes, mode: int, inode: int) -> None:
    """Set a mode again, if the same thing still stands there and nobody has set another one."""
    with suppress(OSError), _held(root, path) as (at, found):
        if found.st_ino == inode and found.st_mode & ~stat.S_IRWXU == mode & ~stat.S_IRWXU:
            os.chmod(at, stat.S_IMODE(mode))


def _is_own(found: os.stat_result) -> bool:
    """Return whether a mode may be changed here: a file with other names may be one of somebody else's outside."""
    return found.st_uid == os.geteuid() and (
        stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
    )


@contextmanager
def _held(root: bytes, path: bytes) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a name by which the mode of a path can be set, through no link, and the path's status."""
    if O_PATH is None:
        raise PermissionError("this system cannot set a mode without following links")
    flags = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, flags | os.O_DIRECTORY)
    try:
        names = path.split(b"/") if path else []
        for number, name in enumerate(names, 1):
            below = os.open(name, flags | (os.O_DIRECTORY if number < len(names) else 0), dir_fd=at)
            os.close(at)
            at = below
        yield f"/proc/self/fd/{at}", os.fstat(at)
    finally:
        os.close(at)
