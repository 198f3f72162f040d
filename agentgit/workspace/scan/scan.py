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
from agentgit.workspace.disk.atomic_file import CHUNK, IN_MEMORY, Data, parts, read_contents
from agentgit.workspace.disk.permissions import READABLE, SEARCHABLE, TemporaryPermissions
from agentgit.workspace.scan.excluded import NAME, IgnoreRules
from agentgit.workspace.scan.index import (
    IndexEntry,
    SkippedPath,
    Stamp,
    WorkspaceIndex,
    mode_of,
    reliable_stamp,
    stamp_of,
    within,
)
from agentgit.workspace.trees import TreeEntry, TreeWrite, digest, digest_of

EXCLUDED, UNREADABLE = "excluded", "cannot be read"

UNLISTED = {errno.EACCES: UNREADABLE, errno.EPERM: UNREADABLE, errno.ENAMETOOLONG: "its path is too long"}
"""The reasons for leaving out a directory that cannot be listed, by error number."""

KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}

NO_STAMP: Stamp = (0, 0, 0, 0, 0)
"""The stamp of a path whose status cannot be read."""

Found = tuple[bytes, Stamp]
"""A path and its stamp."""

Contents = tuple[Stamp | None, str, Data]
"""The stamp of a file, the hash of its contents, and the contents."""

NOTHING: Contents = (None, "", b"")
"""The contents of a path that is neither a file nor a link."""


class Scan:
    """One scan of a workspace. `changes` returns the changes and updates `known`.

    Args:
        root: The workspace, without a `/` at its end.
        known: The index from the last scan, which this scan updates.
        permits: The temporary permission bits, for files and directories that their owner cannot read.
        spool: The directory for temporary copies of large files.
        rules: The current ignore rules.
        max_file_size: The maximum size of a file in bytes. Larger files are left out, unless already captured.
        settings: A text that identifies all exclusion settings except the `.gitignore` files of the workspace.
        paths: The paths to scan, each with everything below it; None for all.
        outside: Absolute paths that do not belong to the workspace but may be inside it, such as the storage.

    Raises:
        Unavailable: The workspace does not exist.
    """

    def __init__(
        self,
        root: bytes,
        known: WorkspaceIndex,
        permits: TemporaryPermissions,
        spool: bytes,
        rules: IgnoreRules,
        max_file_size: int,
        *,
        settings: str = "",
        paths: Iterable[bytes] | None = None,
        outside: Collection[bytes] = (),
    ) -> None:
        self._at, self._permits, self._spool = root + b"/", permits, spool
        self._known, self._rules, self._most, self._outside = known, rules, max_file_size, frozenset(outside)
        self._paths = None if paths is None else tuple(paths)
        self._named: dict[bytes, TreeEntry] | None = None
        self._changed: dict[bytes, None] = {}
        self._gone: dict[bytes, None] = {}
        self._moved: set[bytes] = set()
        self.files_changed = 0
        self._find(settings)

    @property
    def candidates(self) -> int:
        """The number of files that `changes` reads."""
        return len(self._changed)

    def changes(self) -> Iterator[TreeWrite]:
        """Yield the changes: first removed paths, then new and changed files, then directories."""
        if not (self._moved or self._changed or self._gone):
            return
        named = self._name()
        away = [path for path in self._gone if path not in self._changed]
        self.files_changed += len(away)
        yield from (TreeWrite(path, None) for path in away)
        folders = self._known.folders
        yield from (TreeWrite(p, None) for p in named if p not in folders and p not in self._changed)
        for path in sorted(self._changed):
            yield from self._update_file(path)
        now = self._known.directories()
        yield from (TreeWrite(path, None) for path in named.keys() - now.keys() if path in folders)
        yield from (TreeWrite(path, now[path]) for path in sorted(now) if now[path] != named.get(path))

    def _name(self) -> dict[bytes, TreeEntry]:
        """Return the directories that had an entry before this scan. Call it before any change to the index."""
        if self._named is None:
            self._named = self._known.directories()
        return self._named

    def _find(self, settings: str) -> None:
        """Check every known path, list changed directories, and collect the files to read."""
        known = self._known
        self._look_at_folders()
        self._look_at_files()
        self._drop_outside()
        self._look_at_skipped()
        new = self._list(self._moved)
        rules = any(path.rpartition(b"/")[2] == NAME for path in (*self._changed, *self._gone, *new))
        if (rules or known.settings != settings) and self._paths is None:
            self._moved = set(known.folders)
            self._list(self._moved)
            known.settings = settings
        self._settle_skipped()

    def _look_at_folders(self) -> None:
        folders, lost = self._known.folders, set()
        for path in sorted(folders) or [b""]:
            if path and path.rpartition(b"/")[0] in lost:
                lost.add(path)
                continue
            stamp = self._stamp(path)
            if stamp is None or not stat.S_ISDIR(stamp[4]):
                if not path:
                    raise Unavailable(
                        f"The workspace {escape_path(self._at)} does not exist. Create it, then try again."
                    )
                lost.add(path)
                continue
            self._enter(path, stamp)
            if path not in folders or stamp != folders[path].stamp:
                self._moved.add(path)
        for path in lost if self._paths is None else [path for path in lost if self._within(path)]:
            self._name()
            del folders[path]
            self._known.dirty.add(path)
            self._moved.add(path.rpartition(b"/")[0])
        self._lost = lost
        self._moved -= lost

    def _look_at_files(self) -> None:
        """Find changed and removed files. This is the hot loop, which runs once for each file."""
        at, lost, lstat = self._at, self._lost, os.lstat
        away = []
        for path, seen in self._known.files.items():
            if lost and path.rpartition(b"/")[0] in lost:
                away.append(path)
                continue
            try:
                st = lstat(at + path)
            except OSError:  # removed; any other problem shows when its directory is listed
                away.append(path)
                continue
            if (st.st_mtime_ns, st.st_ctime_ns, st.st_size, st.st_ino, st.st_mode) != seen.stamp:
                if stat.S_ISREG(st.st_mode) or stat.S_ISLNK(st.st_mode):
                    self._changed[path] = None
                else:
                    away.append(path)
        if self._paths is not None:
            self._changed = {path: None for path in self._changed if self._within(path)}
            away = [path for path in away if self._within(path)]
        for path in away:
            self._forget(path)

    def _drop_outside(self) -> None:
        """Remove paths from the index that were captured and later declared as outside."""
        for path in [one.removeprefix(self._at) for one in self._outside]:
            self._changed.pop(path, None)
            if path in self._known.files:
                self._forget(path)

    def _look_at_skipped(self) -> None:
        """Schedule directories with changed excluded paths: such a path may now be smaller, readable, or removed."""
        for path, skipped in list(self._known.skipped.items()):
            folder, _, name = path.rpartition(b"/")
            stamp = self._stamp(path)
            if stamp == skipped.stamp or not self._within(path):
                continue
            if stamp is None:
                del self._known.skipped[path]
                self._known.dirty.add(path)
            if stamp is None or skipped.why != EXCLUDED or name == NAME:
                self._moved |= self._known.folders.keys() if name == NAME else {folder}
            else:
                self._known.skipped[path] = SkippedPath(skipped.why, stamp)
                self._known.dirty.add(path)

    def _settle_skipped(self) -> None:
        """Remove excluded paths that are captured now, or that are in a directory that is left out."""
        known = self._known
        held = (known.files, known.folders, self._changed)
        for path in list(known.skipped):
            if any(path in paths for paths in held) or within(path.rpartition(b"/")[0], known.skipped):
                del known.skipped[path]
                known.dirty.add(path)

    def _enter(self, folder: bytes, stamp: Stamp) -> None:
        """Add permission bits to a directory that its owner cannot list or search."""
        if stamp[4] & SEARCHABLE != SEARCHABLE:
            self._permits.grant(folder, SEARCHABLE)

    def _forget(self, path: bytes) -> None:
        self._name()
        del self._known.files[path]
        self._known.dirty.add(path)
        self._gone[path] = None
        self._moved.add(path.rpartition(b"/")[0])

    def _list(self, folders: Collection[bytes]) -> list[bytes]:
        """List directories, including new ones below them, and return the new files."""
        known, new = self._known, []
        mine = (path for path in folders if path in known.folders or not path)
        waiting = [path for path in mine if path not in self._lost and self._relevant(path)]
        again = set(waiting)
        for path in [path for path in known.skipped if path.rpartition(b"/")[0] in again | self._lost]:
            del known.skipped[path]
            known.dirty.add(path)
        while waiting:
            self._name()
            folder = waiting.pop()
            stamp = self._stamp(folder)
            if stamp is None or not stat.S_ISDIR(stamp[4]):
                continue
            self._enter(folder, stamp)
            whole = self._within(folder)
            known.folders[folder] = IndexEntry(TreeEntry(stamp[4]), reliable_stamp(stamp) if whole else None)
            known.dirty.add(folder)
            for path, found in self._names(folder):
                if path in known.files or path in known.folders or path in self._changed:
                    continue
                if stat.S_ISDIR(found[4]):
                    if self._relevant(path) and not self._skips(path, found):
                        waiting.append(path)
                        self._moved.add(path)
                elif self._within(path) and not self._skips(path, found):
                    self._changed[path] = None
                    new.append(path)
        return new

    def _names(self, folder: bytes) -> Iterator[Found]:
        try:
            with os.scandir(self._at + folder) as entries:
                listed = [(entry.name, stamp) for entry in entries if (stamp := _stamp_if_there(entry))]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if not folder:
                raise Unavailable(
                    f"The workspace {escape_path(self._at)} cannot be read: {error.strerror}. Grant the permission."
                ) from error
            del self._known.folders[folder]
            self._skip(folder, _why(error), self._stamp(folder) or NO_STAMP)
            return
        for name, found in listed:
            yield (folder + b"/" + name if folder else name), found

    def _skips(self, path: bytes, stamp: Stamp) -> bool:
        """Record a new path if it must be left out; return whether it is."""
        kind, folder = stat.S_IFMT(stamp[4]), stat.S_ISDIR(stamp[4])
        if self._at + path in self._outside or self._rules.ignored(path, directory=folder):
            why = EXCLUDED
        elif kind in KINDS:
            why = KINDS[kind]
        elif kind == stat.S_IFREG and stamp[2] > self._most:
            why = self._too_large()
        else:
            return False
        self._skip(path, why, stamp)
        return True

    def _too_large(self) -> str:
        return f"larger than {self._most:,} bytes"

    def _skip(self, path: bytes, why: str, stamp: Stamp) -> None:
        self._known.skipped[path] = SkippedPath(why, stamp)
        self._known.dirty.add(path)

    def _update_file(self, path: bytes) -> Iterator[TreeWrite]:
        """Read one file or link, update the index, and yield the change, if any."""
        known = self._known.files.get(path)
        now = time.time_ns()
        stamp, oid, data = self._read(path, known.entry.oid if known else "")
        self._known.dirty.add(path)
        if stamp is None:
            if self._known.files.pop(path, None) or path in self._gone:
                self.files_changed += 1
                yield TreeWrite(path, None)
            return
        entry = TreeEntry(mode_of(stamp), oid)
        self._known.files[path] = IndexEntry(entry, reliable_stamp(stamp, now))
        if known is None or known.entry != entry:
            self.files_changed += 1
            yield TreeWrite(path, entry, data)

    def _read(self, path: bytes, known: str) -> Contents:
        """Read one file or link, and record it as left out if it cannot be read."""
        at = self._at + path
        try:
            return read(at, self._spool, known)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return NOTHING
        except PermissionError:
            stamp = self._stamp(path) or NO_STAMP
            with self._permits.grant_temporarily(path, READABLE) as lent:
                if lent:
                    _, oid, data = read(at, self._spool, known)
            if lent and (now := self._stamp(path)) and (now[0], now[2:]) == (stamp[0], stamp[2:]):
                return now, oid, data
            self._skip(path, UNREADABLE, stamp)
            return NOTHING
        except OSError as error:  # a problem with one file must not prevent the others from being captured
            self._skip(path, _why(error), self._stamp(path) or NO_STAMP)
            return NOTHING

    def _stamp(self, path: bytes) -> Stamp | None:
        try:
            return stamp_of(self._permits.before(path) or os.lstat(self._at + path))
        except OSError:
            return None

    def _within(self, path: bytes) -> bool:
        return self._paths is None or any(path == one or path.startswith(one + b"/") or not one for one in self._paths)

    def _relevant(self, path: bytes) -> bool:
        """Return whether a path, or a path below it, must be scanned."""
        return self._within(path) or not path or any(one.startswith(path + b"/") for one in self._paths or ())


def _stamp_if_there(entry: os.DirEntry[bytes]) -> Stamp | None:
    """Return the stamp of a directory entry; None if it was removed after the directory was listed."""
    try:
        return stamp_of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in UNLISTED:  # the directory cannot be searched
            raise
        return NO_STAMP  # the problem shows when it is read


def _why(error: OSError) -> str:
    return UNLISTED.get(error.errno or 0) or error.strerror or str(error)


def read(at: bytes, spool: bytes, known: str = "") -> Contents:
    """Read a regular file or a link, and return its stamp before the read, the hash of its contents, and the contents.

    Args:
        at: An absolute path.
        spool: The directory for temporary copies of large contents.
        known: The last known hash. If a large file still has it, its contents are not returned.

    Raises:
        OSError: The path does not exist or cannot be read.
    """
    found = os.lstat(at)
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(at)
        return stamp_of(found), digest(target), target
    if not stat.S_ISREG(found.st_mode):
        return NOTHING
    with open(os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        stamp = stamp_of(os.fstat(file.fileno()))
        size = stamp[2]
        if size > IN_MEMORY and known and known == digest_of(iter(partial(file.read, CHUNK), b""), size):
            return stamp, known, b""
        file.seek(0)
        data = read_contents(file.read, size, spool)
        return stamp, digest_of(parts(data), len(data)), data
