"""LangGraph's serializer, except that it rebuilds known data types, and each from exactly the fields that were stored.

A rebuilt value gets its fields without `__init__`, `__post_init__`, validators, defaults, factories or properties, so
that stored bytes run no code of its type and take nothing from the process. What cannot be rebuilt like that is
returned as plain values: a dict of the fields, for example. Of other types, only those of the standard library below
are called, with the stored values.

The format is LangGraph's, with two differences: the fields of a pydantic model are stored as they are, with what
pydantic knows of them, because LangGraph flattens nested models to dicts, which only a constructor can turn back; and
tuples are kept, which constructors otherwise make of lists.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import ipaddress
import logging
import pathlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, lru_cache
from types import MemberDescriptorType
from typing import Any, NamedTuple, Self
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.store.base import Item
from langgraph.types import Send
from pydantic import BaseModel, SecretBytes, SecretStr

from agentgit.langgraph_internals import SAFE_MSGPACK_TYPES, DeltaSnapshot, msgpack_default
from agentgit.saver.data_types import (
    TypeName,
    add_names,
    add_type,
    data_types_in,
    find_type,
    is_data_type,
    is_named_tuple,
)
from agentgit.saver.leaf_codec import assemble_model
from agentgit.store.objects.plain_values import MSGPACK

LOG = logging.getLogger("agentgit")

_PACK_OPTIONS = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)

_LANGGRAPH = JsonPlusSerializer(allowed_msgpack_modules=None)

_CONSTRUCTORS: dict[TypeName, Callable[..., Any]] = {
    **{
        (kind.__module__, kind.__qualname__): kind
        for kind in (
            *(tuple, set, frozenset, deque, Decimal, UUID, ZoneInfo, SecretStr, SecretBytes, Item),
            *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
            *(ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network),
            *(ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network),
        )
    },
    **{
        (module, kind.__name__): kind
        for module in ("pathlib", "pathlib._local")  # the second since Python 3.13
        for kind in (pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath)
    },
    ("datetime", "datetime"): datetime.datetime.fromisoformat,
    ("re", "compile"): re.compile,
    ("langgraph.types", "Send"): lambda node, arg, timeout=None: (
        Send(node, arg, timeout=timeout) if timeout else Send(node, arg)
    ),
}
"""What is called for a stored value, besides the constructors of LangGraph's and LangChain's own data types."""

SAFE_TYPES = frozenset({*SAFE_MSGPACK_TYPES, *_CONSTRUCTORS})
"""The names of the types that every program rebuilds."""


def can_rebuild(name: TypeName) -> bool:
    """Return whether this process rebuilds stored values of the type of this name."""
    return name in _CONSTRUCTORS or find_type(*name) is not None


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer for values of known types; see the module.

    Example:
        >>> StrictSerializer().loads_typed(StrictSerializer().dumps_typed({"seats": {(7, 8)}}))
        {'seats': {(7, 8)}}
    """

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None, __unpack_ext_hook__=_unpack_ext)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is None or isinstance(obj, (bytes, bytearray)):
            return super().dumps_typed(obj)
        return MSGPACK, ormsgpack.packb(obj, default=_pack_object, option=_PACK_OPTIONS)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Self:
        """Make more types known; LangGraph calls this with the types of a graph when it compiles it in strict mode."""
        add_names([*extra_allowlist])
        return self


# -- writing


def _pack(value: Any) -> bytes:
    """Serialize a part of an object. Its tuples are kept; those outside of objects become lists, as in LangGraph."""
    return ormsgpack.packb(value, default=_pack_object, option=_PACK_OPTIONS | ormsgpack.OPT_PASSTHROUGH_TUPLE)


def _pack_object(value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, DeltaSnapshot):
        return ormsgpack.Ext(EXT_DELTA_SNAPSHOT, _pack(value.value))
    if kind is tuple or issubclass(kind, (set, frozenset, deque)):
        return _ext(EXT_CONSTRUCTOR_SINGLE_ARG, kind, list(value))
    if kind is Send:
        timeout = getattr(value, "timeout", None)  # newer than the oldest LangGraph that agentgit supports
        return _ext(EXT_CONSTRUCTOR_POS_ARGS, kind, [value.node, value.arg, *([timeout] if timeout else [])])
    if kind is Item:
        return _ext(EXT_CONSTRUCTOR_KW_ARGS, kind, {name: getattr(value, name) for name in Item.__slots__})
    if issubclass(kind, BaseModel):
        return _pack_model(kind, value)
    if not is_data_type(kind):
        return msgpack_default(value)
    add_type(kind)
    if issubclass(kind, Enum):
        return _ext(EXT_CONSTRUCTOR_SINGLE_ARG, kind, value.value)
    if is_named_tuple(kind):
        return _ext(EXT_CONSTRUCTOR_KW_ARGS, kind, dict(zip(kind._fields, value, strict=True)))
    return _pack_dataclass(kind, value)


def _pack_model(kind: type[BaseModel], value: BaseModel) -> ormsgpack.Ext:
    add_type(kind)
    # Not `model_dump`, which would flatten the models in the fields.
    fields = {name: value.__dict__[name] for name in _shape(kind).fields if name in value.__dict__}
    fields |= value.__pydantic_extra__ or {}
    assigned = sorted(fields.keys() & value.__pydantic_fields_set__)
    return _ext(EXT_PYDANTIC_V2, kind, fields, {"set": assigned, "private": value.__pydantic_private__})


def _pack_dataclass(kind: type, value: Any) -> ormsgpack.Ext:
    fields = {name: getattr(value, name) for name in _shape(kind).fields if hasattr(value, name)}
    # Such as attributes that `__post_init__` sets, which does not run again.
    others = {
        name: one
        for name, one in getattr(value, "__dict__", {}).items()
        if name not in fields
        and not name.startswith("__")  # such as `__orig_class__`
        and not isinstance(inspect.getattr_static(kind, name, None), cached_property)
    }
    return _ext(EXT_CONSTRUCTOR_KW_ARGS, kind, fields, *([{"private": others}] if others else []))


def _ext(code: int, kind: type, *content: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, _pack([kind.__module__, kind.__qualname__, *content]))


# -- reading


def _unpack_ext(code: int, data: bytes) -> Any:
    if code == EXT_NUMPY_ARRAY:
        return _LANGGRAPH.loads_typed((MSGPACK, ormsgpack.packb(ormsgpack.Ext(code, data))))
    content = ormsgpack.unpackb(data, ext_hook=_unpack_ext, option=ormsgpack.OPT_NON_STR_KEYS)
    if code == EXT_DELTA_SNAPSHOT:
        return DeltaSnapshot(content)
    match content:
        case [str(module), str(name), payload, *details]:
            try:
                return _rebuild((module, name), code, payload, details)
            except Exception as error:  # noqa: BLE001  # stored bytes may cause any exception
                _report(f"{module}.{name}"[:200], str(error) if isinstance(error, _NotRebuilt) else repr(error)[:200])
                return payload
    return content


class _NotRebuilt(Exception):
    """A stored value is not rebuilt; the message is the reason."""


@lru_cache(maxsize=1024)  # each is reported once; stored bytes choose the names
def _report(name: str, reason: str) -> None:
    LOG.warning("A stored value of the type %r stays plain data: %s", name, reason)


def _rebuild(name: TypeName, code: int, payload: Any, details: list[Any]) -> Any:
    if (constructor := _CONSTRUCTORS.get(name)) is not None:
        return _call(constructor, code, payload)
    kind = find_type(*name)
    if kind is None:
        raise _NotRebuilt("wrap a graph that uses it, trust its module, or pass SQLModelSaver(..., types=[...])")
    own_details = details[0] if details and isinstance(details[0], dict) else None
    try:
        return _build(kind, payload, own_details)
    except _NotRebuilt:
        if name not in SAFE_MSGPACK_TYPES:
            raise
        return _call(kind, code, payload)  # another release of LangGraph or LangChain wrote it


def _call(constructor: Callable[..., Any], code: int, payload: Any) -> Any:
    if code == EXT_CONSTRUCTOR_POS_ARGS:
        return constructor(*payload)
    return constructor(**payload) if code in (EXT_CONSTRUCTOR_KW_ARGS, EXT_PYDANTIC_V2) else constructor(payload)


class _Shape(NamedTuple):
    """The form in which the instances of a dataclass or model hold their fields."""

    fields: tuple[str, ...]
    slots: Mapping[str, MemberDescriptorType]
    has_properties: bool
    """True if a property, or the like, has the name of a field, so that only code of the type can set the field."""


@lru_cache(maxsize=1024)
def _shape(kind: Any) -> _Shape:
    if issubclass(kind, BaseModel):
        names = [name for name, field in kind.model_fields.items() if not field.exclude]
    else:
        names = [field.name for field in dataclasses.fields(kind)]
    attributes = {name: inspect.getattr_static(kind, name, None) for name in names}
    slots = {name: one for name, one in attributes.items() if isinstance(one, MemberDescriptorType)}
    return _Shape(tuple(names), slots, any(_is_data_descriptor(kind, name) for name in attributes.keys() - slots))


def _is_data_descriptor(kind: type, name: str) -> bool:
    return hasattr(type(inspect.getattr_static(kind, name, None)), "__set__")


def _build(kind: Any, content: Any, details: dict[str, Any] | None) -> Any:
    if issubclass(kind, Enum):
        return _member(kind, content)
    if is_named_tuple(kind):
        if tuple(content) != kind._fields:
            raise _NotRebuilt(_OTHER_FIELDS)
        return tuple.__new__(kind, content.values())
    shape = _shape(kind)
    if shape.has_properties:
        raise _NotRebuilt("a property has the name of one of its fields")
    if issubclass(kind, BaseModel):
        return _build_model(kind, content, details)
    others = (details or {}).get("private", {})
    if content.keys() != {*shape.fields}:
        raise _NotRebuilt(_OTHER_FIELDS)
    if any(name.startswith("__") or _is_data_descriptor(kind, name) for name in others):
        raise _NotRebuilt(_OTHER_FIELDS)
    value = object.__new__(kind)
    for name, one in {**content, **others}.items():
        if name in shape.slots:
            shape.slots[name].__set__(value, one)
        else:
            object.__getattribute__(value, "__dict__")[name] = one
    return value


_OTHER_FIELDS = "it has other fields than its type now"


def _build_model(kind: Any, content: dict[str, Any], details: dict[str, Any] | None) -> Any:
    names, extra_names = {*_shape(kind).fields}, content.keys() - _shape(kind).fields
    allows_extra = kind.model_config.get("extra") == "allow"
    if not names <= content.keys() or (extra_names and not allows_extra):
        raise _NotRebuilt(_OTHER_FIELDS)
    if details is None:  # LangGraph's serializer wrote it
        if kind.__private_attributes__:
            raise _NotRebuilt("LangGraph has stored it without its private attributes")
        hints = {name: field.annotation for name, field in kind.model_fields.items()}
        content = {
            name: _inflate(one, [*data_types_in(hints.get(name), nested=False)]) for name, one in content.items()
        }
        details = {"set": [*content], "private": None}
    assigned, private = set(details["set"]), details["private"]
    if not assigned <= content.keys() or not (private or {}).keys() <= kind.__private_attributes__.keys():
        raise _NotRebuilt(_OTHER_FIELDS)
    fields = {name: one for name, one in content.items() if name not in extra_names}
    extra = {name: one for name, one in content.items() if name in extra_names} if allows_extra else None
    return assemble_model(kind, fields, assigned, extra, private)


def _inflate(value: Any, kinds: list[Any]) -> Any:
    """Rebuild the models and dataclasses that LangGraph has stored as dicts, by the types in the hint of the field."""
    if isinstance(value, list):
        return [_inflate(one, kinds) for one in value]
    if not isinstance(value, dict):
        return value
    holders = [kind for kind in kinds if not issubclass(kind, (Enum, tuple))]
    fitting = [kind for kind in holders if {*_shape(kind).fields} == value.keys()]
    if len(fitting) > 1:
        raise _NotRebuilt("LangGraph has stored a field without its type, and several fit")
    return _build(fitting[0], value, None) if fitting else {name: _inflate(one, kinds) for name, one in value.items()}


def _member(kind: Any, value: Any) -> Any:
    for member in kind._member_map_.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    is_standard = issubclass(kind, Flag) and kind._missing_.__func__ is Flag._missing_.__func__  # type: ignore[attr-defined]  # a class method
    if is_standard and kind._member_type_ in (object, int) and type(value) is int:
        return kind._missing_(value)  # a combination of flags
    raise _NotRebuilt("it is no member of its enum now")
