"""One file in a directory that is open: written in one step, and looked at or removed without following a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import BinaryIO

from agentgit.errors import InvalidInput, Unavailable

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How each directory on the way to a file is opened: never through a symbolic link."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How a file is opened to be read; a pipe that somebody puts in its place is not waited for."""

CHUNK = 1 << 20
"""How much of a file is read and kept at once, in bytes."""

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


FREE, PERMIT = "Free some space", "Give the permission"
TO_DO = {errno.ENOSPC: FREE, errno.EDQUOT: FREE, errno.EACCES: PERMIT, errno.EPERM: PERMIT, errno.EROFS: PERMIT}


@contextmanager
def told(path: bytes) -> Iterator[None]:
    """Say which file it was where the system says no.

    Raises:
        Unavailable: the system said no.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{os.fsdecode(path)!r} is too long for the name of a file.") from error
        what = TO_DO.get(error.errno or 0, "See what is wrong there")
        raise Unavailable(f"{os.fsdecode(path)}: {error.strerror}. {what}, then do the same again.") from error


@contextmanager
def regular(parent: int, name: bytes) -> Iterator[tuple[BinaryIO, os.stat_result] | None]:
    """Open a file to read it, and tell how it looks; None if something else stands there by now."""
    with open(os.open(name, READ, dir_fd=parent), "rb") as file:
        found = os.fstat(file.fileno())
        yield (file, found) if stat.S_ISREG(found.st_mode) else None


def replace(parent: int, name: bytes, make: Callable[[bytes], None]) -> None:
    """Put something in place of a file or a link, or of nothing, in one step.

    It is made beside it and renamed: if the process is killed meanwhile, doing the same again takes that file away.

    Args:
        parent: the open directory.
        name: of the file in it.
        make: makes what is put there, under the name that it is given.
    """
    beside = b".agentgit-" + sha256(name).hexdigest()[:16].encode()
    remove_file(parent, beside)
    try:
        make(beside)
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        remove_file(parent, beside)
        raise


def write(parent: int, name: bytes, parts: Iterable[bytes], mode: int, owner: tuple[int, int]) -> None:
    """Write a new file.

    Args:
        parent: the open directory.
        name: of the file in it; nothing is there.
        parts: its contents.
        mode: its permission bits.
        owner: the ids of its user and group, which only a superuser can give.
    """
    with open(os.open(name, CREATE, 0o600, dir_fd=parent), "wb") as file:
        file.writelines(parts)
        file.flush()
        if os.geteuid() == 0:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def remove_file(parent: int, name: bytes) -> None:
    """Remove a file or a link; nothing is done if it is gone."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def remove_empty(parent: int, name: bytes) -> bool:
    """Remove a directory if it is empty; tell whether it was."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
