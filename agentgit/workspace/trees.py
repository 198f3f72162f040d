"""Trees of entries by path, stored as git stores them, but with all permission bits and with empty directories.

Paths are bytes as the system returns them, relative to the workspace, with `/` as separator. Any file name is allowed.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeGuard

from agentgit.errors import Corrupt
from agentgit.workspace.objects import Objects

PLAIN_DIRECTORY = stat.S_IFDIR | 0o755

LINK_MODE = stat.S_IFLNK | 0o777
"""The mode of every link. Git knows it as 120000."""


class TreeEntry(NamedTuple):
    mode: int
    oid: bytes = b""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class TreeChange(NamedTuple):
    """The entries at a path at which two trees differ; None if the path does not exist."""

    before: TreeEntry | None
    after: TreeEntry | None


Entries = dict[bytes, TreeEntry]
"""Entries by path or, of one directory, by name. In the latter, a directory has the id of its tree."""

Changes = dict[bytes, TreeChange]


def is_leaf(entry: TreeEntry | None) -> TypeGuard[TreeEntry]:
    return entry is not None and not entry.is_directory


def is_directory(entry: TreeEntry | None) -> TypeGuard[TreeEntry]:
    return entry is not None and entry.is_directory


def encode_tree(entries: Mapping[bytes, TreeEntry]) -> bytes:
    """Return the entries of one directory as git's tree object."""
    ordered = sorted(entries.items(), key=lambda item: item[0] + b"/" if item[1].is_directory else item[0])
    return b"".join(
        b"%o %s\0%s" % (stat.S_IFLNK if entry.is_link else entry.mode, name, entry.oid) for name, entry in ordered
    )


def decode_tree(data: bytes) -> Entries:
    entries: Entries = {}
    at = 0
    while at < len(data):
        end = data.index(b"\0", at)
        mode, _, name = data[at:end].partition(b" ")
        number = int(mode, 8)
        entries[name] = TreeEntry(LINK_MODE if stat.S_ISLNK(number) else number, data[end + 1 : end + 21])
        at = end + 21
    return entries


class Trees:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def folder(self, oid: bytes) -> Entries:
        return decode_tree(self._objects.read(oid))

    def differences(self, before: bytes | None, after: bytes | None, prefix: bytes = b"") -> Changes:
        """Return the paths at which two trees differ; None is a tree without entries."""
        changes: Changes = {}
        if before == after:
            return changes
        old, new = (self.folder(oid) if oid is not None else {} for oid in (before, after))
        for name in old.keys() | new.keys():
            pair = old.get(name), new.get(name)
            if pair[0] == pair[1]:
                continue
            was_folder, is_folder = map(is_directory, pair)
            change = TreeChange(*(TreeEntry(one.mode) if one and one.is_directory else one for one in pair))
            if change.before != change.after:
                changes[prefix + name] = change
            if was_folder or is_folder:
                old_oid, new_oid = (one.oid if one and one.is_directory else None for one in pair)
                changes.update(self.differences(old_oid, new_oid, prefix + name + b"/"))
        return changes

    def reachable(self, trees: Collection[bytes]) -> set[bytes]:
        found, pending = set(trees), list(trees)
        while pending:
            with suppress(Corrupt):  # what only a damaged tree has cannot be restored any more
                for entry in self.folder(pending.pop()).values():
                    if entry.is_directory and entry.oid not in found:
                        pending.append(entry.oid)
                    found.add(entry.oid)
        return found
