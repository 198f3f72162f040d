"""Checks of the fields of a record. Each check returns the value in its stored form, or raises ValueError.

Times become times, hashes become bytes, and any JSON becomes the bytes of that JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from agentgit.checkpoints import references
from agentgit.errors import InvalidInput
from agentgit.values import dump_without_orjson, to_json

Check = Callable[[Any], Any]

MAX_TEXT_LENGTH = 16 * 2**20
MAX_KEY_BYTES = 1000
MAX_LABEL_LENGTH = 200
MAX_COUNT = 2**30
"""The maximum of any count. It leaves every database room to count further."""


def number(least: int = 0, most: int = MAX_COUNT) -> Check:
    """Build a check for an integer in a range.

    Example:
        >>> number(least=1)(7)
        7
    """

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return value

    return check


ident = number(1, 2**53 - 1)
"""Checks an id."""


def flag(value: Any) -> bool:
    """Check for true or false."""
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
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
    """Check for a name that a user chose: 1 to 200 characters, not all of them blank."""
    if not text(value).strip() or len(value) > MAX_LABEL_LENGTH:
        raise ValueError(f"is not text of 1 to {MAX_LABEL_LENGTH} characters")
    return text(value)


def word(max_length: int) -> Check:
    """Build a check for a string of 1 to `max_length` printable characters."""

    def check(value: Any) -> str:
        if type(value) is not str or not 0 < len(value) <= max_length or not value.isprintable():
            raise ValueError(f"is not text of 1 to {max_length} printable characters")
        return value

    return check


def one_of(*words: str) -> Check:
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


def digest(value: Any) -> bytes:
    """Check for a SHA-256 hash in hexadecimal; return its bytes."""
    digest_bytes = bytes.fromhex(value) if type(value) is str else b""
    if len(digest_bytes) != 32 or digest_bytes.hex() != value:
        raise ValueError("is not a hash")
    return digest_bytes


def nullable(check: Check) -> Check:
    """Build a check that also accepts null."""
    return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
    """Build a check for a list whose items pass another check."""

    def check_items(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("is not a list")
        return [check(item) for item in value]

    return check_items


def mapping_of(check: Check) -> Check:
    """Build a check for an object whose values pass another check."""

    def check_values(value: Any) -> dict[str, Any]:
        return {name: check(item) for name, item in json_object(value).items()}

    return check_values


def json_object(value: Any) -> dict[str, Any]:
    """Check for an object that can be stored."""
    if type(value) is not dict:
        raise ValueError("is not an object")
    return dict(json_value(value))


def settings(checks: Mapping[str, Check]) -> Check:
    """Build a check for an object with any of these fields and no other."""

    def check(value: Any) -> dict[str, Any]:
        values = json_object(value)
        return check_fields(values, {name: check for name, check in checks.items() if name in values})

    return check


def json_bytes(value: Any) -> bytes:
    """Check for any JSON value; return it in its stored form."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _dump_without_orjson(value)


def json_value(value: Any) -> Any:
    """Check for any JSON value that can be stored."""
    json_bytes(value)
    return value


def _dump_without_orjson(value: Any) -> bytes:
    try:
        return dump_without_orjson(value)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def exact_object(**checks: Check) -> Check:
    """Build a check for an object with exactly these fields."""

    def check(value: Any) -> dict[str, Any]:
        return check_fields(json_object(value), checks)

    return check


def check_fields(values: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check that an object has exactly these fields, and check each of them.

    Example:
        >>> check_fields({"id": 7}, {"id": ident})
        {'id': 7}
    """
    mismatches = sorted(values.keys() ^ checks.keys())
    if mismatches:
        raise ValueError(f"has {'an unknown' if mismatches[0] in values else 'no'} field {mismatches[0][:40]!r}")
    return {name: _check_field(name, check, values[name]) for name, check in checks.items()}


def _check_field(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} {error}") from error


def arguments(value: Any) -> bytes:
    """Check the arguments of a call; return them in their stored form."""
    return to_json(json_object(value))


def tag(value: Any) -> str:
    """Check the name of a tag."""
    try:
        return references.require_name(value, "tag")
    except InvalidInput as error:
        raise ValueError(str(error)) from error


def branch(value: Any) -> str:
    """Check the name of a branch."""
    try:
        return references.require_branch_name(value)
    except InvalidInput as error:
        raise ValueError(str(error)) from error
