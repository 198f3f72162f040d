"""Reads and replaces one file at a time, without ever leaving the workspace or losing a concurrent write.

A caller examines a path before it changes it. Another process may write between the two steps. Therefore the new item
is exchanged with the old one in one step, and the item that comes out is examined again. If it is not the item that
was examined before, it is put back.

Paths are bytes, relative to the workspace. Each directory of a path is opened separately and no symbolic link is
followed, so that a link which another process puts there cannot lead out of the workspace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Generic, TypeVar

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import escape_path
from agentgit.workspace.disk.atomic_file import (
    CHUNK,
    FOLDER_FLAGS,
    backup_name,
    converting_errors,
    exchange,
    open_regular,
    remove_empty_folder,
    remove_file,
    rename_to_free,
    temporary_name,
    write,
)
from agentgit.workspace.disk.move_aside import AsideFolder
from agentgit.workspace.locations import require_not_moved

Look = TypeVar("Look")

UNREADABLE = object()


@dataclass(frozen=True)
class DirectoryEntry(Generic[Look]):
    """One name in an open directory."""

    parent: int
    name: bytes
    path: bytes
    read_state: Callable[[int, bytes], Look]
    absent_state: Look
    aside: AsideFolder

    def put(self, create: Callable[[bytes], None], new_state: Look, expected: Look) -> bool:
        """Replace the item that was seen here with a file or a link, in one step."""
        temporary, backup = temporary_name(self.name), backup_name(self.name)
        remove_file(self.parent, temporary)
        try:
            create(temporary)
            self._hide(temporary)
        except BaseException:
            remove_file(self.parent, temporary)
            raise
        try:
            return self._swap(backup, new_state, expected)
        except OSError:
            if self._read_state(backup) == new_state:
                remove_file(self.parent, backup)
            raise

    def remove(self, expected: Look) -> bool:
        """Remove the file or link that was seen here; return False, and keep the item, if it is no longer the same."""
        try:
            self._hide(self.name)
        except FileNotFoundError:
            return False
        if self._read_state(backup_name(self.name)) == expected:
            remove_file(self.parent, backup_name(self.name))
            return True
        self._put_item_back()
        return False

    def move_aside(self) -> bytes:
        """Move the item to the storage, and return its new path."""
        return self.aside.move_in(self.parent, self.name, self.path)

    def recover(self, *known: Look) -> bytes | None:
        """Clean up after a process that was killed while it changed this entry."""
        remove_file(self.parent, temporary_name(self.name))
        leftover = self._read_state(backup_name(self.name))
        if leftover == self.absent_state:
            return None
        if leftover in known:
            remove_file(self.parent, backup_name(self.name))
            return None
        return self._put_item_back()

    def _swap(self, backup: bytes, new_state: Look, expected: Look) -> bool:
        """Exchange the new item with the one that was seen; if a different item comes out, put it back."""
        if expected == self.absent_state:
            if rename_to_free(self.parent, backup, self.name):
                return True
        elif (exchanged := self._exchange(backup)) is None:
            if self._read_state(self.name) == expected:
                self._rename(backup, self.name)
                return True
        elif exchanged:
            if self._read_state(backup) == expected:
                remove_file(self.parent, backup)
                return True
            self._undo_exchange(backup, new_state)
            return False
        remove_file(self.parent, backup)
        return False

    def _undo_exchange(self, backup: bytes, new_state: Look) -> None:
        """Exchange until the item that comes out is the one that was put in last.

        Then the newest item that another process wrote is here.
        """
        last_put: object = new_state
        next_put = self._read_state(backup)
        while self._exchange(backup):
            removed = self._read_state(backup)
            if removed == last_put:
                break
            last_put, next_put = next_put, removed
        else:  # another process deleted the item: the one under `backup` is the newest
            self._put_item_back()
            return
        if removed == new_state:
            remove_file(self.parent, backup)
        else:
            self.aside.move_in(self.parent, backup, self.path)

    def _exchange(self, backup: bytes) -> bool | None:
        """Exchange the two names; return False if this name does not exist, None if the system cannot exchange."""
        try:
            return exchange(self.parent, backup, self.name) or None
        except FileNotFoundError:
            return False

    def _put_item_back(self) -> bytes | None:
        """Put the removed item back; if the name is in use again, move the item to the storage."""
        backup = backup_name(self.name)
        if rename_to_free(self.parent, backup, self.name):
            return None
        return self.aside.move_in(self.parent, backup, self.path)

    def _read_state(self, name: bytes) -> object:
        """Return the state of a name. An item that cannot be read never equals the one that was seen."""
        try:
            return self.read_state(self.parent, name)
        except OSError:
            return UNREADABLE

    def _hide(self, name: bytes) -> None:
        """Rename an item to the temporary name. An item that a failure left under that name is put back first."""
        if not rename_to_free(self.parent, name, backup_name(self.name)):
            self._put_item_back()
            self._rename(name, backup_name(self.name))

    def _rename(self, name: bytes, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.parent, dst_dir_fd=self.parent)


MAX_LINKS = 40
"""The maximum length of a chain of symbolic links, as in Linux."""

ABSENT, FILE, LINK, OTHER = "absent", "file", "link", "other"

StorePart = Callable[[bytes, bytes], None]
"""A function that stores a part of a file: the SHA-256 of the part, and its bytes."""


@dataclass(frozen=True)
class FileState:
    """The state of a path."""

    kind: str
    mode: int = 0
    owner: tuple[int, int] = (0, 0)
    parts: tuple[bytes, ...] = ()
    target: bytes = b""


class SingleFiles:
    """The files of one directory."""

    def __init__(self, root: str | os.PathLike[str], aside: str | os.PathLike[str]) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self._aside_folder = AsideFolder(os.fsencode(aside))

    def resolve_paths(self, path: str | bytes | os.PathLike[str]) -> list[bytes]:
        """Return the path of a file and, if it is a symbolic link, the paths that it leads to."""
        resolved: list[bytes] = []
        absolute = os.path.join(self.root, os.fsencode(path))
        while True:
            parent, name = os.path.split(absolute)
            full = os.path.join(os.path.realpath(parent), name)
            if name in (b"", b".", b"..") or b"\0" in absolute or not full.startswith(self.root.rstrip(b"/") + b"/"):
                raise InvalidInput(
                    f"{os.fsdecode(path)!r} is not a file inside the workspace {os.fsdecode(self.root)}."
                )
            resolved.append(os.path.relpath(full, self.root))
            if not os.path.islink(full):
                return resolved
            if len(resolved) > MAX_LINKS:
                raise InvalidInput(f"{os.fsdecode(path)!r} is a symbolic link that leads to itself.")
            absolute = os.path.join(os.path.dirname(full), os.readlink(full))

    def missing_folders(self, path: bytes) -> list[bytes]:
        """Return the parent directories of a path that do not exist, the outermost first."""
        parents = [path[:end] for end, byte in enumerate(path) if byte == ord("/")]
        return [parent for parent in parents if not os.path.lexists(os.path.join(self.root, parent))]

    def read_state(self, path: bytes, store_part: StorePart | None = None) -> FileState:
        """Return the state of a path."""
        with converting_errors(path), self._open_parent(path) as parent:
            if parent is None:
                return FileState(ABSENT)
            if parent < 0:
                return FileState(OTHER)
            return _read_file_state(parent, os.path.basename(path), store_part)

    def put(self, path: bytes, state: FileState, read_part: Callable[[bytes], bytes], expected: FileState) -> bool:
        """Replace the item at a path atomically: a reader sees either the old item or the new one."""
        with converting_errors(path), self._open_parent(path, create=state.kind != ABSENT) as parent:
            if parent is None:
                return True
            if parent < 0:
                raise Unavailable(f"{escape_path(path)} cannot be written: a link or a file is in its way.")
            directory_entry = self._directory_entry(parent, path)
            if state.kind == ABSENT:
                return directory_entry.remove(expected)
            if state.kind == LINK:
                return directory_entry.put(partial(os.symlink, state.target, dir_fd=parent), state, expected)
            chunks = map(read_part, state.parts)
            return directory_entry.put(
                lambda name: write(parent, name, chunks, state.mode, state.owner), state, expected
            )

    def recover(self, path: bytes, *known: FileState) -> bytes | None:
        """Clean up after a process that was killed while it changed a path; see `DirectoryEntry.recover`."""
        with converting_errors(path), self._open_parent(path) as parent:
            return None if parent is None or parent < 0 else self._directory_entry(parent, path).recover(*known)

    def _directory_entry(self, parent: int, path: bytes) -> DirectoryEntry[FileState]:
        return DirectoryEntry(
            parent, os.path.basename(path), path, _read_file_state, FileState(ABSENT), self._aside_folder
        )

    def remove_folders(self, paths: Iterable[bytes]) -> list[bytes]:
        """Remove the directories that are empty, and return their paths."""
        removed = []
        for path in sorted(paths, key=len, reverse=True):
            with converting_errors(path), self._open_parent(path) as parent:
                if parent is not None and parent >= 0 and remove_empty_folder(parent, os.path.basename(path)):
                    removed.append(path)
        return removed

    @contextmanager
    def _open_parent(self, path: bytes, *, create: bool = False) -> Iterator[int | None]:
        """Open the parent directory of a path; yield None if it does not exist, -1 if it is not a directory."""
        require_not_moved(self.root)
        fd: int | None = os.open(self.root, FOLDER_FLAGS)
        try:
            for name in path.split(b"/")[:-1]:
                assert fd is not None  # noqa: S101 - the loop returns when it is None
                child_fd = _open_folder(fd, name, create=create)
                os.close(fd)
                fd = None
                if child_fd is None or child_fd < 0:
                    yield child_fd
                    return
                fd = child_fd
            yield fd
        finally:
            if fd is not None:
                os.close(fd)


def _open_folder(parent: int, name: bytes, *, create: bool) -> int | None:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return -1
        raise


def _read_file_state(parent: int, name: bytes, store_part: StorePart | None = None) -> FileState:
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return FileState(ABSENT)
    if stat.S_ISLNK(status.st_mode):
        return FileState(LINK, target=os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(status.st_mode):
        return FileState(OTHER)
    parts = []
    with open_regular(parent, name) as opened:
        if opened is None:
            return FileState(OTHER)
        file, status = opened
        while data := file.read(CHUNK):
            parts.append(sha256(data).digest())
            if store_part:
                store_part(parts[-1], data)
    owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else (0, 0)
    return FileState(FILE, stat.S_IMODE(status.st_mode), owner, tuple(parts))
