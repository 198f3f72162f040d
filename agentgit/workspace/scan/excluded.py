"""The paths that a snapshot leaves out: the rules, the reasons, and the lists in plans and reports.

These paths are stored with the snapshot, so that a restore never deletes them and a report can name them.
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
from agentgit.workspace.scan.index import SkippedPath, within
from agentgit.workspace.trees import TreeChange, TreeEntry

GIT = b".git"
"""The name of a repository's directory, or of a submodule's file. It is never captured and never changed."""

NAME = b".gitignore"

MOST = 1_000_000
"""The maximum number of bytes that are read of a `.gitignore` file."""


class IgnoreRules:
    """The ignore rules of one workspace. Each `.gitignore` file is read at its first use and cached.

    Args:
        root: The workspace.
        patterns: The patterns to leave out, as lines of a `.gitignore` in the root. They override all files.
        files: The contents of the `.gitignore` files by path; None to read them from the workspace.

    Raises:
        InvalidInput: A pattern of `patterns` is invalid.

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
        """Return whether a path, or a directory that contains it, is left out.

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
        """Check the user's patterns, then the files from the nearest up to the root; the first match decides."""
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
    """Read a `.gitignore` file. Like git, do not follow a symbolic link."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(MOST)
    except OSError:  # a missing or unreadable file has no rules, as in git
        return None


def _spec_of(data: bytes) -> GitIgnoreSpec:
    """Parse a `.gitignore` file. Like git, ignore invalid lines."""
    text = os.fsdecode(data[:MOST].removeprefix(b"\xef\xbb\xbf"))
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return GitIgnoreSpec.from_lines(line for line in lines if _is_valid(line))


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except GitIgnorePatternError:
        return False
    return True


class ExcludedPath(NamedTuple):
    """The status of a path that a snapshot leaves out, at the time of the snapshot.

    Args:
        why: The reason, such as `excluded`.
        mode: The mode, as `os.lstat` returns it; 0 if it is not known.
        size: The size in bytes; 0 for a directory, whose contents are not examined.
        mtime: The time of the last modification in nanoseconds; 0 for a directory.
    """

    why: str
    mode: int
    size: int
    mtime: int

    @property
    def has_status(self) -> bool:
        """True unless the record was imported: an import does not include the status of the path."""
        return self.mode != 0

    def is_like(self, other: ExcludedPath) -> bool:
        """Return whether two records have the same status or one status is not known; the reason is ignored."""
        return not (self.has_status and other.has_status) or self[1:] == other[1:]


ExcludedRecord = Mapping[bytes, ExcludedPath]
"""The excluded paths, by path. Paths below an excluded directory are not listed."""


def left_of(skipped: Mapping[bytes, SkippedPath], outside: Container[bytes]) -> dict[bytes, ExcludedPath]:
    """Return the paths that are left out of the workspace.

    Args:
        skipped: The paths that the last scan left out.
        outside: Paths that do not belong to the workspace, such as the storage.
    """
    return {
        path: _looking(why, stamp[4], stamp[2], stamp[0])
        for path, (why, stamp) in skipped.items()
        if path not in outside
    }


def look(root: bytes, path: bytes) -> ExcludedPath | None:
    """Return the current status of a path; None if it does not exist. No link inside the workspace is followed.

    Args:
        root: The workspace.
        path: The path, relative to the workspace.

    Raises:
        PermissionError: A parent directory cannot be searched.
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


def _looking(why: str, mode: int, size: int, mtime: int) -> ExcludedPath:
    return ExcludedPath(why, mode, 0, 0) if stat.S_ISDIR(mode) else ExcludedPath(why, mode, size, mtime)


def packed(left: ExcludedRecord) -> tuple[str, bytes]:
    """Return the key of a record, which is a hash of its contents, and the record as bytes."""
    rows = [(path.decode("latin-1"), *left[path]) for path in sorted(left)]
    plain = json.dumps(rows, separators=(",", ":")).encode()
    return sha256(plain).hexdigest()[:32], zlib.compress(plain, 6)


def unpacked(data: bytes) -> dict[bytes, ExcludedPath]:
    """Convert the bytes from `packed` back to the record."""
    return {path.encode("latin-1"): ExcludedPath(*values) for path, *values in json.loads(zlib.decompress(data))}


def staying(changes: Mapping[bytes, TreeChange], then: ExcludedRecord) -> dict[bytes, TreeEntry]:
    """Return the entries that a restore must not remove, because the snapshot left them out.

    Args:
        changes: The differences between the workspace and the snapshot.
        then: The paths that the snapshot left out.
    """
    gone = {path: before for path, (before, after) in changes.items() if before is not None and after is None}
    return {path: entry for path, entry in gone.items() if within(path, then) is not None}


def cannot_be_excluded(changes: Mapping[bytes, TreeChange]) -> Callable[[bytes], bool]:
    """Return a predicate for paths at which a snapshot cannot have left out a file.

    These are the parents of its entries, its files, and the paths below its files.

    Args:
        changes: The differences between the workspace and the snapshot.
    """
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    parents = {one for path, (_, after) in changes.items() if after is not None for one in above(path)}
    return lambda path: path in parents or within(path, files) is not None


class Difference(NamedTuple):
    """The differences between two records of excluded paths. Each path has the reason why it is left out."""

    missing: dict[bytes, str]
    changed: dict[bytes, str]
    new: dict[bytes, str]


def compare(then: ExcludedRecord, now: ExcludedRecord, root: bytes | None = None) -> Difference:
    """Compare two records of excluded paths.

    Without `root`, a path that only the earlier record has counts as missing, even if the later snapshot captured it.
    The records alone cannot tell the two apart.

    Args:
        then: The earlier record.
        now: The later record.
        root: The workspace, if `now` is its current record; the files themselves are then examined.
    """
    found = Difference({}, {}, {})
    for path, was in then.items():
        later = now.get(path)
        if later is None and root is not None:
            with suppress(PermissionError):  # that directory is left out itself, and listed
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
    """Yield the parent directories of a path, the nearest first."""
    while path := path.rpartition(b"/")[0]:
        yield path


Pairs = tuple[tuple[str, str], ...]
"""Paths, each with a reason."""


class ExcludedReport(NamedTuple):
    """The paths that a snapshot left out, as a plan or a report names them.

    Args:
        missing: Paths that existed when the snapshot was taken, no longer exist, and cannot be restored.
        left: Paths that were changed or added since the snapshot and that the restore does not change.
    """

    missing: Pairs
    left: Pairs


def report_excluded(
    then: ExcludedRecord,
    now: ExcludedRecord,
    root: bytes,
    *,
    has: Collection[bytes],
    among: Callable[[bytes], bool],
) -> ExcludedReport:
    """Compare the paths that a snapshot left out with the workspace.

    Args:
        then: The paths that the snapshot left out.
        now: The paths that are left out now.
        root: The workspace.
        has: The paths at which the snapshot has an entry that differs from the current one.
        among: A predicate for the paths to include.
    """
    found = compare(then, now, root)
    missing = {path: f"left out of the snapshot ({why})" for path, why in found.missing.items() if among(path)}
    left = {path: f"changed since; left out of the snapshot ({why})" for path, why in found.changed.items()}
    left |= {path: f"added since; left out ({why})" for path, why in found.new.items() if not _holds(has, path)}
    return ExcludedReport(_pairs(missing), _pairs({path: why for path, why in left.items() if among(path)}))


def in_the_way(now: Mapping[bytes, ExcludedPath | SkippedPath], changes: Mapping[bytes, TreeChange]) -> Iterator[bytes]:
    """Yield the paths that are left out now and that a restore must move aside because it writes there.

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
        mode = one.mode if isinstance(one, ExcludedPath) else one.stamp[4]
        if within(path, files) is not None or (path in folders and not stat.S_ISDIR(mode)):
            yield path


def is_among(paths: tuple[bytes, ...] | None, path: bytes) -> bool:
    """Return whether a path is one of `paths`, or below one; None for all paths."""
    return paths is None or any(not one or path == one or path.startswith(one + b"/") for one in paths)


def _holds(paths: Collection[bytes], path: bytes) -> bool:
    """Return whether a path is one of `paths`, or contains one."""
    return any(one == path or one.startswith(path + b"/") for one in paths)


def _pairs(found: Mapping[bytes, str]) -> Pairs:
    return tuple((os.fsdecode(path), found[path]) for path in sorted(found))
