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
from agentgit.workspace.scan.index import SkippedPath, containing_path
from agentgit.workspace.trees import TreeChange, TreeEntry

GIT = b".git"
"""The name of a repository's directory, or of a submodule's file. It is never captured and never changed."""

GITIGNORE = b".gitignore"

MAX_GITIGNORE_BYTES = 1_000_000
"""The maximum number of bytes that are read of a `.gitignore` file."""


class IgnoreRules:
    """The ignore rules of one workspace. Each `.gitignore` file is read at its first use and cached.

    Example:
        >>> import tempfile
        >>> rules = IgnoreRules(tempfile.mkdtemp().encode(), ["*.log", "build/"])
        >>> rules.ignored(b"deep/a.log"), rules.ignored(b"build", directory=True), rules.ignored(b"build")
        (True, True, False)
    """

    def __init__(self, root: bytes, patterns: Iterable[str] = (), files: Mapping[bytes, bytes] | None = None) -> None:
        self._root, self._contents = root, files
        try:
            self._user_spec = GitIgnoreSpec.from_lines(patterns)
        except GitIgnorePatternError as error:
            raise InvalidInput(f"exclude_patterns: {error} Write them as lines of a .gitignore.") from error
        self._specs: dict[bytes, GitIgnoreSpec | None] = {}
        self._ignored_folders: dict[bytes, bool] = {b"": False}

    def ignored(self, path: bytes, *, directory: bool = False) -> bool:
        """Return whether a path, or a directory that contains it, is left out."""
        if directory:
            if path not in self._ignored_folders:
                self._ignored_folders[path] = self._is_in_ignored_folder(path) or self._is_matched(path, b"/")
            return self._ignored_folders[path]
        return self._is_in_ignored_folder(path) or self._is_matched(path, b"")

    def _is_in_ignored_folder(self, path: bytes) -> bool:
        return self.ignored(path.rpartition(b"/")[0], directory=True)

    def _is_matched(self, path: bytes, suffix: bytes) -> bool:
        """Check the user's patterns, then the files from the nearest up to the root; the first match decides."""
        if path.rpartition(b"/")[2] == GIT:
            return True
        if is_matched := self._user_spec.check_file(os.fsdecode(path + suffix)).include:
            return is_matched
        folder = path
        while folder:
            folder = folder.rpartition(b"/")[0]
            spec = self._folder_spec(folder)
            relative_path = path[len(folder) + 1 :] if folder else path
            if (
                spec is not None
                and (is_ignored := spec.check_file(os.fsdecode(relative_path + suffix)).include) is not None
            ):
                return is_ignored
        return False

    def _folder_spec(self, folder: bytes) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            path = os.path.join(folder, GITIGNORE)
            data = (
                _read_gitignore(os.path.join(self._root, path)) if self._contents is None else self._contents.get(path)
            )
            self._specs[folder] = None if data is None else _parse_gitignore(data)
        return self._specs[folder]


def _read_gitignore(path: bytes) -> bytes | None:
    """Read a `.gitignore` file. Like git, do not follow a symbolic link."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(MAX_GITIGNORE_BYTES)
    except OSError:  # a missing or unreadable file has no rules, as in git
        return None


def _parse_gitignore(data: bytes) -> GitIgnoreSpec:
    """Parse a `.gitignore` file. Like git, ignore invalid lines."""
    text = os.fsdecode(data[:MAX_GITIGNORE_BYTES].removeprefix(b"\xef\xbb\xbf"))
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return GitIgnoreSpec.from_lines(line for line in lines if _is_valid(line))


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except GitIgnorePatternError:
        return False
    return True


class ExcludedPath(NamedTuple):
    """The status of a path that a snapshot leaves out, at the time of the snapshot."""

    why: str
    mode: int
    size: int
    mtime: int

    @property
    def has_status(self) -> bool:
        """True unless the record was imported: an import does not include the status of the path."""
        return self.mode != 0

    def has_same_status(self, other: ExcludedPath) -> bool:
        """Return whether two records have the same status or one status is not known; the reason is ignored."""
        return not (self.has_status and other.has_status) or self[1:] == other[1:]


ExcludedRecord = Mapping[bytes, ExcludedPath]
"""The excluded paths, by path. Paths below an excluded directory are not listed."""


def excluded_paths(skipped: Mapping[bytes, SkippedPath], outside: Container[bytes]) -> dict[bytes, ExcludedPath]:
    """Return the paths that are left out of the workspace."""
    return {
        path: _excluded_path(why, stamp[4], stamp[2], stamp[0])
        for path, (why, stamp) in skipped.items()
        if path not in outside
    }


def read_status(root: bytes, path: bytes) -> ExcludedPath | None:
    """Return the current status of a path; None if it does not exist. No link inside the workspace is followed."""
    separator = path.find(b"/")
    try:
        while separator >= 0:
            if not stat.S_ISDIR(os.lstat(os.path.join(root, path[:separator])).st_mode):
                return None
            separator = path.find(b"/", separator + 1)
        status = os.lstat(os.path.join(root, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _excluded_path("", status.st_mode, status.st_size, status.st_mtime_ns)


def _excluded_path(why: str, mode: int, size: int, mtime: int) -> ExcludedPath:
    return ExcludedPath(why, mode, 0, 0) if stat.S_ISDIR(mode) else ExcludedPath(why, mode, size, mtime)


def encode_record(record: ExcludedRecord) -> tuple[str, bytes]:
    """Return the key of a record, which is a hash of its contents, and the record as bytes."""
    rows = [(path.decode("latin-1"), *record[path]) for path in sorted(record)]
    encoded = json.dumps(rows, separators=(",", ":")).encode()
    return sha256(encoded).hexdigest()[:32], zlib.compress(encoded, 6)


def decode_record(data: bytes) -> dict[bytes, ExcludedPath]:
    """Convert the bytes from `encode_record` back to the record."""
    return {path.encode("latin-1"): ExcludedPath(*values) for path, *values in json.loads(zlib.decompress(data))}


def entries_to_keep(changes: Mapping[bytes, TreeChange], snapshot_excluded: ExcludedRecord) -> dict[bytes, TreeEntry]:
    """Return the entries that a restore must not remove, because the snapshot left them out."""
    removed = {path: before for path, (before, after) in changes.items() if before is not None and after is None}
    return {path: entry for path, entry in removed.items() if containing_path(path, snapshot_excluded) is not None}


def cannot_be_excluded(changes: Mapping[bytes, TreeChange]) -> Callable[[bytes], bool]:
    """Return a predicate for paths at which a snapshot cannot have left out a file.

    These are the parents of its entries, its files, and the paths below its files.
    """
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    parents = {one for path, (_, after) in changes.items() if after is not None for one in parent_folders(path)}
    return lambda path: path in parents or containing_path(path, files) is not None


class Difference(NamedTuple):
    """The differences between two records of excluded paths. Each path has the reason why it is left out."""

    missing: dict[bytes, str]
    changed: dict[bytes, str]
    new: dict[bytes, str]


def compare_excluded(old: ExcludedRecord, new: ExcludedRecord, root: bytes | None = None) -> Difference:
    """Compare two records of excluded paths.

    Without `root`, a path that only the earlier record has counts as missing, even if the later snapshot captured it.
    The records alone cannot tell the two apart.
    """
    difference = Difference({}, {}, {})
    for path, before in old.items():
        after = new.get(path)
        if after is None and root is not None:
            with suppress(PermissionError):  # that directory is left out itself, and listed
                if (after := read_status(root, path)) is None:
                    difference.missing[path] = before.why
        elif after is None and containing_path(path, new) is None:
            difference.missing[path] = before.why
        if after is not None and not before.has_same_status(after):
            difference.changed[path] = before.why
    parents = {one for path in old for one in parent_folders(path)}
    difference.new.update(
        (p, one.why) for p, one in new.items() if containing_path(p, old) is None and p not in parents
    )
    return difference


def parent_folders(path: bytes) -> Iterator[bytes]:
    """Yield the parent directories of a path, the nearest first."""
    while path := path.rpartition(b"/")[0]:
        yield path


Pairs = tuple[tuple[str, str], ...]
"""Paths, each with a reason."""


class ExcludedReport(NamedTuple):
    """The paths that a snapshot left out, as a plan or a report names them."""

    missing: Pairs
    left: Pairs


def report_excluded(
    snapshot_excluded: ExcludedRecord,
    current_excluded: ExcludedRecord,
    root: bytes,
    *,
    target_paths: Collection[bytes],
    is_included: Callable[[bytes], bool],
) -> ExcludedReport:
    """Compare the paths that a snapshot left out with the workspace."""
    difference = compare_excluded(snapshot_excluded, current_excluded, root)
    missing = {
        path: f"left out of the snapshot ({why})" for path, why in difference.missing.items() if is_included(path)
    }
    left = {path: f"changed since; left out of the snapshot ({why})" for path, why in difference.changed.items()}
    left |= {
        path: f"added since; left out ({why})"
        for path, why in difference.new.items()
        if not _is_or_contains(target_paths, path)
    }
    return ExcludedReport(_pairs(missing), _pairs({path: why for path, why in left.items() if is_included(path)}))


def paths_in_the_way(
    current_excluded: Mapping[bytes, ExcludedPath | SkippedPath], changes: Mapping[bytes, TreeChange]
) -> Iterator[bytes]:
    """Yield the paths that are left out now and that a restore must move aside because it writes there."""
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    folders = {path for path, (_, after) in changes.items() if after is not None and after.is_directory}
    folders.update(os.path.dirname(path) for path in files)
    for path in list(folders):
        while path := os.path.dirname(path):
            folders.add(path)
    for path, excluded in current_excluded.items():
        mode = excluded.mode if isinstance(excluded, ExcludedPath) else excluded.stamp[4]
        if containing_path(path, files) is not None or (path in folders and not stat.S_ISDIR(mode)):
            yield path


def is_selected(paths: tuple[bytes, ...] | None, path: bytes) -> bool:
    """Return whether a path is one of `paths`, or below one; None for all paths."""
    return paths is None or any(not one or path == one or path.startswith(one + b"/") for one in paths)


def _is_or_contains(paths: Collection[bytes], path: bytes) -> bool:
    """Return whether a path is one of `paths`, or contains one."""
    return any(one == path or one.startswith(path + b"/") for one in paths)


def _pairs(reasons: Mapping[bytes, str]) -> Pairs:
    return tuple((os.fsdecode(path), reasons[path]) for path in sorted(reasons))
