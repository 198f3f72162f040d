"""Stored values in a file: which of them are accepted. No IO.

What a value's bytes say is never constructed here: it is only checked that agentgit can display it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgit.sessions.messages import ROLES, from_stored
from agentgit.store.objects.blobs import RECORD, Leaf, unpack
from agentgit.store.objects.plain_values import (
    CUSTOM_SERDE,
    MESSAGE_MSGPACK,
    MESSAGES,
    MSGPACK,
    READERS,
    RUNS,
    show,
    show_message,
    unpack_msgpack,
)
from agentgit.store.records.json_shapes import Nullable, anything, is_shaped, items, named, one_of, require_flat, text

VALUE_TYPES = frozenset({*READERS, MSGPACK, MESSAGE_MSGPACK, CUSTOM_SERDE, RECORD, "null", "bytes", "bytearray"})
"""The types of values that agentgit writes. A value of any other type, such as a pickle, is refused."""

PICKLE = b"pickle"
"""The type that LangGraph's serializer gives to a pickle, if pickles are enabled."""

_RESERVED_KEYS = ("cls", "_fields_set")
"""Keys that a message cannot have, because LangChain's constructors have parameters with these names."""


def require_readable(value: Leaf) -> None:
    """Check that a value can be displayed, and is of a type that agentgit writes."""
    if value.type not in VALUE_TYPES:
        raise ValueError(f"has type {value.type!r}, which agentgit does not write")
    if value.type == CUSTOM_SERDE and value.data.partition(b"\0")[0] == PICKLE:
        raise ValueError("is a pickle, which is not imported because reading it can run any code")
    try:
        if value.type == RECORD:
            is_shaped({"*": anything}, unpack(value.data))
            return
        displayed = show(value)
        if value.type in READERS:
            require_flat(displayed)
        if value.type in RUNS:
            items(displayed)
        if value.type in MESSAGES:
            # What only LangGraph can rebuild becomes an `object`, which is not a JSON type.
            is_plain = value.type != MESSAGE_MSGPACK
            stored_message(displayed if is_plain else unpack_msgpack(value.data, lambda *_: object()))
    except Exception as error:  # untrusted bytes may cause any exception
        problem = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"of type {value.type} cannot be read ({problem})") from error


def is_message(value: Leaf) -> bool:
    """Return whether a readable value can be an item of a conversation."""
    if value.type in MESSAGES or value.type == CUSTOM_SERDE:
        return True
    try:
        return value.type == MSGPACK and bool(_require_displayed(show_message(value)))
    except (ValueError, TypeError, LookupError, AttributeError):  # untrusted bytes
        return False


# -- messages


def stored_message(value: Any) -> dict[str, Any]:
    message: dict[str, Any] = is_shaped({"type": one_of(*ROLES), "data": anything}, value)
    is_shaped({"type": anything, "data": lambda data: _message_data(message["type"], data)}, message)
    _require_displayed(message)  # also fields that are only standard in other kinds of messages
    return message


def _require_displayed(message: Mapping[str, Any]) -> dict[str, Any]:
    """Check that agentgit can display a message of any class; return it as displayed."""
    is_shaped({"type": text, "name": Nullable(text)}, {"type": message["type"], "name": message["data"].get("name")})
    has_usage = bool(message["data"].get("usage_metadata"))
    return dict(is_shaped(_DISPLAYED | ({"usage_metadata": anything} if has_usage else {}), from_stored(message)))


def _message_data(kind: str, data: Any) -> Mapping[str, Any]:
    if reserved := [name for name in _RESERVED_KEYS if name in named(data)]:
        raise ValueError(f"has a field {reserved[0]!r}")
    shape = _MESSAGE | _MESSAGES_BY_KIND.get(kind, {}) | {"type?": one_of(kind)}
    return dict(is_shaped(shape, data))


def _content(value: Any) -> Any:
    if type(value) is not str and not (type(value) is list and all(type(block) in (str, dict) for block in value)):
        raise ValueError("is neither a string nor a list of strings and objects")
    return value


_CALL = {"name": text, "args": named, "id": Nullable(text), "*": anything}
_MESSAGE = {
    "content": _content,
    "additional_kwargs?": named,
    "response_metadata?": named,
    "name?": Nullable(text),
    "id?": Nullable(text),
    "*": anything,
}
_MESSAGES_BY_KIND: dict[str, dict[str, Any]] = {
    "ai": {"tool_calls?": [_CALL], "invalid_tool_calls?": [named], "usage_metadata?": Nullable(named)},
    "tool": {"tool_call_id": text, "status?": one_of("success", "error")},
}
_DISPLAYED = {
    "role": text,
    "content": Nullable(_content),
    "id": Nullable(text),
    "tool_calls": [_CALL],
    "tool_call_id": Nullable(text),
}
