"""The rules by which a snapshot leaves out paths: `exclude_patterns`, `.gitignore` files, and `.git` itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from agentgit.errors import InvalidInput

GIT, GITIGNORE = b".git", b".gitignore"
"""The name of a repository's directory or a submodule's file, which is never captured nor changed; and of its rules."""

MAX_GITIGNORE_BYTES = 1_000_000
"""The maximum number of bytes that are read of a `.gitignore` file."""


class IgnoreRules:
    """The ignore rules of one workspace. Each `.gitignore` file is read at its first use."""

    def __init__(self, root: bytes, patterns: Iterable[str] = ()) -> None:
        self._root = root
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
            if (spec := self._folder_spec(folder)) is not None:
                relative_path = path[len(folder) + 1 :] if folder else path
                if (is_ignored := spec.check_file(os.fsdecode(relative_path + suffix)).include) is not None:
                    return is_ignored
        return False

    def _folder_spec(self, folder: bytes) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            data = _read_gitignore(os.path.join(self._root, folder, GITIGNORE))
            self._specs[folder] = None if data is None else _parse_gitignore(data)
        return self._specs[folder]


def _read_gitignore(path: bytes) -> bytes | None:
    """Read a `.gitignore` file. Like git, do not follow a symbolic link."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MAX_GITIGNORE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:  # a missing or unreadable file has no rules, as in git
        return None


def _parse_gitignore(data: bytes) -> GitIgnoreSpec:
    """Parse a `.gitignore` file. Like git, ignore invalid lines."""
    text = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf"))
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return GitIgnoreSpec.from_lines(line for line in lines if _is_valid(line))


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except GitIgnorePatternError:
        return False
    return True
