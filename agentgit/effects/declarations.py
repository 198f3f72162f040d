"""Effect declarations for the tools of one agent, from every source, including MCP annotations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agentgit.closures import likeness
from agentgit.effects.effects import Effect, Undo, as_effect, import_function
from agentgit.effects.function_names import FunctionName, is_different, name_of
from agentgit.effects.invocation import identity
from agentgit.effects.kinds import IDEMPOTENT, IRREVERSIBLE, UNDECLARED, kind_of
from agentgit.effects.known_tools import Holds, ToolProfile
from agentgit.effects.memory import MemoryEffect, item_identity
from agentgit.errors import InvalidInput, NotFound

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
    """Return the MCP annotations in a tool's metadata. If two places differ, the stricter value counts."""
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
    """Return the effect to record for a tool: the declared one, made stricter if its server's hints require it."""
    kind = kind_of(effect.kind) if effect is not None else UNDECLARED
    if kind.is_neutral and hints.read_only is True:
        return effect  # both agree, and MCP ignores the destructive hint of a read-only tool
    if hints.destructive is True and (kind.is_neutral or kind in (IDEMPOTENT, UNDECLARED)):
        return replace(effect, kind=IRREVERSIBLE) if effect is not None else Effect(IRREVERSIBLE)
    if kind.is_neutral and hints.read_only is False:
        return None
    return effect


ALL = "*"
"""The key in a repository's defaults for every tool that has no other declaration."""

ToolRunner = Callable[[dict[str, Any], str], Any]
"""A function that calls a tool with recorded arguments on a branch's thread; returns the result or an awaitable."""


class DeclaredFunction(NamedTuple):
    """A function that is declared in this process."""

    name: FunctionName
    function: Undo | str
    """The function; if it cannot be imported, the reason."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """The declaration of one tool, or of each tool of a name, in this process."""

    tool_name: str
    effect: Effect | None = None
    """The effect of its calls; of a known tool, before the arguments of a call are known."""
    tool_path: str | None = None
    """The qualified name of the tool's function; None if only the name of the tool is declared."""
    enclosing: str | None = None
    """The name of the innermost tool or subgraph node that contains the tool; None for the graph itself."""
    is_recorded: bool = True
    """False for one of agentgit's own tools."""
    tool: Any = None
    """The tool object; None if only the name of the tool is declared."""
    profile: ToolProfile | None = None
    """What is known of the tool, if its effect depends on the arguments of the call."""
    default: Effect | None = None
    """The effect of a call for which the profile has none."""
    tool_likeness: Hashable = None
    """A key that is equal for tools that do the same in this process, although one of them was made again."""

    def effect_of(self, args: Mapping[str, Any], holds: Holds) -> Effect | None:
        """Return the effect of one call."""
        if self.profile is None:
            return self.effect
        return stricter(self.profile.effect(args, holds) or self.default, hints_in(self.tool.metadata))

    @property
    def runner(self) -> ToolRunner | str | None:
        """The function that calls the tool again, or the reason why it cannot be called; None if no tool is known."""
        return None

    def argument_obstacle(self, args: dict[str, Any]) -> str | None:
        """Return why the tool would not get recorded arguments once more; None if it would."""
        return None

    @property
    def tool_identity(self) -> Hashable:
        """A key that is equal for declarations of the same tool object."""
        return None

    @property
    def key(self) -> Hashable:
        """A key that is equal for declarations between which a recorded call cannot choose."""
        effect = self.effect
        return self.tool_path, self.enclosing, *(effect.paths.values() if effect is not None else ())

    functions: dict[str, list[DeclaredFunction]] = field(init=False)
    """The functions of the effect by role, under their names and the import paths that the effect has."""

    def __post_init__(self) -> None:
        roles = self.effect.functions() if self.effect is not None else ()
        object.__setattr__(self, "functions", {role: list(_declared_functions(one)) for role, one in roles})

    def is_like(self, other: Declaration) -> bool:
        """Return whether another declaration of the same key declares the same, so that it can take its place."""
        functions = ([one.function for named in each.functions.values() for one in named] for each in (self, other))
        is_alike = all(one is two or likeness(one) == likeness(two) for one, two in zip(*functions, strict=True))
        return is_alike and self.is_like_tool(other)

    def is_like_tool(self, other: Declaration) -> bool:
        """Return whether the tool of another declaration is the same one, or does the same in this process."""
        return self.tool_identity == other.tool_identity or self.tool_likeness == other.tool_likeness

    def function(self, role: str, recorded: FunctionName | None) -> DeclaredFunction | None:
        """Return the function of a role, if it has the name that a call recorded; None if it has another or none."""
        functions = self.functions.get(role, ())
        return next((one for one in functions if recorded is None or not is_different(recorded, one.name)), None)

    def has_path(self, tool_path: str | None) -> bool:
        """Return whether a call that recorded the qualified name of its tool may be a call of this one."""
        if self.tool_path is None or tool_path is None:
            return True
        return not is_different(FunctionName.read(tool_path), FunctionName.read(self.tool_path))


Declare = Callable[[Any], Iterable[Declaration]]
"""A function that declares a tool in each place where it may run."""


def _declared_functions(function: Undo | str) -> Iterator[DeclaredFunction]:
    """Yield a function under its names. A path is imported now, not when a plan is made."""
    if not isinstance(function, str):
        yield DeclaredFunction(name_of(function), function)
        return
    try:
        resolved = import_function(function)
    except (NotFound, InvalidInput) as error:
        yield DeclaredFunction(name_of(function), str(error))
        return
    yield from (DeclaredFunction(name, resolved) for name in dict.fromkeys((name_of(function), name_of(resolved))))


def as_effects(declared: Mapping[Any, Effect | str] | None, *, by_name: bool = False) -> dict[Any, Effect]:
    """Convert `effects={...}`, as a user writes it, to a dict of effects, by the names or the functions of tools."""
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        raise InvalidInput(f"effects must be a mapping, not {declared!r}; write effects={{'tool name': effect}}.")
    for name in declared:
        if not (name if isinstance(name, str) else callable(name) and not by_name):
            functions = "" if by_name else ", or its function (tool.func)"
            raise InvalidInput(f"effects has the key {name!r}; each key must be the name of a tool{functions}.")
    return {name: as_effect(effect) for name, effect in declared.items()}


def record_fields(
    effect: Effect | None, tool_name: str, args: Mapping[str, Any], *, is_named: bool = True, has_hidden: bool = False
) -> dict[str, Any]:
    """Return the fields that a tool's effect adds to the record of a call; its arguments may not show all."""
    key: str | None = None
    if isinstance(effect, MemoryEffect):
        key = item_identity(effect.store, args)
    elif has_hidden or (effect is not None and (effect.once or kind_of(effect.kind).leaves_trace)):
        key = identity(tool_name, args, effect.identity_args if effect is not None and is_named else None)
    functions = {"undo": None} if effect is None else effect.paths
    return {"effect": UNDECLARED if effect is None else effect.kind, **functions, "identity": key}
