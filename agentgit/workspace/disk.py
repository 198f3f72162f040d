"""Changing the files of a workspace without ever leaving it: no symbolic link is followed, nothing is lost.

Each directory on the way to a path is opened by itself. What stands in the way and is in no snapshot is moved aside.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from agentgit.workspace.beneath import CHUNK, FOLDER, READ, regular, remove_empty, remove_file, replace, told, write
from agentgit.workspace.known import PLAIN_DIRECTORY
from agentgit.workspace.trees import Entry, digest, digest_of


class Disk:
    """The files of one workspace.

    Args:
        root: the workspace, without a `/` at its end.
        aside: the directory to move things to; it is made when it is needed.
    """

    def __init__(self, root: bytes, aside: bytes) -> None:
        self._root, self._aside = root, aside
        self.created: list[bytes] = []

    def look(self, path: bytes) -> Entry | None:
        """Tell what stands at a path; something that is no file, link or directory has no `oid`."""
        with told(path), self._parent(path) as parent:
            if parent is None:
                return None
            name = os.path.basename(path)
            try:
                found = os.lstat(name, dir_fd=parent)
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(found.st_mode):
                return Entry(stat.S_IFLNK | 0o777, digest(os.readlink(name, dir_fd=parent)))
            if not stat.S_ISREG(found.st_mode):
                return Entry(found.st_mode)
            with regular(parent, name) as opened:
                if opened is None:
                    return Entry(stat.S_IFIFO)
                file, found = opened
                return Entry(found.st_mode, digest_of(iter(partial(file.read, CHUNK), b""), found.st_size))

    def put(self, path: bytes, entry: Entry, data: bytes) -> None:
        """Put a file or a link at a path in one step, in place of a file or a link, or of nothing."""
        self.make_folder(os.path.dirname(path))
        name = os.path.basename(path)
        with told(path), self._parent(path, must=True) as parent:
            assert parent is not None  # noqa: S101 - made above
            if entry.is_link:
                replace(parent, name, partial(os.symlink, data, dir_fd=parent))
            else:
                owner = _owner(parent, name)
                replace(parent, name, lambda beside: write(parent, beside, [data], entry.mode, owner))

    def chmod(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a file or a directory, never through a link."""
        with told(path), self._parent(path, must=True) as parent:
            name = os.path.basename(path)
            try:
                with _closing(os.open(name, READ, dir_fd=parent)) as file:
                    os.fchmod(file, stat.S_IMODE(mode))
            except PermissionError:  # its owner may set what he may not read
                if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
                    raise
                os.chmod(name, stat.S_IMODE(mode), dir_fd=parent)

    def unlink(self, path: bytes) -> None:
        """Remove a file or a link; nothing is done if it is gone."""
        with told(path), self._parent(path) as parent:
            if parent is not None:
                remove_file(parent, os.path.basename(path))

    def remove_folder(self, path: bytes) -> bool:
        """Remove a directory if it is empty; tell whether it was."""
        with told(path), self._parent(path) as parent:
            return parent is not None and remove_empty(parent, os.path.basename(path))

    def make_folder(self, path: bytes) -> None:
        """Make a directory and those above it; what is no directory and in the way is moved aside."""
        parts = path.split(b"/") if path else []
        for end in range(1, len(parts) + 1):
            at = b"/".join(parts[:end])
            with told(at), self._parent(at, must=True) as parent:
                name = parts[end - 1]
                try:
                    os.mkdir(name, dir_fd=parent)
                    os.chmod(name, PLAIN_DIRECTORY & 0o777, dir_fd=parent)
                    self.created.append(at)
                    continue
                except FileExistsError:
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        continue
            self.move_aside(at)
            self.make_folder(at)

    def move_aside(self, path: bytes) -> None:
        """Move what stands at a path out of the workspace, with all that is in it."""
        to = os.path.join(self._aside, path)
        number = 0
        while os.path.lexists(to):  # a restore that was killed moved something of that name
            number += 1
            to = os.path.join(self._aside, path) + b".%d" % number
        with told(path), self._parent(path, must=True) as parent:
            os.makedirs(os.path.dirname(to), mode=0o700, exist_ok=True)
            name = os.path.basename(path)
            try:
                os.rename(name, to, src_dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(os.path.join(self._root, path), to)
                assert parent is not None  # noqa: S101 - it must be there
                _remove(parent, name)

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Give what this restore moved aside: the path of each file that it had, and where it is now."""
        found = []
        for parent, folders, names in os.walk(self._aside):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            leaves = names + links if names or folders or parent == self._aside else [b""]
            for name in leaves:
                to = os.path.join(parent, name) if name else parent
                found.append((os.path.relpath(to, self._aside), to))
        return sorted(found)

    @contextmanager
    def _parent(self, path: bytes, *, must: bool = False) -> Iterator[int | None]:
        """Open the directory that a path is in; None if it is not there, or a link or a file is in its place."""
        at = os.open(self._root, FOLDER & ~os.O_NOFOLLOW)
        try:
            for name in path.split(b"/")[:-1]:
                try:
                    below = os.open(name, FOLDER, dir_fd=at)
                except OSError as error:
                    if must or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    break
                os.close(at)
                at = below
            else:
                yield at
                return
            yield None
        finally:
            os.close(at)


@contextmanager
def _closing(file: int) -> Iterator[int]:
    try:
        yield file
    finally:
        os.close(file)


def _owner(parent: int, name: bytes) -> tuple[int, int]:
    """Who is to own a file: who owns the one that stands there, or the directory."""
    try:
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        found = os.fstat(parent)
    return found.st_uid, found.st_gid


def _copy(at: bytes, to: bytes) -> None:
    """Copy to another file system."""
    if os.path.isdir(at) and not os.path.islink(at):
        shutil.copytree(os.fsdecode(at), os.fsdecode(to), symlinks=True)
    elif stat.S_ISREG(os.lstat(at).st_mode) or os.path.islink(at):
        shutil.copy2(at, to, follow_symlinks=False)
    elif stat.S_ISFIFO(os.lstat(at).st_mode):
        os.mkfifo(to)
    else:
        raise OSError(errno.EXDEV, "a socket or a device is in the way, and cannot be moved to the storage")


def _remove(parent: int, name: bytes) -> None:
    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
