"""One file at a time: what stands at a path, and putting something else there, without ever leaving the workspace.

One name in an open directory: put something there or take it away, and lose nothing that somebody writes meanwhile.
Whoever changes a path looks at it first. Between that look and the change somebody else may write. So the new thing is
exchanged with the old one, and what comes out is looked at again: if it is not what was seen, it goes back.

One file at a time: look at what stands at a path, and put something else there, without ever leaving the workspace.
Paths are bytes, relative to the workspace. Every directory on the way is opened by itself and no symbolic link is
followed, so that a link which somebody puts there leads nowhere.
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
from agentgit.values import shown
from agentgit.workspace.disk.atomic_file import (
    CHUNK,
    FOLDER,
    exchange,
    regular,
    remove_empty,
    remove_file,
    rename_to_free,
    taken_name,
    told,
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
        path: Its path in the workspace, which errors name.
        look: The function that examines a name of the directory.
        nothing: The result of `look` where nothing stands.
        aside: The place for what can neither stay nor go back.
    """

    parent: int
    name: bytes
    path: bytes
    look: Callable[[int, bytes], Look]
    nothing: Look
    aside: Aside

    def put(self, make: Callable[[bytes], None], new: Look, seen: Look) -> bool:
        """Put a file or a link here, in place of what was seen here, in one step.

        Args:
            make: The function that makes the new thing under a given name in this directory.
            new: The result of `look` for the new thing.
            seen: The result of `look` when this name was examined.

        Returns:
            False if something else stands here by now; that stays.

        Raises:
            OSError: The system refused; what stood here stays.
        """
        written, taken = written_name(self.name), taken_name(self.name)
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

    def take_away(self, seen: Look) -> bool:
        """Remove the file or the link that was seen here; return False if something else stands here: that stays."""
        try:
            self._hide(self.name)
        except FileNotFoundError:
            return False
        if self._look(taken_name(self.name)) == seen:
            remove_file(self.parent, taken_name(self.name))
            return True
        self._give_back()
        return False

    def move_aside(self) -> bytes:
        """Move what stands here to the storage; return where it is now.

        Raises:
            Unavailable: It cannot be moved, and is still here.
        """
        return self.aside.take(self.parent, self.name, self.path)

    def recover(self, *known: Look) -> bytes | None:
        """Clear away what a process left that was killed while it changed this place.

        Args:
            known: The result of `look` for what snapshots hold, which may go.

        Returns:
            Where in the storage something else is now that somebody wrote; None if there is no such thing, or it stands
            here again.

        Raises:
            Unavailable: It cannot be moved.
        """
        remove_file(self.parent, written_name(self.name))
        left = self._look(taken_name(self.name))
        if left == self.nothing:
            return None
        if left in known:
            remove_file(self.parent, taken_name(self.name))
            return None
        return self._give_back()

    def _swap(self, taken: bytes, new: Look, seen: Look) -> bool:
        """Exchange the new thing with what was seen; if something else comes out, give it its place again."""
        if seen == self.nothing:
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
        """Exchange until what comes out is what was put in: the newest that somebody else wrote stands here then."""
        put: object = new
        coming = self._look(taken)
        while self._exchange(taken):
            out = self._look(taken)
            if out == put:
                break
            put, coming = coming, out
        else:  # somebody has deleted what stood here: this was the last thing before
            self._give_back()
            return
        if out == new:
            remove_file(self.parent, taken)
        else:
            self.aside.take(self.parent, taken, self.path)

    def _exchange(self, taken: bytes) -> bool | None:
        """Exchange with what stands here; return False if nothing does, None if the system cannot."""
        try:
            return exchange(self.parent, taken, self.name) or None
        except FileNotFoundError:
            return False

    def _give_back(self) -> bytes | None:
        """Let what was taken away stand here again; if the name is not free by now, move it to the storage."""
        taken = taken_name(self.name)
        if rename_to_free(self.parent, taken, self.name):
            return None
        return self.aside.take(self.parent, taken, self.path)

    def _look(self, name: bytes) -> object:
        """Return what stands at a name; what cannot be read is never what was seen."""
        try:
            return self.look(self.parent, name)
        except OSError:
            return UNREADABLE

    def _hide(self, name: bytes) -> None:
        """Rename an item to the name for what is taken away; what a failure has left under that name is kept."""
        if not rename_to_free(self.parent, name, taken_name(self.name)):
            self._give_back()
            self._rename(name, taken_name(self.name))

    def _rename(self, name: bytes, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.parent, dst_dir_fd=self.parent)


MOST_LINKS = 40
"""The greatest number of symbolic links that may lead to each other, as in Linux."""

ABSENT, FILE, LINK, OTHER = "absent", "file", "link", "other"

Keep = Callable[[bytes, bytes], None]
"""Takes a part of a file with its hash."""


@dataclass(frozen=True)
class FileState:
    """The state of a path.

    Args:
        kind: `absent`, `file`, `link`, or `other`: a directory, a socket, a path that leads through a link.
        mode: The permission bits of a file.
        owner: The ids of a file's user and group, for a superuser, who alone can give a file away; else zeros.
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
        aside: The place for what somebody else writes while a file is changed, if it cannot stay.
    """

    def __init__(self, root: str | os.PathLike[str], aside: str | os.PathLike[str]) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self._aside = Aside(os.fsencode(aside))

    def named(self, path: str | bytes | os.PathLike[str]) -> list[bytes]:
        """Return the paths that a file has in here: its own, and where it leads if it is a symbolic link.

        Args:
            path: The path, relative to the workspace or absolute.

        Raises:
            InvalidInput: It is outside of the workspace, or leads there.
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
        """Return the directories on the way to a path that are not there, the outermost first."""
        parents = [path[:end] for end, byte in enumerate(path) if byte == ord("/")]
        return [parent for parent in parents if not os.path.lexists(os.path.join(self.root, parent))]

    def look(self, path: bytes, keep: Keep | None = None) -> FileState:
        """Return what stands at a path.

        Args:
            path: The path, relative to the workspace.
            keep: The function that receives the contents of a file, part by part.

        Raises:
            Unavailable: It cannot be read.
        """
        with told(path), self._parent(path) as parent:
            if parent is None:
                return FileState(ABSENT)
            if parent < 0:
                return FileState(OTHER)
            return _look(parent, os.path.basename(path), keep)

    def put(self, path: bytes, state: FileState, read: Callable[[bytes], bytes], seen: FileState) -> bool:
        """Put something at a path, in one step: whoever reads the file sees either what was there or what comes.

        Args:
            path: The path, relative to the workspace.
            state: What is to stand there; missing directories are made.
            read: The function that returns a part of a file by its hash.
            seen: The thing seen there before: a file, a link, or nothing.

        Returns:
            False if something else stands there by now; that stays.

        Raises:
            Unavailable: It cannot be written.
        """
        with told(path), self._parent(path, make=state.kind != ABSENT) as parent:
            if parent is None:
                return True
            if parent < 0:
                raise Unavailable(f"{shown(path)} cannot be written: a link or a file is in its way.")
            place = self._place(parent, path)
            if state.kind == ABSENT:
                return place.take_away(seen)
            if state.kind == LINK:
                return place.put(partial(os.symlink, state.target, dir_fd=parent), state, seen)
            parts = map(read, state.parts)
            return place.put(lambda name: write(parent, name, parts, state.mode, state.owner), state, seen)

    def recover(self, path: bytes, *known: FileState) -> bytes | None:
        """Clear away what a process left that was killed while it changed a path; see `Place.recover`."""
        with told(path), self._parent(path) as parent:
            return None if parent is None or parent < 0 else self._place(parent, path).recover(*known)

    def _place(self, parent: int, path: bytes) -> DirectoryEntry[FileState]:
        return DirectoryEntry(parent, os.path.basename(path), path, _look, FileState(ABSENT), self._aside)

    def remove_folders(self, paths: Iterable[bytes]) -> list[bytes]:
        """Remove those directories that are empty; give those that are gone.

        Args:
            paths: The paths, relative to the workspace.
        """
        gone = []
        for path in sorted(paths, key=len, reverse=True):
            with told(path), self._parent(path) as parent:
                if parent is not None and parent >= 0 and remove_empty(parent, os.path.basename(path)):
                    gone.append(path)
        return gone

    @contextmanager
    def _parent(self, path: bytes, *, make: bool = False) -> Iterator[int | None]:
        """Open the directory of a path: None if it is not there, -1 if something else is in its place."""
        require_in_place(self.root)
        at: int | None = os.open(self.root, FOLDER)
        try:
            for name in path.split(b"/")[:-1]:
                assert at is not None  # noqa: S101 - the loop ends when it is
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


def _look(parent: int, name: bytes, keep: Keep | None = None) -> FileState:
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return FileState(ABSENT)
    if stat.S_ISLNK(found.st_mode):
        return FileState(LINK, target=os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(found.st_mode):
        return FileState(OTHER)
    parts = []
    with regular(parent, name) as opened:
        if opened is None:
            return FileState(OTHER)
        file, found = opened
        while data := file.read(CHUNK):
            parts.append(sha256(data).digest())
            if keep:
                keep(parts[-1], data)
    owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else (0, 0)
    return FileState(FILE, stat.S_IMODE(found.st_mode), owner, tuple(parts))
