"""The paths that a snapshot leaves out, by which rules: stored with it, kept by a restore, and named by reports."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import ormsgpack
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from agentgit.errors import InvalidInput
from agentgit.values import count, escape_path
from agentgit.workspace.trees import Changes, is_directory, is_leaf
from agentgit.workspace.values import MAX_NAMED, some

EXCLUDED, UNREADABLE = "excluded", "cannot be read"
"""Reasons: by a rule, and by a lack of permission."""

REFS = {"refs/heads/": "", "refs/tags/": "tag ", "refs/stash": "stash"}
"""The refs that are recorded, by the start of their names, which is replaced in a report."""

STASHES = "logs/refs/stash"
"""The list of all stashes; the ref is the newest one."""

STAMPED = ("config", "hooks", "info", STASHES, "reftable", "refs/notes", "refs/remotes", "refs/replace")
"""What is recorded by its time of change only."""

MAX_BYTES = 1 << 24
"""The maximum number of bytes that are read of a `.gitignore`, and of a file in a `.git`."""


class LeftOut(NamedTuple):
    """The reason why a snapshot leaves out a path, and its status at that time; `state` is that of a `.git`."""

    why: str
    mode: int = 0
    size: int = 0
    mtime: int = 0
    state: str = ""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def has_same_status(self, other: LeftOut) -> bool:
        """Return whether two records have the same status, or an import, which has none, made one of them."""
        is_same = self.mode == other.mode and (self.is_folder or self[2:4] == other[2:4])
        return is_same or not (self.mode and other.mode)


LeftOutPaths = Mapping[bytes, LeftOut]
"""What is left out, by path. Paths below a directory that is left out are not listed."""


Chosen = tuple[bytes, ...] | None
"""The paths of files and directories to which something is limited; None for everything."""


def left_out_as(why: str, status: os.stat_result, state: str = "") -> LeftOut:
    is_folder = stat.S_ISDIR(status.st_mode)
    mtime = 0 if is_folder and state else status.st_mtime_ns  # git's commands that only read change it, too
    return LeftOut(why, status.st_mode, 0 if is_folder else status.st_size, mtime, state)


def encode_left_out(record: LeftOutPaths) -> bytes:
    return zlib.compress(ormsgpack.packb([(path, *record[path]) for path in sorted(record)]), 6)


def decode_left_out(data: bytes) -> dict[bytes, LeftOut]:
    return {path: LeftOut(*values) for path, *values in ormsgpack.unpackb(zlib.decompress(data))}


def containing_path(path: bytes, paths: Container[bytes]) -> bytes | None:
    """Return the one of `paths` that equals a path or contains it, the nearest first; None if there is none."""
    return next((one for one in (path, *parent_folders(path)) if one in paths), None)


def parent_folders(path: bytes) -> Iterator[bytes]:
    """Yield the parent directories of a path, the nearest first."""
    while path := path.rpartition(b"/")[0]:
        yield path


def is_selected(paths: Chosen, path: bytes) -> bool:
    """Return whether a path is one of `paths`, or below one; None for all paths."""
    return paths is None or any(not one or path == one or path.startswith(one + b"/") for one in paths)


def compare_left_out(old: LeftOutPaths, new: LeftOutPaths, root: bytes | None = None) -> tuple[dict[bytes, str], ...]:
    """Return the missing, changed and new paths, with reasons; `root` is the workspace if `new` is its files."""
    missing, changed = dict[bytes, str](), dict[bytes, str]()
    for path, before in old.items():
        after = new.get(path)
        if after is None and root is not None:
            with suppress(PermissionError):  # that directory is left out itself, and listed
                if (after := _read_status(root, path)) is None:
                    missing[path] = before.why
        elif after is None and containing_path(path, new) is None:
            missing[path] = before.why
        if after is not None and not before.has_same_status(after):
            changed[path] = before.why
    parents = {one for path in old for one in parent_folders(path)}
    added = {path: one.why for path, one in new.items() if containing_path(path, old) is None and path not in parents}
    return missing, changed, added


def _read_status(root: bytes, path: bytes) -> LeftOut | None:
    """Return the current status of a path; None if it does not exist. No link inside the workspace is followed."""
    try:
        for parent in reversed([*parent_folders(path)]):
            if not stat.S_ISDIR(os.lstat(os.path.join(root, parent)).st_mode):
                return None
        return left_out_as("", os.lstat(os.path.join(root, path)))
    except (FileNotFoundError, NotADirectoryError):
        return None


def report_left_out(
    snapshot: LeftOutPaths, now: LeftOutPaths, root: bytes, changes: Changes, paths: Chosen
) -> tuple[dict[bytes, str], dict[bytes, str], tuple[str, ...]]:
    """Return which paths are missing and which stay, of those left out, from all that a restore changes."""
    gone, changed, added = compare_left_out(snapshot, now, root)
    missing = {path: f"left out of the snapshot ({why})" for path, why in gone.items()}
    left = {path: f"changed since; left out of the snapshot ({why})" for path, why in changed.items()}
    left |= {path: f"added since; left out ({why})" for path, why in added.items() if path not in changes}
    for path in set(paths or ()).difference(changes):
        folder = next((one for one in parent_folders(path) if one in snapshot or one in now), None)
        if folder is not None:
            left[path] = f"in {os.fsdecode(folder)}, which is left out"
    missing, left = ({path: why[path] for path in why if is_selected(paths, path)} for why in (missing, left))
    return missing, left, _not_looked_into(snapshot, now)


def _not_looked_into(snapshot: LeftOutPaths, now: LeftOutPaths) -> tuple[str, ...]:
    """Return sentences on excluded directories: what moved in a `.git`, which others changed, and their number."""
    folders = {path: one for path, one in now.items() if one.why == EXCLUDED and (one.is_folder or one.state)}
    sentences = list[str]()
    for path, one in sorted(folders.items()):
        before, moves = snapshot.get(path, one), list[str]()
        if before.state and one.state:
            moves = list(git_moves(before.state, one.state))
        elif before.mtime and before.mtime != one.mtime:
            moves = ["changed"]
        if moves:
            sentences.append(f"{escape_path(path)}: {some(moves)} (left as it is)")
    if len(sentences) > MAX_NAMED:
        sentences[MAX_NAMED:] = [f"{len(sentences) - MAX_NAMED} more changed"]
    if inside := [path for path in folders if not path.startswith(b"../")]:
        sentences.append(f"{count(len(inside), 'excluded directory')} not looked into")
    return tuple(sentences)


def paths_in_the_way(now: LeftOutPaths, changes: Changes) -> Iterator[bytes]:
    """Yield the paths that are left out now and that a restore must move aside because it writes there."""
    files = {path for path, change in changes.items() if is_leaf(change.after)}
    folders = {path for path, change in changes.items() if is_directory(change.after)}
    folders.update(parent for path in (*files, *folders) for parent in parent_folders(path))
    for path, one in now.items():
        if containing_path(path, files) is not None or (path in folders and not stat.S_ISDIR(one.mode)):
            yield path


def paths_displacing(in_the_way: Collection[bytes], changes: Changes) -> set[bytes]:
    """Return the paths that cannot be restored unless these are moved aside."""
    above = {parent for path in in_the_way for parent in parent_folders(path)}
    return {
        path
        for path, change in changes.items()
        if containing_path(path, in_the_way) is not None or (path in above and is_leaf(change.after))
    }


def git_state(path: bytes) -> str:
    """Return the state of a `.git`, or of the directory that it names, as JSON. What cannot be read is not in it."""
    link = _read_file(path).rstrip(b"\n").removeprefix(b"gitdir: ")
    own = path if os.path.isdir(path) else os.path.join(os.path.dirname(path), link)
    folder = os.path.join(own, _read_file(os.path.join(own, b"commondir")).rstrip(b"\n"))
    lines = (line.partition(" ") for line in _read(folder, b"packed-refs").splitlines())
    state = {ref: oid for oid, _space, ref in lines if ref.startswith(tuple(REFS))}
    for parent, _folders, files in os.walk(os.path.join(folder, b"refs")):
        for ref in (os.fsdecode(os.path.relpath(os.path.join(parent, file), folder)) for file in files):
            if ref.startswith(tuple(REFS)) and not ref.endswith(".lock"):
                state[ref] = _read(folder, os.fsencode(ref)).strip()
    state["HEAD"] = _read(own, b"HEAD").strip()
    for name in STAMPED:
        with suppress(OSError):
            state[name] = str(os.lstat(os.path.join(folder, os.fsencode(name))).st_mtime_ns)
    return json.dumps(state, sort_keys=True)


def enclosing_repository(root: bytes) -> bytes | None:
    """Return the relative path of the `.git` of the repository that a workspace is a subdirectory of."""
    up, folder = b"", root
    while not os.path.lexists(os.path.join(folder, GIT)):
        if folder == os.path.dirname(folder):
            return None
        up, folder = b"../" + up, os.path.dirname(folder)
    return up + GIT if up else None


def git_moves(before: str, after: str) -> Iterator[str]:
    old, new = json.loads(before), json.loads(after)
    for key in sorted(old.keys() | new.keys()):
        was, now = (_short(state.get(key, "")) for state in (old, new))
        is_told = key == STASHES and old.get("refs/stash") != new.get("refs/stash")
        if old.get(key) != new.get(key) and not is_told:
            how = f"moved from {was} to {now}" if was and now else "created" if now else "deleted"
            yield f"{_short(key)} {'changed' if key in STAMPED else how}"


def _short(text: str) -> str:
    """Return the short name of a ref, or the short form of an object id."""
    text = text.removeprefix("ref: ")
    start = next((start for start in REFS if text.startswith(start)), "")
    is_commit = len(text) >= 40 and not text.strip("0123456789abcdef")
    return text[:7] if is_commit else escape_path(REFS.get(start, "") + text.removeprefix(start))


def _read(*path: bytes) -> str:
    return os.fsdecode(_read_file(os.path.join(*path)))


def _read_file(path: bytes, flags: int = 0) -> bytes:
    """Read a file; what is missing, cannot be read or is no file has no bytes."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb") as file:
            return file.read(MAX_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


GIT, GITIGNORE = b".git", b".gitignore"
"""The name of a repository's directory or a submodule's file, which is never captured nor changed; and of its rules."""


class IgnoreRules:
    """The ignore rules of one workspace. Each `.gitignore` file is read at its first use."""

    def __init__(self, root: bytes, patterns: Iterable[str] = ()) -> None:
        self._root = root
        try:
            self._user_spec = GitIgnoreSpec.from_lines(patterns)
        except GitIgnorePatternError as error:
            raise InvalidInput(f"exclude_patterns: {error} Write them as lines of a .gitignore.") from error
        self._specs: dict[bytes, GitIgnoreSpec | None] = {}

    def ignored(self, path: bytes, *, directory: bool = False) -> bool:
        """Check the user's patterns, then the files from the nearest up to the root; the first match decides."""
        suffix = b"/" if directory else b""
        if path.rpartition(b"/")[2] == GIT:
            return True
        if is_matched := self._user_spec.check_file(os.fsdecode(path + suffix)).include:
            return is_matched
        for folder in (*parent_folders(path), b""):
            if (spec := self._folder_spec(folder)) is not None:
                relative_path = path[len(folder) + 1 :] if folder else path
                if (is_ignored := spec.check_file(os.fsdecode(relative_path + suffix)).include) is not None:
                    return is_ignored
        return False

    def _folder_spec(self, folder: bytes) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            data = _read_file(os.path.join(self._root, folder, GITIGNORE), os.O_NOFOLLOW)  # as git does
            self._specs[folder] = _parse_gitignore(data) if data else None
        return self._specs[folder]


def _parse_gitignore(data: bytes) -> GitIgnoreSpec:
    """Parse a `.gitignore` file. Like git, ignore invalid lines."""
    patterns = list[GitIgnoreSpecPattern]()
    for line in os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).split("\n"):
        with suppress(GitIgnorePatternError):
            patterns.append(GitIgnoreSpecPattern(line.removesuffix("\r")))
    return GitIgnoreSpec(patterns)
