"""Checks of the JSON in an export: metadata of branches, headers of graph checkpoints, messages. No IO.

The header and metadata of a graph checkpoint may have more fields than those that are checked, because LangGraph and
its users may add any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgit.sessions.messages import ROLES, from_stored
from agentgit.sessions.stats import UsedTokens
from agentgit.store.transfer.fields import (
    MAX_COUNT,
    Check,
    digest,
    exact_object,
    fields,
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


def _score(value: Any) -> Any:
    """Check for a number, or the name of a float that JSON cannot express."""
    if value not in ("inf", "-inf", "nan") and (type(value) not in (int, float) or abs(value) > MAX_SCORE):
        raise ValueError("is not a number")
    return value


MAX_SCORE = 1e300

_EXPLORED: dict[str, Check] = {
    "name": text,
    "of": ident,
    "choices": list_of(number(1)),
    "said": json_value,
    "status": text,
    "end": nullable(ident),
    "score": nullable(_score),
    "error": nullable(text),
}

_KNOWN: dict[str, Check] = {
    "turns": number(),
    "exploration": lambda mark: _some(mark, _EXPLORED, ("name", "of", "choices", "end")),
    "world_note": nullable(text),
    "world_drift": nullable(mapping_of(text)),
    "imported": exact_object(thread_id=text, newest=text, calls=number()),
    "template": exact_object(checkpoint=nullable(ident), reference=text),
}

Ids = Mapping[str, Mapping[int, int]]
"""For each kind of record, the new id by the old one."""


def checked_metadata(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a branch's metadata, checked. Other fields are left out.

    Raises:
        ValueError: A field is invalid.

    Example:
        >>> checked_metadata({"turns": 2, "colour": "red"})
        {'turns': 2}
    """
    known = {name: value for name, value in meta.items() if name in _KNOWN}
    return fields(known, {name: _KNOWN[name] for name in known})


def remap_metadata(meta: Mapping[str, Any], ids: Ids) -> dict[str, Any]:
    """Return a branch's metadata with the new ids.

    Args:
        meta: The metadata that `checked_metadata` returned.
        ids: The new ids of branches, checkpoints and calls.

    Raises:
        ValueError: It refers to a branch that is missing.
    """
    found = dict(meta)
    if began := meta.get("template"):  # it is in another session, so its id here is unknown
        found["template"] = {**began, "checkpoint": None}
    if mark := meta.get("exploration"):
        if mark["of"] not in ids["branch"]:
            raise ValueError(f"was explored from branch {mark['of']}, which is missing")
        moved_mark = {**mark, "of": ids["branch"][mark["of"]]}
        moved_mark["end"] = ids["checkpoint"].get(mark["end"])
        found["exploration"] = moved_mark
    if drifted := meta.get("world_drift"):
        new = {str(ids["call"].get(int(id))): said for id, said in drifted.items() if id.isascii() and id.isdigit()}
        found["world_drift"] = {id: said for id, said in new.items() if id != "None"}
    return found


def _some(mark: Any, checks: Mapping[str, Check], needed: tuple[str, ...]) -> dict[str, Any]:
    """Check an object that has all needed fields, any of the other known fields, and no unknown one."""
    if type(mark) is not dict:
        raise ValueError("is not an object")
    return fields(mark, {name: check for name, check in checks.items() if name in mark or name in needed})


def graph_header(value: Any) -> dict[str, Any]:
    """Check the header of a graph checkpoint.

    Raises:
        ValueError: A field is missing or invalid.
    """
    found = json_object(value)
    given = {name: found[name] for name in found if name in _NEEDED or name in _MORE}
    fields(given, _NEEDED | {name: _MORE[name] for name in given if name in _MORE})
    _require_comparable([found["versions"], *found["seen"].values()])
    return found


def graph_metadata(value: Any) -> dict[str, Any]:
    """Check LangGraph's metadata of a graph checkpoint.

    Raises:
        ValueError: A field is invalid.

    Example:
        >>> graph_metadata({"step": 1, "mine": "x"})
        {'step': 1, 'mine': 'x'}
    """
    found = json_object(value)
    known = {name: check for name, check in _META.items() if name in found}
    fields({name: found[name] for name in known}, known)
    return found


def _require_comparable(versions: Iterable[Mapping[str, Any]]) -> None:
    """Check that LangGraph can order any two versions and compute the next one."""
    kinds = {_kind(one) for named in versions for one in named.values()}
    if None in kinds or len(kinds) > 1:
        raise ValueError("has versions that cannot be compared")


def _kind(version: Any) -> str | None:
    """Return the kind of a version: `number`, or `text` for a string that begins with one; None if it is invalid."""
    if type(version) is str:
        return "text" if version.partition(".")[0].isdecimal() and len(version) <= 64 else None
    return "number" if type(version) in (int, float) and 0 <= version <= MAX_COUNT else None


def _tokens(value: Any) -> list[int]:
    found: list[int] = list_of(number(most=2**62))(value)
    if len(found) != len(UsedTokens._fields):
        raise ValueError("is not a number of tokens")
    return found


_NEEDED: dict[str, Check] = {
    "v": number(),
    "ts": text,
    "versions": json_object,
    "seen": mapping_of(json_object),
    "counts": mapping_of(number()),
    "updated": nullable(list_of(text)),
}
_MORE: dict[str, Check] = {
    "usage": mapping_of(_tokens),
    "snapshots": list_of(text),
    "folded": list_of(text),
    "digests": mapping_of(digest),
}
_META: dict[str, Check] = {
    "step": number(-1),
    "source": text,
    "parents": nullable(mapping_of(text)),
    "counters_since_delta_snapshot": nullable(json_object),
}

MAX_DEPTH = 300
"""The maximum depth of a value that is stored as JSON. A deeper value is stored in another form."""

_RESERVED = ("cls", "_fields_set")
"""Keys that a message cannot have, because LangChain's constructors have parameters with these names."""


def stored_message(value: Any) -> dict[str, Any]:
    """Check a message in LangChain's stored form.

    Raises:
        ValueError: LangChain cannot create the message, or agentgit cannot display it.

    Example:
        >>> stored_message({"type": "human", "data": {"content": "hi"}})["type"]
        'human'
        >>> stored_message({"type": "human", "data": {"content": 7}})
        Traceback (most recent call last):
            ...
        ValueError: data content is neither a string nor a list of strings and objects
    """
    made: dict[str, Any] = fields(value if type(value) is dict else {}, {"type": one_of(*ROLES), "data": _same})
    fields(made, {"type": _same, "data": _data(made["type"])})
    readable_message(made)  # also checks fields that are only standard in other kinds of messages
    return made


def _data(kind: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict or not all(type(name) is str for name in value):
            raise ValueError("is not an object")
        if odd := [name for name in _RESERVED if name in value]:
            raise ValueError(f"has a field {odd[0]!r}")
        known = _FIELDS | _OF_KIND.get(kind, {}) | {"type": one_of(kind)}
        given = {name: value[name] for name in value if name in known or name in _REQUIRED.get(kind, ())}
        fields(given, {name: known[name] for name in {*given, "content", *_REQUIRED.get(kind, ())}})
        return value

    return check


def readable_message(value: Mapping[str, Any]) -> dict[str, Any]:
    """Check that agentgit can display a message of any class; return the message as displayed.

    Raises:
        ValueError: The message cannot be displayed.
    """
    kind, data = value["type"], value["data"]
    fields({"type": kind, "name": data.get("name")}, {"type": text, "name": nullable(text)})
    return fields(from_stored(value), {**_SHOWN, **({"usage_metadata": _same} if data.get("usage_metadata") else {})})


def require_flat(value: Any) -> None:
    """Check that a value is not nested deeper than `MAX_DEPTH` levels.

    Raises:
        ValueError: The value is nested deeper.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for item in level
            if isinstance(item, (list, dict))
            for below in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"is deeper than {MAX_DEPTH} levels")


def _same(value: Any) -> Any:
    return value


def _content(value: Any) -> Any:
    if type(value) is not str and not (type(value) is list and all(type(block) in (str, dict) for block in value)):
        raise ValueError("is neither a string nor a list of strings and objects")
    return value


def _object(value: Any) -> Any:
    if type(value) is not dict:
        raise ValueError("is not an object")
    return value


def _call(value: Any) -> Any:
    given = _object(value)
    checks: dict[str, Check] = {"name": text, "args": _object, "id": nullable(text)}
    fields({name: given[name] for name in given if name in checks}, checks)
    return value


_FIELDS: dict[str, Check] = {
    "content": _content,
    "additional_kwargs": _object,
    "response_metadata": _object,
    "name": nullable(text),
    "id": nullable(text),
}
_OF_KIND: dict[str, dict[str, Check]] = {
    "ai": {"tool_calls": list_of(_call), "invalid_tool_calls": list_of(_object), "usage_metadata": nullable(_object)},
    "tool": {"tool_call_id": text, "status": one_of("success", "error")},
}
_REQUIRED = {"tool": ("tool_call_id",)}
_SHOWN: dict[str, Check] = {
    "role": text,
    "content": lambda value: value if value is None else _content(value),
    "id": nullable(text),
    "tool_calls": list_of(_call),
    "tool_call_id": nullable(text),
}
