"""Operations on one file in an open directory: streamed contents, writes, and renames that lose nothing.

Two renames lose nothing: the exchange of two names, and the rename to a free name only. Linux has them as `renameat2`,
macOS as `renameatx_np`. Not every file system supports them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import BinaryIO

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import escape_path

IN_MEMORY = 8 << 20
"""The maximum size of contents that are held in memory, in bytes. Git is configured to stream larger files, too."""

CHUNK = 1 << 20
"""The number of bytes of a larger file that are read at once."""


class LargeContents:
    """Contents that are too large for memory. Iterating reads them in chunks from the start; `len` is their size."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return iter(partial(self._file.read, CHUNK), b"")


Data = bytes | LargeContents
"""The contents of a file, or the target of a link."""


def iter_chunks(data: Data) -> Iterable[bytes]:
    """Return contents as an iterable of chunks."""
    return (data,) if isinstance(data, bytes) else data


def read_contents(read: Callable[[int], bytes], size: int, folder: str | bytes) -> Data:
    """Read contents up to a size, into memory or, if they may be large, into an anonymous temporary file."""
    if size <= IN_MEMORY:
        return b"".join(_read_up_to(read, size))
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `LargeContents` closes it
        large = LargeContents(file, sum(map(file.write, _read_up_to(read, size))))
        file.flush()
    except OSError as error:
        raise Unavailable(f"{os.fsdecode(folder)}: {error.strerror}. Free some space, then try again.") from error
    return large


def _read_up_to(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}
"""Errors of a system without the call, a file system that does not support it, or a container that forbids it."""

RenameCall = Callable[[int, bytes, int, bytes, int], int]
"""A function that renames an entry of one open directory to a name in another; it returns 0 or an `errno`."""

_MAC = sys.platform == "darwin"
EXCHANGE, NO_REPLACE = (0x2, 0x4) if _MAC else (0x2, 0x1)


def _system_call() -> RenameCall:
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), "renameatx_np" if _MAC else "renameat2")
    except (AttributeError, OSError):
        return lambda *_: errno.ENOSYS
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def call(source: int, name: bytes, target: int, new: bytes, flags: int) -> int:
        return ctypes.get_errno() if function(source, name, target, new, flags) else 0

    return call


system_call: RenameCall = _system_call()
"""The system call. Tests replace it, to simulate a system that does not have it."""


def exchange(parent: int, name: bytes, other_name: bytes) -> bool:
    """Exchange two entries of a directory atomically."""
    return _rename_with_flags(parent, name, other_name, EXCHANGE)


def rename_to_free(parent: int, name: bytes, new: bytes) -> bool:
    """Rename an entry of a directory if the new name is free.

    If the system cannot do this atomically, check first and then rename. A file that another process creates in between
    is then replaced.
    """
    try:
        if _rename_with_flags(parent, name, new, NO_REPLACE):
            return True
    except FileExistsError:
        return False
    with suppress(FileNotFoundError):
        os.lstat(new, dir_fd=parent)
        return False
    os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)
    return True


def _rename_with_flags(parent: int, name: bytes, new: bytes, flags: int) -> bool:
    error_number = system_call(parent, name, parent, new, flags)
    if error_number in UNSUPPORTED:
        return False
    if error_number:
        raise OSError(error_number, os.strerror(error_number), os.fsdecode(name))
    return True


FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open each directory of a path, without following a symbolic link."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""The flags to open a file for reading, without blocking if another process replaces it with a pipe."""

PRIVATE, OLD = b".agentgit-", b"-old"
"""The prefix and the suffix of the names of temporary files, which exist only during a change."""

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


FREE, PERMIT = "Free some space", "Grant the permission"
ADVICE = {errno.ENOSPC: FREE, errno.EDQUOT: FREE, errno.EACCES: PERMIT, errno.EPERM: PERMIT, errno.EROFS: PERMIT}


@contextmanager
def converting_errors(path: bytes) -> Iterator[None]:
    """Convert an operating-system error into one that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{os.fsdecode(path)!r} is too long for the name of a file.") from error
        advice = ADVICE.get(error.errno or 0, "Fix the cause")
        raise Unavailable(f"{escape_path(path)}: {error.strerror or error}. {advice}, then try again.") from error


@contextmanager
def open_regular(parent: int, name: bytes) -> Iterator[tuple[BinaryIO, os.stat_result] | None]:
    """Open a file for reading; yield it with its status, or None if it is not a regular file."""
    with open(os.open(name, READ_FLAGS, dir_fd=parent), "rb") as file:
        status = os.fstat(file.fileno())
        yield (file, status) if stat.S_ISREG(status.st_mode) else None


def temporary_name(name: bytes) -> bytes:
    """Return the temporary name in the same directory under which new contents of a file are written."""
    return PRIVATE + sha256(name).hexdigest()[:16].encode()


def backup_name(name: bytes) -> bytes:
    """Return the temporary name under which a replaced item is kept until it is checked."""
    return name if name.startswith(PRIVATE) and name.endswith(OLD) else temporary_name(name) + OLD


def write(parent: int, name: bytes, chunks: Iterable[bytes], mode: int, owner: tuple[int, int]) -> None:
    """Write a new file."""
    with open(os.open(name, CREATE_FLAGS, 0o600, dir_fd=parent), "wb") as file:
        file.writelines(chunks)
        file.flush()
        if os.geteuid() == 0:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def flush(*folders: str | bytes | os.PathLike[str]) -> None:
    """Flush the entries of directories to disk, so that they survive a power failure."""
    for folder in folders:
        fd = os.open(folder, FOLDER_FLAGS & ~os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_file(parent: int, name: bytes) -> None:
    """Remove a file or a link if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def remove_empty_folder(parent: int, name: bytes) -> bool:
    """Remove a directory if it is empty and not a mount point; return whether it was removed."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            return False
        raise
    return True


def set_mode(parent: int, name: bytes, mode: int) -> None:
    """Set the permission bits of a directory, without following a link.

    The bits of a file are never changed in place, because it may have hard links outside the workspace.
    """
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except PermissionError:  # the owner can set the mode without permission to read
        if not hasattr(os, "O_PATH"):
            os.chmod(name, stat.S_IMODE(mode), dir_fd=parent, follow_symlinks=False)
            return
        fd = os.open(name, FOLDER_FLAGS | os.O_PATH, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode))
        finally:
            os.close(fd)
        return
    try:
        os.fchmod(fd, stat.S_IMODE(mode))
    finally:
        os.close(fd)
