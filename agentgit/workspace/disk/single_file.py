"""One file at a time: look at what stands at a path, and put something else there, without ever leaving the workspace.

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

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import shown
from agentgit.workspace.disk.atomic_file import CHUNK, FOLDER, regular, remove_empty, told, write
from agentgit.workspace.disk.directory_entry import DirectoryEntry
from agentgit.workspace.disk.move_aside import Aside
from agentgit.workspace.locations import require_in_place

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
                    f"{os.fsdecode(path)!r} is no file inside of the workspace {os.fsdecode(self.root)}."
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
