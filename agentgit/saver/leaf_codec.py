"""Encoding of single values as leaves: plain values, messages, and the types that may be rebuilt."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import orjson
import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY
from pydantic import BaseModel

from agentgit.store.objects.blobs import Leaf, leaf
from agentgit.store.objects.plain_values import JSON, JSON_PY, MESSAGE, MESSAGE_PY, RUN, RUN_PY

MESSAGE_TYPES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
_FIELDS = {kind: frozenset(kind.model_fields) for kind in MESSAGE_TYPES.values()}

_new_message: Callable[[type[BaseMessage]], BaseMessage] = object.__new__
_set_dict, _set_fields_set, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)

RUN_BYTES = 1024
"""The size in bytes at which a run of small list items is closed."""

ALONE_BYTES = 256
"""The size in bytes from which a list item is stored on its own, outside of a run."""

MAX_JSON_DEPTH = 250
"""The greatest nesting depth that is stored as JSON; deeper values go through the serializer."""

_ORJSON_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def is_plain(value: Any, *, finite: bool = True) -> bool:
    """Return whether a value survives a round trip through JSON unchanged.

    Example:
        >>> is_plain({"a": [1, None, "x"]}), is_plain({"a": (1,)}), is_plain({1: 2}), is_plain(float("nan"))
        (True, False, False, False)
    """
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        next_level: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or kind is int or kind is bool or item is None:
                continue
            if kind is list:
                next_level.extend(item)
            elif kind is dict:
                if not all(type(key) is str for key in item):
                    return False
                next_level.extend(item.values())
            elif kind is not float or (finite and not math.isfinite(item)):
                return False
        if not next_level:
            return True
        level = next_level
    return False


def _dump_with_orjson(value: Any) -> bytes | None:
    """Encode a value as JSON with orjson; None if orjson refuses it."""
    try:
        return orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        return None


def _dump_with_json(value: Any) -> bytes | None:
    """Encode what orjson refuses or changes: lone surrogates, integers beyond 64 bits, NaN. None if it is not plain."""
    try:
        text = json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
    return text.encode() if is_plain(value, finite=False) else None


def encode_json(value: Any) -> tuple[bytes, bool] | None:
    """Encode a plain value as JSON, and return whether orjson can read it; None if the value is not plain."""
    data = _dump_with_orjson(value)
    if data is not None and is_plain(value):
        return data, True
    data = _dump_with_json(value)
    return (data, False) if data is not None else None


def plain_leaf(value: Any) -> Leaf | None:
    encoded = encode_json(value)
    return json_leaf(*encoded) if encoded is not None else None


def json_leaf(data: bytes, is_orjson_readable: bool) -> Leaf:
    """Create a leaf from the result of `encode_json`."""
    return leaf(JSON if is_orjson_readable else JSON_PY, data)


def stored_form(message: BaseMessage) -> dict[str, Any] | None:
    """Return LangChain's stored form (`messages_to_dict`) of a message; None if it cannot be rebuilt from that form."""
    fields, values, extra = _FIELDS.get(type(message)), message.__dict__, message.__pydantic_extra__
    if fields is None or values.keys() != fields or message.__pydantic_private__:
        return None
    if extra and not fields.isdisjoint(extra):
        return None
    return {"type": message.type, "data": {**values, **extra} if extra else values}


def message_leaf(stored: dict[str, Any]) -> Leaf | None:
    """Encode a message's stored form as JSON; None if JSON would change it."""
    orjson_data = _dump_with_orjson(stored)
    # Nearly all fields are strings or empty; only the others need the full check.
    values = stored["data"].values()
    if orjson_data is not None and all(type(value) is str or _is_empty(value) or is_plain(value) for value in values):
        return leaf(MESSAGE, orjson_data)
    json_data = _dump_with_json(stored)
    return leaf(MESSAGE_PY, json_data) if json_data is not None else None


def _is_empty(value: Any) -> bool:
    return value is None or (not value and type(value) in (dict, list))


def rebuild_message(stored: dict[str, Any]) -> BaseMessage:
    return rebuild_messages([stored])[0]


def rebuild_messages(stored: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    # Validation is skipped because it would change a message: it fills `tool_calls` again from `additional_kwargs`.
    kinds = [MESSAGE_TYPES[form["type"]] for form in stored]
    data = [form["data"] for form in stored]
    if all(map(has_exact_fields, kinds, data)):
        return assemble_messages(kinds, data)
    # A message has extra fields, or another release of LangChain wrote it.
    return [kind.model_construct(None, **fields) for kind, fields in zip(kinds, data, strict=True)]


def assemble_messages(kinds: Sequence[type[BaseMessage]], fields: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    """Create messages from dicts of exactly their fields, as pydantic does, without a Python call for each."""
    messages = list(map(_new_message, kinds))
    # The messages of a class share one set of assigned fields. It has all fields, so pydantic never adds to it.
    fields_set = {kind: set(_FIELDS[kind]) for kind in set(kinds)}
    for setter, values in (
        (_set_dict, fields),
        (_set_fields_set, [fields_set[kind] for kind in kinds]),
        (_set_extra, [{} for _ in kinds]),
        (_set_private, repeat(None)),
    ):
        deque(map(setter, messages, values), maxlen=0)
    return messages


def assemble_model(
    kind: type[BaseModel],
    fields: dict[str, Any],
    assigned: set[str],
    extra: dict[str, Any] | None,
    private: dict[str, Any] | None,
) -> BaseModel:
    """Create a model from exactly these parts, without running code of its class."""
    model: BaseModel = object.__new__(kind)
    _set_dict(model, fields)
    _set_fields_set(model, assigned)
    _set_extra(model, extra)
    _set_private(model, private)
    return model


def has_exact_fields(kind: type[BaseMessage], data: dict[str, Any]) -> bool:
    return data.keys() == _FIELDS[kind]


def type_names(data: bytes) -> set[tuple[str, str]]:
    """Return the types (module and name) that LangGraph's msgpack data refers to, without creating any object."""
    names: set[tuple[str, str]] = set()

    def visit(code: int, payload: bytes) -> None:
        if code == EXT_NUMPY_ARRAY:
            return
        value = ormsgpack.unpackb(payload, ext_hook=visit, option=ormsgpack.OPT_NON_STR_KEYS)
        if code != EXT_DELTA_SNAPSHOT:
            names.add((value[0], value[1]))

    ormsgpack.unpackb(data, ext_hook=visit, option=ormsgpack.OPT_NON_STR_KEYS)
    return names


def run_leaf(items: list[bytes], is_orjson_readable: bool) -> Leaf:
    return leaf(RUN if is_orjson_readable else RUN_PY, b"[%b]" % b",".join(items))
