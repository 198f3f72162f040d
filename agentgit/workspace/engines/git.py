"""Snapshots in a separate git object database: no index, work tree, filters, hooks or user configuration.

A snapshot is a commit without parents on a private ref. Its tree has `files/`, and a blob `odd`: JSON with the modes
that git does not store, such as 0600 and those of directories. One `git fast-import` process writes a snapshot. Git
never accesses the workspace.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agentgit.errors import Corrupt, NotFound, Unavailable
from agentgit.values import escape_path
from agentgit.workspace.disk.atomic_file import IN_MEMORY, Data, flush, parts, read_contents
from agentgit.workspace.trees import PLAIN_MODES, TreeChange, TreeEntry, TreeWrite, digest_of

REFS = "refs/agentgit/"

SETTINGS = (
    ("core.compression", "1"),  # three times as fast as the default, a few per cent larger
    ("fastimport.unpackLimit", "0"),  # keep each snapshot as one pack file
    ("core.protectNTFS", "false"),  # allow every file name that this system allows
    ("core.protectHFS", "false"),
    ("core.fsync", "pack,pack-metadata,reference"),  # a listed snapshot survives a power failure
    ("core.bigFileThreshold", str(IN_MEMORY)),  # git streams larger files
    ("gc.auto", "0"),
    ("core.hooksPath", os.devnull),  # never run hooks
)

KEPT = 8
"""The number of snapshots whose `odd` modes and tree ids are cached."""

NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The id of the empty tree, which is built into git."""

LINK, DIRECTORY = "120000", "040000"


class GitTrees:
    """A store of snapshots in a private git repository.

    Args:
        folder: The path of the git directory. It is created if it does not exist.

    Raises:
        Unavailable: Git is not installed, or the directory cannot be created.
    """

    def __init__(self, folder: str) -> None:
        found = shutil.which("git")
        if found is None:
            raise Unavailable('git is not installed. Install it, or use Workspace(…, environment="directory").')
        settings = [part for name, value in SETTINGS for part in ("-c", f"{name}={value}")]
        self._git = [found, *settings]
        self._folder = folder
        self._environment = _isolated(folder)
        self._odd: OrderedDict[str, dict[bytes, int]] = OrderedDict()
        self._trees: OrderedDict[str, str] = OrderedDict()
        if not all(os.path.exists(os.path.join(folder, name)) for name in ("HEAD", "config", "objects/pack")):
            with _converting_errors(folder):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self._run("init", "--bare", "--quiet", "--template=", folder)

    def write(self, key: str, base: str | None, changes: Iterable[TreeWrite]) -> None:
        """Write a snapshot; see `Trees.write`."""
        odd = dict(self._odd_of(base)) if base else {}
        tree = self._tree_of(base) if base else NOTHING
        with _converting_errors(self._folder):
            process = subprocess.Popen(  # noqa: S603
                [*self._git, "fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd=self._folder,
            )
        assert process.stdin is not None  # noqa: S101 - a pipe was requested above
        try:
            with suppress(BrokenPipeError):
                _send(process.stdin, key, tree, changes, odd)
            out, err = process.communicate()
        except BaseException:
            process.kill()  # without the `done` command, fast-import does not update the ref
            process.communicate()
            raise
        if process.returncode:
            self._sweep()
            raise Unavailable(f"The snapshot was not written: {_reason(err)}. Free some space, then try again.")
        with _converting_errors(self._folder):
            flush(*(os.path.join(self._folder, name) for name in ("objects/pack", REFS)))
        self._remember(key, out.split()[2].decode() if b" tree " in out else NOTHING, odd)

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all entries of a snapshot; see `Trees.tree`."""
        odd, found = self._odd_of(key), self.directories(key)
        for line in _parts(self._run("ls-tree", "-r", "-z", self._tree_of(key))):
            about, _, path = line.partition(b"\t")
            mode, _, oid = about.decode().split()
            found[path] = _file(path, mode, oid, odd)
        return found

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that have an entry in a snapshot; see `Trees.directories`."""
        return {path: TreeEntry(mode) for path, mode in self._odd_of(key).items() if stat.S_ISDIR(mode)}

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ; see `Trees.differences`."""
        if before == after:
            return {}
        old, new = self._odd_of(before), self._odd_of(after)
        found: dict[bytes, TreeChange] = {}
        raw = _parts(
            self._run("diff-tree", "-r", "-z", "--raw", "--no-renames", self._tree_of(before), self._tree_of(after))
        )
        for about, path in zip(raw[::2], raw[1::2], strict=True):
            modes_and_oids = about.decode().lstrip(":").split()
            found[path] = TreeChange(
                _entry(path, modes_and_oids[0], modes_and_oids[2], old),
                _entry(path, modes_and_oids[1], modes_and_oids[3], new),
            )
        self._differing_modes(before, old, new, found)
        return {path: change for path, change in found.items() if change.before != change.after}

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot; see `Trees.contents`."""
        wanted = list(entries)
        if not wanted:
            return
        with _converting_errors(self._folder), tempfile.TemporaryFile() as oids:
            oids.write("".join(f"{entry.oid}\n" for _, entry in wanted).encode())
            oids.seek(0)
            process = subprocess.Popen(  # noqa: S603
                [*self._git, "cat-file", "--batch", "--buffer"],
                stdin=oids,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                cwd=self._folder,
            )
        assert process.stdout is not None  # noqa: S101 - a pipe was requested above
        try:
            for path, entry in wanted:
                with _converting_errors(self._folder):
                    data = _read(process.stdout, key, path, entry, self._folder)
                yield path, entry, data
        finally:
            process.stdout.close()
            process.kill()
            process.wait()

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots except `keep`; see `Trees.collect`."""
        before = _size(self._folder)
        refs = self._run("for-each-ref", "--format=%(refname)").decode().split()
        gone = [ref for ref in refs if ref.removeprefix(REFS) not in keep]
        self._sweep()
        if gone:
            self._run("update-ref", "--stdin", data="".join(f"delete {ref}\n" for ref in gone).encode())
        self._odd.clear()
        self._trees.clear()
        try:
            self._run("repack", "-a", "-d", "-q", "-l", "--window=0", "--no-write-bitmap-index")
        except Unavailable:  # most likely no space is left for the new pack
            self._sweep()
            if not self._remove_packs():
                raise
        self._run("prune", "--expire=now")
        return max(0, before - _size(self._folder))

    def _remove_packs(self) -> int:
        """Remove the packs that contain no needed object, which needs no free space; return their number."""
        needed = set(self._run("rev-list", "--objects", "--no-object-names", "--all").split())
        folder, removed = os.path.join(self._folder, "objects/pack"), 0
        for name in [name for name in os.listdir(folder) if name.endswith(".idx")]:
            with open(os.path.join(folder, name), "rb") as index:
                held = {line.split()[1] for line in self._run("show-index", data=index.read()).splitlines()}
            if needed.isdisjoint(held):
                removed += 1
                for end in (".idx", ".rev", ".pack"):  # the index first: git ignores a pack without an index
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name.removesuffix(".idx") + end))
        return removed

    def _sweep(self) -> None:
        """Remove temporary files and locks of killed git processes. No other process writes at the same time."""
        for where, left in (
            ("objects/pack", "tmp_*"),
            ("", "fast_import_crash_*"),
            ("", "*.lock"),
            ("refs", "**/*.lock"),
        ):
            for path in Path(self._folder, where).glob(left):
                path.unlink(missing_ok=True)

    def _differing_modes(
        self, key: str, old: dict[bytes, int], new: dict[bytes, int], found: dict[bytes, TreeChange]
    ) -> None:
        """Add the differences that only `odd` shows: directories, and files that differ only in their mode."""
        others = [path for path in old.keys() | new.keys() if old.get(path) != new.get(path)]
        tree: dict[bytes, TreeEntry] | None = None
        for path in others:
            was, now = old.get(path), new.get(path)
            if any(mode is not None and stat.S_ISDIR(mode) for mode in (was, now)):
                known = found.get(path, TreeChange(None, None))
                found[path] = TreeChange(_directory(was) or known.before, _directory(now) or known.after)
            elif path not in found:
                tree = self.tree(key) if tree is None else tree
                same = tree[path]
                executable = stat.S_IFREG | (0o755 if same.mode & 0o100 else 0o644)
                found[path] = TreeChange(same, TreeEntry(now or executable, same.oid))

    def _odd_of(self, key: str) -> dict[bytes, int]:
        if key not in self._odd:
            found = json.loads(self._run("cat-file", "blob", f"{REFS}{key}:odd", missing=key))
            odd = {path.encode("latin-1"): mode for path, mode in found.items()}
            self._remember(key, self._trees.get(key) or self._looked_up(key), odd)
        return self._odd[key]

    def _tree_of(self, key: str) -> str:
        self._odd_of(key)
        return self._trees[key]

    def _looked_up(self, key: str) -> str:
        listed = self._run("ls-tree", f"{REFS}{key}", "files", missing=key).split()
        return listed[2].decode() if listed else NOTHING

    def _remember(self, key: str, tree: str, odd: dict[bytes, int]) -> None:
        self._trees[key], self._odd[key] = tree, odd
        while len(self._trees) > KEPT:
            forgotten, _ = self._trees.popitem(last=False)
            self._odd.pop(forgotten, None)

    def _run(self, *arguments: str, data: bytes = b"", missing: str | None = None) -> bytes:
        with _converting_errors(self._folder):
            done = subprocess.run(  # noqa: S603
                [*self._git, *arguments],
                input=data,
                capture_output=True,
                env=self._environment,
                cwd=self._folder,
                check=False,
            )
        if done.returncode and missing is not None:
            raise NotFound(f"There is no snapshot {missing} in {self._folder}.")
        if done.returncode:
            raise Unavailable(f"git {arguments[0]} in {self._folder} failed: {_reason(done.stderr)}")
        return done.stdout


@contextmanager
def _converting_errors(folder: str) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        where = escape_path(error.filename if error.filename else folder)
        raise Unavailable(f"{where}: {error.strerror}. Grant the permission, or use another storage_dir.") from error


def _isolated(folder: str) -> dict[str, str]:
    """Return environment variables that isolate git from the configuration of the user and the system."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    nothing = os.devnull
    return plain | {
        "GIT_DIR": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": nothing,
        "GIT_CONFIG_GLOBAL": nothing,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",  # never fetch a missing object from a remote that the folder configures
        "GIT_ALLOW_PROTOCOL": "",
        "LC_ALL": "C",
    }


def _send(to: IO[bytes], key: str, tree: str, changes: Iterable[TreeWrite], odd: dict[bytes, int]) -> None:
    """Send a commit to fast-import: base tree, changes and `odd` modes. Then request the id of the new tree."""
    to.write(f"commit {REFS}{key}\ncommitter agentgit <agentgit> 0 +0000\ndata 0\n".encode())
    if tree != NOTHING:
        to.write(f"M 040000 {tree} files\n".encode())
    for path, entry, data in changes:
        was, quoted = odd.pop(path, 0), _quoted(path)
        if entry is None:
            if not stat.S_ISDIR(was):
                to.write(b"D %s\n" % quoted)
            continue
        if entry.is_directory or (not entry.is_link and stat.S_IMODE(entry.mode) not in PLAIN_MODES):
            odd[path] = entry.mode
        if not entry.is_directory:
            to.write(b"M %s inline %s\ndata %d\n" % (_git_mode(entry), quoted, len(data)))
            to.writelines(parts(data))
            to.write(b"\n")
    shown = json.dumps({path.decode("latin-1"): odd[path] for path in sorted(odd)}, separators=(",", ":")).encode()
    to.write(b'M 100644 inline odd\ndata %d\n%s\nls "files"\ndone\n' % (len(shown), shown))
    to.flush()


def _quoted(path: bytes) -> bytes:
    return b'"files/%s"' % path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def _git_mode(entry: TreeEntry) -> bytes:
    return b"120000" if entry.is_link else b"100755" if entry.mode & 0o100 else b"100644"


def _entry(path: bytes, mode: str, oid: str, odd: dict[bytes, int]) -> TreeEntry | None:
    return None if set(mode) == {"0"} else _file(path, mode, oid, odd)


def _file(path: bytes, mode: str, oid: str, odd: dict[bytes, int]) -> TreeEntry:
    if mode == LINK:
        return TreeEntry(stat.S_IFLNK | 0o777, oid)
    return TreeEntry(odd.get(path, stat.S_IFREG | int(mode[-3:], 8)), oid)


def _directory(mode: int | None) -> TreeEntry | None:
    return TreeEntry(mode) if mode is not None and stat.S_ISDIR(mode) else None


def _parts(out: bytes) -> list[bytes]:
    return out.split(b"\0")[:-1]


def _read(out: IO[bytes], key: str, path: bytes, entry: TreeEntry, folder: str) -> Data:
    header = out.readline().split()
    size = int(header[2]) if len(header) == 3 else 0
    data = read_contents(out.read, size, folder)
    if len(header) != 3 or digest_of(parts(data), size) != entry.oid:
        raise Corrupt(
            f"The contents of {escape_path(path)} in snapshot {key} are damaged. Restore from another snapshot.",
            row=f"{key}:{entry.oid}",
        )
    out.read(1)
    return data


def _reason(err: bytes) -> str:
    """Return the reason why git failed: the last `fatal:` line, which other messages may follow, or the last line."""
    lines = err.decode("utf-8", "replace").strip().split("\n")
    fatal = [line for line in lines if line.startswith("fatal: ")]
    return (fatal or lines)[-1] or "git gave no reason"


def _size(folder: str) -> int:
    """Return the disk usage of a directory in bytes."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512 for parent, _, names in os.walk(folder) for name in names
    )
