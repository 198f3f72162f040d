"""The lines of an export: JSON objects, and at the end the SHA-256 of all lines before it.

`with_progress` reports the progress of a read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import IO, Any, NamedTuple, Protocol

import orjson

from agentgit.errors import Corrupt, InvalidInput
from agentgit.next_steps import Next
from agentgit.sessions.reports import OnProgress
from agentgit.store.records.json_shapes import require_flat
from agentgit.values import dump_without_orjson, from_json

NAME = "agentgit-export"
FORMAT = 1
"""The version of the format. An export of another version is refused."""

LONGEST = 64 * 2**20
"""The maximum size of a line, in bytes."""

_PREFIXES = (f'{{"format":"{NAME}"'.encode(), f'{{"format": "{NAME}"'.encode())


class LineReader(Protocol):
    """A seekable binary file that is read line by line."""

    def readline(self, size: int, /) -> bytes:
        """Read a line, up to `size` bytes of it."""

    def seek(self, offset: int, /) -> int:
        """Go to a position in the file."""


class LineWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, sha256()

    def write(self, record: Mapping[str, Any]) -> None:
        try:
            line = orjson.dumps(record) + b"\n"
        except TypeError:  # lone surrogates, huge integers
            line = dump_without_orjson(record) + b"\n"
        if len(line) > LONGEST:
            raise Corrupt(f"A record of {record.get('record')} is longer than {LONGEST} bytes: not exported.")
        self._hash.update(line)
        self._file.write(line)

    def end(self) -> None:
        self._file.write(b'{"sha256":"%b"}\n' % self._hash.hexdigest().encode())


class ExportLine(NamedTuple):
    number: int
    record: dict[str, Any]


def read_lines(stream: LineReader) -> Iterator[ExportLine]:
    """Yield the lines of an export one at a time, from the header to the last one, whose hash is checked."""
    digest, number = sha256(), 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if number == 1 and not line.lstrip().startswith(_PREFIXES):
            raise _other_file()
        record = _parse_line(number, line)
        if number == 1 and record.get("version") != FORMAT:
            raise InvalidInput(
                f"This export has format {record.get('version')!r}, and this version of agentgit reads format "
                f"{FORMAT}. Export the session again with this version.",
                Next("update"),
            )
        if "sha256" in record:
            if record != {"sha256": digest.hexdigest()}:
                raise damaged_line(number, "is not the hash of the lines before it: one of them was changed")
            if stream.readline(1):
                raise damaged_line(number + 1, "comes after the end")
            yield ExportLine(number, record)
            return
        digest.update(line)
        yield ExportLine(number, record)
    raise damaged_line(number, "is the last, and the end is missing: it is truncated") if number else _other_file()


def _other_file() -> InvalidInput:
    return InvalidInput("This is not an agentgit export. Use a file that an export has written.")


def damaged_line(number: int, problem: str) -> Corrupt:
    return Corrupt(
        f"Line {number} of the export {problem}. Nothing was imported. Export the session again.",
        row=f"line {number}",
    )


def _parse_line(number: int, line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise damaged_line(number, f"is longer than {LONGEST} bytes")
    if not line.endswith(b"\n"):
        raise damaged_line(number, "is truncated")
    try:
        record = from_json(line)
        require_flat(record)
    except (ValueError, RecursionError) as error:
        raise damaged_line(number, f"is not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise damaged_line(number, "is not a JSON object")
    return record


STEP = 2**20
"""The number of bytes that are read between two reports of progress."""


class _ProgressReader:
    """A file that reports the progress of its reads. Each `seek` begins a new read."""

    def __init__(self, file: IO[bytes], progress: OnProgress, times: int) -> None:
        self._file = file
        self._progress = progress
        self._size, self._read_count, self._reads_begun = file.seek(0, io.SEEK_END), times, 0
        self._done = self._reported = 0

    def seek(self, offset: int) -> int:
        # The last read may start over, if its transaction is retried.
        self._reads_begun = min(self._reads_begun + 1, self._read_count)
        self._done = self._reported = (self._reads_begun - 1) * self._size + offset
        return self._file.seek(offset)

    def readline(self, size: int) -> bytes:
        line = self._file.readline(size)
        self._done += len(line)
        if self._done - self._reported >= STEP or not line:
            self._reported = self._done
            self._progress(self._done, self._read_count * self._size)
        return line


def with_progress(file: IO[bytes], progress: OnProgress | None, *, times: int) -> LineReader:
    """Return a reader that reports the progress of reading a file `times` times; the file itself without `progress`."""
    return _ProgressReader(file, progress, times) if progress is not None else file
