"""How the bytes of a value are packed. Each row says how its own are, so that kinds may be mixed in one database."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from agentgit.errors import InvalidInput, Unavailable

RAW, ZLIB, ZSTD = 0, 1, 2

COMPRESS_FROM = 512
"""Bytes; below it compression saves less than it costs."""

WORTH = 0.9
"""Packed bytes are kept if they are at most this share of the bytes."""

ZSTD_LEVEL = 3
MISSING = "the package zstandard is not installed. Run: pip install zstandard"


class Compression:
    """Packs new values in one way.

    Args:
        name: `zlib`, `zstd` (needs the package zstandard; smaller and quicker) or `none`.

    Raises:
        InvalidInput: it is none of these, or the package is missing.

    Example:
        >>> codec, packed = Compression("zlib").pack(b"again and " * 100)
        >>> len(packed) < 50, unpacked(codec, packed) == b"again and " * 100
        (True, True)
    """

    def __init__(self, name: str) -> None:
        if name not in ("zlib", "zstd", "none"):
            raise InvalidInput(f"There is no compression {name!r}; give 'zlib', 'zstd' or 'none'.")
        self.name = name
        self._codec = {"zlib": ZLIB, "zstd": ZSTD, "none": RAW}[name]
        self._compress: Callable[[bytes], bytes] = lambda data: zlib.compress(data, 1)
        if self._codec == ZSTD:
            zstd = _zstandard()
            if zstd is None:
                raise InvalidInput(f"compression='zstd' cannot be used: {MISSING}")
            # A compressor of its own for each value: one may not be shared by threads.
            self._compress = lambda data: zstd.ZstdCompressor(level=ZSTD_LEVEL).compress(data)

    def pack(self, data: bytes) -> tuple[int, bytes]:
        """Pack bytes if that is worth it, and tell how."""
        if self._codec == RAW or len(data) < COMPRESS_FROM:
            return RAW, data
        packed = self._compress(data)
        return (self._codec, packed) if len(packed) <= len(data) * WORTH else (RAW, data)


def unpacked(codec: int, data: bytes) -> bytes:
    """Give the bytes of a row back.

    Args:
        codec: as `Compression.pack` told.
        data: the packed bytes.

    Raises:
        ValueError: they are damaged.
        Unavailable: this program lacks what packed them.
    """
    if codec == RAW:
        return data
    if codec == ZLIB:
        try:
            return zlib.decompress(data)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    zstd = _zstandard()
    if codec != ZSTD:
        raise Unavailable(f"A value was packed in a way ({codec}) that this release does not know. Update agentgit.")
    if zstd is None:
        raise Unavailable(f"A value was packed with zstd, and {MISSING}")
    try:
        return bytes(zstd.ZstdDecompressor().decompress(data))
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


def _zstandard() -> Any | None:
    try:
        return import_module("zstandard")
    except ImportError:
        return None
