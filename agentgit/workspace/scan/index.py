"""Index of the files of a workspace: what the last snapshot holds, and how each file looked then."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agentgit.workspace.trees import TreeEntry

Stamp = tuple[int, int, int, int, int]
"""Times of modification and of change in nanoseconds, size, inode, mode: while they stay, so does the content."""

WHOLE_SECOND = 1_000_000_000

RECENT, RECENT_COARSE = 20_000_000, 2_000_000_000
"""For so long a file may change without a new time, in nanoseconds; the latter where times are whole seconds."""

PLAIN_DIRECTORY = stat.S_IFDIR | 0o755


class SeenFiles(NamedTuple):
    """A captured file, link or directory.

    Args:
        entry: The entry.
        stamp: The stamp of the file; None if it may have changed since without looking different.
    """

    entry: TreeEntry
    stamp: Stamp | None


class Skipped(NamedTuple):
    """A path that no snapshot holds: why, and how it looked."""

    why: str
    stamp: Stamp


@dataclass
class Known:
    """All that is known, by path.

    Args:
        key: The key of the snapshot that holds just this; None before the first.
        settings: The settings of what to leave out when this was scanned.
        files: Regular files and links.
        folders: Every directory that is not left out, the workspace itself as `b""`.
        skipped: The paths that are left out.
        dirty: Paths of which something else is known now than is stored.
        generation: A value that changes whenever something else is stored.
    """

    key: str | None = None
    settings: str = ""
    files: dict[bytes, SeenFiles] = field(default_factory=dict)
    folders: dict[bytes, SeenFiles] = field(default_factory=dict)
    skipped: dict[bytes, Skipped] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)
    generation: str = ""

    def copy(self) -> Known:
        """Return one that may be changed by itself."""
        return replace(
            self,
            files=dict(self.files),
            folders=dict(self.folders),
            skipped=dict(self.skipped),
            dirty=set(self.dirty),
        )

    def directories(self) -> dict[bytes, TreeEntry]:
        """Return the directories that a snapshot must name: those with nothing captured below, or with odd modes."""
        parents = {path.rpartition(b"/")[0] for path in self.files}
        parents |= {path.rpartition(b"/")[0] for path in self.folders}
        return {
            path: seen.entry
            for path, seen in self.folders.items()
            if path and (seen.entry.mode != PLAIN_DIRECTORY or path not in parents)
        }


def stamp_of(found: os.stat_result) -> Stamp:
    """Return how a file looks."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


def settled(stamp: Stamp, now: int | None = None) -> Stamp | None:
    """Return the stamp if a later change is sure to show in it, else None.

    Args:
        stamp: The stamp of the file.
        now: The time of that, in nanoseconds; None is now.
    """
    newest = max(stamp[:2])
    recent = RECENT if newest % WHOLE_SECOND else RECENT_COARSE
    return stamp if newest < (time.time_ns() if now is None else now) - recent else None


def mode_of(stamp: Stamp) -> int:
    """Return what a snapshot keeps of a mode: a link has none of its own."""
    return stat.S_IFLNK | 0o777 if stat.S_ISLNK(stamp[4]) else stamp[4]


def within(path: bytes, paths: Container[bytes]) -> bytes | None:
    """Return the path among some that this one is, or is below; None if there is none."""
    while path:
        if path in paths:
            return path
        path = path.rpartition(b"/")[0]
    return None
