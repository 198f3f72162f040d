"""Conversion of stored values to JSON-like data without LangGraph, with a placeholder where that is impossible."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentgit.store.objects.blobs import Leaf, leaf
from agentgit.store.objects.content import Body
from agentgit.values import portable

JSON, JSON_PY = "json", "json+py"
"""The types of a plain value. `+py` uses the `json` module, for values that orjson rejects or changes."""

MESSAGE, MESSAGE_PY, MESSAGE_MSGPACK = "message", "message+py", "message+msgpack"
"""The types of a message in LangChain's stored form, `{"type": ..., "data": {...}}`; `+msgpack` if not plain JSON."""

MSGPACK = "msgpack"
"""The type of a value that LangGraph's serializer wrote."""

RUN, RUN_PY = "run", "run+py"
"""The types of a leaf that holds several small items of a list."""

CUSTOM_SERDE = "serde"
"""The type of a value that the user's own serializer wrote. Its bytes are the serializer's type, NUL, and the data."""

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

NOT_COMPUTED = "<not computed at this step>"
"""The text in place of the value of a DeltaChannel whose reducer is not known, failed, or lacks some of its writes."""

NUMPY, DELTA = 6, 7
"""The codes of LangGraph's msgpack extensions whose value is not `(module, name, payload, ...)`."""


def encode_leaf(type_: str, value: Any) -> Leaf:
    """Encode plain JSON exactly as the saver's codec does, so that equal values are stored as one."""
    try:
        return leaf(type_, orjson.dumps(value))
    except TypeError:
        return leaf(f"{type_}+py", json.dumps(value, separators=(",", ":")).encode())


def show_state(values: Mapping[str, Body], conversation: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Convert the values of a state to JSON-like data; return the messages separately."""
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
    if isinstance(body, dict):
        return {name: show(part) for name, part in body.items()}
    if isinstance(body, Leaf):
        return _show_leaf(body)
    items: list[Any] = []
    for item in body:
        items.extend(_show_leaf(item)) if item.type in RUNS else items.append(_show_leaf(item))
    return items


def show_message(item: Leaf) -> dict[str, Any]:
    """Convert one message to LangChain's stored form, even if LangGraph's serializer stored it."""
    value = _show_leaf(item)
    if item.type in MESSAGES:
        return dict(value)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {"type": value["type"], "data": value}
    return {"type": "unknown", "data": {"content": str(value)}}


def _show_leaf(value: Leaf) -> Any:
    if value.type in READERS:
        return READERS[value.type](value.data)
    if value.type == CUSTOM_SERDE:
        kind, _, data = value.data.partition(b"\0")
        return f"<{len(data)} bytes of type {kind.decode()}: only the serializer that wrote them can read them>"
    if value.type == "null":
        return None
    if value.type in ("bytes", "bytearray"):
        return portable(value.data)
    if value.type in (MSGPACK, MESSAGE_MSGPACK):
        return portable(unpack_msgpack(value.data, _decode_extension))
    return f"<{len(value.data)} bytes of type {value.type}>"


def unpack_msgpack(data: bytes, read_extension: Callable[[int, bytes], Any]) -> Any:
    """Read msgpack that LangGraph wrote (`langgraph.checkpoint.serde.jsonplus`), without constructing objects."""
    import ormsgpack  # a dependency of LangGraph; needed only for values that are not plain

    return ormsgpack.unpackb(data, ext_hook=read_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _decode_extension(code: int, data: bytes) -> Any:
    value = unpack_msgpack(data, _decode_extension)
    if code == NUMPY:
        kind, shape, *_ = value
        return f"<array of {kind}, shape {'x'.join(map(str, shape))}>"
    return value if code == DELTA else value[2]
