"""The index of a workspace: what the last scan found in each directory, with a stamp of each file, as git has one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from agentgit.workspace.left_out import LeftOut

Stamp = tuple[int, int, int, int]
"""Modification and change times in nanoseconds, size and inode. An unchanged stamp means unchanged content and mode."""

WHOLE_SECOND = 1_000_000_000

RECENT, RECENT_COARSE = 20_000_000, 2_000_000_000
"""The period, in nanoseconds, in which a file can change without a new time. The second is for whole-second times."""


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def reliable_stamp(status: os.stat_result, at: int | None = None) -> Stamp | None:
    """Return the stamp if any change of the file after it was taken is certain to change it, else None."""
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    period = RECENT if newest % WHOLE_SECOND else RECENT_COARSE
    return stamp_of(status) if newest < (time.time_ns() if at is None else at) - period else None


class KnownFile(NamedTuple):
    stamp: Stamp | None
    mode: int
    oid: bytes


@dataclass(slots=True)
class Folder:
    """A captured directory. `rules` is the stamp of its `.gitignore`; `stamp` is None if its names must be listed."""

    mode: int
    stamp: Stamp | None = None
    rules: Stamp | None = None
    tree: bytes = b""
    files: dict[bytes, KnownFile] = field(default_factory=dict)
    folders: list[bytes] = field(default_factory=list)
    left_out: dict[bytes, LeftOut] = field(default_factory=dict)

    def encode(self) -> bytes:
        files = [(name.decode("latin-1"), one.stamp, one.mode, one.oid.hex()) for name, one in self.files.items()]
        left_out = [(name.decode("latin-1"), *one) for name, one in self.left_out.items()]
        folders = [name.decode("latin-1") for name in self.folders]
        return orjson.dumps([self.mode, self.stamp, self.rules, self.tree.hex(), files, folders, left_out])

    @classmethod
    def decode(cls, data: bytes) -> Folder:
        mode, stamp, rules, tree, files, folders, left_out = orjson.loads(data)
        return cls(
            mode,
            _stamp(stamp),
            _stamp(rules),
            bytes.fromhex(tree),
            {
                name.encode("latin-1"): KnownFile(_stamp(one), mode, bytes.fromhex(oid))
                for name, one, mode, oid in files
            },
            [name.encode("latin-1") for name in folders],
            {name.encode("latin-1"): LeftOut(*values) for name, *values in left_out},
        )


def _stamp(values: Any) -> Stamp | None:
    return None if values is None else tuple(values)


@dataclass
class Index:
    """The index of a workspace: its directories by path, which of them are not stored yet, and their tree."""

    tree: bytes | None = None
    settings: str = ""
    generation: str = ""
    folders: dict[bytes, Folder] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)

    def left_out(self) -> dict[bytes, LeftOut]:
        return {join(path, name): one for path, folder in self.folders.items() for name, one in folder.left_out.items()}


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
