"""MCP annotations: what a server says of its own tools. Nobody vouches for it, so it can only make effects stricter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentgit.effects.effects import IDEMPOTENT, IRREVERSIBLE, READ_ONLY, UNDECLARED, Effect

PLACES = ((), ("annotations",), ("mcp", "annotations"), ("mcp", "tool", "annotations"))
"""The places of annotations in a tool's metadata: langchain-mcp-adapters, others, langchain.mcp, in this order."""

READS, DESTROYS = ("readOnlyHint", "read_only_hint"), ("destructiveHint", "destructive_hint")
KEYS = frozenset({*READS, *DESTROYS, *(path[0] for path in PLACES if path)})


@dataclass(frozen=True)
class Hints:
    """The explicit annotations of a server about a tool; the defaults that MCP assumes for missing ones do not count.

    Args:
        read_only: False if the server says that the tool is not read-only, True if it says that it is.
        destructive: True if the server says that the tool may destroy something.
    """

    read_only: bool | None = None
    destructive: bool | None = None


def hints_in(metadata: Any) -> Hints:
    """Read the annotations in a tool's metadata; where two places differ, the stricter one counts.

    Args:
        metadata: The metadata as LangChain has it: a mapping or None.

    Example:
        >>> hints_in({"readOnlyHint": False, "destructiveHint": True})
        Hints(read_only=False, destructive=True)
        >>> hints_in({"mcp": {"tool": {"annotations": {"read_only_hint": True}}}})
        Hints(read_only=True, destructive=None)
    """
    if isinstance(metadata, Mapping) and KEYS.isdisjoint(metadata):
        return Hints()  # as for most calls of most tools
    places = [place for path in PLACES if (place := _at(metadata, path)) is not None]
    read_only = [said for place in places for said in _said(place, *READS)]
    destructive = [said for place in places for said in _said(place, *DESTROYS)]
    return Hints(min(read_only, default=None), max(destructive, default=None))


def _at(metadata: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        metadata = metadata.get(key) if isinstance(metadata, Mapping) else None
    return metadata


def _said(place: Any, *names: str) -> Iterator[bool]:
    """Read a hint from a mapping, or from the object that an MCP library makes of it."""
    for name in names:
        said = place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
        if isinstance(said, bool):
            yield said


def stricter(effect: Effect | None, hints: Hints) -> Effect | None:
    """Return what is to be recorded of a tool, by what was declared and what its server says; never less strict.

    Args:
        effect: The declared effect; None for an undeclared tool.
        hints: The hints of its server.

    Example:
        >>> stricter(Effect("read_only"), Hints(read_only=False)) is None
        True
        >>> stricter(None, Hints(destructive=True)).kind
        'irreversible'
    """
    kind = effect.kind if effect is not None else UNDECLARED
    if kind == READ_ONLY and hints.read_only is True:
        return effect  # both say so; MCP gives the other hint no meaning then
    if hints.destructive is True and kind in (READ_ONLY, IDEMPOTENT, UNDECLARED):
        return replace(effect, kind=IRREVERSIBLE) if effect is not None else Effect(IRREVERSIBLE)
    if kind == READ_ONLY and hints.read_only is False:
        return None
    return effect
