"""Pack files of git's own format, written and read without git. Objects are never stored as differences of others."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha1
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from agentgit.errors import Corrupt, InvalidInput, Unavailable
from agentgit.values import escape_path

COMMIT, TREE, BLOB = 1, 2, 3
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}

IN_MEMORY = 8 << 20
"""The maximum size of contents that are held in memory, in bytes."""

CHUNK = 1 << 20
"""The number of bytes of a larger file that are read at once."""

LEVEL = 1
"""The level of compression: three times as fast as the default, a few per cent larger."""

HEAD = 4096
"""The number of bytes of an object that are read first."""

HEADER, MAGIC, FANOUT = struct.Struct(">4sII"), b"\xfftOc\0\0\0\2", struct.Struct(">256I")
FAR = 1 << 31
"""The offset from which the index of a pack needs eight bytes for an offset."""

FREE, PERMIT = "Free some space", "Grant the permission"
ADVICE = {errno.ENOSPC: FREE, errno.EDQUOT: FREE, errno.EACCES: PERMIT, errno.EPERM: PERMIT, errno.EROFS: PERMIT}


@contextmanager
def naming(path: str | bytes) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{os.fsdecode(path)!r} is too long for the name of a file.") from error
        advice = ADVICE.get(error.errno or 0, "Fix the cause")
        raise Unavailable(f"{escape_path(path)}: {error.strerror or error}. {advice}, then try again.") from error


class LargeContents:
    """Contents that are too large for memory. Iterating reads them in chunks from the start; `len` is their size."""

    def __init__(self, size: int, read: Callable[[], Iterator[bytes]]) -> None:
        self._size, self._read = size, read

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._read()


Data = bytes | LargeContents
"""The contents of a file, or the target of a link."""


def iter_chunks(data: Data) -> Iterable[bytes]:
    return (data,) if isinstance(data, bytes) else data


class PackedObject(NamedTuple):
    oid: bytes
    raw: bytes


def pack_object(kind: int, data: bytes) -> PackedObject:
    oid = sha1(b"%s %d\0" % (KINDS[kind], len(data)), usedforsecurity=False)
    oid.update(data)
    return PackedObject(oid.digest(), _object_header(kind, len(data)) + zlib.compress(data, LEVEL))


def digest_of(parts: Iterable[bytes], size: int) -> bytes:
    """Return the id of contents as a blob; `size` must be their number of bytes."""
    hasher = sha1(b"blob %d\0" % size, usedforsecurity=False)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _object_header(kind: int, size: int) -> bytes:
    byte, size = kind << 4 | size & 15, size >> 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    return bytes([*header, byte])


class Pack:
    def __init__(self, index_path: str) -> None:
        self.path = index_path.removesuffix(".idx")
        with open(index_path, "rb") as file:
            self._index = file.read()
        if len(self._index) < 1072 or not self._index.startswith(MAGIC):
            raise Corrupt(f"{escape_path(index_path)} is damaged. Other snapshots may be intact.", row=index_path)
        self._fanout = FANOUT.unpack_from(self._index, 8)
        self.count = self._fanout[255]

    @property
    def oids(self) -> Iterator[bytes]:
        """The ids of its objects, sorted."""
        return (self._index[at : at + 20] for at in range(1032, 1032 + 20 * self.count, 20))

    def find(self, oid: bytes) -> int | None:
        """Return the offset of an object; None if it is not in this pack."""
        index, low, high = self._index, self._fanout[oid[0] - 1] if oid[0] else 0, self._fanout[oid[0]]
        while low < high:
            middle = (low + high) // 2
            found = index[1032 + 20 * middle : 1052 + 20 * middle]
            if found == oid:
                return self._offset(middle)
            low, high = (middle + 1, high) if found < oid else (low, middle)
        return None

    def _offset(self, number: int) -> int:
        table = 1032 + 24 * self.count
        offset = int.from_bytes(self._index[table + 4 * number : table + 4 * number + 4], "big")
        if offset < FAR:
            return offset
        at = table + 4 * self.count + 8 * (offset - FAR)
        return int.from_bytes(self._index[at : at + 8], "big")

    def read(self, offset: int, size: int) -> bytes:
        descriptor = os.open(self.path + ".pack", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def raw_objects(self, oids: Collection[bytes]) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        """Yield objects as the file has them, each in chunks."""
        offsets = {oid: self._offset(number) for number, oid in enumerate(self.oids)}
        ends = sorted([*offsets.values(), os.stat(self.path + ".pack").st_size - 20])
        end_of = dict(pairwise(ends))
        for oid in sorted(oids, key=offsets.__getitem__):
            start, end = offsets[oid], end_of[offsets[oid]]
            yield oid, (self.read(at, min(CHUNK, end - at)) for at in range(start, end, CHUNK))

    def remove(self) -> None:
        """Delete the files, the index first: git ignores a pack without an index."""
        for suffix in (".idx", ".rev", ".pack"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + suffix)


class PackWriter:
    """Writes objects into a new pack file. Until `finish`, no reader sees them."""

    def __init__(self, folder: str, refs: str | None, is_stored: Callable[[bytes], bool]) -> None:
        self._folder, self._ref_folder, self._is_stored = folder, refs, is_stored
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._refs: dict[str, bytes] = {}
        self._opened: tuple[BinaryIO, str] | None = None
        self._offset = HEADER.size

    @property
    def _file(self) -> BinaryIO:
        if self._opened is None:
            descriptor, path = tempfile.mkstemp(prefix="tmp_", dir=self._folder)
            self._opened = open(descriptor, "w+b"), path  # noqa: SIM115 - closed by `finish` and `abandon`
            self._opened[0].write(HEADER.pack(b"PACK", 2, 0))
        return self._opened[0]

    def has(self, oid: bytes) -> bool:
        """Return whether an object is stored already, or here."""
        return oid in self._entries or self._is_stored(oid)

    def put(self, kind: int, data: bytes) -> bytes:
        packed = pack_object(kind, data)
        self.put_packed(packed)
        return packed.oid

    def put_packed(self, packed: PackedObject) -> None:
        if not self.has(packed.oid):
            self.put_raw(packed.oid, [packed.raw])

    def put_raw(self, oid: bytes, parts: Iterable[bytes]) -> None:
        """Store an object as another pack has it."""
        start, crc, file = self._offset, 0, self._file
        for part in parts:
            file.write(part)
            crc = zlib.crc32(part, crc)
            self._offset += len(part)
        self._entries[oid] = (start, crc)

    def put_large(self, size: int, chunks: Iterable[bytes]) -> bytes | None:
        """Store a blob that is read in chunks, and return its id; None if it has another size."""
        hasher = sha1(b"blob %d\0" % size, usedforsecurity=False)
        left, start = size, self._offset

        def compressed() -> Iterator[bytes]:
            nonlocal left
            compressor = zlib.compressobj(LEVEL)
            yield _object_header(BLOB, size)
            for chunk in chunks:
                hasher.update(chunk)
                left -= len(chunk)
                yield compressor.compress(chunk)
            yield compressor.flush()

        oid = None
        try:
            self.put_raw(b"", compressed())
            entry, oid = self._entries.pop(b""), None if left else hasher.digest()
            is_new = oid is not None and not self.has(oid)
        except BaseException:
            is_new = False
            raise
        finally:
            if not is_new:
                self._file.seek(start)
                self._file.truncate()
                self._offset = start
        if oid is not None and is_new:
            self._entries[oid] = entry
        return oid

    def name_tree(self, tree: bytes) -> None:
        """Put a tree on a ref, as a commit without parents, so that git keeps it."""
        if self._ref_folder is None:
            return
        if not os.path.exists(ref := os.path.join(self._ref_folder, tree.hex())):
            who = b"agentgit <agentgit> %d +0000" % int(time.time())
            text = b"tree %s\nauthor %s\ncommitter %s\n\nA snapshot of agentgit\n" % (tree.hex().encode(), who, who)
            self._refs[ref] = self.put(COMMIT, text)

    def finish(self) -> str:
        """Flush the pack to the disk, then make it visible; return the name of its index."""
        if self._opened is None or not self._entries:
            self.abandon()
            return ""
        (file, path), folder = self._opened, self._folder
        file.seek(0)
        file.write(HEADER.pack(b"PACK", 2, len(self._entries)))
        file.seek(0)
        hasher = sha1(usedforsecurity=False)
        for chunk in iter(partial(file.read, CHUNK), b""):
            hasher.update(chunk)
        file.write(hasher.digest())
        _flush(file)
        name = os.path.join(folder, f"pack-{hasher.hexdigest()}")
        file.close()
        os.rename(path, f"{name}.pack")
        with open(path, "wb") as index:
            index.write(self._index(hasher.digest()))
            _flush(index)
        os.rename(path, f"{name}.idx")
        for ref, commit in self._refs.items():
            write_file(ref, f"{commit.hex()}\n")
        flush_folder(folder)
        return f"{os.path.basename(name)}.idx"

    def _index(self, checksum: bytes) -> bytes:
        """Return the index of the pack, in version 2 of git's format."""
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


def pack_id(kind: int, data: bytes) -> bytes:
    return sha1(b"%s %d\0" % (KINDS[kind], len(data)) + data, usedforsecurity=False).digest()


class StoredObject:
    """An object in a pack file: its kind and size, and its contents in chunks."""

    def __init__(self, pack: Pack, offset: int) -> None:
        head = pack.read(offset, HEAD)
        byte, at, shift = head[0], 1, 4
        self.kind, self.size = byte >> 4 & 7, byte & 15
        while byte & 0x80:
            byte = head[at]
            self.size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
        self._pack, self._offset, self._head = pack, offset + at, head[at:]

    def chunks(self) -> Iterator[bytes]:
        if self.kind not in KINDS:
            raise Corrupt(f"{self._pack.path} was packed by another program with differences.", row=self._pack.path)
        inflater, offset, raw = zlib.decompressobj(), self._offset + len(self._head), self._head
        step = min(CHUNK, self.size + self.size // 1000 + 64)
        try:
            while raw and not inflater.eof:
                yield inflater.decompress(raw, CHUNK)
                raw = inflater.unconsumed_tail
                if not raw and not inflater.eof:
                    raw = self._pack.read(offset, step)
                    offset += len(raw)
        except zlib.error:
            return  # the hash of the contents shows it


def verified(oid: bytes, kind: int, size: int, chunks: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    hasher = sha1(b"%s %d\0" % (KINDS[kind], size), usedforsecurity=False)
    for chunk in chunks():
        hasher.update(chunk)
        yield chunk
    if hasher.digest() != oid:
        raise damaged(oid)


def damaged(oid: bytes) -> Corrupt:
    return Corrupt(f"The stored object {oid.hex()} is missing or damaged.", row=oid.hex())


def write_file(path: str, text: str) -> None:
    """Write a file of the repository, whole or not at all."""
    with open(f"{path}.tmp", "w") as file:
        file.write(text)
    os.rename(f"{path}.tmp", path)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: str) -> None:
    """Flush the entries of a directory to disk, so that they survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
