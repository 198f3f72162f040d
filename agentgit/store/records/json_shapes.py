"""Shapes: what the JSON of a file must look like, and which parts of it are ids. One walk checks and renumbers. No IO.

A shape is a function that returns the value in its stored form or raises ValueError, a list with the shape of its
items, an object by its field names, or one of the classes here. A name that ends with `?` may be missing; `*` is any
other name.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

Shape: TypeAlias = Any
Refer: TypeAlias = Callable[["Ref", Any], Any]
"""Returns the new id for an old one, or refuses it."""

MAX_TEXT_LENGTH = 16 * 2**20
MAX_KEY_BYTES = 1000
MAX_LABEL_LENGTH = 200
MAX_COUNT = 2**30
"""The maximum of any count. It leaves every database room to count further."""

MAX_DEPTH = 300
"""The maximum depth of JSON. A deeper value is stored in another form."""


class Ref(NamedTuple):
    """The id of a row of a table. Without that row, an optional one becomes None, and one that is kept stays."""

    table: str
    is_optional: bool = False
    is_kept: bool = False
    is_text: bool = False


class Nullable(NamedTuple):
    shape: Shape


class Chosen(NamedTuple):
    """The shape that a function chooses for a value."""

    choose: Callable[[Any], Shape]


class Names(NamedTuple):
    """An object whose names are ids of rows. Those of rows that the file does not have are left out."""

    ref: Ref
    shape: Shape


def walk(shape: Shape, value: Any, refer: Refer) -> Any:
    """Check a value, and return it in its stored form with the new ids."""
    if isinstance(shape, dict):
        return _walk_object(shape, value, refer)
    if isinstance(shape, list):
        return [walk(shape[0], item, refer) for item in items(value)]
    if isinstance(shape, Ref):
        return refer(shape, key(value) if shape.is_text else ident(value))
    if isinstance(shape, Nullable):
        return None if value is None else walk(shape.shape, value, refer)
    if isinstance(shape, Chosen):
        return walk(shape.choose(value), value, refer)
    if isinstance(shape, Names):
        by_id = {refer(shape.ref, ident(int(name))): item for name, item in named(value).items()}
        return {str(id): walk(shape.shape, item, refer) for id, item in by_id.items() if id is not None}
    return shape(value)


def _walk_object(shape: Mapping[str, Shape], value: Any, refer: Refer) -> dict[str, Any]:
    shapes = {name.removesuffix("?"): one for name, one in shape.items()}
    required = {name for name in shape if name != "*" and not name.endswith("?")}
    unknown = set() if "*" in shapes else named(value).keys() - shapes.keys()
    if wrong := sorted((required - named(value).keys()) | unknown):
        raise ValueError(f"has {'an unknown' if wrong[0] in value else 'no'} field {wrong[0][:40]!r}")
    return {name: _walk_field(name, shapes.get(name, shapes.get("*")), item, refer) for name, item in value.items()}


def _walk_field(name: str, shape: Shape, value: Any, refer: Refer) -> Any:
    try:
        return walk(shape, value, refer)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name[:40]} {error}") from error


def prune(shape: Shape, value: Any) -> Any:
    """Return a value of this database without the fields that its shape does not name, or that do not travel."""
    if isinstance(shape, Chosen):
        return prune(shape.choose(value), value)
    if isinstance(shape, Nullable):
        return None if value is None else prune(shape.shape, value)
    if isinstance(shape, list):
        return [prune(shape[0], item) for item in value]
    if not isinstance(shape, dict):
        return value
    pruned = {}
    for name, item in value.items():
        field = shape.get(name, shape.get(f"{name}?", shape.get("*", nothing)))
        is_unset = item is None and f"{name}?" in shape and not isinstance(field, Nullable)
        if field is not nothing and not is_unset:
            pruned[name] = prune(field, item)
    return pruned


def is_shaped(shape: Shape, value: Any) -> Any:
    """Check a value that holds no ids, and return it."""
    return walk(shape, value, lambda _, id: id)


def require_flat(value: Any) -> None:
    """Check that a value is not nested deeper than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (list, dict)))
        level = [child for children in nested for child in children]
        if not level:
            return
    raise ValueError(f"is deeper than {MAX_DEPTH} levels")


# -- single values


def number(least: int = 0, most: int = MAX_COUNT) -> Shape:
    """Build a check for an integer in a range."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return value

    return check


ident = number(1, 2**53 - 1)
"""Checks an id."""


def anything(value: Any) -> Any:
    return value


def forgotten(_: Any) -> None:
    """Accept any value, and forget it."""


def nothing(_: Any) -> None:
    """Refuse any value: the field does not travel."""
    raise ValueError("cannot come from a file")


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
    return value


def named(value: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(name) is str for name in value):
        raise ValueError("is not an object")
    return value


def items(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("is not a list")
    return value


def text(value: Any) -> str:
    """Check for a string of at most `MAX_TEXT_LENGTH` characters."""
    if type(value) is not str or len(value) > MAX_TEXT_LENGTH:
        raise ValueError("is not text")
    return value


def key(value: Any) -> str:
    """Check for a string that is short enough for an index of any database."""
    if len(text(value).encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        raise ValueError(f"is longer than {MAX_KEY_BYTES} bytes")
    return text(value)


def label(value: Any) -> str:
    """Check for a name that a user chose."""
    if not text(value).strip() or len(value) > MAX_LABEL_LENGTH:
        raise ValueError(f"is not text of 1 to {MAX_LABEL_LENGTH} characters")
    return text(value)


def source(value: Any) -> str:
    """Check for the name of the program that wrote a file."""
    if not word(value).startswith("agentgit "):
        raise ValueError("is not a version of agentgit")
    return word(value)


def word(value: Any) -> str:
    """Check for a string of 1 to 64 printable characters."""
    if type(value) is not str or not 0 < len(value) <= 64 or not value.isprintable():
        raise ValueError("is not text of 1 to 64 printable characters")
    return value


def one_of(*words: str) -> Shape:
    """Build a check for one of several strings."""

    def check(value: Any) -> str:
        if type(value) is not str or value not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return value

    return check


def time(value: Any) -> datetime:
    """Check for an ISO 8601 time with a time zone; return it in UTC."""
    parsed = datetime.fromisoformat(value) if type(value) is str else None
    if parsed is None or parsed.tzinfo is None or not 1970 < parsed.year < 9000:
        raise ValueError("is not a time with a time zone")
    return parsed.astimezone(UTC)


def hexadecimal(value: Any) -> bytes:
    data = bytes.fromhex(value) if type(value) is str else None
    if data is None or data.hex() != value:
        raise ValueError("is not hexadecimal")
    return data


def digest(value: Any) -> bytes:
    """Check for a SHA-256 hash in hexadecimal; return its bytes."""
    data = hexadecimal(value)
    if len(data) != 32:
        raise ValueError("is not a hash")
    return data


def encode_bytes(data: bytes) -> Any:
    """Return the JSON of the bytes of a value: text if they are, else base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def decode_bytes(value: Any) -> bytes:
    if type(value) is str:
        return value.encode()
    try:
        return b64decode(is_shaped({"base64": text}, value)["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64 ({error})") from error
