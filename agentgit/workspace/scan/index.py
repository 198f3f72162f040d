"""The index of a workspace: the entries of the last snapshot, and a stamp of each file, like the index of git."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agentgit.workspace.trees import TreeEntry

Stamp = tuple[int, int, int, int, int]
"""Modification and change times in nanoseconds, size, inode and mode. An unchanged stamp means unchanged content."""

WHOLE_SECOND = 1_000_000_000

RECENT, RECENT_COARSE = 20_000_000, 2_000_000_000
"""The period, in nanoseconds, in which a file can change without a new time. The second is for whole-second times."""

PLAIN_DIRECTORY = stat.S_IFDIR | 0o755


class IndexEntry(NamedTuple):
    """A captured file, link or directory."""

    entry: TreeEntry
    stamp: Stamp | None


class SkippedPath(NamedTuple):
    """A path that is left out: the reason, and its stamp."""

    why: str
    stamp: Stamp


@dataclass
class WorkspaceIndex:
    """The index of a workspace, by path."""

    key: str | None = None
    settings: str = ""
    files: dict[bytes, IndexEntry] = field(default_factory=dict)
    folders: dict[bytes, IndexEntry] = field(default_factory=dict)
    skipped: dict[bytes, SkippedPath] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)
    generation: str = ""

    def copy(self) -> WorkspaceIndex:
        """Return a copy that can be changed independently."""
        return replace(
            self,
            files=dict(self.files),
            folders=dict(self.folders),
            skipped=dict(self.skipped),
            dirty=set(self.dirty),
        )

    def directories(self) -> dict[bytes, TreeEntry]:
        """Return the directories that need an entry: those with nothing captured below, or a mode other than 0755."""
        parents = {path.rpartition(b"/")[0] for path in self.files}
        parents |= {path.rpartition(b"/")[0] for path in self.folders}
        return {
            path: index_entry.entry
            for path, index_entry in self.folders.items()
            if path and (index_entry.entry.mode != PLAIN_DIRECTORY or path not in parents)
        }


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode


def reliable_stamp(stamp: Stamp, stamp_time: int | None = None) -> Stamp | None:
    """Return the stamp if any later change of the file is certain to change it, else None."""
    newest = max(stamp[:2])
    period = RECENT if newest % WHOLE_SECOND else RECENT_COARSE
    return stamp if newest < (time.time_ns() if stamp_time is None else stamp_time) - period else None


def mode_of(stamp: Stamp) -> int:
    """Return the mode that a snapshot stores. All links have the same mode."""
    return stat.S_IFLNK | 0o777 if stat.S_ISLNK(stamp[4]) else stamp[4]


def containing_path(path: bytes, paths: Container[bytes]) -> bytes | None:
    """Return the one of `paths` that equals a path or contains it, the nearest first; None if there is none."""
    while path:
        if path in paths:
            return path
        path = path.rpartition(b"/")[0]
    return None
