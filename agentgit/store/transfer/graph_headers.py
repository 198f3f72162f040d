"""Checks of a graph checkpoint's data beside its values: what is read must be what LangGraph and agentgit expect. Pure.

The data may contain more, because LangGraph and its users put in what they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgit.sessions.stats import UsedTokens
from agentgit.store.transfer.fields import MOST, Check, digest, fields, many, maybe, named, number, text, thing


def header(value: Any) -> dict[str, Any]:
    """Take the header of a graph checkpoint.

    Raises:
        ValueError: Something is missing, or is not what it should be.
    """
    found = thing(value)
    given = {name: found[name] for name in found if name in _NEEDED or name in _MORE}
    fields(given, _NEEDED | {name: _MORE[name] for name in given if name in _MORE})
    _require_comparable([found["versions"], *found["seen"].values()])
    return found


def meta(value: Any) -> dict[str, Any]:
    """Take what LangGraph says of a graph checkpoint.

    Raises:
        ValueError: Something is not what it should be.

    Example:
        >>> meta({"step": 1, "mine": "x"})
        {'step': 1, 'mine': 'x'}
    """
    found = thing(value)
    known = {name: check for name, check in _META.items() if name in found}
    fields({name: found[name] for name in known}, known)
    return found


def _require_comparable(versions: Iterable[Mapping[str, Any]]) -> None:
    """Check that LangGraph can order any two versions, and can make the next one."""
    kinds = {_kind(one) for named in versions for one in named.values()}
    if None in kinds or len(kinds) > 1:
        raise ValueError("has versions that cannot be compared")


def _kind(version: Any) -> str | None:
    """Return how a saver counts: in numbers, or in texts that begin with one; None is not at all."""
    if type(version) is str:
        return "text" if version.partition(".")[0].isdecimal() and len(version) <= 64 else None
    return "number" if type(version) in (int, float) and 0 <= version <= MOST else None


def _tokens(value: Any) -> list[int]:
    found: list[int] = many(number(most=2**62))(value)
    if len(found) != len(UsedTokens._fields):
        raise ValueError("is no count of tokens")
    return found


_NEEDED: dict[str, Check] = {
    "v": number(),
    "ts": text,
    "versions": thing,
    "seen": named(thing),
    "counts": named(number()),
    "updated": maybe(many(text)),
}
_MORE: dict[str, Check] = {
    "usage": named(_tokens),
    "snapshots": many(text),
    "folded": many(text),
    "digests": named(digest),
}
_META: dict[str, Check] = {
    "step": number(-1),
    "source": text,
    "parents": maybe(named(text)),
    "counters_since_delta_snapshot": maybe(thing),
}
