"""The files of an export: each content and each directory once, a directory after what is in it. No IO.

In memory are one part of a file, the hashes and sizes of the contents, and a summary of each directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from agentgit.store.records.json_shapes import anything, decode_bytes, digest, label, named, number
from agentgit.store.transfer import paths
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

PART_BYTES = 256 * 1024
"""The size of a part of a file, in bytes. The last part may be smaller."""

FILE, LINK, FOLDER, LEFT = "file", "link", "folder", "left"
"""The kinds of items of a directory: the last is a name that it leaves out, with the reason."""


class Item(NamedTuple):
    """An item of a directory: a file with the hash of its contents, a link with its target, or a directory's number."""

    kind: str
    value: Any
    mode: int


def _check_items(value: Any) -> dict[bytes, Item]:
    """Check the items of a directory by name: each is the kind, the value and the permission bits."""
    items = {}
    for name, item in named(value).items():
        kind, what, mode = item if type(item) is list and len(item) == 3 else (None, None, None)
        if kind not in _ITEM_VALUES:
            raise ValueError(f"{name[:80]!a} is not a file, a link, a folder or left out")
        checked = paths.left_out(name) if kind == LEFT else paths.name(name)
        items[checked] = Item(kind, _ITEM_VALUES[kind](what), number(most=0o777)(mode))
    return items


_ITEM_VALUES = {FILE: digest, LINK: paths.link, FOLDER: number(1), LEFT: label}

SHAPES = {
    "part": {"data": anything},
    "file": {"id": digest, "size": number(most=MAX_FILE_BYTES)},
    "folder": {"id": number(1), "items": _check_items},
}
"""The shapes of the records of files. The parts of a file come before it."""


UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO = 2**30, 100
"""The size to which a value or a directory may unpack: so many bytes or, if it is more, so many times all contents."""


class UnpackedSizes:
    """The sizes to which the values or the files of an export unpack. Each comes after those that it refers to."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sizes: dict[bytes | int, int] = {}
        self._content_bytes = 0

    def add(self, key: bytes | int, size: int, parts: Iterable[bytes | int] = ()) -> int:
        self._content_bytes += size
        total = size + self.require(parts)
        if key in self._sizes:
            raise ValueError(f"is a duplicate of {self._name(key)}")
        self._sizes[key] = total
        return total

    def require(self, parts: Iterable[bytes | int]) -> int:
        """Check that the parts came before, and that they do not unpack to too much together."""
        total = 0
        for part in parts:
            if part not in self._sizes:
                raise ValueError(f"refers to {self._name(part)}, which did not come before it")
            total += self._sizes[part]
        if total > max(UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO * self._content_bytes):
            raise ValueError(f"unpacks to more than {MAX_UNPACK_RATIO} times the {self._kind}s of the export")
        return total

    def _name(self, key: bytes | int) -> str:
        return f"directory {key}" if isinstance(key, int) else f"{self._kind} {key.hex()}"


class FileSink:
    """The receiver of the files of an export while it is checked; this one drops them."""

    def data(self, part: bytes) -> None:
        """Store a part of the contents of a file."""

    def file(self, id: bytes, size: int) -> None:
        """Complete a file: the parts since the previous file are its contents, with this hash."""

    def folder(self, id: int, items: Mapping[bytes, Item]) -> None:
        """Store a directory, whose files and directories came before."""

    def tree(self, id: int) -> None:
        """Keep a directory as the files of a snapshot."""


class _Folder(NamedTuple):
    """A checked directory. `levels` is the number of directories that must be above it, because a link leads there."""

    paths: int
    longest: int
    levels: int
    left: dict[bytes, str]


class FileChecker:
    """Checks the file records of an export; at the end it knows why snapshots and paths were left out."""

    def __init__(self, sink: FileSink | None = None) -> None:
        self.missing_snapshots: Counter[str] = Counter()
        self.left_paths: dict[bytes, str] = {}
        self._sink = sink or FileSink()
        self._sizes = UnpackedSizes("file")
        self._hash, self._size = sha256(), 0
        self._folders: list[_Folder] = []

    # -- contents

    def check_part(self, record: Record) -> None:
        data = decode_bytes(record["data"])
        if len(data) > PART_BYTES:
            raise ValueError(f"has more than {PART_BYTES} bytes")
        self._hash.update(data)
        self._size += len(data)
        self._sink.data(data)

    def check_file(self, record: Record) -> None:
        self._sizes.add(record["id"], self._size)
        if self._size != record["size"] or self._hash.digest() != record["id"]:
            raise ValueError("does not match its hash or its size")
        self._sink.file(record["id"], self._size)
        self._hash, self._size = sha256(), 0

    def check_end(self) -> None:
        if self._size:
            raise ValueError("comes after a part that belongs to no file")

    # -- directories

    def check_folder(self, record: Record) -> None:
        if record["id"] != len(self._folders) + 1:
            raise ValueError("is not the next directory")
        items: Mapping[bytes, Item] = record["items"]
        self._sizes.add(record["id"], 0, [one.value for one in items.values() if one.kind in (FILE, FOLDER)])
        left, longest = {name: one.value for name, one in items.items() if one.kind == LEFT}, 0
        paths, levels, spellings = len(items), 0, dict[str, bytes]()
        for name, (kind, value, _) in items.items():
            length = len(name)
            if kind == LINK:
                levels = max(levels, levels_up(value))
            elif kind == FOLDER:
                below = self._folders[value - 1]
                paths, levels = paths + below.paths, max(levels, below.levels - 1)
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
        self._folders.append(_Folder(paths, longest, levels, left))
        self._sink.folder(record["id"], items)

    def check_snapshot(self, record: Record) -> None:
        if (record["tree"] is None) != (record["why"] is not None) or (record["tree"] or 0) > len(self._folders):
            raise ValueError("refers to no earlier directory, or has no reason")
        if record["why"] is not None:
            self.missing_snapshots[record["why"]] += 1
            return
        tree = self._folders[record["tree"] - 1]
        if tree.levels:
            raise ValueError("has a link that may lead out of the workspace")
        self.left_paths |= tree.left
        self._sink.tree(record["tree"])


def format_path(path: bytes) -> str:
    return ascii(text_of(path[:80]))
