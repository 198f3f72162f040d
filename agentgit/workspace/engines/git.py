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
from agentgit.workspace.disk.atomic_file import IN_MEMORY, Data, flush, iter_chunks, read_contents
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

CACHE_SIZE = 8
"""The number of snapshots whose `odd` modes and tree ids are cached."""

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The id of the empty tree, which is built into git."""

LINK, DIRECTORY = "120000", "040000"


class GitTrees:
    """A store of snapshots in a private git repository."""

    def __init__(self, folder: str) -> None:
        git_path = shutil.which("git")
        if git_path is None:
            raise Unavailable("git is not installed. Install it, or use the environment directory.")
        settings = [part for name, value in SETTINGS for part in ("-c", f"{name}={value}")]
        self._git_command = [git_path, *settings]
        self._folder = folder
        self._environment = _isolated_environment(folder)
        self._extra_modes: OrderedDict[str, dict[bytes, int]] = OrderedDict()
        self._tree_ids: OrderedDict[str, str] = OrderedDict()
        if not all(os.path.exists(os.path.join(folder, name)) for name in ("HEAD", "config", "objects/pack")):
            with _converting_errors(folder):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self._run("init", "--bare", "--quiet", "--template=", folder)

    def write(self, key: str, base: str | None, changes: Iterable[TreeWrite]) -> None:
        """Write a snapshot; see `Trees.write`."""
        extra_modes = dict(self._load_extra_modes(base)) if base else {}
        tree_id = self._load_tree_id(base) if base else EMPTY_TREE
        with _converting_errors(self._folder):
            process = subprocess.Popen(  # noqa: S603
                [*self._git_command, "fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd=self._folder,
            )
        assert process.stdin is not None  # noqa: S101 - a pipe was requested above
        try:
            with suppress(BrokenPipeError):
                _send_commit(process.stdin, key, tree_id, changes, extra_modes)
            out, err = process.communicate()
        except BaseException:
            process.kill()  # without the `done` command, fast-import does not update the ref
            process.communicate()
            raise
        if process.returncode:
            self._remove_leftovers()
            raise Unavailable(f"The snapshot was not written: {_failure_reason(err)}. Free some space, then try again.")
        with _converting_errors(self._folder):
            flush(*(os.path.join(self._folder, name) for name in ("objects/pack", REFS)))
        self._cache_snapshot(key, out.split()[2].decode() if b" tree " in out else EMPTY_TREE, extra_modes)

    def tree(self, key: str) -> dict[bytes, TreeEntry]:
        """Return all entries of a snapshot; see `Trees.tree`."""
        extra_modes, entries = self._load_extra_modes(key), self.directories(key)
        for line in _split_records(self._run("ls-tree", "-r", "-z", self._load_tree_id(key))):
            header, _, path = line.partition(b"\t")
            mode, _, oid = header.decode().split()
            entries[path] = _file_entry(path, mode, oid, extra_modes)
        return entries

    def directories(self, key: str) -> dict[bytes, TreeEntry]:
        """Return the directories that have an entry in a snapshot; see `Trees.directories`."""
        return {path: TreeEntry(mode) for path, mode in self._load_extra_modes(key).items() if stat.S_ISDIR(mode)}

    def differences(self, before: str, after: str) -> dict[bytes, TreeChange]:
        """Return the paths at which two snapshots differ; see `Trees.differences`."""
        if before == after:
            return {}
        old_modes, new_modes = self._load_extra_modes(before), self._load_extra_modes(after)
        changes: dict[bytes, TreeChange] = {}
        raw = _split_records(
            self._run(
                "diff-tree", "-r", "-z", "--raw", "--no-renames", self._load_tree_id(before), self._load_tree_id(after)
            )
        )
        for header, path in zip(raw[::2], raw[1::2], strict=True):
            modes_and_oids = header.decode().lstrip(":").split()
            changes[path] = TreeChange(
                _entry_or_none(path, modes_and_oids[0], modes_and_oids[2], old_modes),
                _entry_or_none(path, modes_and_oids[1], modes_and_oids[3], new_modes),
            )
        self._add_mode_changes(before, old_modes, new_modes, changes)
        return {path: change for path, change in changes.items() if change.before != change.after}

    def contents(self, key: str, entries: Iterable[tuple[bytes, TreeEntry]]) -> Iterator[tuple[bytes, TreeEntry, Data]]:
        """Read files and links of a snapshot; see `Trees.contents`."""
        requested = list(entries)
        if not requested:
            return
        with _converting_errors(self._folder), tempfile.TemporaryFile() as oids:
            oids.write("".join(f"{entry.oid}\n" for _, entry in requested).encode())
            oids.seek(0)
            process = subprocess.Popen(  # noqa: S603
                [*self._git_command, "cat-file", "--batch", "--buffer"],
                stdin=oids,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                cwd=self._folder,
            )
        assert process.stdout is not None  # noqa: S101 - a pipe was requested above
        try:
            for path, entry in requested:
                with _converting_errors(self._folder):
                    data = _read_blob(process.stdout, key, path, entry, self._folder)
                yield path, entry, data
        finally:
            process.stdout.close()
            process.kill()
            process.wait()

    def collect(self, keep: Collection[str]) -> int:
        """Remove all snapshots except `keep`; see `Trees.collect`."""
        before = _disk_usage(self._folder)
        refs = self._run("for-each-ref", "--format=%(refname)").decode().split()
        removed_refs = [ref for ref in refs if ref.removeprefix(REFS) not in keep]
        self._remove_leftovers()
        if removed_refs:
            self._run("update-ref", "--stdin", data="".join(f"delete {ref}\n" for ref in removed_refs).encode())
        self._extra_modes.clear()
        self._tree_ids.clear()
        try:
            self._run("repack", "-a", "-d", "-q", "-l", "--window=0", "--no-write-bitmap-index")
        except Unavailable:  # most likely no space is left for the new pack
            self._remove_leftovers()
            if not self._remove_packs():
                raise
        self._run("prune", "--expire=now")
        return max(0, before - _disk_usage(self._folder))

    def _remove_packs(self) -> int:
        """Remove the packs that contain no needed object, which needs no free space; return their number."""
        needed_oids = set(self._run("rev-list", "--objects", "--no-object-names", "--all").split())
        folder, removed = os.path.join(self._folder, "objects/pack"), 0
        for name in [name for name in os.listdir(folder) if name.endswith(".idx")]:
            with open(os.path.join(folder, name), "rb") as index:
                pack_oids = {line.split()[1] for line in self._run("show-index", data=index.read()).splitlines()}
            if needed_oids.isdisjoint(pack_oids):
                removed += 1
                for suffix in (".idx", ".rev", ".pack"):  # the index first: git ignores a pack without an index
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name.removesuffix(".idx") + suffix))
        return removed

    def _remove_leftovers(self) -> None:
        """Remove temporary files and locks of killed git processes. No other process writes at the same time."""
        for subfolder, pattern in (
            ("objects/pack", "tmp_*"),
            ("", "fast_import_crash_*"),
            ("", "*.lock"),
            ("refs", "**/*.lock"),
        ):
            for path in Path(self._folder, subfolder).glob(pattern):
                path.unlink(missing_ok=True)

    def _add_mode_changes(
        self, key: str, old_modes: dict[bytes, int], new_modes: dict[bytes, int], changes: dict[bytes, TreeChange]
    ) -> None:
        """Add the differences that only `odd` shows: directories, and files that differ only in their mode."""
        paths = [path for path in old_modes.keys() | new_modes.keys() if old_modes.get(path) != new_modes.get(path)]
        tree: dict[bytes, TreeEntry] | None = None
        for path in paths:
            old_mode, new_mode = old_modes.get(path), new_modes.get(path)
            if any(mode is not None and stat.S_ISDIR(mode) for mode in (old_mode, new_mode)):
                change = changes.get(path, TreeChange(None, None))
                changes[path] = TreeChange(
                    _directory_entry(old_mode) or change.before, _directory_entry(new_mode) or change.after
                )
            elif path not in changes:
                tree = self.tree(key) if tree is None else tree
                entry = tree[path]
                executable = stat.S_IFREG | (0o755 if entry.mode & 0o100 else 0o644)
                changes[path] = TreeChange(entry, TreeEntry(new_mode or executable, entry.oid))

    def _load_extra_modes(self, key: str) -> dict[bytes, int]:
        if key not in self._extra_modes:
            stored = json.loads(self._run("cat-file", "blob", f"{REFS}{key}:odd", snapshot_key=key))
            extra_modes = {path.encode("latin-1"): mode for path, mode in stored.items()}
            self._cache_snapshot(key, self._tree_ids.get(key) or self._look_up_tree_id(key), extra_modes)
        return self._extra_modes[key]

    def _load_tree_id(self, key: str) -> str:
        self._load_extra_modes(key)
        return self._tree_ids[key]

    def _look_up_tree_id(self, key: str) -> str:
        fields = self._run("ls-tree", f"{REFS}{key}", "files", snapshot_key=key).split()
        return fields[2].decode() if fields else EMPTY_TREE

    def _cache_snapshot(self, key: str, tree_id: str, extra_modes: dict[bytes, int]) -> None:
        self._tree_ids[key], self._extra_modes[key] = tree_id, extra_modes
        while len(self._tree_ids) > CACHE_SIZE:
            oldest_key, _ = self._tree_ids.popitem(last=False)
            self._extra_modes.pop(oldest_key, None)

    def _run(self, *arguments: str, data: bytes = b"", snapshot_key: str | None = None) -> bytes:
        with _converting_errors(self._folder):
            completed = subprocess.run(  # noqa: S603
                [*self._git_command, *arguments],
                input=data,
                capture_output=True,
                env=self._environment,
                cwd=self._folder,
                check=False,
            )
        if completed.returncode and snapshot_key is not None:
            raise NotFound(f"There is no snapshot {snapshot_key} in {self._folder}.")
        if completed.returncode:
            raise Unavailable(f"git {arguments[0]} in {self._folder} failed: {_failure_reason(completed.stderr)}")
        return completed.stdout


@contextmanager
def _converting_errors(folder: str) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        location = escape_path(error.filename if error.filename else folder)
        raise Unavailable(f"{location}: {error.strerror}. Grant the permission, or use another storage_dir.") from error


def _isolated_environment(folder: str) -> dict[str, str]:
    """Return environment variables that isolate git from the configuration of the user and the system."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    null_path = os.devnull
    return environment | {
        "GIT_DIR": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": null_path,
        "GIT_CONFIG_GLOBAL": null_path,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",  # never fetch a missing object from a remote that the folder configures
        "GIT_ALLOW_PROTOCOL": "",
        "LC_ALL": "C",
    }


def _send_commit(
    stream: IO[bytes], key: str, tree_id: str, changes: Iterable[TreeWrite], extra_modes: dict[bytes, int]
) -> None:
    """Send a commit to fast-import: base tree, changes and `extra_modes` modes. Then request the id of the new tree."""
    stream.write(f"commit {REFS}{key}\ncommitter agentgit <agentgit> 0 +0000\ndata 0\n".encode())
    if tree_id != EMPTY_TREE:
        stream.write(f"M 040000 {tree_id} files\n".encode())
    for path, entry, data in changes:
        old_mode, quoted = extra_modes.pop(path, 0), _quote_path(path)
        if entry is None:
            if not stat.S_ISDIR(old_mode):
                stream.write(b"D %s\n" % quoted)
            continue
        if entry.is_directory or (not entry.is_link and stat.S_IMODE(entry.mode) not in PLAIN_MODES):
            extra_modes[path] = entry.mode
        if not entry.is_directory:
            stream.write(b"M %s inline %s\ndata %d\n" % (_git_mode(entry), quoted, len(data)))
            stream.writelines(iter_chunks(data))
            stream.write(b"\n")
    encoded_modes = json.dumps(
        {path.decode("latin-1"): extra_modes[path] for path in sorted(extra_modes)}, separators=(",", ":")
    ).encode()
    stream.write(b'M 100644 inline odd\ndata %d\n%s\nls "files"\ndone\n' % (len(encoded_modes), encoded_modes))
    stream.flush()


def _quote_path(path: bytes) -> bytes:
    return b'"files/%s"' % path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def _git_mode(entry: TreeEntry) -> bytes:
    return b"120000" if entry.is_link else b"100755" if entry.mode & 0o100 else b"100644"


def _entry_or_none(path: bytes, mode: str, oid: str, extra_modes: dict[bytes, int]) -> TreeEntry | None:
    return None if set(mode) == {"0"} else _file_entry(path, mode, oid, extra_modes)


def _file_entry(path: bytes, mode: str, oid: str, extra_modes: dict[bytes, int]) -> TreeEntry:
    if mode == LINK:
        return TreeEntry(stat.S_IFLNK | 0o777, oid)
    return TreeEntry(extra_modes.get(path, stat.S_IFREG | int(mode[-3:], 8)), oid)


def _directory_entry(mode: int | None) -> TreeEntry | None:
    return TreeEntry(mode) if mode is not None and stat.S_ISDIR(mode) else None


def _split_records(out: bytes) -> list[bytes]:
    return out.split(b"\0")[:-1]


def _read_blob(out: IO[bytes], key: str, path: bytes, entry: TreeEntry, folder: str) -> Data:
    header = out.readline().split()
    size = int(header[2]) if len(header) == 3 else 0
    data = read_contents(out.read, size, folder)
    if len(header) != 3 or digest_of(iter_chunks(data), size) != entry.oid:
        raise Corrupt(
            f"The contents of {escape_path(path)} in snapshot {key} are damaged. Restore from another snapshot.",
            row=f"{key}:{entry.oid}",
        )
    out.read(1)
    return data


def _failure_reason(err: bytes) -> str:
    """Return the reason why git failed: the last `fatal:` line, which other messages may follow, or the last line."""
    lines = err.decode("utf-8", "replace").strip().split("\n")
    fatal = [line for line in lines if line.startswith("fatal: ")]
    return (fatal or lines)[-1] or "git gave no reason"


def _disk_usage(folder: str) -> int:
    """Return the disk usage of a directory in bytes."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512 for parent, _, names in os.walk(folder) for name in names
    )
