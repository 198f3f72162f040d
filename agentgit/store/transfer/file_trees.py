"""The files of an export: each content and each directory once, a directory after what is in it. No IO.

In memory are one part of a file, the hashes and sizes of the contents, and a summary of each directory.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from agentgit.store.transfer.lines import PART_BYTES
from agentgit.store.transfer.paths import LONGEST_PATH, fold_name, levels_up, text_of

Record = Mapping[str, Any]

CUSTOM_ENVIRONMENT = "its environment alone can read it"
NO_LONGER_STORED = "it is no longer stored"
UNOPENED_STORAGE = "nobody there has opened its storage"
NO_WORKSPACE = "no workspace was given to restore them into"
MOST_PATHS = 500_000
TOO_MANY_PATHS = f"it has more than {MOST_PATHS:,} paths"
REASONS = (CUSTOM_ENVIRONMENT, NO_LONGER_STORED, UNOPENED_STORAGE, TOO_MANY_PATHS)
"""The reasons why an export may lack the snapshot of a checkpoint."""

MAX_FILE_BYTES = 2**30
UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO = 2**30, 100
"""The size to which a tree may unpack: so many bytes, or so many times the contents of the export if that is more."""


FILE, LINK, FOLDER, LEFT = "file", "link", "folder", "left"
"""The kinds of items of a directory: the last is a name that it leaves out, with the reason."""


class Item(NamedTuple):
    """An item of a directory: a file with the hash of its contents, a link with its target, or a directory's number."""

    kind: str
    value: Any
    mode: int


class FileSink(Protocol):
    """A store for the files of an export while the export is checked."""

    def data(self, part: bytes) -> None:
        """Store a part of the contents of a file."""

    def file(self, id: bytes, size: int) -> None:
        """Complete a file: the parts since the previous file are its contents, with this hash."""

    def folder(self, id: int, items: Mapping[bytes, Item]) -> None:
        """Store a directory, whose files and directories came before."""

    def tree(self, id: int) -> None:
        """Keep a directory as the files of a snapshot."""


class _Folder(NamedTuple):
    """A checked directory: the numbers of paths and bytes in it, its longest path, and what it leaves out.

    `levels` is the number of directories that must be above it, because a link leads up to there.
    """

    paths: int
    size: int
    longest: int
    levels: int
    left: dict[bytes, str]


class FileChecker:
    """Checks the file records of an export for consistency.

    Afterwards, `snapshots` has the snapshot id of each checkpoint whose files are included, `missing_snapshots` counts
    the missing snapshots by reason, and `left_paths` has each path that any tree leaves out, with the reason.
    """

    def __init__(self, sink: FileSink | None = None) -> None:
        self.snapshots: dict[int, int] = {}
        self.missing_snapshots: Counter[str] = Counter()
        self.left_paths: dict[bytes, str] = {}
        self._sink = sink
        self._sizes: dict[bytes, int] = {}
        self._content_bytes = 0
        self._open_file: Record | None = None
        self._hash = sha256()
        self._size = self._part_count = 0
        self._folders: list[_Folder] = []

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

    # -- directories

    def check_folder(self, record: Record) -> None:
        """Check a directory; everything in it came before."""
        if record["id"] != len(self._folders) + 1:
            raise ValueError("is not the next directory")
        items: Mapping[bytes, Item] = record["items"]
        left, longest = {name: one.value for name, one in items.items() if one.kind == LEFT}, 0
        paths, size, levels, spellings = len(items), 0, 0, dict[str, bytes]()
        for name, (kind, value, _) in items.items():
            length = len(name)
            if kind == FILE:
                if value not in self._sizes:
                    raise ValueError("refers to a file that did not come before it")
                size += self._sizes[value]
            elif kind == LINK:
                levels = max(levels, levels_up(value))
            elif kind == FOLDER:
                if value > len(self._folders):
                    raise ValueError("refers to a directory that did not come before it")
                below = self._folders[value - 1]
                paths, size, levels = paths + below.paths, size + below.size, max(levels, below.levels - 1)
                length += 1 + below.longest
                if paths <= MOST_PATHS:
                    left |= {name + b"/" + path: why for path, why in below.left.items()}
            if kind != LEFT and (other := spellings.setdefault(fold_name(text_of(name)), name)) != name:
                raise ValueError(f"{format_path(name)} is the same as {format_path(other)} on some systems")
            longest = max(longest, length)
        if paths > MOST_PATHS:
            raise ValueError(f"has more than {MOST_PATHS} paths")
        if longest > LONGEST_PATH:
            raise ValueError(f"has a path of more than {LONGEST_PATH} bytes")
        if size > max(UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO * self._content_bytes):
            raise ValueError(f"unpacks to more than {MAX_UNPACK_RATIO} times the files of the export")
        self._folders.append(_Folder(paths, size, longest, levels, left))
        if self._sink is not None:
            self._sink.folder(record["id"], items)

    def check_snapshot(self, record: Record) -> None:
        """Check a snapshot, with its tree and the checkpoints that have it."""
        if (record["tree"] is None) != (record["why"] is not None) or (record["tree"] or 0) > len(self._folders):
            raise ValueError("refers to no earlier directory, or has no reason")
        if record["why"] is not None:
            self.missing_snapshots[record["why"]] += 1
            return
        tree = self._folders[record["tree"] - 1]
        if tree.levels:
            raise ValueError("has a link that may lead out of the workspace")
        self.left_paths |= tree.left
        if self._sink is not None:
            self._sink.tree(record["tree"])
        for id in record["checkpoints"]:
            if self.snapshots.setdefault(id, record["id"]) != record["id"]:
                raise ValueError(f"is a second snapshot of checkpoint {id}")


def decode_base64(data: str) -> bytes:
    """Decode base64."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"has data that is not base64 ({error})") from error


def format_path(path: bytes) -> str:
    """Return a path for a message."""
    return ascii(text_of(path[:80]))
