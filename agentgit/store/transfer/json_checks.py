"""Checks of what an export carries as JSON: metadata of branches, headers of graph checkpoints, messages. Pure.

A header may contain more than what is checked, because LangGraph and its users put in what they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgit.sessions.messages import ROLES, from_stored
from agentgit.sessions.stats import UsedTokens
from agentgit.store.transfer.fields import (
    MOST,
    Check,
    digest,
    fields,
    ident,
    many,
    maybe,
    named,
    number,
    one_of,
    plain,
    shaped,
    text,
    thing,
)


def _score(value: Any) -> Any:
    """Take what `float` reads: a number, or what JSON has no number for."""
    if value not in ("inf", "-inf", "nan") and (type(value) not in (int, float) or abs(value) > GREATEST):
        raise ValueError("is not a number")
    return value


GREATEST = 1e300

_EXPLORED: dict[str, Check] = {
    "name": text,
    "of": ident,
    "choices": many(number(1)),
    "said": plain,
    "status": text,
    "end": maybe(ident),
    "score": maybe(_score),
    "error": maybe(text),
}

_KNOWN: dict[str, Check] = {
    "turns": number(),
    "exploration": lambda mark: _some(mark, _EXPLORED, ("name", "of", "choices", "end")),
    "world_note": maybe(text),
    "world_drift": maybe(named(text)),
    "imported": shaped(thread_id=text, newest=text, calls=number()),
    "template": shaped(checkpoint=maybe(ident), reference=text),
}

Ids = Mapping[str, Mapping[int, int]]
"""For each kind of record, the new id of each old one."""


def checked_metadata(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a branch's metadata; the rest is left out.

    Raises:
        ValueError: Something is not what it should be.

    Example:
        >>> checked_metadata({"turns": 2, "colour": "red"})
        {'turns': 2}
    """
    known = {name: value for name, value in meta.items() if name in _KNOWN}
    return fields(known, {name: _KNOWN[name] for name in known})


def moved_metadata(meta: Mapping[str, Any], ids: Ids) -> dict[str, Any]:
    """Return a branch's metadata with other ids.

    Args:
        meta: The metadata, as `checked` returned it.
        ids: The ids of branches, checkpoints and calls.

    Raises:
        ValueError: It names a branch that is not there.
    """
    found = dict(meta)
    if began := meta.get("template"):  # which is of another session, and may be there under another id, or not
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
    """Check an object that has some of these fields, and all that are needed."""
    if type(mark) is not dict:
        raise ValueError("is not an object")
    return fields(mark, {name: check for name, check in checks.items() if name in mark or name in needed})


def graph_header(value: Any) -> dict[str, Any]:
    """Take the header of a graph checkpoint.

    Raises:
        ValueError: Something is missing, or is not what it should be.
    """
    found = thing(value)
    given = {name: found[name] for name in found if name in _NEEDED or name in _MORE}
    fields(given, _NEEDED | {name: _MORE[name] for name in given if name in _MORE})
    _require_comparable([found["versions"], *found["seen"].values()])
    return found


def graph_metadata(value: Any) -> dict[str, Any]:
    """Take what LangGraph says of a graph checkpoint.

    Raises:
        ValueError: Something is not what it should be.

    Example:
        >>> graph_metadata({"step": 1, "mine": "x"})
        {'step': 1, 'mine': 'x'}
    """
    found = thing(value)
    known = {name: check for name, check in _META.items() if name in found}
    fields({name: found[name] for name in known}, known)
    return found


def _require_comparable(versions: Iterable[Mapping[str, Any]]) -> None:
    """Check that LangGraph can order any two versions, and can make the next one."""
    kinds = {_kind(one) for named in versions for one in named.values()}
    if None in kinds or len(kinds) > 1:
        raise ValueError("has versions that cannot be compared")


def _kind(version: Any) -> str | None:
    """Return how a saver counts: in numbers, or in texts that begin with one; None is not at all."""
    if type(version) is str:
        return "text" if version.partition(".")[0].isdecimal() and len(version) <= 64 else None
    return "number" if type(version) in (int, float) and 0 <= version <= MOST else None


def _tokens(value: Any) -> list[int]:
    found: list[int] = many(number(most=2**62))(value)
    if len(found) != len(UsedTokens._fields):
        raise ValueError("is not a number of tokens")
    return found


_NEEDED: dict[str, Check] = {
    "v": number(),
    "ts": text,
    "versions": thing,
    "seen": named(thing),
    "counts": named(number()),
    "updated": maybe(many(text)),
}
_MORE: dict[str, Check] = {
    "usage": named(_tokens),
    "snapshots": many(text),
    "folded": many(text),
    "digests": named(digest),
}
_META: dict[str, Check] = {
    "step": number(-1),
    "source": text,
    "parents": maybe(named(text)),
    "counters_since_delta_snapshot": maybe(thing),
}

DEEPEST = 300
"""Levels of a value that is stored as JSON; what is deeper is not written as that."""

_RESERVED = ("cls", "_fields_set")
"""The keys that LangChain cannot make a message with, because they name arguments of its constructor."""


def stored_message(value: Any) -> dict[str, Any]:
    """Take a message in LangChain's stored form.

    Raises:
        ValueError: LangChain would not make it, or nobody could read it.

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
    readable_message(made)  # a field of another kind of message is one of its own here, and is read all the same
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
    """Take a message in the form in which agentgit shows it, of whatever class it is.

    Raises:
        ValueError: Nobody could read it.
    """
    kind, data = value["type"], value["data"]
    fields({"type": kind, "name": data.get("name")}, {"type": text, "name": maybe(text)})
    return fields(from_stored(value), {**_SHOWN, **({"usage_metadata": _same} if data.get("usage_metadata") else {})})


def require_flat(value: Any) -> None:
    """Check that a value is no deeper than the values that are written as JSON.

    Raises:
        ValueError: The value is deeper.
    """
    level = [value]
    for _ in range(DEEPEST):
        level = [
            below
            for item in level
            if isinstance(item, (list, dict))
            for below in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"is deeper than {DEEPEST} levels")


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
    checks: dict[str, Check] = {"name": text, "args": _object, "id": maybe(text)}
    fields({name: given[name] for name in given if name in checks}, checks)
    return value


_FIELDS: dict[str, Check] = {
    "content": _content,
    "additional_kwargs": _object,
    "response_metadata": _object,
    "name": maybe(text),
    "id": maybe(text),
}
_OF_KIND: dict[str, dict[str, Check]] = {
    "ai": {"tool_calls": many(_call), "invalid_tool_calls": many(_object), "usage_metadata": maybe(_object)},
    "tool": {"tool_call_id": text, "status": one_of("success", "error")},
}
_REQUIRED = {"tool": ("tool_call_id",)}
_SHOWN: dict[str, Check] = {
    "role": text,
    "content": lambda value: value if value is None else _content(value),
    "id": maybe(text),
    "tool_calls": many(_call),
    "tool_call_id": maybe(text),
}
