"""Packing of values: compression, and chunks for large values.

Each chunk of a large value is a row of the table blob, and one small row lists the hashes of the chunks. Chunks have a
fixed size, so a value that grows at its end shares all but its last chunk with its earlier version. Content-defined
chunking would also survive insertions, but in Python it runs at 5 MB/s (measured; SHA-256 runs at 700 MB/s).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from agentgit.errors import InvalidInput

RAW, ZLIB, ZSTD, CHUNKED = 0, 1, 2, 3
"""The codecs of a row. The bytes of a `CHUNKED` row are the hashes of its chunks."""

MIN_COMPRESSED_SIZE = 512
"""The smallest size in bytes that is compressed. Below it, compression saves less than it costs."""

MAX_READABLE_SIZE = 4096
"""The largest size in bytes that `auto` does not compress, so that any SQL tool can read most values."""

MAX_COMPRESSED_RATIO = 0.9
"""The maximum ratio of compressed to original size. Above it, a value is stored uncompressed."""

ZSTD_LEVEL = 3

Data: TypeAlias = bytes | memoryview


class _Zstd(threading.local):
    """A compressor and a decompressor per thread, as threads cannot share them; a new pair costs five small values."""

    def __init__(self, zstd: Any) -> None:
        self.compress: Callable[[Data], bytes] = zstd.ZstdCompressor(level=ZSTD_LEVEL).compress
        self.decompress: Callable[[bytes], bytes] = zstd.ZstdDecompressor().decompress


class Compression:
    def __init__(self, name: str) -> None:
        if name not in ("auto", "zstd", "zlib", "none"):
            raise InvalidInput(f"compression must be 'auto', 'zstd', 'zlib' or 'none', not {name!r}.")
        self.name = name
        self._codec = {"auto": ZSTD, "zlib": ZLIB, "zstd": ZSTD, "none": RAW}[name]
        self._min_size = MAX_READABLE_SIZE + 1 if name == "auto" else MIN_COMPRESSED_SIZE
        self._compress: Callable[[Data], bytes] = lambda data: zlib.compress(data, 1)
        if self._codec == ZSTD:
            zstd_codec = _zstd_codec(_zstandard())
            self._compress = lambda data: zstd_codec.compress(data)

    def pack(self, data: Data) -> tuple[int, Data]:
        """Compress bytes if that saves enough. Return the codec and the packed bytes."""
        if self._codec == RAW or len(data) < self._min_size:
            return RAW, data
        packed = self._compress(data)
        return (self._codec, packed) if len(packed) <= len(data) * MAX_COMPRESSED_RATIO else (RAW, data)


def unpacked(codec: int, data: bytes) -> bytes:
    if codec == RAW:
        return data
    if codec == ZLIB:
        try:
            return zlib.decompress(data)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    if codec == CHUNKED:
        raise ValueError("a chunk has no chunks")
    zstd = _zstandard()
    try:
        return _zstd_codec(zstd).decompress(data)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


@cache
def _zstandard() -> Any:
    return import_module("zstandard")  # imported late: it takes as long as the rest of `import agentgit`


@cache
def _zstd_codec(zstd: Any) -> _Zstd:
    return _Zstd(zstd)


CHUNK = "chunk"
"""The type of a chunk of a large value. No other leaf may have this type."""

CHUNK_BYTES = 256 * 1024
"""The size of a chunk. Larger values are split.

Reading and writing take the same time for sizes from 64 KiB to 4 MiB (measured). Smaller chunks take less memory in
addition to the value, and a value that grows repeats less of its end.
"""

CHUNKS_AT_ONCE = 8
"""The number of chunks that are in memory in addition to their value."""

HASH_BYTES = 32


class Chunk(NamedTuple):
    """A part of a large value: its hash, and a view of its bytes."""

    hash: bytes
    data: memoryview
    type: str = CHUNK


def cut(data: bytes, size: int) -> Iterator[Chunk]:
    """Split a value into chunks. The hash of a chunk is that of a leaf of type `chunk`."""
    view = memoryview(data)
    for start in range(0, len(data), size):
        part = view[start : start + size]
        digest = sha256(CHUNK.encode() + b"\0")
        digest.update(part)
        yield Chunk(digest.digest(), part)


def split_hashes(data: bytes) -> list[bytes]:
    """Split concatenated hashes. The last one is shorter if the bytes are damaged."""
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]
