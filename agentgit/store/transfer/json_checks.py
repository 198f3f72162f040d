"""Checks of the JSON in an export: metadata of branches, headers of graph checkpoints, messages. No IO.

The header and metadata of a graph checkpoint may have more fields than those that are checked, because LangGraph and
its users may add any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgit.sessions.messages import ROLES, from_stored
from agentgit.sessions.session import RERUN
from agentgit.store.transfer.fields import (
    MAX_COUNT,
    Check,
    check_fields,
    digest,
    exact_object,
    ident,
    json_object,
    json_value,
    list_of,
    mapping_of,
    nullable,
    number,
    one_of,
    text,
)
from agentgit.store.transfer.rerun_records import check_mark


def _check_score(value: Any) -> Any:
    """Check for a number, or the name of a float that JSON cannot express."""
    if value not in ("inf", "-inf", "nan") and (type(value) not in (int, float) or abs(value) > MAX_SCORE):
        raise ValueError("is not a number")
    return value


MAX_SCORE = 1e300

_EXPLORATION_FIELDS: dict[str, Check] = {
    "name": text,
    "of": ident,
    "choices": list_of(number(1)),
    "said": json_value,
    "status": text,
    "end": nullable(ident),
    "score": nullable(_check_score),
    "error": nullable(text),
}

_METADATA_FIELDS: dict[str, Check] = {
    "turns": number(),
    "exploration": lambda mark: _check_some_fields(mark, _EXPLORATION_FIELDS, ("name", "of", "choices", "end")),
    "world_note": nullable(text),
    "world_drift": nullable(mapping_of(text)),
    "imported": exact_object(thread_id=text, newest=text, calls=number()),
    "template": exact_object(checkpoint=nullable(ident), reference=text),
    RERUN: check_mark,
}

Ids = Mapping[str, Mapping[int, int]]
"""For each kind of record, the new id by the old one."""


def check_metadata(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a branch's metadata, checked. Other fields are left out.

    Example:
        >>> check_metadata({"turns": 2, "colour": "red"})
        {'turns': 2}
    """
    known_fields = {name: value for name, value in meta.items() if name in _METADATA_FIELDS}
    return check_fields(known_fields, {name: _METADATA_FIELDS[name] for name in known_fields})


def remap_metadata(meta: Mapping[str, Any], ids: Ids) -> dict[str, Any]:
    """Return a branch's metadata with the new ids."""
    remapped = dict(meta)
    if template := meta.get("template"):  # it is in another session, so its id here is unknown
        remapped["template"] = {**template, "checkpoint": None}
    if exploration := meta.get("exploration"):
        if exploration["of"] not in ids["branch"]:
            raise ValueError(f"was explored from branch {exploration['of']}, which is missing")
        new_exploration = {**exploration, "of": ids["branch"][exploration["of"]]}
        new_exploration["end"] = ids["checkpoint"].get(exploration["end"])
        remapped["exploration"] = new_exploration
    if rerun := meta.get(RERUN):  # an export of the rerun alone does not have the branch that was run again
        remapped[RERUN] = {**rerun, "of": ids["branch"].get(rerun["of"])}
    if drift := meta.get("world_drift"):
        new_drift = {
            str(ids["call"].get(int(id))): message for id, message in drift.items() if id.isascii() and id.isdigit()
        }
        remapped["world_drift"] = {id: message for id, message in new_drift.items() if id != "None"}
    return remapped


def _check_some_fields(value: Any, checks: Mapping[str, Check], required: tuple[str, ...]) -> dict[str, Any]:
    """Check an object that has all needed fields, any of the other known fields, and no unknown one."""
    if type(value) is not dict:
        raise ValueError("is not an object")
    return check_fields(value, {name: check for name, check in checks.items() if name in value or name in required})


def graph_header(value: Any) -> dict[str, Any]:
    """Check the header of a graph checkpoint."""
    header = json_object(value)
    known_fields = {
        name: header[name] for name in header if name in _REQUIRED_HEADER_FIELDS or name in _OPTIONAL_HEADER_FIELDS
    }
    check_fields(
        known_fields,
        _REQUIRED_HEADER_FIELDS
        | {name: _OPTIONAL_HEADER_FIELDS[name] for name in known_fields if name in _OPTIONAL_HEADER_FIELDS},
    )
    _require_comparable([header["versions"], *header["seen"].values()])
    return header


def graph_metadata(value: Any) -> dict[str, Any]:
    """Check LangGraph's metadata of a graph checkpoint.

    Example:
        >>> graph_metadata({"step": 1, "mine": "x"})
        {'step': 1, 'mine': 'x'}
    """
    metadata = json_object(value)
    checks = {name: check for name, check in _GRAPH_METADATA_FIELDS.items() if name in metadata}
    check_fields({name: metadata[name] for name in checks}, checks)
    return metadata


def _require_comparable(versions: Iterable[Mapping[str, Any]]) -> None:
    """Check that LangGraph can order any two versions and compute the next one."""
    kinds = {_version_kind(version) for mapping in versions for version in mapping.values()}
    if None in kinds or len(kinds) > 1:
        raise ValueError("has versions that cannot be compared")


def _version_kind(version: Any) -> str | None:
    """Return the kind of a version: `number`, or `text` for a string that begins with one; None if it is invalid."""
    if type(version) is str:
        return "text" if version.partition(".")[0].isdecimal() and len(version) <= 64 else None
    return "number" if type(version) in (int, float) and 0 <= version <= MAX_COUNT else None


_REQUIRED_HEADER_FIELDS: dict[str, Check] = {
    "v": number(),
    "ts": text,
    "versions": json_object,
    "seen": mapping_of(json_object),
    "counts": mapping_of(number()),
}
_OPTIONAL_HEADER_FIELDS: dict[str, Check] = {
    "updated": nullable(list_of(text)),
    "others": json_object,
    "snapshots": list_of(text),
    "folded": list_of(text),
    "digests": mapping_of(digest),
}
_GRAPH_METADATA_FIELDS: dict[str, Check] = {
    "step": number(-1),
    "source": text,
    "parents": nullable(mapping_of(text)),
    "counters_since_delta_snapshot": nullable(json_object),
}

MAX_DEPTH = 300
"""The maximum depth of a value that is stored as JSON. A deeper value is stored in another form."""

_RESERVED_KEYS = ("cls", "_fields_set")
"""Keys that a message cannot have, because LangChain's constructors have parameters with these names."""


def stored_message(value: Any) -> dict[str, Any]:
    """Check a message in LangChain's stored form.

    Example:
        >>> stored_message({"type": "human", "data": {"content": "hi"}})["type"]
        'human'
        >>> stored_message({"type": "human", "data": {"content": 7}})
        Traceback (most recent call last):
            ...
        ValueError: data content is neither a string nor a list of strings and objects
    """
    message: dict[str, Any] = check_fields(
        value if type(value) is dict else {}, {"type": one_of(*ROLES), "data": _accept_any}
    )
    check_fields(message, {"type": _accept_any, "data": _message_data(message["type"])})
    readable_message(message)  # also checks fields that are only standard in other kinds of messages
    return message


def _message_data(kind: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict or not all(type(name) is str for name in value):
            raise ValueError("is not an object")
        if reserved := [name for name in _RESERVED_KEYS if name in value]:
            raise ValueError(f"has a field {reserved[0]!r}")
        checks = _MESSAGE_FIELDS | _FIELDS_BY_KIND.get(kind, {}) | {"type": one_of(kind)}
        known_fields = {
            name: value[name] for name in value if name in checks or name in _REQUIRED_BY_KIND.get(kind, ())
        }
        check_fields(
            known_fields, {name: checks[name] for name in {*known_fields, "content", *_REQUIRED_BY_KIND.get(kind, ())}}
        )
        return value

    return check


def readable_message(value: Mapping[str, Any]) -> dict[str, Any]:
    """Check that agentgit can display a message of any class; return the message as displayed."""
    kind, data = value["type"], value["data"]
    check_fields({"type": kind, "name": data.get("name")}, {"type": text, "name": nullable(text)})
    return check_fields(
        from_stored(value),
        {**_DISPLAYED_FIELDS, **({"usage_metadata": _accept_any} if data.get("usage_metadata") else {})},
    )


def require_flat(value: Any) -> None:
    """Check that a value is not nested deeper than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (list, dict))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"is deeper than {MAX_DEPTH} levels")


def _accept_any(value: Any) -> Any:
    return value


def _check_content(value: Any) -> Any:
    if type(value) is not str and not (type(value) is list and all(type(block) in (str, dict) for block in value)):
        raise ValueError("is neither a string nor a list of strings and objects")
    return value


def _check_object(value: Any) -> Any:
    if type(value) is not dict:
        raise ValueError("is not an object")
    return value


def _check_call(value: Any) -> Any:
    call = _check_object(value)
    checks: dict[str, Check] = {"name": text, "args": _check_object, "id": nullable(text)}
    check_fields({name: call[name] for name in call if name in checks}, checks)
    return value


_MESSAGE_FIELDS: dict[str, Check] = {
    "content": _check_content,
    "additional_kwargs": _check_object,
    "response_metadata": _check_object,
    "name": nullable(text),
    "id": nullable(text),
}
_FIELDS_BY_KIND: dict[str, dict[str, Check]] = {
    "ai": {
        "tool_calls": list_of(_check_call),
        "invalid_tool_calls": list_of(_check_object),
        "usage_metadata": nullable(_check_object),
    },
    "tool": {"tool_call_id": text, "status": one_of("success", "error")},
}
_REQUIRED_BY_KIND = {"tool": ("tool_call_id",)}
_DISPLAYED_FIELDS: dict[str, Check] = {
    "role": text,
    "content": lambda value: value if value is None else _check_content(value),
    "id": nullable(text),
    "tool_calls": list_of(_check_call),
    "tool_call_id": nullable(text),
}
