"""Checks of messages, which must look as LangChain makes them and as everybody reads them afterwards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgit.sessions.messages import ROLES, from_stored
from agentgit.store.transfer.fields import Check, fields, many, maybe, one_of, text

DEEPEST = 300
"""Levels of a value that is stored as JSON; what is deeper is not written as that."""

_RESERVED = ("cls", "_fields_set")
"""The keys that LangChain cannot make a message with, because they name arguments of its constructor."""


def stored(value: Any) -> dict[str, Any]:
    """Take a message in LangChain's stored form.

    Raises:
        ValueError: LangChain would not make it, or nobody could read it.

    Example:
        >>> stored({"type": "human", "data": {"content": "hi"}})["type"]
        'human'
        >>> stored({"type": "human", "data": {"content": 7}})
        Traceback (most recent call last):
            ...
        ValueError: data content is neither a text nor a list of texts and objects
    """
    made: dict[str, Any] = fields(value if type(value) is dict else {}, {"type": one_of(*ROLES), "data": _same})
    fields(made, {"type": _same, "data": _data(made["type"])})
    readable(made)  # a field of another kind of message is one of its own here, and is read all the same
    return made


def _data(kind: str) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict or not all(type(name) is str for name in value):
            raise ValueError("is no object")
        if odd := [name for name in _RESERVED if name in value]:
            raise ValueError(f"has a field {odd[0]!r}")
        known = _FIELDS | _OF_KIND.get(kind, {}) | {"type": one_of(kind)}
        given = {name: value[name] for name in value if name in known or name in _REQUIRED.get(kind, ())}
        fields(given, {name: known[name] for name in {*given, "content", *_REQUIRED.get(kind, ())}})
        return value

    return check


def readable(value: Mapping[str, Any]) -> dict[str, Any]:
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
        raise ValueError("is neither a text nor a list of texts and objects")
    return value


def _object(value: Any) -> Any:
    if type(value) is not dict:
        raise ValueError("is no object")
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
