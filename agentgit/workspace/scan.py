"""Scans a workspace: reads only the files whose stamps have changed, and stores them and the trees that have them.

A directory is listed again only if its times changed. Each one is opened below its parent, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection
from contextlib import suppress

from agentgit.workspace.catalog import Folder, Index, KnownFile, Stamp, join, reliable_stamp, stamp_of
from agentgit.workspace.disk import FOLDER_FLAGS, entry_mode, read
from agentgit.workspace.left_out import (
    EXCLUDED,
    GIT,
    GITIGNORE,
    UNREADABLE,
    IgnoreRules,
    LeftOut,
    enclosing_repository,
    git_state,
    left_out_as,
    parent_folders,
)
from agentgit.workspace.locations import naming
from agentgit.workspace.objects import BLOB, TREE, PackWriter
from agentgit.workspace.trees import PLAIN_DIRECTORY, TreeEntry, encode_tree
from agentgit.workspace.values import Options

KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}

MAX_PATH, MAX_DEPTH = 3800, 200
"""The maximum length of the absolute path of a directory, and of directories in one another."""


class Scan:
    """One scan: from the last index, the new one."""

    def __init__(
        self, settings: Options, index: Index, outside: set[bytes], writer: PackWriter, only: Collection[bytes] | None
    ) -> None:
        self._root, self._max_file_size = os.fsencode(settings.workspace), settings.max_file_size
        self._last, self._old, self._outside, self._writer = index, index.folders, outside, writer
        self._rules = IgnoreRules(self._root, settings.exclude_patterns)
        self._settings = repr((settings.exclude_patterns, settings.max_file_size, sorted(outside)))
        self._ways = None if only is None else {one for path in only for one in (path, *parent_folders(path))}
        self._folders = dict[bytes, Folder]()

    def run(self) -> Index:
        with naming(self._root):
            descriptor = os.open(self._root, FOLDER_FLAGS)
            try:
                self._look(descriptor, b"", is_fresh=self._last.settings != self._settings)
            finally:
                os.close(descriptor)
        old, new, pending = self._old, dict[bytes, Folder](), [b""]
        while pending:  # what is below a directory that cannot be captured is not among these
            path = pending.pop()
            new[path] = folder = self._folders.get(path) or old[path]
            pending += (join(path, name) for name in folder.folders)
        dirty = {path for path in old.keys() | new.keys() if old.get(path) is not new.get(path)}
        return Index(self._settings, self._last.generation, new, dirty)

    def _look(self, descriptor: int, path: bytes, *, is_fresh: bool) -> Folder:
        """Scan an open directory and all below it; store its tree, unless nothing changed."""
        old, status, rules = self._old.get(path), os.fstat(descriptor), None
        if old is None or old.rules is not None or old.stamp != stamp_of(status):  # else there is still none
            with suppress(OSError):
                rules = stamp_of(os.stat(GITIGNORE, dir_fd=descriptor, follow_symlinks=False))
        is_fresh = is_fresh or old is None or old.rules != rules
        folder = self._list(descriptor, path, old or Folder(0), status, rules, is_fresh)
        below = dict[bytes, TreeEntry]()
        is_same = True
        for name in list(folder.folders):
            child = join(path, name)
            found = self._enter(descriptor, child, name, is_fresh=is_fresh)
            is_same = is_same and found is self._old.get(child)
            if isinstance(found, Folder):
                below[name] = TreeEntry(found.mode, found.tree)
                continue
            folder.folders.remove(name)
            folder.stamp = None
            if found is not None:
                folder.left_out[name] = found
        if old is not None and is_same and folder == old:
            folder = old
        else:
            files = {name: TreeEntry(one.mode, one.oid) for name, one in folder.files.items()}
            folder.tree = self._writer.put(TREE, encode_tree(files | below))
        self._folders[path] = folder
        return folder

    def _enter(self, descriptor: int, path: bytes, name: bytes, *, is_fresh: bool) -> Folder | LeftOut | None:
        """Scan a directory in an open one, if it is wanted; return why it is left out, or None if it has gone."""
        old = self._old.get(path)
        if self._ways is not None and path not in self._ways and old is not None and not is_fresh:
            return old
        try:
            if len(self._root) + len(path) > MAX_PATH or path.count(b"/") > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, "its path is too long")
            below = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
            try:
                return self._look(below, path, is_fresh=is_fresh)
            finally:
                os.close(below)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            mode = PLAIN_DIRECTORY
            with suppress(OSError):  # it has just gone
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            return LeftOut(_reason(error), mode)

    def _list(
        self, descriptor: int, path: bytes, old: Folder, status: os.stat_result, rules: Stamp | None, is_fresh: bool
    ) -> Folder:
        """Scan each name in a directory. What was captured stays captured; the rules decide on new names."""
        known_folders, files, lstat = set(old.folders), old.files, os.stat
        new = Folder(status.st_mode, old.stamp, rules, old.tree)
        if is_fresh or old.stamp != stamp_of(status) or old.mode != status.st_mode:
            new.stamp = reliable_stamp(status)
            with os.scandir(descriptor) as found:
                names = [os.fsencode(entry.name) for entry in found]
        else:  # its names are known
            names, new.folders = [*files, *(name for name in old.left_out if b"/" not in name)], list(old.folders)
        if not path and (repository := enclosing_repository(self._root)) is not None:
            names.append(repository)
        unchanged = new.files
        for name in names:
            try:
                status = lstat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except PermissionError:  # the whole directory is left out
                raise
            except OSError as error:
                new.left_out[name] = LeftOut(_reason(error))
                continue
            known = files.get(name)
            stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
            if known is not None and known[0] == stamp and not is_fresh:  # this is the hot loop
                unchanged[name] = known
                continue
            child = join(path, name)
            if child in self._outside:
                continue
            kind, left_out = stat.S_IFMT(status.st_mode), old.left_out.get(name)
            if (name in known_folders) if kind == stat.S_IFDIR else (known is not None and kind not in KINDS):
                why = None
            elif left_out is not None and left_out.why == EXCLUDED and not is_fresh:
                why = EXCLUDED
            else:
                why = self._why_left_out(child, kind, status.st_size)
            if why is not None:
                state = git_state(os.path.join(self._root, child)) if name.endswith(GIT) else ""
                new.left_out[name] = left_out_as(why, status, state)
            elif kind == stat.S_IFDIR:
                new.folders.append(name)
            elif known is not None and known.stamp == stamp:
                new.files[name] = known
            else:
                self._read(descriptor, name, new)
        return new

    def _why_left_out(self, path: bytes, kind: int, size: int) -> str | None:
        if self._rules.ignored(path, directory=kind == stat.S_IFDIR):
            return EXCLUDED
        if kind == stat.S_IFREG and size > self._max_file_size:
            return f"larger than {self._max_file_size:,} bytes"
        return KINDS.get(kind)

    def _read(self, descriptor: int, name: bytes, folder: Folder) -> None:
        """Read a file or a link; a problem with one of them must not prevent the others from being captured."""
        began = time.time_ns()
        try:
            status, data = read(descriptor, name)
            if data is not None:
                stamp = reliable_stamp(status, began)
                folder.files[name] = KnownFile(stamp, entry_mode(status), self._writer.put(BLOB, data))
                return
        except (FileNotFoundError, NotADirectoryError):
            pass  # it has just gone
        except OSError as error:
            folder.left_out[name] = LeftOut(_reason(error))
            with suppress(OSError):
                folder.left_out[name] = left_out_as(_reason(error), os.lstat(name, dir_fd=descriptor))
        folder.stamp = None


def _reason(error: OSError) -> str:
    return UNREADABLE if error.errno in (errno.EACCES, errno.EPERM) else error.strerror or str(error)
