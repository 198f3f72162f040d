"""Large values are stored in chunks: rows of the table blob of their own, and one small row that lists their hashes.

Chunks have a fixed size, so a value that grows at its end shares all but its last chunk with what it was. Cuts that
follow the content would also survive an insertion, but finding them in Python runs at 5 MB/s (measured; SHA-256: 700).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

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
