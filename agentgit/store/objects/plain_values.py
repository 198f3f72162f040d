"""Readable forms of stored values without LangGraph: JSON-like, and honest where that is not possible."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Body
from agentgit.values import portable

JSON, JSON_PY = "json", "json+py"
"""A plain value; `+py` is written and read by the standard library, for what orjson refuses or changes."""

MESSAGE, MESSAGE_PY, MESSAGE_MSGPACK = "message", "message+py", "message+msgpack"
"""A message in LangChain's stored form, `{"type": ..., "data": {...}}`; `+msgpack` where it holds what is not plain."""

MSGPACK = "msgpack"
"""The kind of a value that LangGraph's serializer wrote."""

RUN, RUN_PY = "run", "run+py"
"""Several small items of a list in one leaf."""

SEALED = "serde"
"""The kind of a value that the user's own serializer wrote: its type, NUL, its bytes."""

READERS: dict[str, Callable[[bytes], Any]] = {
    JSON: orjson.loads,
    MESSAGE: orjson.loads,
    RUN: orjson.loads,
    JSON_PY: json.loads,
    MESSAGE_PY: json.loads,
    RUN_PY: json.loads,
}
RUNS = (RUN, RUN_PY)
MESSAGES = (MESSAGE, MESSAGE_PY, MESSAGE_MSGPACK)

NUMPY, DELTA = 6, 7
"""LangGraph's msgpack extensions that are not `(module, name, payload, ...)`."""


def show_state(values: Mapping[str, Body], conversation: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Show the values of a state, the messages apart.

    Args:
        values: The shown channels.
        conversation: The channel that holds the messages, or that has them in its `messages`; None if none does.
    """
    state: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    for name, body in values.items():
        if name != conversation:
            state[name] = show(body)
        elif isinstance(body, dict):
            state[name] = {key: show(part) for key, part in body.items() if key != "messages"}
            body = body.get("messages", [])
        if name == conversation and isinstance(body, list):
            messages = [show_message(item) for item in body]
    return state, messages


def show(body: Body) -> Any:
    """Show one value."""
    if isinstance(body, dict):
        return {name: show(part) for name, part in body.items()}
    if isinstance(body, Leaf):
        return _show_leaf(body)
    items: list[Any] = []
    for item in body:
        items.extend(_show_leaf(item)) if item.type in RUNS else items.append(_show_leaf(item))
    return items


def show_message(item: Leaf) -> dict[str, Any]:
    """Show one message in LangChain's stored form, also one that only LangGraph's serializer could store.

    Example:
        >>> show_message(Leaf(b"", "null", b""))
        {'type': 'unknown', 'data': {'content': 'None'}}
    """
    value = _show_leaf(item)
    if item.type in MESSAGES:
        return dict(value)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {"type": value["type"], "data": value}
    return {"type": "unknown", "data": {"content": str(value)}}


def _show_leaf(value: Leaf) -> Any:
    if value.type in READERS:
        return READERS[value.type](value.data)
    if value.type == SEALED:
        kind, _, data = value.data.partition(b"\0")
        return f"<{len(data)} bytes of type {kind.decode()}: only the serializer that wrote them can read them>"
    if value.type == "null":
        return None
    if value.type in ("bytes", "bytearray"):
        return portable(value.data)
    if value.type in (MSGPACK, MESSAGE_MSGPACK):
        return portable(_unpack(value.data))
    return f"<{len(value.data)} bytes of type {value.type}>"


def _unpack(data: bytes) -> Any:
    """Read msgpack as LangGraph writes it (`langgraph.checkpoint.serde.jsonplus`), building no objects."""
    import ormsgpack  # LangGraph brings it; it is needed only for values that are not plain

    return ormsgpack.unpackb(data, ext_hook=_payload, option=ormsgpack.OPT_NON_STR_KEYS)


def structure(data: bytes) -> Any:
    """Read msgpack as far as it is plain; what only LangGraph can rebuild is of no type that JSON has."""
    import ormsgpack  # as above

    return ormsgpack.unpackb(data, ext_hook=lambda *_: object(), option=ormsgpack.OPT_NON_STR_KEYS)


def _payload(code: int, data: bytes) -> Any:
    value = _unpack(data)
    if code == NUMPY:
        kind, shape, *_ = value
        return f"<array of {kind}, shape {'x'.join(map(str, shape))}>"
    return value if code == DELTA else value[2]
