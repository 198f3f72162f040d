"""Rules for the paths left out of snapshots: the workspace's `.gitignore` files, and its user's own patterns."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from agentgit.errors import InvalidInput

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
