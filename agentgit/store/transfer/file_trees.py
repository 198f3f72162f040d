"""The files of an export: each content once, and trees of paths, each as its changes to the previous tree. No IO.

In memory are one part of a file, the paths of one tree, and the hashes and sizes of the contents.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from agentgit.store.transfer.lines import PART_BYTES
from agentgit.store.transfer.paths import fold_name, link_problem, text_of

Record = Mapping[str, Any]

CUSTOM_ENVIRONMENT = "its environment alone can read it"
NO_LONGER_STORED = "it is no longer stored"
FOREIGN_STORAGE = "its storage belongs to another user"
NO_WORKSPACE = "no workspace was given to restore them into"
REASONS = (CUSTOM_ENVIRONMENT, NO_LONGER_STORED, FOREIGN_STORAGE)
"""The reasons why an export may lack the snapshot of a checkpoint."""

MAX_FILE_BYTES = 2**30
MOST_PATHS = 500_000
UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO = 2**30, 100
"""The size to which a tree may unpack: so many bytes, or so many times the contents of the export if that is more."""


class TreeItem(NamedTuple):
    """The item at a path: a file with the hash of its contents, a link with its target, or else a directory."""

    mode: int
    file: bytes | None = None
    link: bytes | None = None

    @property
    def is_folder(self) -> bool:
        """True if it is a directory."""
        return self.file is None and self.link is None


class FileSink(Protocol):
    """A store for the files of an export while the export is checked."""

    def data(self, part: bytes) -> None:
        """Store a part of the contents of a file."""

    def file(self, id: bytes, size: int) -> None:
        """Complete a file: the parts since the previous file are its contents, with this hash."""

    def tree(self, id: int, base: int | None) -> None:
        """Begin a tree, from the tree with the number `base` or empty. Its changes follow."""

    def change(self, path: bytes, item: TreeItem | None) -> None:
        """Put an item at a path, or remove the item that is there."""

    def left(self, path: bytes, why: str | None) -> None:
        """Record why the tree leaves out a path; None if it no longer does."""


class FileTree:
    """The paths of one tree. It refuses paths that cannot exist side by side on every operating system."""

    def __init__(self) -> None:
        self._items: dict[bytes, TreeItem] = {}
        self._item_counts: Counter[bytes] = Counter()  # the number of items at and below each path
        self._spellings: dict[str, bytes] = {}
        self._changed_paths: set[bytes] = set()

    def begin(self) -> None:
        """Begin the changes of the next tree."""
        self._changed_paths.clear()

    def change(self, path: bytes, item: TreeItem | None) -> TreeItem | None:
        """Put an item at a path, or remove the item that is there; return the previous item."""
        if path in self._changed_paths or (item is None and path not in self._items):
            raise ValueError(f"{_format_path(path)} occurs twice, or is deleted although it does not exist")
        if item is not None and (reason := self.find_problem(path, item)):
            raise ValueError(f"{_format_path(path)} {reason}")
        previous = self._remove(path)
        self._changed_paths.add(path)
        if item is not None:
            self._items[path] = item
            self._change_counts(path, 1)
        return previous

    def find_problem(self, path: bytes, item: TreeItem) -> str:
        """Explain why an item cannot be at a path beside the others; return an empty string if it can."""
        previous = self._remove(path)
        try:
            return self._find_problem(path, item)
        finally:
            if previous is not None:
                self._items[path] = previous
                self._change_counts(path, 1)

    def has_path(self, path: bytes) -> bool:
        """Return whether there is an item at a path."""
        return path in self._items

    def forget(self, path: bytes) -> None:
        """Remove the item that was just put at a path."""
        self._remove(path)

    def _remove(self, path: bytes) -> TreeItem | None:
        previous = self._items.pop(path, None)
        if previous is not None:
            self._change_counts(path, -1)
        return previous

    def _find_problem(self, path: bytes, item: TreeItem) -> str:
        if len(self._items) >= MOST_PATHS:
            return f"is one of more than {MOST_PATHS} paths of one tree"
        if item.link is not None and (reason := link_problem(path, item.link)):
            return reason
        parents = [self._items.get(one) for one in _parents_of(path)]
        if (not item.is_folder and self._item_counts[path]) or not all(one is None or one.is_folder for one in parents):
            return "is not a directory but has paths below it, or is below such a path"
        for checked_path in (path, *_parents_of(path)):
            if (other_path := self._spellings.get(_folded_path(checked_path), checked_path)) != checked_path:
                return f"is the same as {_format_path(other_path)} on some systems"
        return ""

    def _change_counts(self, path: bytes, change: int) -> None:
        for counted_path in (path, *_parents_of(path)):
            self._item_counts[counted_path] += change
            if self._item_counts[counted_path]:
                self._spellings[_folded_path(counted_path)] = counted_path
            else:
                del self._item_counts[counted_path], self._spellings[_folded_path(counted_path)]


class FileChecker:
    """Checks the file records of an export for consistency.

    Afterwards, `snapshots` has the snapshot id of each checkpoint whose files are included, `missing_snapshots` counts
    the missing snapshots by reason, and `left_paths` has each path that any tree leaves out, with the reason.
    """

    def __init__(self, sink: FileSink | None = None) -> None:
        self.snapshots: dict[int, int] = {}
        self.missing_snapshots: Counter[str] = Counter()
        self.left_paths: dict[bytes, str] = {}
        self._left_out: set[bytes] = set()
        self._has_paths = False
        self._sink = sink
        self._sizes: dict[bytes, int] = {}
        self._content_bytes = 0
        self._open_file: Record | None = None
        self._hash = sha256()
        self._size = self._part_count = 0
        self._tree: FileTree | None = None
        self._last_tree = 0
        self._tree_bytes = 0

    @property
    def is_open(self) -> bool:
        """True while more parts of a file must follow."""
        return self._open_file is not None

    # -- contents

    def check_file(self, record: Record) -> None:
        """Check a file, or its first record if parts follow."""
        if sum(record[name] is not None for name in ("text", "data", "parts")) != 1:
            raise ValueError("must have exactly one of text, data and parts")
        if record["id"] in self._sizes:
            raise ValueError(f"is a duplicate of file {record['id'].hex()}")
        self._hash, self._size, self._part_count, self._open_file = sha256(), 0, 0, record
        if record["parts"] is not None:
            if record["parts"] != -(-record["size"] // PART_BYTES) or record["parts"] < 2:
                raise ValueError(f"cannot have {record['parts']} parts")
            return
        self._add_data(record["text"].encode() if record["text"] is not None else decode_base64(record["data"]))
        self._close_file()

    def check_part(self, record: Record) -> None:
        """Check a part of a file."""
        assert self._open_file is not None  # noqa: S101  # the caller checks `is_open`
        data = decode_base64(record["data"])
        if len(data) > PART_BYTES:
            raise ValueError(f"has more than {PART_BYTES} bytes")
        self._add_data(data)
        self._part_count += 1
        if self._part_count == self._open_file["parts"]:
            self._close_file()

    def _add_data(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        if self._sink is not None:
            self._sink.data(data)

    def _close_file(self) -> None:
        assert self._open_file is not None  # noqa: S101  # set by `file`
        if self._size != self._open_file["size"] or self._hash.digest() != self._open_file["id"]:
            raise ValueError("does not match its hash or its size")
        self._sizes[self._open_file["id"]] = self._size
        self._content_bytes += self._size
        if self._sink is not None:
            self._sink.file(self._open_file["id"], self._size)
        self._open_file = None

    # -- trees

    def check_tree(self, record: Record) -> None:
        """Check the beginning of a tree."""
        if record["id"] != self._last_tree + 1 or record["base"] not in (None, self._last_tree or None):
            raise ValueError("is not the next tree, or does not begin with the one before it")
        self._last_tree = record["id"]
        if record["base"] is None or self._tree is None:
            self._tree, self._tree_bytes = FileTree(), 0
            self._left_out.clear()
        self._tree.begin()
        self._has_paths = False
        if self._sink is not None:
            self._sink.tree(record["id"], record["base"])

    def check_left_out(self, record: Record) -> None:
        """Check a path that the current tree leaves out or no longer leaves out. These records precede its changes."""
        path, reason = record["path"], record["why"]
        if self._tree is None or self._has_paths or (reason is None and path not in self._left_out):
            raise ValueError("belongs to no tree, comes too late, or was not left out before")
        if reason is None:
            self._left_out.remove(path)
        else:
            self._left_out.add(path)
            self.left_paths[path] = reason
        if len(self._left_out) > MOST_PATHS:
            raise ValueError(f"is one of more than {MOST_PATHS} paths of one tree")
        if self._sink is not None:
            self._sink.left(path, reason)

    def check_path(self, record: Record) -> None:
        """Check a change of the current tree."""
        if self._tree is None:
            raise ValueError("belongs to no tree")
        item = None if record["mode"] is None else TreeItem(record["mode"], record["file"], record["link"])
        if item is None and (record["file"] is not None or record["link"] is not None):
            raise ValueError("has no mode")
        if item is not None and item.file is not None and (item.link is not None or item.file not in self._sizes):
            raise ValueError("is both a file and a link, or refers to a file that did not come before it")
        if item is not None and record["path"] in self._left_out:
            raise ValueError("is both included and left out")
        self._has_paths = True
        previous = self._tree.change(record["path"], item)
        self._tree_bytes += self._item_bytes(item) - self._item_bytes(previous)
        if self._tree_bytes > max(UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO * self._content_bytes):
            raise ValueError(
                f"belongs to a tree that unpacks to more than {MAX_UNPACK_RATIO} times the files of the export"
            )
        if self._sink is not None:
            self._sink.change(record["path"], item)

    def _item_bytes(self, item: TreeItem | None) -> int:
        return self._sizes[item.file] if item is not None and item.file is not None else 0

    def check_snapshot(self, record: Record) -> None:
        """Check a snapshot, with its tree and the checkpoints that have it."""
        if (record["tree"] is None) != (record["why"] is not None) or (record["tree"] or 0) > self._last_tree:
            raise ValueError("refers to no earlier tree, or has no reason")
        if record["why"] is not None:
            self.missing_snapshots[record["why"]] += 1
            return
        for id in record["checkpoints"]:
            if self.snapshots.setdefault(id, record["id"]) != record["id"]:
                raise ValueError(f"is a second snapshot of checkpoint {id}")


def decode_base64(data: str) -> bytes:
    """Decode base64."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"has data that is not base64 ({error})") from error


def _parents_of(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _folded_path(path: bytes) -> str:
    return fold_name(text_of(path))


def _format_path(path: bytes) -> str:
    return ascii(text_of(path[:80]))
