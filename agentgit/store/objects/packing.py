"""Packing of the bytes of values: compression, and large values in chunks.

Large values are stored in chunks: rows of the table blob of their own, and one small row that lists their hashes.
Chunks have a fixed size, so a value that grows at its end shares all but its last chunk with what it was. Cuts that
follow the content would also survive an insertion, but finding them in Python runs at 5 MB/s (measured; SHA-256: 700).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from agentgit.errors import InvalidInput, Unavailable

RAW, ZLIB, ZSTD, CHUNKED = 0, 1, 2, 3
"""The codec of a row; the last one's bytes are the hashes of its chunks, see `agentgit.store.objects.packing`."""

COMPRESS_FROM = 512
"""Bytes; below it compression saves less than it costs."""

WORTH = 0.9
"""Packed bytes are kept if they are at most this share of the bytes."""

ZSTD_LEVEL = 3

Data: TypeAlias = bytes | memoryview


class _Zstd(threading.local):
    """A compressor and a decompressor for each thread, which may not share them; a new one costs five small values."""

    def __init__(self, zstd: Any) -> None:
        self.compress: Callable[[Data], bytes] = zstd.ZstdCompressor(level=ZSTD_LEVEL).compress
        self.decompress: Callable[[bytes], bytes] = zstd.ZstdDecompressor().decompress


class Compression:
    """Packs new values in one way.

    Args:
        name: `zstd`, `zlib` (bigger and slower) or `none`.

    Raises:
        InvalidInput: It is none of these.

    Example:
        >>> codec, packed = Compression("zstd").pack(b"again and " * 100)
        >>> len(packed) < 50, unpacked(codec, packed) == b"again and " * 100
        (True, True)
    """

    def __init__(self, name: str) -> None:
        if name not in ("zstd", "zlib", "none"):
            raise InvalidInput(f"compression must be 'zstd', 'zlib' or 'none', not {name!r}.")
        self.name = name
        self._codec = {"zlib": ZLIB, "zstd": ZSTD, "none": RAW}[name]
        self._compress: Callable[[Data], bytes] = lambda data: zlib.compress(data, 1)
        if self._codec == ZSTD:
            plain = _plain(_zstandard())
            self._compress = lambda data: plain.compress(data)

    def pack(self, data: Data) -> tuple[int, Data]:
        """Pack bytes if that is worth it, and tell how.

        Args:
            data: The bytes.
        """
        if self._codec == RAW or len(data) < COMPRESS_FROM:
            return RAW, data
        packed = self._compress(data)
        return (self._codec, packed) if len(packed) <= len(data) * WORTH else (RAW, data)


def unpacked(codec: int, data: bytes) -> bytes:
    """Unpack the bytes of a row.

    Args:
        codec: The codec that `Compression.pack` returned.
        data: The packed bytes.

    Raises:
        ValueError: The bytes are damaged.
        Unavailable: This program lacks what packed them.
    """
    if codec == RAW:
        return data
    if codec == ZLIB:
        try:
            return zlib.decompress(data)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    if codec == CHUNKED:
        raise ValueError("a chunk has no chunks")
    if codec != ZSTD:
        raise Unavailable(f"A value has the compression {codec}, which this release does not know. Update agentgit.")
    zstd = _zstandard()
    try:
        return _plain(zstd).decompress(data)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


@cache
def _zstandard() -> Any:
    return import_module("zstandard")  # late: it takes as long as the rest of `import agentgit`


@cache
def _plain(zstd: Any) -> _Zstd:
    return _Zstd(zstd)


CHUNK = "chunk"
"""The type of a part of a large value; no other leaf may have it."""

CHUNK_BYTES = 256 * 1024
"""A value of more bytes is cut. From 64 KiB to 4 MiB writing and reading take the same time (measured); smaller chunks
take less memory beside the value, and a value that grows repeats less of its end.
"""

CHUNKS_AT_ONCE = 8
"""Chunks that are in memory beside the value they are parts of."""

HASH_BYTES = 32


class Chunk(NamedTuple):
    """A part of a large value: its hash, and its bytes without a copy."""

    hash: bytes
    data: memoryview
    type: str = CHUNK


def cut(data: bytes, size: int) -> Iterator[Chunk]:
    """Cut a value into chunks; the hash of each is that of a leaf of type `chunk`.

    Args:
        data: The value.
        size: The number of bytes in each chunk but the last.

    Example:
        >>> [len(chunk.data) for chunk in cut(bytes(10), 4)]
        [4, 4, 2]
    """
    whole = memoryview(data)
    for start in range(0, len(data), size):
        part = whole[start : start + size]
        digest = sha256(CHUNK.encode() + b"\0")
        digest.update(part)
        yield Chunk(digest.digest(), part)


def split_hashes(data: bytes) -> list[bytes]:
    """Read hashes that were written one behind the other; the last one is shorter if the bytes are damaged.

    Example:
        >>> split_hashes(bytes(64)) == [bytes(32), bytes(32)]
        True
    """
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]
