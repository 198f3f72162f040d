"""Effect declarations for the tools of one agent, from every source, including MCP annotations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgit.effects.effects import (
    IDEMPOTENT,
    IRREVERSIBLE,
    NEUTRAL,
    UNDECLARED,
    UNSHARED,
    Effect,
    as_effect,
    decorated_effects,
)
from agentgit.effects.invocation import identity
from agentgit.effects.memory import MemoryEffect, item_identity
from agentgit.errors import InvalidInput

ANNOTATION_PATHS = ((), ("annotations",), ("mcp", "annotations"), ("mcp", "tool", "annotations"))
"""Paths to MCP annotations in a tool's metadata: of langchain-mcp-adapters, other libraries, and langchain.mcp."""

READS, DESTROYS = ("readOnlyHint", "read_only_hint"), ("destructiveHint", "destructive_hint")
METADATA_KEYS = frozenset({*READS, *DESTROYS, *(path[0] for path in ANNOTATION_PATHS if path)})


@dataclass(frozen=True)
class Hints:
    """The annotations that an MCP server sets explicitly on a tool.

    MCP's defaults for missing annotations are ignored.
    """

    read_only: bool | None = None
    destructive: bool | None = None


def hints_in(metadata: Any) -> Hints:
    """Return the MCP annotations in a tool's metadata. If two places differ, the stricter value counts.

    Example:
        >>> hints_in({"readOnlyHint": False, "destructiveHint": True})
        Hints(read_only=False, destructive=True)
        >>> hints_in({"mcp": {"tool": {"annotations": {"read_only_hint": True}}}})
        Hints(read_only=True, destructive=None)
    """
    if isinstance(metadata, Mapping) and METADATA_KEYS.isdisjoint(metadata):
        return Hints()  # fast path: most tools have no annotations
    annotations = [annotation for path in ANNOTATION_PATHS if (annotation := _value_at(metadata, path)) is not None]
    read_only = [hint for annotation in annotations for hint in _hint_values(annotation, *READS)]
    destructive = [hint for annotation in annotations for hint in _hint_values(annotation, *DESTROYS)]
    return Hints(min(read_only, default=None), max(destructive, default=None))


def _value_at(metadata: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        metadata = metadata.get(key) if isinstance(metadata, Mapping) else None
    return metadata


def _hint_values(annotations: Any, *names: str) -> Iterator[bool]:
    """Yield the values of a hint, from a mapping or from the object that an MCP library makes of it."""
    for name in names:
        value = annotations.get(name) if isinstance(annotations, Mapping) else getattr(annotations, name, None)
        if isinstance(value, bool):
            yield value


def stricter(effect: Effect | None, hints: Hints) -> Effect | None:
    """Return the effect to record for a tool: the declared one, made stricter if its server's hints require it.

    Example:
        >>> stricter(Effect("read_only"), Hints(read_only=False)) is None
        True
        >>> stricter(None, Hints(destructive=True)).kind
        'irreversible'
    """
    kind = effect.kind if effect is not None else UNDECLARED
    if kind in NEUTRAL and hints.read_only is True:
        return effect  # both agree, and MCP ignores the destructive hint of a read-only tool
    if hints.destructive is True and kind in (*NEUTRAL, IDEMPOTENT, UNDECLARED):
        return replace(effect, kind=IRREVERSIBLE) if effect is not None else Effect(IRREVERSIBLE)
    if kind in NEUTRAL and hints.read_only is False:
        return None
    return effect


ALL = "*"
"""The key in a repository's defaults for every tool that has no other declaration."""


@dataclass(frozen=True)
class ToolEffects:
    """The effects of one agent's tools on the outside world."""

    tools: Mapping[str, Effect | None] = field(default_factory=dict)
    defaults: Mapping[str, Effect] = field(default_factory=dict)
    normalizers: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = field(default_factory=dict)
    profiled: Collection[str] = ()

    def get(
        self,
        name: str,
        metadata: Any = None,
        decorator_effect: Effect | None = None,
        profile_effect: Effect | None = None,
    ) -> Effect | None:
        """Return the effect of a tool; None if it is undeclared."""
        if name in self.tools and name not in self.profiled:
            effect = self.tools[name] or profile_effect  # undeclared is only another tool with this name
        else:
            effect = decorator_effect or default_effect(self.defaults, name, profile_effect)
        return stricter(effect, hints_in(metadata)) if metadata else effect

    @property
    def has_effects(self) -> bool:
        """True if any tool that may be called is declared with an effect that must not happen twice."""
        declared = (*self.tools.values(), *self.defaults.values(), *decorated_effects())
        return any(effect is not None and effect.kind not in UNSHARED for effect in declared)

    def normalize(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call in the normalized form in which calls are compared."""
        return self.normalizers[name](args) if name in self.normalizers else args

    def kinds(self) -> dict[str, str]:
        """Return the kind of effect to record for each tool, by name."""
        return {name: effect.kind if effect else UNDECLARED for name, effect in sorted(self.tools.items())}


def default_effect(defaults: Mapping[str, Effect], name: str, profile_effect: Effect | None = None) -> Effect | None:
    """Return a repository's default effect for a tool; None if it has none."""
    return defaults.get(name) or profile_effect or defaults.get(ALL)


def as_effects(declared: Mapping[str, Effect | str] | None) -> dict[str, Effect]:
    """Convert `effects={...}`, as a user writes it, to a dict of effects."""
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        raise InvalidInput(f"effects must be a mapping, not {declared!r}; write effects={{'tool name': effect}}.")
    for name in declared:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"effects has the key {name!r}; each key must be the name of a tool.")
    return {name: as_effect(effect) for name, effect in declared.items()}


def record_fields(
    effect: Effect | None, tool_name: str, args: Mapping[str, Any], *, is_named: bool = True
) -> dict[str, Any]:
    """Return the fields that a tool's effect adds to the record of a call."""
    if effect is None:
        return {"effect": UNDECLARED, "undo": None}
    identity_args = effect.identity_args if is_named else None
    return {
        "effect": effect.kind,
        "undo": effect.undo_path,
        "verify": effect.verify_path,
        "precheck": effect.precheck_path,
        "identity": _identity(effect, tool_name, args, identity_args),
    }


def _identity(
    effect: Effect, tool_name: str, args: Mapping[str, Any], identity_args: Sequence[str] | None
) -> str | None:
    if isinstance(effect, MemoryEffect):
        return item_identity(effect.store, args)
    return identity(tool_name, args, identity_args) if effect.has_identity else None
