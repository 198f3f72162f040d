"""Progress of reading an export."""

from __future__ import annotations

import io
from typing import IO

from agentgit.sessions.reports import OnProgress
from agentgit.store.transfer.lines import LineReader

STEP = 2**20
"""The number of bytes that are read between two reports of progress."""


class _Watched:
    """A file whose reader tells how far it is; each time it begins anew.

    Args:
        file: The file, which is read line by line.
        progress: The function that gets the progress.
        times: The number of times that it will be read.
    """

    def __init__(self, file: IO[bytes], progress: OnProgress, times: int) -> None:
        self._file = file
        self._progress = progress
        self._size, self._times, self._begun = file.seek(0, io.SEEK_END), times, 0
        self._done = self._told = 0

    def seek(self, offset: int) -> int:
        # The last time may begin again, in a transaction that runs again.
        self._begun = min(self._begun + 1, self._times)
        self._done = self._told = (self._begun - 1) * self._size + offset
        return self._file.seek(offset)

    def readline(self, size: int) -> bytes:
        line = self._file.readline(size)
        self._done += len(line)
        if self._done - self._told >= STEP or not line:
            self._told = self._done
            self._progress(self._done, self._times * self._size)
        return line


def watched(file: IO[bytes], progress: OnProgress | None, *, times: int) -> LineReader:
    """Report the progress of reading a file `times` times; without a function to report to, return the file."""
    return _Watched(file, progress, times) if progress is not None else file
