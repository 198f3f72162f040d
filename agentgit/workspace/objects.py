"""The object store: blobs and trees in pack files of git's own format, written and read without git.

So no hook, filter or configuration of a repository runs. Objects are never stored as differences of others, and are
held in memory as a whole. Only one process may write or collect at a time; any number may read.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from hashlib import sha1
from itertools import pairwise
from typing import BinaryIO

from agentgit.errors import Corrupt, Unavailable
from agentgit.workspace.locations import naming

TREE, BLOB = 2, 3
KINDS = {TREE: b"tree", BLOB: b"blob"}

LEVEL = 1
"""The level of compression: three times as fast as the default, a few per cent larger."""

HEADER, MAGIC, FANOUT = struct.Struct(">4sII"), b"\xfftOc\0\0\0\2", struct.Struct(">256I")
FAR = 1 << 31
"""The offset from which the index of a pack needs eight bytes for an offset."""

REFS = "refs/agentgit"

SMALL_PACK = 1 << 20
"""The size in bytes below which a collection merges pack files."""

REPOSITORY = {
    "HEAD": "ref: refs/heads/none\n",
    # A person's `git gc` may write packs here, but no differences, which this store does not read.
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n\taggressiveDepth = 0\n"
    "\taggressiveWindow = 0\n[pack]\n\tdepth = 0\n\twindow = 0\n",
}


def object_id(kind: int, data: bytes) -> bytes:
    hasher = sha1(b"%s %d\0" % (KINDS.get(kind, b"?"), len(data)), usedforsecurity=False)
    hasher.update(data)
    return hasher.digest()


def pack_object(kind: int, data: bytes) -> bytes:
    byte, size = kind << 4 | len(data) & 15, len(data) >> 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    return bytes([*header, byte]) + zlib.compress(data, LEVEL)


def unpack_object(oid: bytes, raw: bytes) -> bytes | None:
    """Return the data of an object as a pack has it; None if it is damaged."""
    with suppress(zlib.error):
        data = zlib.decompress(raw[next((at for at, byte in enumerate(raw, 1) if byte < 128), 0) :])
        return data if object_id(raw[0] >> 4 & 7, data) == oid else None
    return None


class Pack:
    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def places(self) -> dict[bytes, tuple[int, int]]:
        """The offset and the length of each object, without those of a damaged index or beyond the end of the pack."""
        try:
            with open(self.path + ".idx", "rb") as file:
                index = file.read()
            size, count = os.stat(self.path + ".pack").st_size, int.from_bytes(index[1028:1032], "big")
        except FileNotFoundError:  # another process has collected
            return {}
        far = 1032 + 28 * count
        if len(index) < far + 40 or not index.startswith(MAGIC):
            return {}
        oids = [index[at : at + 20] for at in range(1032, 1032 + 20 * count, 20)]
        offsets = [
            at if at < FAR else int.from_bytes(index[far + 8 * (at - FAR) :][:8], "big")
            for at in struct.unpack_from(f">{count}I", index, far - 4 * count)
        ]
        ends = dict(pairwise([*sorted(offsets), size - 20]))
        places = {oid: (at, ends[at] - at) for oid, at in zip(oids, offsets, strict=True)}
        return {oid: (at, length) for oid, (at, length) in places.items() if 0 < length <= size - at}

    def read(self, oids: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield ids and objects as the file has them."""
        with open(self.path + ".pack", "rb") as file:
            for offset, length, oid in sorted((*self.places[oid], oid) for oid in oids):
                file.seek(offset)
                yield oid, file.read(length)

    def remove(self) -> None:
        """Delete the files, the index first: git ignores a pack without an index."""
        for suffix in (".idx", ".rev", ".pack"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + suffix)


class PackWriter:
    """Writes objects into a new pack file. Until `finish`, no reader sees them."""

    def __init__(self, folder: str, is_stored: Callable[[bytes], bool]) -> None:
        self._folder, self._is_stored = folder, is_stored
        self._entries: dict[bytes, tuple[int, int]] = {}
        self.named = set[bytes]()
        """The trees that get a ref, so that git keeps them."""
        self._opened: tuple[BinaryIO, str] | None = None
        self.path = ""
        self._offset = HEADER.size

    def has(self, oid: bytes) -> bool:
        return oid in self._entries or self._is_stored(oid)

    def put(self, kind: int, data: bytes) -> bytes:
        oid = object_id(kind, data)
        if not self.has(oid):
            self.put_packed(oid, pack_object(kind, data))
        return oid

    def put_packed(self, oid: bytes, raw: bytes) -> None:
        if self.has(oid):
            return
        with naming(self._folder):  # a scan takes another error for one of the workspace
            if self._opened is None:
                descriptor, path = tempfile.mkstemp(prefix="tmp_", dir=self._folder)
                self._opened = open(descriptor, "w+b"), path  # noqa: SIM115 - closed by `finish` and `abandon`
                self._opened[0].write(HEADER.pack(b"PACK", 2, 0))
            self._opened[0].write(raw)
        self._entries[oid] = (self._offset, zlib.crc32(raw))
        self._offset += len(raw)

    def finish(self) -> None:
        """Flush the pack to the disk, then make it visible."""
        if self._opened is None:
            return
        (file, path), folder = self._opened, self._folder
        file.seek(0)
        file.write(HEADER.pack(b"PACK", 2, len(self._entries)))
        file.seek(0)
        hasher = sha1(usedforsecurity=False)
        for chunk in iter(partial(file.read, 1 << 20), b""):
            hasher.update(chunk)
        file.write(hasher.digest())
        _flush(file)
        file.close()
        self.path = os.path.join(folder, f"pack-{hasher.hexdigest()}")
        os.rename(path, f"{self.path}.pack")
        with open(path, "wb") as index:
            index.write(self._index(hasher.digest()))
            _flush(index)
        os.rename(path, f"{self.path}.idx")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _index(self, checksum: bytes) -> bytes:
        entries = sorted(self._entries.items())
        counts = [0] * 256
        for oid, _ in entries:
            counts[oid[0]] += 1
        totals = [sum(counts[: byte + 1]) for byte in range(256)]
        far = [offset for _, (offset, _) in entries if offset >= FAR]
        positions = {offset: FAR + number for number, offset in enumerate(far)}
        parts = [MAGIC, FANOUT.pack(*totals), *(oid for oid, _ in entries)]
        parts += [struct.pack(f">{len(entries)}I", *(crc for _, (_, crc) in entries))]
        parts += [struct.pack(f">{len(entries)}I", *(positions.get(at, at) for _, (at, _) in entries))]
        parts += [struct.pack(f">{len(far)}Q", *far), checksum]
        index = b"".join(parts)
        return index + sha1(index, usedforsecurity=False).digest()

    def abandon(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            with suppress(FileNotFoundError):
                os.unlink(self._opened[1])


class Objects:
    def __init__(self, folder: str, *, is_repository: bool) -> None:
        self.folder, self._is_repository = folder, is_repository
        self.pack_folder = os.path.join(folder, "objects", "pack")
        self._packs: dict[str, Pack] = {}
        with naming(folder):
            os.makedirs(self.pack_folder, mode=0o700, exist_ok=True)
            if is_repository:
                os.makedirs(os.path.join(folder, REFS), mode=0o700, exist_ok=True)
                for name, text in REPOSITORY.items():
                    if not os.path.exists(os.path.join(folder, name)):
                        _write_file(os.path.join(folder, name), text)
        self.refresh()

    def refresh(self) -> None:
        with naming(self.folder):
            found = set(os.listdir(self.pack_folder))
            names = {name for name in found if name.endswith(".idx") and f"{name[:-4]}.pack" in found}
            new = {name: Pack(os.path.join(self.pack_folder, name[:-4])) for name in names - self._packs.keys()}
            self._packs = {name: pack for name, pack in self._packs.items() if name in names} | new

    def __contains__(self, oid: bytes) -> bool:
        return any(oid in pack.places for pack in self._packs.values())

    @contextmanager
    def writing(self, is_stored: Callable[[bytes], bool] | None = None) -> Iterator[PackWriter]:
        """Write objects; they are stored when the block ends, all or none."""
        with naming(self.folder):
            self.refresh()
            if self._is_repository:  # so that the last step does not fail
                tempfile.TemporaryFile(dir=os.path.join(self.folder, REFS)).close()
            writer = PackWriter(self.pack_folder, is_stored or self.__contains__)
            try:
                yield writer
                writer.finish()
            except BaseException:
                writer.abandon()
                raise
            for tree in writer.named if self._is_repository else ():
                _write_file(os.path.join(self.folder, REFS, tree.hex()), f"{tree.hex()}\n")
            self.refresh()

    def can_read(self, oid: bytes) -> bool:
        with suppress(Corrupt):
            self.read(oid)
            return True
        return False

    def read(self, oid: bytes) -> bytes:
        return next(data for _, _, data in self.read_packed([oid]))

    def read_packed(self, oids: Collection[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the id of each object, the object as a pack has it, and its data. A damaged copy counts as missing."""
        missing = set(oids)
        for _ in range(2):
            for pack in list(self._packs.values()):
                with naming(self.folder), suppress(FileNotFoundError):
                    for oid, raw in pack.read(missing & pack.places.keys()):
                        if (data := unpack_object(oid, raw)) is not None:
                            missing.remove(oid)
                            yield oid, raw, data
            if not missing:
                return
            self.refresh()  # another process may have collected
        oid = min(missing)
        raise Corrupt(f"The stored object {oid.hex()} is missing or damaged.", row=oid.hex())

    def collect(self, trees: Collection[bytes], needed: set[bytes]) -> int:
        """Remove all objects except the needed ones, and the refs of other trees; return the number of bytes freed."""
        with naming(self.folder):
            before = self._disk_usage()
            for name in os.listdir(self.pack_folder):
                if name.startswith("tmp_"):
                    os.unlink(os.path.join(self.pack_folder, name))
            self.refresh()
            refs = os.path.join(self.folder, REFS)
            for name in set(os.listdir(refs) if self._is_repository else ()).difference(tree.hex() for tree in trees):
                os.unlink(os.path.join(refs, name))
            packs = {pack: needed & pack.places.keys() for pack in self._packs.values() if pack.places}
            for pack in [pack for pack in packs if not packs[pack]]:  # first, because it needs no free space
                pack.remove()
                del packs[pack]
            small = {pack for pack in packs if os.stat(pack.path + ".pack").st_size < SMALL_PACK}
            wasteful = {pack: kept for pack, kept in packs.items() if len(kept) < len(pack.places) or pack in small}
            if len(wasteful) > 1 or any(len(kept) < len(pack.places) for pack, kept in wasteful.items()):
                with suppress(Unavailable):  # without space for a copy of what is needed, all stays
                    with self.writing(lambda _: False) as writer:
                        for pack, kept in wasteful.items():
                            for oid, raw in pack.read(kept):
                                if unpack_object(oid, raw) is not None:  # another pack may have it whole
                                    writer.put_packed(oid, raw)
                    for pack in wasteful:
                        if pack.path != writer.path:  # equal if a kill left the same objects in several packs
                            pack.remove()
            self.refresh()
            return max(0, before - self._disk_usage())

    def _disk_usage(self) -> int:
        names = os.listdir(self.pack_folder)
        return sum(os.lstat(os.path.join(self.pack_folder, name)).st_blocks for name in names) * 512


def _write_file(path: str, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:  # others may write it, too
        file.write(text)
    os.rename(file.name, path)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
