"""Declarations about the tools of one agent, from all the places where they can be made, MCP annotations too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentgit.effects.effects import IDEMPOTENT, IRREVERSIBLE, READ_ONLY, UNDECLARED, Effect, as_effect, decorated
from agentgit.effects.invocation import identity
from agentgit.errors import InvalidInput

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


ALL = "*"
"""In the defaults of a repository: every tool of which nothing else is said."""


@dataclass(frozen=True)
class Declared:
    """The effects of one agent's tools on the outside world.

    Args:
        tools: The effect of every tool that the graph shows or the user names; None for an undeclared tool.
        defaults: The repository's declarations for all other tools, by name or `*`.
        bare: For tools whose schema is known, a function that normalizes their arguments, by name.
    """

    tools: Mapping[str, Effect | None] = field(default_factory=dict)
    defaults: Mapping[str, Effect] = field(default_factory=dict)
    bare: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = field(default_factory=dict)

    def get(self, name: str, metadata: Any = None, decorated: Effect | None = None) -> Effect | None:
        """Return what a tool does; None if it is undeclared.

        Args:
            name: The name of the tool.
            metadata: LangChain's metadata of it, where the tool itself may be out of sight of the graph.
            decorated: The effect that its decorator declares, if it has one.
        """
        known = name in self.tools
        effect = self.tools[name] if known else decorated or default(self.defaults, name)
        return stricter(effect, hints_in(metadata)) if metadata else effect

    @property
    def acts(self) -> bool:
        """True if something that may be called acts on the world: it is declared, and not as read-only."""
        declared = (*self.tools.values(), *self.defaults.values(), *decorated())
        return any(effect is not None and effect.kind != READ_ONLY for effect in declared)

    def in_one_form(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call as they are compared with those of another one."""
        return self.bare[name](args) if name in self.bare else args

    def kinds(self) -> dict[str, str]:
        """Return the effect of each tool as it will be recorded, by name."""
        return {name: effect.kind if effect else UNDECLARED for name, effect in sorted(self.tools.items())}


def default(defaults: Mapping[str, Effect], name: str) -> Effect | None:
    """Return what a repository says of a tool of which nothing else is said."""
    return defaults.get(name) or defaults.get(ALL)


def as_effects(declared: Mapping[str, Effect | str] | None) -> dict[str, Effect]:
    """Read `effects={...}` as a user writes it.

    Raises:
        InvalidInput: It is no mapping of tool names to effects.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        raise InvalidInput(f"effects must be a mapping, not {declared!r}; write effects={{'tool name': effect}}.")
    for name in declared:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"effects has the key {name!r}; each key must be the name of a tool.")
    return {name: as_effect(effect) for name, effect in declared.items()}


def recorded(
    effect: Effect | None, tool_name: str, args: Mapping[str, Any], *, is_named: bool = True
) -> dict[str, Any]:
    """Return what the record of one call has from the effect of its tool.

    Args:
        effect: None if it is undeclared.
        tool_name: The name of the tool.
        args: JSON-like, in the form in which they are compared.
        is_named: False if the tool was called with a bare text, which names no argument; then all of it counts.
    """
    if effect is None:
        return {"effect": UNDECLARED, "undo": None}
    counted = effect.identity_args if is_named else None
    return {
        "effect": effect.kind,
        "undo": effect.undo_path,
        "verify": effect.verify_path,
        "precheck": effect.precheck_path,
        "identity": identity(tool_name, args, counted) if effect.has_identity else None,
    }
