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
    FOLDER,
    backup_name,
    converting_errors,
    exchange,
    open_regular,
    remove_empty,
    remove_file,
    rename_to_free,
    write,
    written_name,
)
from agentgit.workspace.disk.move_aside import Aside
from agentgit.workspace.locations import require_in_place

Look = TypeVar("Look")

UNREADABLE = object()


@dataclass(frozen=True)
class DirectoryEntry(Generic[Look]):
    """One name in an open directory.

    Args:
        parent: The open directory.
        name: The name in it.
        path: The path in the workspace, for error messages.
        look: The function that returns the state of a name in the directory.
        absent_state: The result of `look` for a name that does not exist.
        aside: The directory for items that can be neither kept in place nor put back.
    """

    parent: int
    name: bytes
    path: bytes
    look: Callable[[int, bytes], Look]
    absent_state: Look
    aside: Aside

    def put(self, make: Callable[[bytes], None], new: Look, seen: Look) -> bool:
        """Replace the item that was seen here with a file or a link, in one step.

        Args:
            make: The function that creates the new item under a given name in this directory.
            new: The result of `look` for the new item.
            seen: The result of `look` when this name was examined.

        Returns:
            False if the item is no longer the one that was seen; it is kept.

        Raises:
            OSError: A system call failed; the old item is kept.
        """
        written, taken = written_name(self.name), backup_name(self.name)
        remove_file(self.parent, written)
        try:
            make(written)
            self._hide(written)
        except BaseException:
            remove_file(self.parent, written)
            raise
        try:
            return self._swap(taken, new, seen)
        except OSError:
            if self._look(taken) == new:
                remove_file(self.parent, taken)
            raise

    def remove(self, seen: Look) -> bool:
        """Remove the file or link that was seen here; return False, and keep the item, if it is no longer the same."""
        try:
            self._hide(self.name)
        except FileNotFoundError:
            return False
        if self._look(backup_name(self.name)) == seen:
            remove_file(self.parent, backup_name(self.name))
            return True
        self._put_item_back()
        return False

    def move_aside(self) -> bytes:
        """Move the item to the storage, and return its new path.

        Raises:
            Unavailable: The item cannot be moved and is still here.
        """
        return self.aside.take(self.parent, self.name, self.path)

    def recover(self, *known: Look) -> bytes | None:
        """Clean up after a process that was killed while it changed this entry.

        Args:
            known: The results of `look` for items that snapshots hold, which may be removed.

        Returns:
            The path in the storage of an item that another process wrote and that could not be put back here; None if
            there is no such item.

        Raises:
            Unavailable: The item cannot be moved.
        """
        remove_file(self.parent, written_name(self.name))
        left = self._look(backup_name(self.name))
        if left == self.absent_state:
            return None
        if left in known:
            remove_file(self.parent, backup_name(self.name))
            return None
        return self._put_item_back()

    def _swap(self, taken: bytes, new: Look, seen: Look) -> bool:
        """Exchange the new item with the one that was seen; if a different item comes out, put it back."""
        if seen == self.absent_state:
            if rename_to_free(self.parent, taken, self.name):
                return True
        elif (swapped := self._exchange(taken)) is None:
            if self._look(self.name) == seen:
                self._rename(taken, self.name)
                return True
        elif swapped:
            if self._look(taken) == seen:
                remove_file(self.parent, taken)
                return True
            self._undo(taken, new)
            return False
        remove_file(self.parent, taken)
        return False

    def _undo(self, taken: bytes, new: Look) -> None:
        """Exchange until the item that comes out is the one that was put in last.

        Then the newest item that another process wrote is here.
        """
        put: object = new
        coming = self._look(taken)
        while self._exchange(taken):
            out = self._look(taken)
            if out == put:
                break
            put, coming = coming, out
        else:  # another process deleted the item: the one under `taken` is the newest
            self._put_item_back()
            return
        if out == new:
            remove_file(self.parent, taken)
        else:
            self.aside.take(self.parent, taken, self.path)

    def _exchange(self, taken: bytes) -> bool | None:
        """Exchange the two names; return False if this name does not exist, None if the system cannot exchange."""
        try:
            return exchange(self.parent, taken, self.name) or None
        except FileNotFoundError:
            return False

    def _put_item_back(self) -> bytes | None:
        """Put the removed item back; if the name is in use again, move the item to the storage."""
        taken = backup_name(self.name)
        if rename_to_free(self.parent, taken, self.name):
            return None
        return self.aside.take(self.parent, taken, self.path)

    def _look(self, name: bytes) -> object:
        """Return the state of a name. An item that cannot be read never equals the one that was seen."""
        try:
            return self.look(self.parent, name)
        except OSError:
            return UNREADABLE

    def _hide(self, name: bytes) -> None:
        """Rename an item to the temporary name. An item that a failure left under that name is put back first."""
        if not rename_to_free(self.parent, name, backup_name(self.name)):
            self._put_item_back()
            self._rename(name, backup_name(self.name))

    def _rename(self, name: bytes, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.parent, dst_dir_fd=self.parent)


MOST_LINKS = 40
"""The maximum length of a chain of symbolic links, as in Linux."""

ABSENT, FILE, LINK, OTHER = "absent", "file", "link", "other"

StorePart = Callable[[bytes, bytes], None]
"""A function that stores a part of a file: the SHA-256 of the part, and its bytes."""


@dataclass(frozen=True)
class FileState:
    """The state of a path.

    Args:
        kind: `absent`, `file`, `link`, or `other` (a directory, a socket, a path that leads through a link).
        mode: The permission bits of a file.
        owner: The user and group ids of a file, if the process runs as root, which alone can change them; else zeros.
        parts: The SHA-256 of each `CHUNK` of a file, in order.
        target: The target of a link.
    """

    kind: str
    mode: int = 0
    owner: tuple[int, int] = (0, 0)
    parts: tuple[bytes, ...] = ()
    target: bytes = b""


class SingleFiles:
    """The files of one directory.

    Args:
        root: The directory.
        aside: The directory for items that another process writes during a change and that cannot be kept in place.
    """

    def __init__(self, root: str | os.PathLike[str], aside: str | os.PathLike[str]) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self._aside = Aside(os.fsencode(aside))

    def resolve_paths(self, path: str | bytes | os.PathLike[str]) -> list[bytes]:
        """Return the path of a file and, if it is a symbolic link, the paths that it leads to.

        Args:
            path: The path, relative to the workspace or absolute.

        Raises:
            InvalidInput: The path is outside of the workspace, or leads there.
        """
        found: list[bytes] = []
        at = os.path.join(self.root, os.fsencode(path))
        while True:
            parent, name = os.path.split(at)
            full = os.path.join(os.path.realpath(parent), name)
            if name in (b"", b".", b"..") or b"\0" in at or not full.startswith(self.root.rstrip(b"/") + b"/"):
                raise InvalidInput(
                    f"{os.fsdecode(path)!r} is not a file inside the workspace {os.fsdecode(self.root)}."
                )
            found.append(os.path.relpath(full, self.root))
            if not os.path.islink(full):
                return found
            if len(found) > MOST_LINKS:
                raise InvalidInput(f"{os.fsdecode(path)!r} is a symbolic link that leads to itself.")
            at = os.path.join(os.path.dirname(full), os.readlink(full))

    def missing_folders(self, path: bytes) -> list[bytes]:
        """Return the parent directories of a path that do not exist, the outermost first."""
        parents = [path[:end] for end, byte in enumerate(path) if byte == ord("/")]
        return [parent for parent in parents if not os.path.lexists(os.path.join(self.root, parent))]

    def look(self, path: bytes, keep: StorePart | None = None) -> FileState:
        """Return the state of a path.

        Args:
            path: The path, relative to the workspace.
            keep: The function that receives the contents of a file, part by part.

        Raises:
            Unavailable: The path cannot be read.
        """
        with converting_errors(path), self._parent(path) as parent:
            if parent is None:
                return FileState(ABSENT)
            if parent < 0:
                return FileState(OTHER)
            return _look(parent, os.path.basename(path), keep)

    def put(self, path: bytes, state: FileState, read: Callable[[bytes], bytes], seen: FileState) -> bool:
        """Replace the item at a path atomically: a reader sees either the old item or the new one.

        Args:
            path: The path, relative to the workspace.
            state: The new state of the path. Missing parent directories are created.
            read: The function that returns a part of a file by its hash.
            seen: The state of the path when it was examined: a file, a link, or absent.

        Returns:
            False if the state is no longer `seen`; the item is kept.

        Raises:
            Unavailable: The path cannot be written.
        """
        with converting_errors(path), self._parent(path, make=state.kind != ABSENT) as parent:
            if parent is None:
                return True
            if parent < 0:
                raise Unavailable(f"{escape_path(path)} cannot be written: a link or a file is in its way.")
            place = self._place(parent, path)
            if state.kind == ABSENT:
                return place.remove(seen)
            if state.kind == LINK:
                return place.put(partial(os.symlink, state.target, dir_fd=parent), state, seen)
            parts = map(read, state.parts)
            return place.put(lambda name: write(parent, name, parts, state.mode, state.owner), state, seen)

    def recover(self, path: bytes, *known: FileState) -> bytes | None:
        """Clean up after a process that was killed while it changed a path; see `DirectoryEntry.recover`."""
        with converting_errors(path), self._parent(path) as parent:
            return None if parent is None or parent < 0 else self._place(parent, path).recover(*known)

    def _place(self, parent: int, path: bytes) -> DirectoryEntry[FileState]:
        return DirectoryEntry(parent, os.path.basename(path), path, _look, FileState(ABSENT), self._aside)

    def remove_folders(self, paths: Iterable[bytes]) -> list[bytes]:
        """Remove the directories that are empty, and return their paths.

        Args:
            paths: The paths, relative to the workspace.
        """
        gone = []
        for path in sorted(paths, key=len, reverse=True):
            with converting_errors(path), self._parent(path) as parent:
                if parent is not None and parent >= 0 and remove_empty(parent, os.path.basename(path)):
                    gone.append(path)
        return gone

    @contextmanager
    def _parent(self, path: bytes, *, make: bool = False) -> Iterator[int | None]:
        """Open the parent directory of a path; yield None if it does not exist, -1 if it is not a directory."""
        require_in_place(self.root)
        at: int | None = os.open(self.root, FOLDER)
        try:
            for name in path.split(b"/")[:-1]:
                assert at is not None  # noqa: S101 - the loop returns when it is None
                below = _open_folder(at, name, make=make)
                os.close(at)
                at = None
                if below is None or below < 0:
                    yield below
                    return
                at = below
            yield at
        finally:
            if at is not None:
                os.close(at)


def _open_folder(parent: int, name: bytes, *, make: bool) -> int | None:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return -1
        raise


def _look(parent: int, name: bytes, keep: StorePart | None = None) -> FileState:
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return FileState(ABSENT)
    if stat.S_ISLNK(found.st_mode):
        return FileState(LINK, target=os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(found.st_mode):
        return FileState(OTHER)
    parts = []
    with open_regular(parent, name) as opened:
        if opened is None:
            return FileState(OTHER)
        file, found = opened
        while data := file.read(CHUNK):
            parts.append(sha256(data).digest())
            if keep:
                keep(parts[-1], data)
    owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else (0, 0)
    return FileState(FILE, stat.S_IMODE(found.st_mode), owner, tuple(parts))
