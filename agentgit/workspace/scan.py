"""Scans a workspace: reads only the files whose stamps have changed, and stores them and the trees that have them.

A directory is listed again only if its times changed. Each one is opened below its parent, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from dataclasses import replace

from agentgit.workspace.catalog import Folder, Index, KnownFile, Stamp, join, reliable_stamp, stamp_of
from agentgit.workspace.disk import FOLDER_FLAGS, entry_mode, read
from agentgit.workspace.left_out import (
    EXCLUDED,
    GIT,
    GITIGNORE,
    UNREADABLE,
    IgnoreRules,
    LeftOut,
    git_state,
    left_out_as,
    parent_folders,
)
from agentgit.workspace.locations import naming
from agentgit.workspace.objects import BLOB, TREE, PackWriter
from agentgit.workspace.trees import PLAIN_DIRECTORY, TreeEntry, encode_tree
from agentgit.workspace.values import Options

KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}

CAPTURED = (stat.S_IFREG, stat.S_IFLNK)

MAX_PATH, MAX_DEPTH = 3800, 200
"""The maximum length of the absolute path of a directory, and of directories in one another."""


class Scan:
    """One scan. Afterwards `index` is the new index."""

    def __init__(self, settings: Options, index: Index, outside: set[bytes], writer: PackWriter) -> None:
        self._root, self._max_file_size = os.fsencode(settings.workspace), settings.max_file_size
        self._old, self._outside, self._writer = index.folders, outside, writer
        self._rules = IgnoreRules(self._root, settings.exclude_patterns)
        stamp = repr((settings.exclude_patterns, settings.max_file_size, sorted(outside)))
        self.index = replace(index, folders=dict(index.folders), settings=stamp, dirty=set(index.dirty))
        self._is_fresh = index.settings != stamp

    def run(self) -> None:
        with naming(self._root):
            descriptor = os.open(self._root, FOLDER_FLAGS)
        try:
            with naming(self._root):
                self._look(descriptor, b"", self._is_fresh)
        finally:
            os.close(descriptor)
        self._build_trees()

    def _look(self, descriptor: int, path: bytes, is_fresh: bool) -> None:
        old, status, rules = self._old.get(path), os.fstat(descriptor), None
        if old is None or old.rules is not None or old.stamp != stamp_of(status):  # else there is still none
            with suppress(OSError):
                rules = stamp_of(os.stat(GITIGNORE, dir_fd=descriptor, follow_symlinks=False))
        is_fresh = is_fresh or old is None or old.rules != rules
        folder = self._list(descriptor, path, old or Folder(0), status, rules, is_fresh)
        if folder != old:
            self._replace(path, folder)
        for name in list(folder.folders):
            self._enter(descriptor, path, name, folder, is_fresh)

    def _enter(self, descriptor: int, path: bytes, name: bytes, folder: Folder, is_fresh: bool) -> None:
        """Look at a directory in an open one; leave it out if it cannot be read."""
        child = join(path, name)
        try:
            if len(self._root) + len(child) > MAX_PATH or child.count(b"/") > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, "its path is too long")
            below = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
            try:
                self._look(below, child, is_fresh)
            finally:
                os.close(below)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(path, name, None)
        except OSError as error:
            mode = PLAIN_DIRECTORY
            with suppress(OSError):  # it has just gone
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            self._forget(path, name, LeftOut(_reason(error), mode))

    def _forget(self, path: bytes, name: bytes, left_out: LeftOut | None) -> None:
        folder = self.index.folders[path]
        folder = replace(folder, folders=[one for one in folder.folders if one != name], stamp=None)
        if left_out is not None:
            folder.left_out = folder.left_out | {name: left_out}
        self._replace(path, folder)
        self._drop(join(path, name))

    def _drop(self, path: bytes) -> None:
        """Remove a directory, and all below it, from the index."""
        self.index.folders.pop(path, None)
        self.index.dirty.add(path)
        for name in self._old[path].folders if path in self._old else ():
            self._drop(join(path, name))

    def _replace(self, path: bytes, folder: Folder) -> None:
        self.index.folders[path] = folder
        self.index.dirty.add(path)

    def _list(
        self, descriptor: int, path: bytes, old: Folder, status: os.stat_result, rules: Stamp | None, is_fresh: bool
    ) -> Folder:
        """Look at each name in a directory. What was captured stays captured; the rules decide on new names."""
        known_folders, files, lstat = set(old.folders), old.files, os.stat
        new = Folder(status.st_mode, old.stamp, rules, old.tree)
        if is_fresh or old.stamp != stamp_of(status) or old.mode != status.st_mode:
            new.stamp = reliable_stamp(status)
            with os.scandir(descriptor) as found:
                names = [os.fsencode(entry.name) for entry in found]
        else:  # its names are known
            names, new.folders = [*files, *old.left_out], list(old.folders)
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
            is_folder, left_out = stat.S_ISDIR(status.st_mode), old.left_out.get(name)
            if (is_folder and name in known_folders) or (known is not None and stat.S_IFMT(status.st_mode) in CAPTURED):
                why = None
            elif left_out is not None and left_out.why == EXCLUDED and not is_fresh:
                why = EXCLUDED
            else:
                why = self._why_left_out(child, status)
            if why is not None:
                state = git_state(os.path.join(self._root, child)) if name == GIT else ""
                new.left_out[name] = left_out_as(why, status, state)
            elif is_folder:
                new.folders.append(name)
            elif known is not None and known.stamp == stamp:
                new.files[name] = known
            else:
                self._read(descriptor, name, new)
        for name in known_folders.difference(new.folders):
            self._drop(join(path, name))
        return new

    def _why_left_out(self, path: bytes, status: os.stat_result) -> str | None:
        kind = stat.S_IFMT(status.st_mode)
        if self._rules.ignored(path, directory=kind == stat.S_IFDIR):
            return EXCLUDED
        if kind == stat.S_IFREG and status.st_size > self._max_file_size:
            return f"larger than {self._max_file_size:,} bytes"
        return KINDS.get(kind)

    def _read(self, descriptor: int, name: bytes, folder: Folder) -> None:
        """Read a file or a link; a problem with one of them must not prevent the others from being captured."""
        began, left_out = time.time_ns(), None
        try:
            status, data = read(descriptor, name)
        except OSError as error:
            data = None
            with suppress(OSError):  # it has just gone
                left_out = left_out_as(_reason(error), os.lstat(name, dir_fd=descriptor))
        if data is not None:
            folder.files[name] = KnownFile(
                reliable_stamp(status, began), entry_mode(status), self._writer.put(BLOB, data)
            )
            return
        folder.stamp = None
        if left_out is not None:
            folder.left_out[name] = left_out

    def _build_trees(self) -> None:
        """Build the trees of the directories that changed, and of those above them."""
        folders = self.index.folders
        pending = {one for path in self.index.dirty for one in (path, *parent_folders(path), b"") if one in folders}
        for path in sorted(pending, key=lambda path: path.count(b"/") if path else -1, reverse=True):
            folder = folders[path]
            entries = {name: TreeEntry(one.mode, one.oid) for name, one in folder.files.items()}
            for name in folder.folders:
                below = folders[join(path, name)]
                entries[name] = TreeEntry(below.mode, below.tree)
            tree = self._writer.put(TREE, encode_tree(entries))
            if tree != folder.tree:
                folders[path] = replace(folder, tree=tree)
                self.index.dirty.add(path)


def _reason(error: OSError) -> str:
    return UNREADABLE if error.errno in (errno.EACCES, errno.EPERM) else error.strerror or str(error)
