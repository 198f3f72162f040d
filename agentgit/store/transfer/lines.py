"""The lines of an export: JSON objects, each with a hash over itself and all lines before it.

Because each hash includes the previous one, the first line that was changed, removed, repeated or moved is detected.
`with_progress` reports the progress of a read.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import IO, Any, NamedTuple, Protocol

import orjson

from agentgit.errors import Corrupt
from agentgit.sessions.reports import OnProgress
from agentgit.values import dump_without_orjson, from_json

LONGEST = 64 * 2**20
"""The maximum size of a line, in bytes."""

PART_BYTES = 256 * 1024
"""The size of a part of a value or a file, in bytes. The last part may be smaller."""

_HEADER_PREFIXES = (b'{"record":"agentgit-export"', b'{"record": "agentgit-export"')

_TAIL_BYTES = len(b',"hash":""}\n') + 64


class LineReader(Protocol):
    """A seekable binary file that is read line by line."""

    def readline(self, size: int, /) -> bytes:
        """Read a line, up to `size` bytes of it."""

    def seek(self, offset: int, /) -> int:
        """Go to a position in the file."""


class LineWriter:
    """Encodes records as lines with chained hashes.

    Example:
        >>> LineWriter().line({"record": "end"})[:38]
        b'{"record":"end","hash":"8627715a04ced2'
    """

    def __init__(self) -> None:
        self._chain = b""

    def line(self, record: Mapping[str, Any]) -> bytes:
        """Return the line of a record. Its hash includes the hash of the previous line."""
        body = _dump_record(record)[:-1]
        if len(body) + _TAIL_BYTES > LONGEST:
            raise Corrupt(f"A record of type {record.get('record')} is longer than {LONGEST} bytes: not exported.")
        self._chain = sha256(self._chain + body).digest()
        return body + _tail(self._chain)


def records_with_contents(record: Mapping[str, Any], data: bytes, *, is_text: bool) -> Iterator[dict[str, Any]]:
    """Return a record with its contents, followed by the records of its parts if it has several."""
    no_contents: dict[str, Any] = {"text": None, "data": None, "parts": None}
    starts = range(0, len(data), PART_BYTES)
    if len(starts) > 1:
        yield {**record, **no_contents, "parts": len(starts)}
        for start in starts:
            yield {"record": "part", "data": _base64(data[start : start + PART_BYTES])}
        return
    try:
        contents = {"text": data.decode()} if is_text else {"data": _base64(data)}
    except UnicodeDecodeError:
        contents = {"data": _base64(data)}
    yield {**record, **no_contents, **contents}


class ExportLine(NamedTuple):
    """A line of an export: its number, from 1, its record, and its hash."""

    number: int
    record: dict[str, Any]
    hash: bytes


def read_lines(stream: LineReader) -> Iterator[ExportLine]:
    """Iterate over the lines of an export, each checked against its hash.

    Returns no lines for a file that is not an export. One line at a time is in memory.
    """
    chain, number = b"", 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if number == 1 and not line.lstrip().startswith(_HEADER_PREFIXES):
            return
        if len(line) > LONGEST:
            raise damaged_line(number, f"is longer than {LONGEST} bytes")
        if not line.endswith(b"\n"):
            raise damaged_line(number, "is truncated")
        body = line[:-_TAIL_BYTES]
        chain = sha256(chain + body).digest()
        if line[-_TAIL_BYTES:] != _tail(chain):
            raise damaged_line(
                number, "does not match its hash: it was changed, or an earlier line is missing or repeated"
            )
        yield ExportLine(number, _parse_record(number, body), chain)


def damaged_line(number: int, problem: str) -> Corrupt:
    """Return the exception for a damaged line."""
    return Corrupt(
        f"Line {number} of the export {problem}. Nothing was imported. Export the session again.",
        row=f"line {number}",
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _tail(chain: bytes) -> bytes:
    return b',"hash":"%b"}\n' % chain.hex().encode()


def _dump_record(record: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError:  # lone surrogates, huge integers
        return dump_without_orjson(record)


def _parse_record(number: int, body: bytes) -> dict[str, Any]:
    try:
        record = from_json(body + b"}")
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
