"""Identity of calls: two calls are the same if the tool and the arguments that a person means by "the same" are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentgit.values import to_json


def identity(tool_name: str, args: Mapping[str, Any], identity_args: Sequence[str] | None) -> str:
    """Hash what makes a call the same as another one.

    Args:
        tool_name: The name of the tool.
        args: The arguments of the call, JSON-like; 5 and 5.0 are the same.
        identity_args: The names of the arguments that count; None for all. One that is missing counts as missing.

    Example:
        >>> one = identity("pay", {"to": "Ann", "euros": 5, "reference": "a1"}, ["to", "euros"])
        >>> one == identity("pay", {"euros": 5, "reference": "b2", "to": "Ann"}, ["to", "euros"])
        True
    """
    counted = {name: value for name, value in args.items() if identity_args is None or name in identity_args}
    return hashlib.sha256(to_json([tool_name, _sorted(counted)])).hexdigest()


def _sorted(value: Any) -> Any:
    """Bring the keys of dicts, however deep, into one order, and whole numbers into one form."""
    if isinstance(value, Mapping):
        return [[key, _sorted(value[key])] for key in sorted(value)]
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a model writes the same amount now so, now so
    return value


def call_key(branch_id: int, place: str, call: str, tool_name: str) -> str:
    """Make the idempotency key of a call: every attempt at it has the same.

    Args:
        branch_id: The branch that makes it.
        place: The AI message that asked for it, or the task that makes it.
        call: Its id there; models may use the same one in another place.
        tool_name: The name of the tool.
    """
    return _digest(f"{branch_id}\0{place}\0{call}\0{tool_name}")


def key_after(key: str, what: str = "") -> str:
    """Make the idempotency key of a call that is made once more, because its effect was taken back.

    Args:
        key: The key before it.
        what: The part that makes it another one, if several come after that one.
    """
    return _digest(f"{key}\0{what}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
