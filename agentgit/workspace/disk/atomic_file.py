"""One file in a directory that is open: written in one step, and looked at or removed without following a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import BinaryIO

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import shown

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags that open each directory on the way to a file: never through a symbolic link."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""The flags that open a file for reading, without waiting for a pipe that somebody puts in its place."""

PRIVATE, OLD = b".agentgit-", b"-old"
"""The beginning and the end of the names of a change's working files, which are gone when the change is done."""

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


FREE, PERMIT = "Free some space", "Give the permission"
TO_DO = {errno.ENOSPC: FREE, errno.EDQUOT: FREE, errno.EACCES: PERMIT, errno.EPERM: PERMIT, errno.EROFS: PERMIT}


@contextmanager
def told(path: bytes) -> Iterator[None]:
    """Convert an operating-system error into one that names the file.

    Raises:
        Unavailable: The operating system reported an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{os.fsdecode(path)!r} is too long for the name of a file.") from error
        what = TO_DO.get(error.errno or 0, "See what is wrong there")
        raise Unavailable(f"{shown(path)}: {error.strerror or error}. {what}, then do the same again.") from error


@contextmanager
def regular(parent: int, name: bytes) -> Iterator[tuple[BinaryIO, os.stat_result] | None]:
    """Open a file to read it, and tell how it looks; None if something else stands there by now."""
    with open(os.open(name, READ, dir_fd=parent), "rb") as file:
        found = os.fstat(file.fileno())
        yield (file, found) if stat.S_ISREG(found.st_mode) else None


def written_name(name: bytes) -> bytes:
    """Return the name under which the new contents of a file are written, beside it."""
    return PRIVATE + sha256(name).hexdigest()[:16].encode()


def taken_name(name: bytes) -> bytes:
    """Return the name under which a replaced item is kept until it is clear what becomes of it."""
    return name if name.startswith(PRIVATE) and name.endswith(OLD) else written_name(name) + OLD


def write(parent: int, name: bytes, parts: Iterable[bytes], mode: int, owner: tuple[int, int]) -> None:
    """Write a new file.

    Args:
        parent: The open directory.
        name: The name of the file in it. Nothing is there.
        parts: The contents of the file.
        mode: The permission bits of the file.
        owner: The ids of its user and group, which only a superuser can give.
    """
    with open(os.open(name, CREATE, 0o600, dir_fd=parent), "wb") as file:
        file.writelines(parts)
        file.flush()
        if os.geteuid() == 0:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def flush(*folders: str | bytes | os.PathLike[str]) -> None:
    """Bring the names in directories to the disk, so that they outlast a loss of power."""
    for folder in folders:
        at = os.open(folder, FOLDER & ~os.O_NOFOLLOW)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def remove_file(parent: int, name: bytes) -> None:
    """Remove a file or a link; nothing is done if it is gone."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def remove_empty(parent: int, name: bytes) -> bool:
    """Remove a directory if it is empty and nothing is mounted there; tell whether it was."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            return False
        raise
    return True


def set_mode(parent: int, name: bytes, mode: int) -> None:
    """Set the permission bits of a directory, never through a link.

    A file never gets other bits in place: it may have other names, outside of the workspace too.

    Raises:
        OSError: It is no directory, or is not one's own.
    """
    try:
        file = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:  # its owner may set the bits of what they may not read
        if not hasattr(os, "O_PATH"):
            os.chmod(name, stat.S_IMODE(mode), dir_fd=parent, follow_symlinks=False)
            return
        file = os.open(name, FOLDER | os.O_PATH, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{file}", stat.S_IMODE(mode))
        finally:
            os.close(file)
        return
    try:
        os.fchmod(file, stat.S_IMODE(mode))
    finally:
        os.close(file)
