"""Changes of one name in an open directory that lose nothing, whatever another process does at the same time.

A caller examines a name before it changes it. Another process may write between the two steps. Therefore the new item
is exchanged with the old one in one step, and the item that comes out is examined again. If it is not the item that
was examined before, it is put back. Two renames lose nothing: the exchange of two names, and the rename to a free name
only. Linux has them as `renameat2`, macOS as `renameatx_np`. Not every file system supports them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from agentgit.workspace.trees import TreeEntry

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
    """Exchange two entries of a directory atomically; return False if the system cannot."""
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


def temporary_name(name: bytes) -> bytes:
    """Return the temporary name in the same directory under which new contents of a file are written."""
    return b".agentgit-" + sha256(name).hexdigest()[:16].encode()


def remove_file(parent: int, name: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


UNREADABLE = object()
"""The state of an item that cannot be read. It never equals one that was seen."""


@dataclass(frozen=True)
class DirectoryEntry:
    """One name in an open directory."""

    parent: int
    name: bytes
    path: bytes
    read_state: Callable[[int, bytes], TreeEntry | None]
    move_in: Callable[[int, bytes, bytes], bytes]

    @property
    def _backup(self) -> bytes:
        """The temporary name under which a replaced item is kept until it is checked."""
        return temporary_name(self.name) + b"-old"

    def put(self, create: Callable[[bytes], None], new_state: TreeEntry, expected: TreeEntry | None) -> bool:
        """Replace the item that was seen here with a file or a link, in one step."""
        temporary = temporary_name(self.name)
        remove_file(self.parent, temporary)
        try:
            create(temporary)
            self._hide(temporary)
        except BaseException:
            remove_file(self.parent, temporary)
            raise
        try:
            return self._swap(new_state, expected)
        except OSError:
            if self._read_state(self._backup) == new_state:
                remove_file(self.parent, self._backup)
            raise

    def remove(self, expected: TreeEntry) -> bool:
        """Remove the file or link that was seen here; return False, and keep the item, if it is no longer the same."""
        try:
            self._hide(self.name)
        except FileNotFoundError:
            return False
        if self._read_state(self._backup) == expected:
            remove_file(self.parent, self._backup)
            return True
        self._put_item_back()
        return False

    def recover(self, *known: TreeEntry) -> bytes | None:
        """Clean up after a process that was killed while it changed this entry.

        An item of another process that it held is put back or, if the name is in use again, moved aside; then its new
        path is returned.
        """
        remove_file(self.parent, temporary_name(self.name))
        leftover = self._read_state(self._backup)
        if leftover is None:
            return None
        if leftover in known:
            remove_file(self.parent, self._backup)
            return None
        return self._put_item_back()

    def _swap(self, new_state: TreeEntry, expected: TreeEntry | None) -> bool:
        """Exchange the new item with the one that was seen; if a different item comes out, put it back."""
        if expected is None:
            if rename_to_free(self.parent, self._backup, self.name):
                return True
        elif (exchanged := self._exchange()) is None:
            if self._read_state(self.name) == expected:
                self._rename(self._backup, self.name)
                return True
        elif exchanged:
            if self._read_state(self._backup) == expected:
                remove_file(self.parent, self._backup)
                return True
            self._undo_exchange(new_state)
            return False
        remove_file(self.parent, self._backup)
        return False

    def _undo_exchange(self, new_state: TreeEntry) -> None:
        """Exchange until the item that comes out is the one that was put in last.

        Then the newest item that another process wrote is here.
        """
        last_put: object = new_state
        next_put = self._read_state(self._backup)
        while self._exchange():
            removed = self._read_state(self._backup)
            if removed == last_put:
                break
            last_put, next_put = next_put, removed
        else:  # another process deleted the item: the one under the temporary name is the newest
            self._put_item_back()
            return
        if removed == new_state:
            remove_file(self.parent, self._backup)
        else:
            self.move_in(self.parent, self._backup, self.path)

    def _exchange(self) -> bool | None:
        """Exchange the two names; return False if this name does not exist, None if the system cannot exchange."""
        try:
            return exchange(self.parent, self._backup, self.name) or None
        except FileNotFoundError:
            return False

    def _put_item_back(self) -> bytes | None:
        """Put the removed item back; if the name is in use again, move the item out of the workspace."""
        if rename_to_free(self.parent, self._backup, self.name):
            return None
        return self.move_in(self.parent, self._backup, self.path)

    def _read_state(self, name: bytes) -> object:
        try:
            return self.read_state(self.parent, name)
        except OSError:
            return UNREADABLE

    def _hide(self, name: bytes) -> None:
        """Rename an item to the temporary name. An item that a failure left under that name is put back first."""
        if not rename_to_free(self.parent, name, self._backup):
            self._put_item_back()
            self._rename(name, self._backup)

    def _rename(self, name: bytes, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.parent, dst_dir_fd=self.parent)
