"""The two renames that lose nothing: exchange two names, and rename only to a name that is free.

Linux has them as `renameat2`, macOS as `renameatx_np`; not every file system supports them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}
"""The errors of a system without the call, a file system that cannot do it, or a container that bars it."""

Call = Callable[[int, bytes, int, bytes, int], int]
"""Renames a name in one open directory to a name in another; returns 0 or the number of the error."""

_MAC = sys.platform == "darwin"
EXCHANGE, NO_REPLACE = (0x2, 0x4) if _MAC else (0x2, 0x1)


def _system_call() -> Call:
    try:
        found = getattr(ctypes.CDLL(None, use_errno=True), "renameatx_np" if _MAC else "renameat2")
    except (AttributeError, OSError):
        return lambda *_: errno.ENOSYS
    found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def call(source: int, name: bytes, target: int, new: bytes, flags: int) -> int:
        return ctypes.get_errno() if found(source, name, target, new, flags) else 0

    return call


system_call: Call = _system_call()
"""The call of this system; replace it to see what happens on a system that does not have it."""


def exchange(parent: int, one: bytes, other: bytes) -> bool:
    """Exchange two names of a directory in one step.

    Args:
        parent: The open directory.
        one: One name in it.
        other: Another name in it.

    Returns:
        False if this system or this file system cannot; nothing was done.

    Raises:
        OSError: The system refused, for example because one of the names is gone.
    """
    return _renamed(parent, one, other, EXCHANGE)


def rename_to_free(parent: int, name: bytes, new: bytes) -> bool:
    """Rename within a directory if the new name is free.

    Where the system cannot do it in one step, look first and rename then: what somebody makes in between is replaced.

    Args:
        parent: The open directory.
        name: The name in it.
        new: The name that must be free.

    Returns:
        False if something has the new name; nothing was done.

    Raises:
        OSError: The system refused.
    """
    try:
        if _renamed(parent, name, new, NO_REPLACE):
            return True
    except FileExistsError:
        return False
    with suppress(FileNotFoundError):
        os.lstat(new, dir_fd=parent)
        return False
    os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)
    return True


def _renamed(parent: int, name: bytes, new: bytes, flags: int) -> bool:
    problem = system_call(parent, name, parent, new, flags)
    if problem in UNSUPPORTED:
        return False
    if problem:
        raise OSError(problem, os.strerror(problem), os.fsdecode(name))
    return True
