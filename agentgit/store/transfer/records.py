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
from agentgit.effects.kinds import RECORDED_KINDS
from agentgit.effects.plan import ANSWER, BLOCK, GONE, KEEP, REDO, REVERSE
from agentgit.effects.report import GROUPS
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next
from agentgit.sessions.session import RERUN
from agentgit.store.transfer import file_trees, json_checks, paths, rerun_records
from agentgit.store.transfer.fields import (
    Check,
    arguments,
    branch,
    check_fields,
    digest,
    exact_object,
    flag,
    ident,
    json_bytes,
    json_object,
    key,
    label,
    list_of,
    mapping_of,
    nullable,
    number,
    one_of,
    settings,
    tag,
    text,
    time,
    word,
)
from agentgit.store.transfer.file_trees import FILE, FOLDER, LEFT, LINK, Item

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
    invocation.SIMULATED,
)
"""The statuses that a call may have in an export. None of them means that the call is in progress."""

_step = exact_object(invocation=ident, action=one_of(REVERSE, KEEP, BLOCK, GONE, REDO, ANSWER), why=text)
_item = exact_object(invocation=ident, reason=text)

_groups = exact_object(**dict.fromkeys(GROUPS, list_of(_item)))


def _check_report(value: Any) -> dict[str, Any]:
    is_rerun = isinstance(value, dict) and "calls" in value
    return rerun_records.check_report(value) if is_rerun else _groups(value)


_answers = exact_object(
    task=text,
    call=text,
    direct=flag,
    place=number(),
    taken=list_of(number()),
    question=nullable(text),
)

_write = exact_object(task=word(64), idx=number(-1000), path=text, channel=text, value=list_of(digest))
_pending = exact_object(ns=key, state=word(64), writes=list_of(_write))

_ITEM_VALUES = {FILE: digest, LINK: paths.link, FOLDER: number(1), LEFT: label}


def _check_items(value: Any) -> dict[bytes, Item]:
    """Check the items of a directory by name: each is the kind, the value and the permission bits."""
    items = {}
    for name, item in value.items() if type(value) is dict else ():
        kind, what, mode = item if type(item) is list and len(item) == 3 else (None, None, None)
        if kind not in _ITEM_VALUES:
            raise ValueError(f"{name[:80]!a} is not a file, a link, a folder or left out")
        checked = paths.left_out(name) if kind == LEFT else paths.name(name)
        items[checked] = Item(kind, _ITEM_VALUES[kind](what), number(most=0o777)(mode))
    return items


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

_FIELDS_BY_KIND: dict[str, dict[str, Check]] = {
    HEADER: {
        "format": number(),
        "of": one_of(SESSION, BRANCH, CHECKPOINT),
        "place": nullable(text),
        "agentgit": text,
        "made_at": time,
    },
    "session": {"id": ident, "name": label, "created_at": time, "current": ident},
    "branch": {
        "id": ident,
        "name": branch,
        "parent": nullable(ident),
        "point": nullable(ident),
        "inherited": number(),
        "head": nullable(ident),
        "created_at": time,
        "meta": json_object,
    },
    "value": {
        "id": digest,
        "type": word(32),
        "text": nullable(text),
        "data": nullable(text),
        "parts": nullable(number()),
    },
    "part": {"data": text},
    "list": {"id": digest, "base": nullable(digest), "keep": number(), "items": list_of(digest)},
    "state": {
        "branch": ident,
        "ns": key,
        "id": word(64),
        "seq": number(1),
        "parent": nullable(word(64)),
        "root": nullable(word(64)),
        "run": nullable(text),
        "messages": number(),
        "meta": json_checks.graph_metadata,
        "header": json_checks.graph_header,
        "channels": mapping_of(digest),
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
        "value": list_of(digest),
    },
    "checkpoint": {
        "id": ident,
        "branch": ident,
        "number": number(1),
        "name": nullable(label),
        "description": nullable(text),
        "kind": one_of("before", "after", "tools", "branch", "named"),
        "is_auto": flag,
        "created_at": time,
        "state": nullable(word(64)),
        "state_hash": nullable(digest),
        "position": number(),
        "messages": number(),
        "restore_point": nullable(text),
        "data": nullable(json_bytes),
        "pending": nullable(list_of(_pending)),
    },
    "tag": {"name": tag, "checkpoint": ident, "description": nullable(text), "created_at": time},
    "file": {
        "id": digest,
        "size": number(most=file_trees.MAX_FILE_BYTES),
        "text": nullable(text),
        "data": nullable(text),
        "parts": nullable(number()),
    },
    "folder": {"id": number(1), "items": _check_items},
    "snapshot": {
        "id": ident,
        "branch": ident,
        "created_at": time,
        "tree": nullable(number(1)),
        "why": nullable(one_of(*file_trees.REASONS)),
        "checkpoints": list_of(ident),
    },
    "call": {
        "id": ident,
        "branch": ident,
        "made_on": ident,
        "arrival": number(),
        "batch": number(-1),
        "batch_index": number(),
        "tool": text,
        "tool_call_id": nullable(text),
        "effect": one_of(*RECORDED_KINDS),
        "status": one_of(*STATUSES),
        "args": arguments,
        "result": list_of(json_bytes),
        "error": nullable(text),
        "started_at": time,
        "ended_at": nullable(time),
        "key": word(64),
        "kind": one_of(invocation.CALL, invocation.REPLAY, invocation.REDO, invocation.UNOWNED),
        "identity": nullable(word(64)),
        "replay_of": nullable(ident),
        "parent": nullable(ident),
        "answers": nullable(_answers),
    },
    "operation": {
        "id": ident,
        "kind": one_of("rollback", "fork", "switch", RERUN),
        "request_id": word(64),
        "source": ident,
        "target": nullable(ident),
        "branch": ident,
        "created_at": time,
        "ended_at": nullable(time),
        "request": settings(SETTINGS),
        "steps": list_of(_step),
        "accepted": list_of(ident),
        "report": _check_report,
    },
    "log": {
        "seq": number(1),
        "call": ident,
        "operation": nullable(ident),
        "created_at": time,
        "action": one_of("done", "failed", "unknown", "reversed", "reverse_unknown"),
    },
    "end": {"counts": mapping_of(number(most=2**53))},
}

COUNTED_KINDS = tuple(kind for kind in _FIELDS_BY_KIND if kind not in (HEADER, "session", "end"))
"""The kinds of records that the end of an export counts."""


def check_record(record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a record, and its fields in their stored form.

    Example:
        >>> check_record({"record": "part", "data": "AAAA"})
        ('part', {'data': 'AAAA'})
    """
    kind = record.get("record")
    checks = _FIELDS_BY_KIND.get(kind) if isinstance(kind, str) else None
    if checks is None or not isinstance(kind, str):
        raise ValueError("is not a known kind of record")
    try:
        return kind, check_fields({name: value for name, value in record.items() if name != "record"}, checks)
    except ValueError as error:
        raise ValueError(f"is not a valid {kind}: {error}") from error


def require_header(record: Mapping[str, Any] | None) -> None:
    """Check that a file is an export that this library can read."""
    if record is None or record.get("record") != HEADER:
        raise InvalidInput("This is not an agentgit export. Use a file that an export has written.")
    if record.get("format") != FORMAT:
        raise InvalidInput(
            f"This export has format {record.get('format')!r}, and this version of agentgit reads format {FORMAT}. "
            "Export the session again with this version.",
            Next("update"),
        )
