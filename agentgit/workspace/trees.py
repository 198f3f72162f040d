"""Snapshots as trees of entries by path, and the protocol of the stores that keep them.

Paths are bytes as the system returns them, relative to the workspace, with `/` as separator. Any file name is allowed.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha1
from typing import NamedTuple, Protocol

from agentgit.workspace.disk.atomic_file import Data

PLAIN_MODES = (0o644, 0o755)
"""The permission bits of files that git itself can store."""


class TreeEntry(NamedTuple):
    """The entry at a path."""

    mode: int
    oid: str = ""

    @property
    def is_directory(self) -> bool:
        """True if it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """True if it is a symbolic link."""
        return stat.S_ISLNK(self.mode)


class TreeWrite(NamedTuple):
    """One change to write into a snapshot."""

    path: bytes
    entry: TreeEntry | None
    data: Data = b""


class TreeChange(NamedTuple):
    """The entries at a path at which two snapshots differ; None if the path does not exist."""

    before: TreeEntry | None
    after: TreeEntry | None


class Trees(Protocol):
    """A store of snapshots, each under a key. It is independent of the workspace that the files came from.

    A directory has an entry only if nothing below it is captured, or if its permission bits are not 0755; otherwise
    its files imply it. Only one process at a time may write or collect. Any number may read.
    """

    def write(self, key: str, base: str | None, changes: Iterable[TreeWrite]) -> None:
        """Write a snapshot: a base snapshot with changes.

        The write is atomic: if the process is killed, the store has either the complete snapshot or none.
        """
        ...

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all entries of a snapshot, by path."""
        ...

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that have an entry in a snapshot, at low cost."""
        ...

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ, at low cost if there are few."""
        ...

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot one by one, and yield each with its contents."""
        ...

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots except `keep`, and remains of killed processes; return the number of bytes freed."""
        ...


def digest(data: bytes) -> str:
    """Return the SHA-1 of contents, as git computes it for a blob.

    Example:
        >>> digest(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return digest_of([data], len(data))


def digest_of(parts: Iterable[bytes], size: int) -> str:
    """Return the hash of contents that are read in parts; `size` must be the total number of bytes."""
    hasher = sha1(b"blob %d\0" % size, usedforsecurity=False)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()
