"""The contents of a file on their way: in memory if they are small, else in an open file that is read part by part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import BinaryIO

from agentgit.errors import Unavailable

IN_MEMORY = 8 << 20
"""The most that is held in memory of one file, in bytes; git streams what is larger too."""

CHUNK = 1 << 20
"""The part of a larger file that is read at once, in bytes."""


class Large:
    """Contents too large for memory. Iterating reads them from the beginning, part by part; `len` is their size.

    Args:
        file: The file, which holds nothing else. It stays open as long as this object is used.
        size: The size in bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return iter(partial(self._file.read, CHUNK), b"")


Data = bytes | Large
"""The contents of a file, or the target of a link."""


def parts(data: Data) -> Iterable[bytes]:
    """Iterate over contents.

    Args:
        data: The contents.
    """
    return (data,) if isinstance(data, bytes) else data


def gather(read: Callable[[int], bytes], size: int, folder: str | bytes) -> Data:
    """Read contents to their end, or to a size, into memory or into a file without a name.

    Args:
        read: The function that reads at most so many bytes, and none at the end.
        size: The greatest number of bytes to read.
        folder: The directory where the file without a name takes its space.

    Raises:
        Unavailable: There is no space for it.
    """
    if size <= IN_MEMORY:
        return b"".join(_up_to(read, size))
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the object that holds it
        large = Large(file, sum(map(file.write, _up_to(read, size))))
        file.flush()
    except OSError as error:
        raise Unavailable(f"{os.fsdecode(folder)}: {error.strerror}. Free some space, then try again.") from error
    return large


def _up_to(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (part := read(min(CHUNK, size))):
        size -= len(part)
        yield part
