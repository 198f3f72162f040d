"""Snapshots as paths with what stands there, and the protocol of the stores that keep them.

Paths are bytes, relative to the workspace, with `/` between their parts, as the system has them. Any name can be kept.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha1
from typing import NamedTuple, Protocol

from agentgit.workspace.disk.atomic_file import Data

PLAIN_MODES = (0o644, 0o755)
"""Permission bits that git itself can tell apart."""


class TreeEntry(NamedTuple):
    """The entry at a path.

    Args:
        mode: The mode from `os.lstat`: the kind (a regular file, a symbolic link, a directory) and the permission bits.
        oid: The hash of a file's contents or of a link's target, as `digest` returns it; empty for a directory.
    """

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


class WrittenTree(NamedTuple):
    """One change on the way into a snapshot.

    Args:
        path: The path that changed.
        entry: What stands there now; None if nothing does, or a directory that need not be named any more. Taking away
            a directory leaves what is below it, which has changes of its own.
        data: The contents of a file, or the target of a link; empty for all else. Large ones can be read until the
            next change is asked for.
    """

    path: bytes
    entry: TreeEntry | None
    data: Data = b""


class TreeChange(NamedTuple):
    """One path at which two snapshots differ: what stands there in the first, and in the second."""

    before: TreeEntry | None
    after: TreeEntry | None


class Trees(Protocol):
    """A store of snapshots, each under a key. It knows files, and nothing of the workspace that they came from.

    A directory has an entry of its own only where its files do not say it all: if nothing below it is captured, or if
    its permission bits are not 0755. One process at a time writes or collects; any number may read.
    """

    def write(self, key: str, base: str | None, changes: Iterable[WrittenTree]) -> None:
        """Keep a snapshot: that of another key, with changes.

        Args:
            key: The key of the new one, made of `0-9a-f`. If the process is killed, it has no snapshot, or a whole one.
            base: The key of the one to begin with; None begins with nothing.
            changes: The changes: first the removals, then the additions. Each path comes once.

        Raises:
            NotFound: There is no snapshot `base`.
            Unavailable: It cannot be written; the error says why.
        """
        ...

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all that stands in a snapshot.

        Raises:
            NotFound: There is none under this key.
        """
        ...

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that a snapshot names, at little cost.

        Raises:
            NotFound: There is no snapshot under this key.
        """
        ...

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ, at little cost if most is the same.

        Raises:
            NotFound: There is none under one of the keys.
        """
        ...

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot, one after the other; each comes with its contents.

        Raises:
            Corrupt: The contents are gone or are not what was written.
        """
        ...

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots but these, and whatever a killed process left; give how many bytes that freed."""
        ...


def digest(data: bytes) -> str:
    """Return the hash of contents, as git names them.

    Example:
        >>> digest(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return digest_of([data], len(data))


def digest_of(parts: Iterable[bytes], size: int) -> str:
    """Return the hash of contents that are read part by part; of so many bytes, or it is the hash of nothing else."""
    found = sha1(b"blob %d\0" % size, usedforsecurity=False)
    for part in parts:
        found.update(part)
    return found.hexdigest()
