"""The paths that a snapshot leaves out: by which rules, why, and how plans and reports name them.

The paths that a snapshot leaves out, and why. They are stored with the snapshot, so that a restore never deletes them
and a report can name them.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from agentgit.errors import InvalidInput
from agentgit.workspace.scan.index import Skipped, within
from agentgit.workspace.trees import TreeChange, TreeEntry

GIT = b".git"
"""A repository's own folder, or the file of a submodule: it is never captured and never touched."""

NAME = b".gitignore"

MOST = 1_000_000
"""The greatest size of a `.gitignore` file that is read, in bytes."""


class IgnoreRules:
    """The rules of one workspace, as they stand when they are first asked.

    Args:
        root: The workspace.
        patterns: The patterns to leave out, as lines of a `.gitignore` in the root. They win over any file.
        files: The contents of the `.gitignore` files by path, where they are not those that stand there.

    Raises:
        InvalidInput: A pattern of `patterns` cannot be understood.

    Example:
        >>> import tempfile
        >>> rules = IgnoreRules(tempfile.mkdtemp().encode(), ["*.log", "build/"])
        >>> rules.ignored(b"deep/a.log"), rules.ignored(b"build", directory=True), rules.ignored(b"build")
        (True, True, False)
    """

    def __init__(self, root: bytes, patterns: Iterable[str] = (), files: Mapping[bytes, bytes] | None = None) -> None:
        self._root, self._given = root, files
        try:
            self._own = GitIgnoreSpec.from_lines(patterns)
        except GitIgnorePatternError as error:
            raise InvalidInput(f"exclude_patterns: {error} Write them as lines of a .gitignore.") from error
        self._files: dict[bytes, GitIgnoreSpec | None] = {}
        self._folders: dict[bytes, bool] = {b"": False}

    def ignored(self, path: bytes, *, directory: bool = False) -> bool:
        """Return whether a path is left out, by itself or with a directory that it is in.

        Args:
            path: The path, relative to the workspace.
            directory: True if the path is a directory.
        """
        if directory:
            if path not in self._folders:
                self._folders[path] = self._inside(path) or self._matches(path, b"/")
            return self._folders[path]
        return self._inside(path) or self._matches(path, b"")

    def _inside(self, path: bytes) -> bool:
        return self.ignored(path.rpartition(b"/")[0], directory=True)

    def _matches(self, path: bytes, end: bytes) -> bool:
        """Ask the user's own patterns, then the files from the nearest up to the root; the first to know decides."""
        if path.rpartition(b"/")[2] == GIT:
            return True
        if own := self._own.check_file(os.fsdecode(path + end)).include:
            return own
        folder = path
        while folder:
            folder = folder.rpartition(b"/")[0]
            spec = self._spec(folder)
            below = path[len(folder) + 1 :] if folder else path
            if spec is not None and (found := spec.check_file(os.fsdecode(below + end)).include) is not None:
                return found
        return False

    def _spec(self, folder: bytes) -> GitIgnoreSpec | None:
        if folder not in self._files:
            path = os.path.join(folder, NAME)
            data = _read(os.path.join(self._root, path)) if self._given is None else self._given.get(path)
            self._files[folder] = None if data is None else _spec_of(data)
        return self._files[folder]


def _read(path: bytes) -> bytes | None:
    """Read one file; as git does, follow no link."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(MOST)
    except OSError:  # not there, or not to be read: then it says nothing, as with git
        return None


def _spec_of(data: bytes) -> GitIgnoreSpec:
    """Understand one file; as git does, leave out the lines that mean nothing."""
    text = os.fsdecode(data[:MOST].removeprefix(b"\xef\xbb\xbf"))
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return GitIgnoreSpec.from_lines(line for line in lines if _meant(line))


def _meant(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except GitIgnorePatternError:
        return False
    return True


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
    left |= {path: f"added since; left out ({why})" for path, why in found.new.items() if not _holds(has, path)}
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
