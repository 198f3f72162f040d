"""The records of an export: their kinds and fields. `import_check` checks that they are consistent.

An export consists of a header, the session, its branches, the values and graph checkpoints of each branch with their
pending writes, the checkpoints and their tags, the files if they were requested, the calls, the operations, the world
log, and an end with the number of records of each kind.

A record comes after the records that it refers to, except where two refer to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgit.effects import invocation
from agentgit.effects.effects import KINDS, UNDECLARED
from agentgit.effects.plan import ANSWER, BLOCK, GONE, KEEP, REDO, REVERSE
from agentgit.effects.report import GROUPS
from agentgit.errors import InvalidInput
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

FORMAT = 1
"""The version of the format. An export of another version is refused."""

SESSION, BRANCH, CHECKPOINT = "session", "branch", "checkpoint"
"""The kinds of objects that can be exported."""

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
"""The statuses that a call may have in an export. None of them means that the call is in progress."""

_step = shaped(invocation=ident, action=one_of(REVERSE, KEEP, BLOCK, GONE, REDO, ANSWER), why=text)
_item = shaped(invocation=ident, reason=text)

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
"""The settings of an operation's request that are exported, in addition to its steps."""

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
        "pending": maybe(many(_pending)),
    },
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
        "report": shaped(**dict.fromkeys(GROUPS, many(_item))),
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

COUNTED = tuple(kind for kind in _SHAPES if kind not in (HEADER, "session", "end"))
"""The kinds of records that the end of an export counts."""


def checked(record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a record, and its fields in their stored form.

    Args:
        record: The record that was read from a line.

    Raises:
        ValueError: The record is invalid.

    Example:
        >>> checked({"record": "part", "data": "AAAA"})
        ('part', {'data': 'AAAA'})
    """
    kind = record.get("record")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None or not isinstance(kind, str):
        raise ValueError("is not a known kind of record")
    try:
        return kind, fields({name: value for name, value in record.items() if name != "record"}, shape)
    except ValueError as error:
        raise ValueError(f"is not a valid {kind}: {error}") from error


def require_header(record: Mapping[str, Any] | None) -> None:
    """Check that a file is an export that this library can read.

    Args:
        record: The first record of the file; None if the file has none.

    Raises:
        InvalidInput: The file is not an export, or has another format.
    """
    if record is None or record.get("record") != HEADER:
        raise InvalidInput("This is not an agentgit export. Use a file that `agentgit export` has written.")
    if record.get("format") != FORMAT:
        raise InvalidInput(
            f"This export has format {record.get('format')!r}, and this version of agentgit reads format {FORMAT}. "
            "Export the session again with this version, or run: pip install --upgrade agentgit"
        )
