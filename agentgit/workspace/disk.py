"""The one writer of the files of a workspace: it never leaves the workspace, and loses nothing.

Paths are relative to the workspace. Each directory of a path is opened below its parent and no symbolic link is
followed, so that a link which another process puts there cannot lead out of the workspace.

A caller examines a name before it changes it, and another process may write between the two steps. Therefore the old
item is renamed to a temporary name and examined again there. If it is not the one that was examined before, it is put
back. The new item, and an old one that goes back, takes the name only if it is free: a link never replaces anything.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO

from agentgit.workspace.locations import naming, require_not_moved
from agentgit.workspace.objects import BLOB, object_id
from agentgit.workspace.trees import LINK_MODE, PLAIN_DIRECTORY, TreeEntry

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open each directory of a path, without following a symbolic link."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""The flags to open a file for reading, without blocking if another process replaces it with a pipe."""

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

ASIDE = b".agentgit-aside"
"""The directory in the workspace for items moved aside, so that a rename is enough; it is never captured."""

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of opening a directory that does not exist, or is a file or a link by now."""


def remove_file(parent: int, name: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def open_folder(root: int, path: bytes, *, is_made: bool = False) -> int:
    """Open a directory below an open one; if `is_made`, create what is missing."""
    descriptor = os.dup(root)
    for name in path.split(b"/") if path else ():
        parent = descriptor
        try:
            if is_made:
                with suppress(FileExistsError):
                    os.mkdir(name, stat.S_IMODE(PLAIN_DIRECTORY), dir_fd=parent)
            descriptor = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        finally:
            os.close(parent)
    return descriptor


class Disk:
    def __init__(self, root: bytes, aside: bytes = b"") -> None:
        require_not_moved(root)
        self._root, self._aside = root, os.path.join(root, ASIDE, aside)

    def read_entry(self, path: bytes) -> TreeEntry | None:
        with self.at(path) as place:
            return None if place is None else place.look()

    def moved(self) -> list[tuple[bytes, bytes]]:
        """Return the files that were moved aside: the original path and the current path of each."""
        items = []
        for parent, folders, names in os.walk(self._aside):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            leaves = names + links if names or folders or parent == self._aside else [b""]
            paths = [os.path.join(parent, name).rstrip(b"/") for name in leaves]
            items += [(os.path.relpath(path, self._aside), path) for path in paths]
        return sorted(items)

    @contextmanager
    def at(self, path: bytes, *, is_made: bool = False) -> Iterator[Place | None]:
        with naming(path), ExitStack() as stack:
            root = os.open(self._root, FOLDER_FLAGS)
            stack.callback(os.close, root)
            try:
                parent = open_folder(root, os.path.dirname(path), is_made=is_made)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                yield None
                return
            stack.callback(os.close, parent)
            yield Place(parent, path, self._aside)


@dataclass(frozen=True)
class Place:
    parent: int
    path: bytes
    aside: bytes

    @property
    def name(self) -> bytes:
        return os.path.basename(self.path) or b"."

    @property
    def _new(self) -> bytes:
        """The temporary name in the same directory under which a file is written."""
        return b".agentgit-" + sha256(self.name).hexdigest()[:16].encode()

    @property
    def _old(self) -> bytes:
        """The temporary name under which a replaced item is kept until it is checked."""
        return self._new + b"-old"

    def look(self, name: bytes | None = None) -> TreeEntry | None:
        """Return the entry here, or under another name; one that cannot be read equals nothing that was seen."""
        try:
            status, data = read(self.parent, name or self.name)
        except FileNotFoundError:
            return None
        except OSError:
            return TreeEntry(stat.S_IFREG)
        return TreeEntry(status.st_mode) if data is None else TreeEntry(entry_mode(status), object_id(BLOB, data))

    def replace(self, before: TreeEntry | None, after: TreeEntry | None, data: bytes) -> bool:
        """Put a file or a link here, or nothing; return False, and keep what is here, if it is not as seen before.

        A file is always a new one, so other hard links keep the old contents.
        """
        remove_file(self.parent, self._new)
        try:
            if after is not None:
                self._create(after, data)
            if before is not None and not self._hide(before):
                return False
            is_done = after is None or self._take_name(self._new)
        except OSError:
            self._put_item_back()
            raise
        finally:
            remove_file(self.parent, self._new)
        if before is not None:
            remove_file(self.parent, self._old)
        return is_done

    def make_folder(self) -> bool:
        """Create a directory, unless something is here."""
        try:
            os.mkdir(self.name, dir_fd=self.parent)
        except FileExistsError:
            return False
        self.set_mode(PLAIN_DIRECTORY)
        return True

    def remove_folder(self) -> bool:
        """Remove a directory if it is empty and not a mount point; return whether it was removed."""
        try:
            os.rmdir(self.name, dir_fd=self.parent)
        except OSError as error:
            if error.errno not in (*GONE, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                raise
            return False
        return True

    def set_mode(self, mode: int) -> None:
        """Set the permission bits of a directory if they differ; those of a file never, because of its hard links."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.lstat(self.name, dir_fd=self.parent).st_mode != mode:
                descriptor = os.open(self.name, FOLDER_FLAGS, dir_fd=self.parent)
                try:
                    os.fchmod(descriptor, stat.S_IMODE(mode))
                finally:
                    os.close(descriptor)

    def recover(self, *known: TreeEntry) -> bytes | None:
        """Clean up after a process that was killed here; return where an item of others is that cannot go back."""
        remove_file(self.parent, self._new)
        if self.look(self._old) in known:
            remove_file(self.parent, self._old)
        return self._put_item_back()

    def move_aside(self, name: bytes) -> bytes:
        if os.path.islink(os.path.dirname(self.aside)):  # it could lead out of the workspace
            raise OSError(errno.ELOOP, f"{os.fsdecode(ASIDE)} is a symbolic link; remove it")
        destination, number = os.path.join(self.aside, self.path), 0
        while os.path.lexists(destination):
            number += 1
            destination = os.path.join(self.aside, self.path) + b".%d" % number
        os.makedirs(os.path.dirname(destination), mode=0o700, exist_ok=True)
        os.rename(name, destination, src_dir_fd=self.parent)
        return destination

    def _create(self, entry: TreeEntry, data: bytes) -> None:
        if entry.is_link:
            os.symlink(data, self._new, dir_fd=self.parent)
            return
        with open(os.open(self._new, CREATE_FLAGS, 0o600, dir_fd=self.parent), "wb") as file:
            file.write(data)
            file.flush()
            if os.geteuid() == 0:
                try:
                    owner = os.lstat(self.name, dir_fd=self.parent)
                except FileNotFoundError:
                    owner = os.fstat(self.parent)
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))

    def _hide(self, expected: TreeEntry) -> bool:
        """Rename the item that was seen here to the temporary name; if it is another one, put it back."""
        self._put_item_back()  # one that a failure has left there
        try:
            os.rename(self.name, self._old, src_dir_fd=self.parent, dst_dir_fd=self.parent)
        except FileNotFoundError:
            return False
        if self.look(self._old) == expected:
            return True
        self._put_item_back()
        return False

    def _put_item_back(self) -> bytes | None:
        """Put the removed item back, if there is one; if the name is in use again, move the item aside."""
        try:
            os.lstat(self._old, dir_fd=self.parent)
        except FileNotFoundError:
            return None
        return None if self._take_name(self._old) else self.move_aside(self._old)

    def _take_name(self, name: bytes) -> bool:
        """Rename a temporary item to the name of this place if it is free; without links, check, then rename."""
        try:
            os.link(name, self.name, src_dir_fd=self.parent, dst_dir_fd=self.parent, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:  # a directory, or a file system without links
            with suppress(FileNotFoundError):
                os.lstat(self.name, dir_fd=self.parent)
                return False
            os.rename(name, self.name, src_dir_fd=self.parent, dst_dir_fd=self.parent)
        else:
            os.unlink(name, dir_fd=self.parent)
        return True


def read(parent: int, name: bytes) -> tuple[os.stat_result, bytes | None]:
    """Read a file or a link below an open directory; return its status, and no bytes of anything else."""
    status = os.lstat(name, dir_fd=parent)
    try:
        if stat.S_ISLNK(status.st_mode):
            return status, os.readlink(name, dir_fd=parent)
        if not stat.S_ISREG(status.st_mode):
            return status, None
        with FileIO(os.open(name, READ_FLAGS, dir_fd=parent), "rb") as file:
            status = os.fstat(file.fileno())
            return status, file.readall() if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):  # since `lstat`, a file became a link, or a link a file
            return read(parent, name)
        raise


def entry_mode(status: os.stat_result) -> int:
    return LINK_MODE if stat.S_ISLNK(status.st_mode) else status.st_mode
