"""The paths that a snapshot leaves out, why, and how plans and reports name them."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from agentgit.workspace.scan.index import Skipped, within
from agentgit.workspace.trees import TreeChange, TreeEntry


class ExcludedPaths(NamedTuple):
    """Something that a snapshot does not hold, as it stood when the snapshot was taken.

    Args:
        why: The reason, such as `excluded`.
        mode: The mode, as `os.lstat` returns it; 0 if it is not known.
        size: The size in bytes; 0 for a directory, which is not looked into.
        mtime: The time of its last modification in nanoseconds; 0 for a directory.
    """

    why: str
    mode: int
    size: int
    mtime: int

    @property
    def stood_here(self) -> bool:
        """True unless an import brought the record: then nobody here knows how it looked."""
        return self.mode != 0

    def is_like(self, other: ExcludedPaths) -> bool:
        """Return whether it still looks the same, as far as that is known; the reason does not matter."""
        return not (self.stood_here and other.stood_here) or self[1:] == other[1:]


Left = Mapping[bytes, ExcludedPaths]
"""The excluded paths, by path. Of an excluded directory there is only its own path."""


def left_of(skipped: Mapping[bytes, Skipped], outside: Container[bytes]) -> dict[bytes, ExcludedPaths]:
    """Return what is left out of the workspace.

    Args:
        skipped: The paths that the last scan left out.
        outside: Paths that are none of the workspace's own, such as the storage.
    """
    return {
        path: _looking(why, stamp[4], stamp[2], stamp[0])
        for path, (why, stamp) in skipped.items()
        if path not in outside
    }


def look(root: bytes, path: bytes) -> ExcludedPaths | None:
    """Return how something looks now; None if nothing is there. No link is followed inside the workspace.

    Args:
        root: The workspace.
        path: The path, relative to it.

    Raises:
        PermissionError: A directory on the way cannot be searched.
    """
    end = path.find(b"/")
    try:
        while end >= 0:
            if not stat.S_ISDIR(os.lstat(os.path.join(root, path[:end])).st_mode):
                return None
            end = path.find(b"/", end + 1)
        found = os.lstat(os.path.join(root, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _looking("", found.st_mode, found.st_size, found.st_mtime_ns)


def _looking(why: str, mode: int, size: int, mtime: int) -> ExcludedPaths:
    return ExcludedPaths(why, mode, 0, 0) if stat.S_ISDIR(mode) else ExcludedPaths(why, mode, size, mtime)


def packed(left: Left) -> tuple[str, bytes]:
    """Return a name by which the same record is found again, and the record as bytes."""
    rows = [(path.decode("latin-1"), *left[path]) for path in sorted(left)]
    plain = json.dumps(rows, separators=(",", ":")).encode()
    return sha256(plain).hexdigest()[:32], zlib.compress(plain, 6)


def unpacked(data: bytes) -> dict[bytes, ExcludedPaths]:
    """Read what `packed` gave."""
    return {path.encode("latin-1"): ExcludedPaths(*values) for path, *values in json.loads(zlib.decompress(data))}


def staying(changes: Mapping[bytes, TreeChange], then: Left) -> dict[bytes, TreeEntry]:
    """Return what a restore must not remove, because the snapshot left it out.

    Args:
        changes: The differences between what stands now and the snapshot.
        then: The paths that the snapshot left out.
    """
    gone = {path: before for path, (before, after) in changes.items() if before is not None and after is None}
    return {path: entry for path, entry in gone.items() if within(path, then) is not None}


def no_room(changes: Mapping[bytes, TreeChange]) -> Callable[[bytes], bool]:
    """Return a function that tells where a snapshot cannot have left out a file: above and below what it has.

    Args:
        changes: The entries that a restore puts.
    """
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    parents = {one for path, (_, after) in changes.items() if after is not None for one in above(path)}
    return lambda path: path in parents or within(path, files) is not None


class Difference(NamedTuple):
    """The differences between two records of what is left out: paths with the reason for which they are left out."""

    missing: dict[bytes, str]
    changed: dict[bytes, str]
    new: dict[bytes, str]


def compare(then: Left, now: Left, root: bytes | None = None) -> Difference:
    """Compare what was left out with what is left out later.

    What was left out once and is part of the later snapshot is in none of the three.

    Args:
        then: The earlier record.
        now: The later record.
        root: The workspace, if the later one is that of now: then the files themselves are looked at.
    """
    found = Difference({}, {}, {})
    for path, was in then.items():
        later = now.get(path)
        if later is None and root is not None:
            with suppress(PermissionError):  # then the directory that cannot be searched is left out, and named
                if (later := look(root, path)) is None:
                    found.missing[path] = was.why
        elif later is None and within(path, now) is None:
            found.missing[path] = was.why
        if later is not None and not was.is_like(later):
            found.changed[path] = was.why
    parents = {one for path in then for one in above(path)}
    found.new.update((p, one.why) for p, one in now.items() if within(p, then) is None and p not in parents)
    return found


def above(path: bytes) -> Iterator[bytes]:
    """Iterate over the directories that a path is in, the nearest first."""
    while path := path.rpartition(b"/")[0]:
        yield path


Pairs = tuple[tuple[str, str], ...]
"""Paths, each with the reason."""


class Named(NamedTuple):
    """The paths that a snapshot left out, as a plan or a report names them.

    Args:
        missing: Paths that existed when the snapshot was taken, and that cannot be restored.
        left: Paths that stay as they are, although they changed or came since.
    """

    missing: Pairs
    left: Pairs


def of_left_out(
    then: Left,
    now: Left,
    root: bytes,
    *,
    has: Collection[bytes],
    among: Callable[[bytes], bool],
) -> Named:
    """Compare what a snapshot left out with what stands in the workspace.

    Args:
        then: The paths that the snapshot left out.
        now: The paths that are left out now.
        root: The workspace.
        has: The paths at which the snapshot has something else than what stands now.
        among: The test for paths that are asked about.
    """
    found = compare(then, now, root)
    missing = {path: f"left out of the snapshot ({why})" for path, why in found.missing.items() if among(path)}
    left = {path: f"changed since; left out of the snapshot ({why})" for path, why in found.changed.items()}
    left |= {path: f"came since; left out ({why})" for path, why in found.new.items() if not _holds(has, path)}
    return Named(_pairs(missing), _pairs({path: why for path, why in left.items() if among(path)}))


def in_the_way(now: Mapping[bytes, ExcludedPaths | Skipped], changes: Mapping[bytes, TreeChange]) -> Iterator[bytes]:
    """Iterate over what is left out now and stands where a restore puts something else: it is moved aside.

    Args:
        now: The paths that are left out now.
        changes: The changes that a restore makes.
    """
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    folders = {path for path, (_, after) in changes.items() if after is not None and after.is_directory}
    folders.update(os.path.dirname(path) for path in files)
    for path in list(folders):
        while path := os.path.dirname(path):
            folders.add(path)
    for path, one in now.items():
        mode = one.mode if isinstance(one, ExcludedPaths) else one.stamp[4]
        if within(path, files) is not None or (path in folders and not stat.S_ISDIR(mode)):
            yield path


def is_among(paths: tuple[bytes, ...] | None, path: bytes) -> bool:
    """Return whether a path is one of some, or below one; None is all."""
    return paths is None or any(not one or path == one or path.startswith(one + b"/") for one in paths)


def _holds(paths: Collection[bytes], path: bytes) -> bool:
    """Return whether a path is among some, or one of them is below it."""
    return any(one == path or one.startswith(path + b"/") for one in paths)


def _pairs(found: Mapping[bytes, str]) -> Pairs:
    return tuple((os.fsdecode(path), found[path]) for path in sorted(found))
