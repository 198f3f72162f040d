"""Detects changes in a workspace since the last scan, with one `lstat` for each known path and no child process.

A directory is listed again only if its times changed. A file is read only if its stamp changed, or if it is so recent
that the stamp is not reliable.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from agentgit.errors import Unavailable
from agentgit.values import escape_path
from agentgit.workspace.disk.atomic_file import CHUNK, IN_MEMORY, Data, iter_chunks, read_contents
from agentgit.workspace.disk.permissions import READABLE, SEARCHABLE, TemporaryPermissions
from agentgit.workspace.scan.excluded import GITIGNORE, IgnoreRules
from agentgit.workspace.scan.index import (
    IndexEntry,
    SkippedPath,
    Stamp,
    WorkspaceIndex,
    containing_path,
    mode_of,
    reliable_stamp,
    stamp_of,
)
from agentgit.workspace.trees import TreeEntry, TreeWrite, digest, digest_of

EXCLUDED, UNREADABLE = "excluded", "cannot be read"

UNLISTED_REASONS = {errno.EACCES: UNREADABLE, errno.EPERM: UNREADABLE, errno.ENAMETOOLONG: "its path is too long"}
"""The reasons for leaving out a directory that cannot be listed, by error number."""

KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}

NO_STAMP: Stamp = (0, 0, 0, 0, 0)
"""The stamp of a path whose status cannot be read."""

PathStamp = tuple[bytes, Stamp]
"""A path and its stamp."""

Contents = tuple[Stamp | None, str, Data]
"""The stamp of a file, the hash of its contents, and the contents."""

NO_CONTENTS: Contents = (None, "", b"")
"""The contents of a path that is neither a file nor a link."""


class Scan:
    """One scan of a workspace. `changes` returns the changes and updates `index`."""

    def __init__(
        self,
        root: bytes,
        index: WorkspaceIndex,
        permissions: TemporaryPermissions,
        spool: bytes,
        rules: IgnoreRules,
        max_file_size: int,
        *,
        settings: str = "",
        paths: Iterable[bytes] | None = None,
        outside: Collection[bytes] = (),
    ) -> None:
        self._prefix, self._permissions, self._spool = root + b"/", permissions, spool
        self._index, self._rules, self._max_file_size, self._outside = index, rules, max_file_size, frozenset(outside)
        self._paths = None if paths is None else tuple(paths)
        self._old_directories: dict[bytes, TreeEntry] | None = None
        self._candidates: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._changed_folders: set[bytes] = set()
        self.files_changed: set[bytes] = set()
        self._detect_changes(settings)

    @property
    def candidates(self) -> int:
        """The number of files that `changes` reads."""
        return len(self._candidates)

    def changes(self) -> Iterator[TreeWrite]:
        """Yield the changes: first removed paths, then new and changed files, then directories."""
        if not (self._changed_folders or self._candidates or self._removed):
            return
        old_directories = self._load_old_directories()
        removed = [path for path in self._removed if path not in self._candidates]
        self.files_changed.update(removed)
        yield from (TreeWrite(path, None) for path in removed)
        folders = self._index.folders
        yield from (TreeWrite(p, None) for p in old_directories if p not in folders and p not in self._candidates)
        for path in sorted(self._candidates):
            yield from self._update_file(path)
        directories = self._index.directories()
        yield from (TreeWrite(path, None) for path in old_directories.keys() - directories.keys() if path in folders)
        yield from (
            TreeWrite(path, directories[path])
            for path in sorted(directories)
            if directories[path] != old_directories.get(path)
        )

    def _load_old_directories(self) -> dict[bytes, TreeEntry]:
        """Return the directories that had an entry before this scan. Call it before any change to the index."""
        if self._old_directories is None:
            self._old_directories = self._index.directories()
        return self._old_directories

    def _detect_changes(self, settings: str) -> None:
        """Check every known path, list changed directories, and collect the files to read."""
        index = self._index
        self._check_folders()
        self._check_files()
        self._drop_outside()
        self._check_skipped()
        new_files = self._list_folders(self._changed_folders)
        has_new_rules = any(
            path.rpartition(b"/")[2] == GITIGNORE for path in (*self._candidates, *self._removed, *new_files)
        )
        if (has_new_rules or index.settings != settings) and self._paths is None:
            self._changed_folders = set(index.folders)
            self._list_folders(self._changed_folders)
            index.settings = settings
        self._prune_skipped()

    def _check_folders(self) -> None:
        folders, lost_folders = self._index.folders, set()
        for path in sorted(folders) or [b""]:
            if path and path.rpartition(b"/")[0] in lost_folders:
                lost_folders.add(path)
                continue
            stamp = self._read_stamp(path)
            if stamp is None or not stat.S_ISDIR(stamp[4]):
                if not path:
                    raise Unavailable(
                        f"The workspace {escape_path(self._prefix)} does not exist. Create it, then try again."
                    )
                lost_folders.add(path)
                continue
            self._make_searchable(path, stamp)
            if path not in folders or stamp != folders[path].stamp:
                self._changed_folders.add(path)
        for path in lost_folders if self._paths is None else [path for path in lost_folders if self._is_selected(path)]:
            self._load_old_directories()
            del folders[path]
            self._index.dirty.add(path)
            self._changed_folders.add(path.rpartition(b"/")[0])
        self._lost_folders = lost_folders
        self._changed_folders -= lost_folders

    def _check_files(self) -> None:
        """Find changed and removed files. This is the hot loop, which runs once for each file."""
        prefix, lost_folders, lstat = self._prefix, self._lost_folders, os.lstat
        removed = []
        for path, index_entry in self._index.files.items():
            if lost_folders and path.rpartition(b"/")[0] in lost_folders:
                removed.append(path)
                continue
            try:
                status = lstat(prefix + path)
            except OSError:  # removed; any other problem shows when its directory is listed
                removed.append(path)
                continue
            if (
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_size,
                status.st_ino,
                status.st_mode,
            ) != index_entry.stamp:
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    self._candidates[path] = None
                else:
                    removed.append(path)
        if self._paths is not None:
            self._candidates = {path: None for path in self._candidates if self._is_selected(path)}
            removed = [path for path in removed if self._is_selected(path)]
        for path in removed:
            self._remove_file(path)

    def _drop_outside(self) -> None:
        """Remove paths from the index that were captured and later declared as outside."""
        for path in [one.removeprefix(self._prefix) for one in self._outside]:
            self._candidates.pop(path, None)
            if path in self._index.files:
                self._remove_file(path)

    def _check_skipped(self) -> None:
        """Schedule directories with changed excluded paths: such a path may now be smaller, readable, or removed."""
        for path, skipped in list(self._index.skipped.items()):
            folder, _, name = path.rpartition(b"/")
            stamp = self._read_stamp(path)
            if stamp == skipped.stamp or not self._is_selected(path):
                continue
            if stamp is None:
                del self._index.skipped[path]
                self._index.dirty.add(path)
            if stamp is None or skipped.why != EXCLUDED or name == GITIGNORE:
                self._changed_folders |= self._index.folders.keys() if name == GITIGNORE else {folder}
            else:
                self._index.skipped[path] = SkippedPath(skipped.why, stamp)
                self._index.dirty.add(path)

    def _prune_skipped(self) -> None:
        """Remove excluded paths that are captured now, or that are in a directory that is left out."""
        index = self._index
        captured = (index.files, index.folders, self._candidates)
        for path in list(index.skipped):
            if any(path in paths for paths in captured) or containing_path(path.rpartition(b"/")[0], index.skipped):
                del index.skipped[path]
                index.dirty.add(path)

    def _make_searchable(self, folder: bytes, stamp: Stamp) -> None:
        """Add permission bits to a directory that its owner cannot list or search."""
        if stamp[4] & SEARCHABLE != SEARCHABLE:
            self._permissions.grant(folder, SEARCHABLE)

    def _remove_file(self, path: bytes) -> None:
        self._load_old_directories()
        del self._index.files[path]
        self._index.dirty.add(path)
        self._removed[path] = None
        self._changed_folders.add(path.rpartition(b"/")[0])

    def _list_folders(self, folders: Collection[bytes]) -> list[bytes]:
        """List directories, including new ones below them, and return the new files."""
        index, new_files = self._index, []
        known_folders = (path for path in folders if path in index.folders or not path)
        pending = [path for path in known_folders if path not in self._lost_folders and self._is_relevant(path)]
        listed = set(pending)
        for path in [path for path in index.skipped if path.rpartition(b"/")[0] in listed | self._lost_folders]:
            del index.skipped[path]
            index.dirty.add(path)
        while pending:
            self._load_old_directories()
            folder = pending.pop()
            stamp = self._read_stamp(folder)
            if stamp is None or not stat.S_ISDIR(stamp[4]):
                continue
            self._make_searchable(folder, stamp)
            is_complete = self._is_selected(folder)
            index.folders[folder] = IndexEntry(TreeEntry(stamp[4]), reliable_stamp(stamp) if is_complete else None)
            index.dirty.add(folder)
            for path, child_stamp in self._list_entries(folder):
                if path in index.files or path in index.folders or path in self._candidates:
                    continue
                if stat.S_ISDIR(child_stamp[4]):
                    if self._is_relevant(path) and not self._skip_if_excluded(path, child_stamp):
                        pending.append(path)
                        self._changed_folders.add(path)
                elif self._is_selected(path) and not self._skip_if_excluded(path, child_stamp):
                    self._candidates[path] = None
                    new_files.append(path)
        return new_files

    def _list_entries(self, folder: bytes) -> Iterator[PathStamp]:
        try:
            with os.scandir(self._prefix + folder) as entries:
                stamps = [(entry.name, stamp) for entry in entries if (stamp := _stamp_or_none(entry))]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if not folder:
                raise Unavailable(
                    f"The workspace {escape_path(self._prefix)} cannot be read: {error.strerror}. Grant the permission."
                ) from error
            del self._index.folders[folder]
            self._record_skipped(folder, _skip_reason(error), self._read_stamp(folder) or NO_STAMP)
            return
        for name, entry_stamp in stamps:
            yield (folder + b"/" + name if folder else name), entry_stamp

    def _skip_if_excluded(self, path: bytes, stamp: Stamp) -> bool:
        """Record a new path if it must be left out; return whether it is."""
        kind, folder = stat.S_IFMT(stamp[4]), stat.S_ISDIR(stamp[4])
        if self._prefix + path in self._outside or self._rules.ignored(path, directory=folder):
            why = EXCLUDED
        elif kind in KINDS:
            why = KINDS[kind]
        elif kind == stat.S_IFREG and stamp[2] > self._max_file_size:
            why = self._too_large_reason()
        else:
            return False
        self._record_skipped(path, why, stamp)
        return True

    def _too_large_reason(self) -> str:
        return f"larger than {self._max_file_size:,} bytes"

    def _record_skipped(self, path: bytes, why: str, stamp: Stamp) -> None:
        self._index.skipped[path] = SkippedPath(why, stamp)
        self._index.dirty.add(path)

    def _update_file(self, path: bytes) -> Iterator[TreeWrite]:
        """Read one file or link, update the index, and yield the change, if any."""
        old_entry = self._index.files.get(path)
        read_time = time.time_ns()
        stamp, oid, data = self._read_file(path, old_entry.entry.oid if old_entry else "")
        self._index.dirty.add(path)
        if stamp is None:
            if self._index.files.pop(path, None) or path in self._removed:
                self.files_changed.add(path)
                yield TreeWrite(path, None)
            return
        entry = TreeEntry(mode_of(stamp), oid)
        self._index.files[path] = IndexEntry(entry, reliable_stamp(stamp, read_time))
        if old_entry is None or old_entry.entry != entry:
            self.files_changed.add(path)
            yield TreeWrite(path, entry, data)

    def _read_file(self, path: bytes, known_oid: str) -> Contents:
        """Read one file or link, and record it as left out if it cannot be read."""
        absolute_path = self._prefix + path
        try:
            return read_path(absolute_path, self._spool, known_oid)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return NO_CONTENTS
        except PermissionError:
            stamp = self._read_stamp(path) or NO_STAMP
            with self._permissions.grant_temporarily(path, READABLE) as was_granted:
                if was_granted:
                    _, oid, data = read_path(absolute_path, self._spool, known_oid)
            if (
                was_granted
                and (new_stamp := self._read_stamp(path))
                and (new_stamp[0], new_stamp[2:]) == (stamp[0], stamp[2:])
            ):
                return new_stamp, oid, data
            self._record_skipped(path, UNREADABLE, stamp)
            return NO_CONTENTS
        except OSError as error:  # a problem with one file must not prevent the others from being captured
            self._record_skipped(path, _skip_reason(error), self._read_stamp(path) or NO_STAMP)
            return NO_CONTENTS

    def _read_stamp(self, path: bytes) -> Stamp | None:
        try:
            return stamp_of(self._permissions.original_status(path) or os.lstat(self._prefix + path))
        except OSError:
            return None

    def _is_selected(self, path: bytes) -> bool:
        return self._paths is None or any(path == one or path.startswith(one + b"/") or not one for one in self._paths)

    def _is_relevant(self, path: bytes) -> bool:
        """Return whether a path, or a path below it, must be scanned."""
        return self._is_selected(path) or not path or any(one.startswith(path + b"/") for one in self._paths or ())


def _stamp_or_none(entry: os.DirEntry[bytes]) -> Stamp | None:
    """Return the stamp of a directory entry; None if it was removed after the directory was listed."""
    try:
        return stamp_of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in UNLISTED_REASONS:  # the directory cannot be searched
            raise
        return NO_STAMP  # the problem shows when it is read


def _skip_reason(error: OSError) -> str:
    return UNLISTED_REASONS.get(error.errno or 0) or error.strerror or str(error)


def read_path(path: bytes, spool: bytes, known_oid: str = "") -> Contents:
    """Read a regular file or a link, and return its stamp before the read, the contents and their hash."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)
        return stamp_of(status), digest(target), target
    if not stat.S_ISREG(status.st_mode):
        return NO_CONTENTS
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        stamp = stamp_of(os.fstat(file.fileno()))
        size = stamp[2]
        if size > IN_MEMORY and known_oid and known_oid == digest_of(iter(partial(file.read, CHUNK), b""), size):
            return stamp, known_oid, b""
        file.seek(0)
        data = read_contents(file.read, size, spool)
        return stamp, digest_of(iter_chunks(data), len(data)), data
