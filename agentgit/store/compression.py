"""How the bytes of a value are packed. Each row says how its own are, so that kinds may be mixed in one database."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from agentgit.errors import InvalidInput, Unavailable

RAW, ZLIB, ZSTD, ZSTD_DICTIONARY, CHUNKED = 0, 1, 2, 3, 4
"""The codec of a row; the last one's bytes are the hashes of its chunks, see `agentgit.store.chunks`."""

COMPRESS_FROM = 512
"""Bytes; below it compression saves less than it costs."""

DICTIONARY_FROM = 64
"""Bytes; the same where there is a dictionary."""

WORTH = 0.9
"""Packed bytes are kept if they are at most this share of the bytes."""

ZSTD_LEVEL = 3

HEADER_BYTES = 18
"""How long the beginning of what zstd packed is at most (RFC 8878, 3.1.1.1)."""

Data: TypeAlias = bytes | memoryview


class _Zstd(threading.local):
    """A compressor and a decompressor for each thread, which may not share them; a new one costs five small values."""

    def __init__(self, zstd: Any, trained: Any = None) -> None:
        self.compress: Callable[[Data], bytes] = zstd.ZstdCompressor(level=ZSTD_LEVEL, dict_data=trained).compress
        self.decompress: Callable[[bytes], bytes] = zstd.ZstdDecompressor(dict_data=trained).decompress


class Dictionary:
    """What zstd knows beforehand about values, so that short ones become much shorter.

    Args:
        data: as `train` made it.
    """

    def __init__(self, data: bytes) -> None:
        zstd = _zstandard()
        trained = zstd.ZstdCompressionDict(data)
        trained.precompute_compress(level=ZSTD_LEVEL)
        self.data = data
        self.id: int = trained.dict_id()
        self.zstd = _Zstd(zstd, trained)


def train(samples: Sequence[bytes], size: int) -> Dictionary:
    """Make a dictionary out of values.

    Args:
        samples: the values.
        size: its greatest size, in bytes.

    Raises:
        InvalidInput: there are too few or too small values.
    """
    zstd = _zstandard()
    try:
        return Dictionary(zstd.train_dictionary(size, samples).as_bytes())
    except (zstd.ZstdError, ValueError) as error:
        raise InvalidInput(
            f"No dictionary of {size} bytes can be trained from {len(samples)} values: {error}. Try again with more."
        ) from error


class Compression:
    """Packs new values in one way.

    Args:
        name: `zstd`, `zlib` (bigger and slower) or `none`.

    Raises:
        InvalidInput: it is none of these.

    Example:
        >>> codec, packed = Compression("zstd").pack(b"again and " * 100)
        >>> len(packed) < 50, unpacked(codec, packed) == b"again and " * 100
        (True, True)
    """

    def __init__(self, name: str) -> None:
        if name not in ("zstd", "zlib", "none"):
            raise InvalidInput(f"There is no compression {name!r}; give 'zstd', 'zlib' or 'none'.")
        self.name = name
        self.takes_dictionary = name == "zstd"
        self._codec = {"zlib": ZLIB, "zstd": ZSTD, "none": RAW}[name]
        self._compress: Callable[[Data], bytes] = lambda data: zlib.compress(data, 1)
        if self._codec == ZSTD:
            plain = _plain(_zstandard())
            self._compress = lambda data: plain.compress(data)

    def pack(self, data: Data, dictionary: Dictionary | None = None) -> tuple[int, Data]:
        """Pack bytes if that is worth it, and tell how.

        Args:
            data: the bytes.
            dictionary: what to pack them with; only where `takes_dictionary`.
        """
        if self._codec == RAW or len(data) < (COMPRESS_FROM if dictionary is None else DICTIONARY_FROM):
            return RAW, data
        if dictionary is None:
            codec, packed = self._codec, self._compress(data)
        else:
            codec, packed = ZSTD_DICTIONARY, dictionary.zstd.compress(data)
        return (codec, packed) if len(packed) <= len(data) * WORTH else (RAW, data)


def unpacked(codec: int, data: bytes, find: Callable[[int], Dictionary] | None = None) -> bytes:
    """Give the bytes of a row back.

    Args:
        codec: as `Compression.pack` told.
        data: the packed bytes.
        find: gives a dictionary by its id, or raises ValueError.

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
    if codec == CHUNKED:
        raise ValueError("a chunk has no chunks")
    if codec not in (ZSTD, ZSTD_DICTIONARY):
        raise Unavailable(f"A value was packed in a way ({codec}) that this release does not know. Update agentgit.")
    zstd = _zstandard()
    try:
        if codec == ZSTD or find is None:
            return _plain(zstd).decompress(data)
        return find(dictionary_of(data)).zstd.decompress(data)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


def dictionary_of(data: bytes) -> int:
    """Tell which dictionary bytes were packed with, from the first `HEADER_BYTES` of them."""
    return int(_zstandard().get_frame_parameters(data).dict_id)


@cache
def _zstandard() -> Any:
    return import_module("zstandard")  # late: it takes as long as the rest of `import agentgit`


@cache
def _plain(zstd: Any) -> _Zstd:
    return _Zstd(zstd)
