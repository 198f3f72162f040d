"""The lines of an export, and the records that they hold.

The lines of an export: JSON objects, each with a hash over itself and all lines before it. Pure. Because the hash goes
on from line to line, a line that was changed, left out, doubled or moved is found where it is.

The records of an export: which there are, and what each holds. How they fit together is looked at elsewhere. An export
is a header, the session, its branches, the values and graph checkpoints of each branch with their pending writes, the
checkpoints, each after the pending writes that it keeps, and their tags, the files if they were asked for, the calls,
the operations, the world log, and an end that counts the others. What a record names comes before it, except where two
name each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import orjson

from agentgit.effects import invocation
from agentgit.effects.effects import KINDS, UNDECLARED
from agentgit.effects.plan import ANSWER, BLOCK, GONE, KEEP, REDO, REVERSE
from agentgit.effects.report import GROUPS, NEWER
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.transfer import file_trees, json_checks, paths
from agentgit.store.transfer.fields import (
    Check,
    arguments,
    branch,
    digest,
    fields,
    flag,
    ident,
    key,
    label,
    many,
    maybe,
    named,
    number,
    one_of,
    packed,
    settings,
    shaped,
    tag,
    text,
    thing,
    time,
    word,
)
from agentgit.values import from_json, write_slowly

LONGEST = 64 * 2**20
"""Bytes of a line; what is longer is not read."""

_BEGINS = (b'{"record":"agentgit-export"', b'{"record": "agentgit-export"')

_TAIL = len(b',"hash":""}\n') + 64


class LineReader(Protocol):
    """A binary file that is read line by line, again from its beginning if need be."""

    def readline(self, size: int, /) -> bytes:
        """Read a line, and no more of it than `size` bytes."""

    def seek(self, offset: int, /) -> int:
        """Go to a position in the file."""


class Sealer:
    """Writes records as lines.

    Example:
        >>> Sealer().line({"record": "end"})[:38]
        b'{"record":"end","hash":"8627715a04ced2'
    """

    def __init__(self) -> None:
        self._chain = b""

    def line(self, record: Mapping[str, Any]) -> bytes:
        """Write one record; the hash goes on from the line before.

        Raises:
            Corrupt: It is too long for a line.
        """
        body = _json(record)[:-1]
        if len(body) + _TAIL > LONGEST:
            raise Corrupt(f"A record of type {record.get('record')} is longer than {LONGEST} bytes, and not exported.")
        self._chain = sha256(self._chain + body).digest()
        return body + _tail(self._chain)


class ExportLine(NamedTuple):
    """A line of an export: its number, its record, and the hash that it ends with."""

    number: int
    record: dict[str, Any]
    hash: bytes


def read_lines(stream: LineReader) -> Iterator[ExportLine]:
    """Return the lines of an export, each checked against its hash.

    Args:
        stream: The file, at its beginning. One line at a time is in memory. Of what is no export nothing is given.

    Raises:
        Corrupt: A line is cut off, too long, no JSON object, or does not match its hash.
    """
    chain, number = b"", 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if number == 1 and not line.lstrip().startswith(_BEGINS):
            return
        if len(line) > LONGEST:
            raise damaged(number, f"is longer than {LONGEST} bytes")
        if not line.endswith(b"\n"):
            raise damaged(number, "is cut off")
        body = line[:-_TAIL]
        chain = sha256(chain + body).digest()
        if line[-_TAIL:] != _tail(chain):
            raise damaged(number, "does not match its hash: it was changed, or a line before it is missing or doubled")
        yield ExportLine(number, _record(number, body), chain)


def damaged(number: int, what: str) -> Corrupt:
    """Make the failure that says which line is wrong.

    Args:
        number: The number of the line, from 1.
        what: The problem with the line.
    """
    return Corrupt(
        f"Line {number} of the export {what}. Nothing was imported. Export it once more where it comes from.",
        row=f"line {number}",
    )


def _tail(chain: bytes) -> bytes:
    return b',"hash":"%b"}\n' % chain.hex().encode()


def _json(record: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError:  # lone surrogates, huge integers
        return write_slowly(record)


def _record(number: int, body: bytes) -> dict[str, Any]:
    try:
        found = from_json(body + b"}")
    except (ValueError, RecursionError) as error:
        raise damaged(number, f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise damaged(number, "is no JSON object")
    return found


PLAIN, WHOLE_SNAPSHOTS, WITH_FILES, WITH_PENDING = FORMATS = (1, 2, 3, 4)
"""The versions of the form: an export without files can be read by those who know nothing of files. Those of the second
version leave out whole snapshots, those of the third single paths. Checkpoints of the fourth keep pending writes."""

SESSION, BRANCH, CHECKPOINT = "session", "branch", "checkpoint"
"""The kinds of objects that an export can be of."""

HEADER = "agentgit-export"

STATUSES = (
    invocation.PAUSED,
    invocation.DONE,
    invocation.FAILED,
    invocation.UNKNOWN,
    invocation.REVERSED,
    invocation.REVERSE_FAILED,
    invocation.REVERSE_UNKNOWN,
)
"""The statuses that a call may have in an export: nothing is going on there."""

_step = shaped(invocation=ident, action=one_of(REVERSE, KEEP, BLOCK, GONE, REDO, ANSWER), why=text)
_item = shaped(invocation=ident, reason=text)
_groups = dict.fromkeys(GROUPS, many(_item))


def _report(value: Any) -> dict[str, Any]:
    """Take the groups of a report; an export of an earlier version does not have all of them."""
    return fields({**{group: [] for group in NEWER}, **thing(value)}, _groups)


_share = shaped(task=text, call=text, place=number(), taken=many(number()), graphs=many(number()), question=maybe(text))

_write = shaped(task=word(64), idx=number(-1000), path=text, channel=text, value=many(digest))
_pending = shaped(ns=key, state=word(64), writes=many(_write))

SETTINGS: dict[str, Check] = {
    "on_error": text,
    "on_drift": text,
    "tools": text,
    "replay": text,
    "force": flag,
    "sync": text,
    "seen": number(),
    "current": flag,
    "give_up": flag,
}
"""The settings that are kept of an operation's request, besides its steps."""

_COUNTED = ("branch", "value", "part", "list", "state", "write", "checkpoint", "tag", "call", "operation", "log")

COUNTED = {
    PLAIN: _COUNTED,
    WHOLE_SNAPSHOTS: (*_COUNTED, *file_trees.KINDS_BEFORE),
    WITH_FILES: (*_COUNTED, *file_trees.KINDS),
    WITH_PENDING: (*_COUNTED, *file_trees.KINDS, "pending"),
}
"""The records that the end of an export counts, by its version."""

_SHAPES: dict[str, dict[str, Check]] = {
    HEADER: {
        "format": number(),
        "of": one_of(SESSION, BRANCH, CHECKPOINT),
        "place": maybe(text),
        "agentgit": text,
        "made_at": time,
    },
    "session": {"id": ident, "name": label, "created_at": time, "current": ident},
    "branch": {
        "id": ident,
        "name": branch,
        "parent": maybe(ident),
        "point": maybe(ident),
        "inherited": number(),
        "head": maybe(ident),
        "created_at": time,
        "meta": thing,
    },
    "value": {"id": digest, "type": word(32), "text": maybe(text), "data": maybe(text), "parts": maybe(number())},
    "part": {"data": text},
    "list": {"id": digest, "base": maybe(digest), "keep": number(), "items": many(digest)},
    "state": {
        "branch": ident,
        "ns": key,
        "id": word(64),
        "seq": number(1),
        "parent": maybe(word(64)),
        "root": maybe(word(64)),
        "run": maybe(text),
        "messages": number(),
        "meta": json_checks.graph_metadata,
        "header": json_checks.graph_header,
        "channels": named(digest),
        "state_hash": digest,
    },
    "write": {
        "branch": ident,
        "ns": key,
        "state": word(64),
        "task": word(64),
        "idx": number(-1000),
        "path": text,
        "channel": text,
        "value": many(digest),
    },
    "checkpoint": {
        "id": ident,
        "branch": ident,
        "number": number(1),
        "name": maybe(label),
        "description": maybe(text),
        "kind": one_of("before", "after", "tools", "branch", "named"),
        "is_auto": flag,
        "created_at": time,
        "state": maybe(word(64)),
        "state_hash": maybe(digest),
        "position": number(),
        "messages": number(),
        "restore_point": maybe(text),
        "data": maybe(packed),
    },
    "pending": {"checkpoint": ident, "at": many(_pending)},
    "tag": {"name": tag, "checkpoint": ident, "description": maybe(text), "created_at": time},
    "file": {
        "id": digest,
        "size": number(most=file_trees.LARGEST_FILE),
        "text": maybe(text),
        "data": maybe(text),
        "parts": maybe(number()),
    },
    "tree": {"id": number(1), "base": maybe(number(1))},
    "path": {"path": paths.path, "mode": maybe(number(most=0o777)), "file": maybe(digest), "link": maybe(paths.link)},
    "left": {"path": paths.left_out, "why": maybe(label)},
    "snapshot": {
        "id": ident,
        "branch": ident,
        "created_at": time,
        "tree": maybe(number(1)),
        "why": maybe(one_of(*file_trees.REASONS)),
        "checkpoints": many(ident),
    },
    "call": {
        "id": ident,
        "branch": ident,
        "made_on": ident,
        "arrival": number(),
        "batch": number(-1),
        "batch_index": number(),
        "tool": text,
        "tool_call_id": maybe(text),
        "effect": one_of(*KINDS, UNDECLARED),
        "status": one_of(*STATUSES),
        "args": arguments,
        "result": many(packed),
        "error": maybe(text),
        "started_at": time,
        "ended_at": maybe(time),
        "key": word(64),
        "kind": one_of(invocation.CALL, invocation.REPLAY, invocation.REDO),
        "identity": maybe(word(64)),
        "replay_of": maybe(ident),
        "answers": maybe(_share),
    },
    "operation": {
        "id": ident,
        "kind": one_of("rollback", "fork", "switch"),
        "request_id": word(64),
        "source": ident,
        "target": maybe(ident),
        "branch": ident,
        "created_at": time,
        "ended_at": maybe(time),
        "request": settings(SETTINGS),
        "steps": many(_step),
        "accepted": many(ident),
        "report": _report,
    },
    "log": {
        "seq": number(1),
        "call": ident,
        "operation": maybe(ident),
        "created_at": time,
        "action": one_of("done", "failed", "unknown", "reversed", "reverse_unknown"),
    },
    "end": {"counts": named(number(most=2**53))},
}


def checked(record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a record, and its fields in the form in which they are stored.

    Args:
        record: The record, as it was read from a line.

    Raises:
        ValueError: It is none.

    Example:
        >>> checked({"record": "part", "data": "AAAA"})
        ('part', {'data': 'AAAA'})
    """
    kind = record.get("record")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None or not isinstance(kind, str):
        raise ValueError("is no record that an export has")
    try:
        return kind, fields({name: value for name, value in record.items() if name != "record"}, shape)
    except ValueError as error:
        raise ValueError(f"is no {kind}: {error}") from error


def require_header(record: Mapping[str, Any] | None) -> None:
    """Check that a file is an export that this library can read.

    Args:
        record: The first line of the file; None if there is none.

    Raises:
        InvalidInput: The file is not an export, or its format is newer.
    """
    if record is None or record.get("record") != HEADER:
        raise InvalidInput("This is no export of agentgit. Give a file that `agentgit export` has written.")
    if record.get("format") not in FORMATS:
        raise InvalidInput(
            f"This export has format {record.get('format')!r}, and this library reads {PLAIN} to {FORMATS[-1]}. Run: "
            "pip install --upgrade agentgit"
        )
