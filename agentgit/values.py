"""What all values share: large fields that are fetched late, and a JSON form that every value has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self, cast

import orjson


class Deferred:
    """A dataclass whose large fields may be fetched when one of them is first read.

    The value itself does no IO: whoever reads it from a database hands over the function that does.
    """

    CONTENT: ClassVar[tuple[str, ...]] = ()
    """The names of the large fields."""

    @classmethod
    def deferred(cls, load: Callable[[], Mapping[str, Any]], **known: Any) -> Self:
        """Make a value whose large fields are fetched by `load`, at most once, when one is first read.

        Args:
            load: returns a mapping with all of `CONTENT`.
            known: the other fields.
        """
        value = cls(**known)
        for name in cls.CONTENT:
            del value.__dict__[name]
        value.__dict__["_load"] = load
        return value

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what is not in the instance: a large field that was not fetched yet.
        load = self.__dict__.get("_load")
        if name not in self.CONTENT or load is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        content = load()
        self.__dict__.pop("_load", None)
        self.__dict__.update({key: content[key] for key in self.CONTENT})
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle must not carry the way to a database with it.
        return dict(_items(self))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return ((f.name, getattr(value, f.name)) for f in fields(value))


def portable(value: Any) -> Any:
    """Give the JSON-like form of any Python value: what JSON has stays, everything else becomes plain data or its repr.

    Example:
        >>> from datetime import date
        >>> portable({"on": date(2026, 1, 2), "ids": {7}})
        {'on': '2026-01-02', 'ids': [7]}
    """
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
    except UnicodeEncodeError:  # a lone surrogate in a key; pydantic takes them only in values
        if isinstance(value, dict):
            return {str(key): portable(item) for key, item in value.items()}
        return [portable(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else repr(value)


def to_json(value: Any) -> bytes:
    """Write a value as JSON, also where it holds what orjson refuses (lone surrogates, huge integers)."""
    plain = portable(value)
    try:
        return orjson.dumps(plain)
    except TypeError:
        return json.dumps(plain).encode()


def from_json(data: bytes) -> Any:
    """Read what `to_json` wrote.

    Example:
        >>> from_json(to_json({"text": chr(0xD800)})) == {"text": chr(0xD800)}
        True
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def as_object(data: bytes | None) -> dict[str, Any]:
    """Read a JSON object; nothing stored is the empty one."""
    return cast("dict[str, Any]", from_json(data)) if data else {}
