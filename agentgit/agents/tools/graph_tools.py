"""The tools of a graph and what is declared about each of them. A tool is known by its object, not by its name."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MethodType
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

from agentgit.agents.tools.reachable_tools import (
    ReachableTool,
    has_unsaved_graph,
    reachable_hints,
    reachable_tools,
    search,
)
from agentgit.agents.tools.tool_caller import argument_obstacle, require_fit, tool_caller
from agentgit.closures import is_defined_by_name, likeness
from agentgit.effects.declarations import (
    ALL,
    Declaration,
    Declare,
    ToolRunner,
    hints_in,
    stricter,
)
from agentgit.effects.effects import Effect, declared_on, decorated_kinds
from agentgit.effects.function_names import (
    SEVERAL,
    VALUES,
    FunctionName,
    is_different,
    name_of,
    values_text,
)
from agentgit.effects.invocation import ToolInvocation
from agentgit.effects.kinds import UNDECLARED, kind_of
from agentgit.effects.known_tools import Holds, profile_of
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import InvalidInput

TELL_APART = "Rename it, declare its effect with a decorator, or give its function (tool.func) as a key of effects."

CHECKPOINT_TOOLS = frozenset(
    {
        "create_checkpoint",
        "list_checkpoints",
        "get_checkpoint_info",
        "rollback_to_checkpoint",
        "delete_checkpoint",
        "cleanup_auto_checkpoints",
    }
)
"""The names of the checkpoint tools, whose calls are never recorded, reversed or replayed."""

CHECKPOINT_TOOL_MARK = "__agentgit_checkpoint_tool__"


def is_checkpoint_tool(tool: BaseTool) -> bool:
    """Return whether a tool is a checkpoint tool, and not a user's tool of the same name."""
    return hasattr(getattr(tool, "func", None), CHECKPOINT_TOOL_MARK)


@dataclass(frozen=True, eq=False)
class ToolDeclaration(Declaration):
    """The declaration of one tool object."""

    declare: Declare = field(kw_only=True)
    """The function that declares the tools which this one calls."""

    runs: Any = field(init=False)
    """What the tool runs. A user may replace it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "runs", _function_of(self.tool))

    @property
    def runner(self) -> ToolRunner | str | None:
        """The function that calls the tool again, or the reason why it cannot be called."""
        if self.runs is not _function_of(self.tool):
            return f"the tool {self.tool_name} ran {self.tool_path} then, and runs {tool_path(self.tool)} now"
        if self.runs is self.tool and self.tool_likeness != tool_likeness(self.tool):
            return f"the fields of the tool {self.tool_name} have other values now than then"
        return tool_caller(self.tool, self.declare)

    def argument_obstacle(self, args: dict[str, Any]) -> str | None:
        """Return why the tool would not get recorded arguments once more; None if it would."""
        return argument_obstacle(self.tool, args)

    @property
    def tool_identity(self) -> Hashable:
        """A key that is equal for declarations of the same tool."""
        return tool_identity(self.tool)


def tool_identity(tool: Any) -> Hashable:
    """Return a key that is equal for tools that run the same function; a function stands for its tool."""
    function = _function_of(tool)
    return function if isinstance(function, MethodType) else id(function)  # each access of a method makes a new object


def tool_path(tool: BaseTool) -> str:
    """Return the qualified name of the function of a tool, or of its class."""
    function = _function_of(tool)
    if function is not tool:
        return str(name_of(function))
    name = name_of(type(tool))
    return str(name._replace(path=name.path + values_text(_fields_of(tool))))


def tool_likeness(tool: BaseTool) -> Hashable:
    """Return a key that is equal for tools that do the same in this process, although one of them was made again."""
    function = _function_of(tool)
    return likeness(_fields_of(tool) if function is tool else function)


def _fields_of(tool: BaseTool) -> tuple[Any, ...]:
    """Return the fields of a tool of a class of its own, and its functions, if another function has made the class."""
    own = sorted(type(tool).model_fields.keys() - BaseTool.model_fields.keys())
    functions = (one for one in (type(tool)._run, type(tool)._arun) if not is_defined_by_name(one))
    return *functions, *(getattr(tool, name) for name in own)


def _function_of(tool: Any) -> Any:
    return getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool


ToolKey = tuple[str, Hashable, str | None]
"""The name, the identity and the place of a tool."""


def declare_tools(
    reachable: Iterable[ReachableTool], declare: Callable[[BaseTool, str | None], ToolDeclaration]
) -> dict[ToolKey, ToolDeclaration]:
    """Declare tools, each one once for each place; those that cannot be told apart by their names are marked."""
    known: dict[ToolKey, ToolDeclaration] = {}
    for tool, enclosing, _ in reachable:
        key = tool.name, tool_identity(tool), enclosing
        if key not in known:
            known[key] = declare(tool, enclosing)
    identities = defaultdict[Hashable, set[Hashable]](set)
    for one in known.values():
        identities[one.tool_name, one.tool_path].add(one.tool_identity)
    for key, one in known.items():
        if len(identities[one.tool_name, one.tool_path]) > 1:
            name = FunctionName.read(tool_path(one.tool))
            known[key] = replace(one, tool_path=str(name._replace(path=name.path + SEVERAL)))
    return known


class GraphTools:
    """The tools of a graph."""

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        user_effects: Mapping[Any, Effect],
        defaults: Mapping[str, Effect],
        holds: Holds = lambda path: False,
        *,
        check: bool = False,
    ) -> None:
        reached = [*search(graph)]
        self.hints = [*reachable_hints(reached)]
        """What tells the types of the values in the states of the graph; see `reachable_hints`."""
        self.has_unsaved_graph = has_unsaved_graph(reached)
        """True if it reaches a graph that is never saved."""
        reachable = reachable_tools(reached)
        shown = defaultdict[str, list[BaseTool]](list)
        for found in reachable:
            if found.is_shown:
                shown[found.tool.name].append(found.tool)
        # If the graph does not list its tools, a tool with one of agentgit's names counts as agentgit's own, unless the
        # user declares its effect.
        self.own_names = (
            frozenset(name for name in shown if all(map(is_checkpoint_tool, shown[name])))
            if shown
            else CHECKPOINT_TOOLS - set(user_effects)
        )
        """The names of agentgit's own tools, which are not recorded."""
        self.user_effects, self.defaults, self._holds = user_effects, defaults, holds
        self._reachable = [found for found in reachable if not is_checkpoint_tool(found.tool)]
        self._chosen: dict[tuple[str | None, Hashable, str | None], Effect] = {}
        """The effects that the user gives to tools, everywhere (None) or in one place."""
        self._named: dict[str, Effect] = {}
        """The effects that the user gives to names that no tool of the graph has."""
        self._paths_of_named: dict[str, str] = {}
        self._unknown: list[str] = []
        for key in sorted(user_effects, key=self._is_tool_name):  # first the keys that name a place, too
            self._choose(key, user_effects[key])
        for name, effect in defaults.items():
            meant = [one for one in self._called(name) if not self._own_effect(one.tool, one.enclosing)]
            self._require_one(name, effect, meant)
            self._paths_of_named.update((name, tool_path(one.tool).partition(VALUES)[0]) for one in meant)
        unknown = sorted({*self._unknown} - MEMORY_TOOLS)
        if check and shown and unknown:
            names = sorted({found.tool.name for found in self._reachable})
            raise InvalidInput(
                f"The graph has no tool {', '.join(unknown)}; it has {', '.join(names)}. "
                "If a node calls it where the graph does not show it, pass check_effects=False."
            )
        self._known = declare_tools(self._reachable, self._declare)
        self.declarations: Sequence[Declaration] = [
            *(Declaration(name, effect) for name, effect in self._named.items()),
            *self._known.values(),
        ]
        """What is declared about the tools that the graph reaches, and about the names that the user declares."""
        listed = [one for one in self._known.values() if one.tool_name in shown or one.effect is not None]
        labels = self._labels(listed)
        self.tools: Mapping[str, Effect | None] = self._named | {label: one.effect for label, one in labels.items()}
        """The effects of the tools that the graph shows, and of others that are declared, by name."""
        self.profiled = frozenset(label for label, one in labels.items() if one.profile is not None)
        """The names of the tools that have the effect of a known tool."""

    # -- what is declared

    def _is_tool_name(self, key: Any) -> bool:
        return isinstance(key, str) and any(found.tool.name == key for found in self._reachable)

    def _called(self, name: str) -> list[ReachableTool]:
        """List the tools that a name may mean."""
        named = (one for one in self._reachable if one.tool.name == name)
        return [one for one in named if not self._is_held(one.tool, one.enclosing)]

    def namesakes(self, name: str) -> list[str]:
        """List the places of the tools of a name, if it names several."""
        return _places(self._called(name))

    def _is_held(self, tool: BaseTool, enclosing: str | None) -> bool:
        """Return whether a tool is inside one of its name that wraps its function: the name means that one."""
        identity = tool_identity(tool)
        return enclosing == tool.name and any(
            tool_identity(inspect.unwrap(_function_of(one.tool), stop=lambda f: tool_identity(f) == identity))
            == identity
            for one in self._reachable
            if one.tool.name == tool.name and tool_identity(one.tool) != identity
        )

    def _choose(self, key: Any, effect: Effect) -> None:
        """Assign an effect to the tool that a key of `effects` names."""
        if isinstance(key, str) and key == ALL:
            raise InvalidInput(
                f"effects={{{ALL!r}: ...}} belongs to agentgit.open(..., effects=); here, name each tool."
            )
        enclosing = None
        if not isinstance(key, str):
            found = [one for one in self._reachable if tool_identity(one.tool) == tool_identity(key)]
        elif self._is_tool_name(key):
            found = [one for one in self._called(key) if not self._is_chosen_there(one)]
        else:
            found = [one for one in self._reachable if _full_name(one.enclosing, one.tool.name) == key]
            enclosing = found[0].enclosing if found else None
        label = key if isinstance(key, str) else str(getattr(key, "name", None) or name_of(key).path)
        require_fit(label, effect, [one.tool for one in found])
        self._require_one(label, effect, found)
        if not found:
            self._unknown.append(label)
        if isinstance(key, str) and not found:
            self._named[key] = effect
            return
        tools: set[tuple[str | None, Hashable]] = {(one.tool.name, tool_identity(one.tool)) for one in found}
        if not isinstance(key, str):  # its tools may have further names
            tools.add((None, tool_identity(key)))
        if any(self._chosen.setdefault((*one, enclosing), effect) != effect for one in tools):
            raise InvalidInput(f"effects names the tool {label} twice, with two effects. Leave one out.")

    def _require_one(self, label: str, effect: Effect, found: Sequence[ReachableTool]) -> None:
        """Check that a key of `effects` names one tool."""
        if places := _places(found, are_copies_one=not list(effect.functions())):
            raise InvalidInput(
                f"The graph has several tools called {label}: {', '.join(places)}. In effects, name the enclosing tool "
                "or subgraph node too (DESK.ORDER), or give its function (tool.func) as the key; or rename it."
            )

    def _is_chosen_there(self, found: ReachableTool) -> bool:
        place = found.tool.name, tool_identity(found.tool), found.enclosing
        return found.enclosing is not None and place in self._chosen

    def _own_effect(self, tool: BaseTool, enclosing: str | None) -> Effect | None:
        """Return the effect that the user declares for a tool in `wrap`, or that its decorator declares."""
        name, identity = tool.name, tool_identity(tool)
        keys = [(of_name, identity, place) for of_name in (name, None) for place in (enclosing, None)]
        chosen = [self._chosen[key] for key in keys if key in self._chosen]
        chosen += [self._named[key] for key in (_full_name(enclosing, name), name) if key in self._named]
        return chosen[0] if chosen else declared_on(tool)

    def _declare(self, tool: BaseTool, enclosing: str | None) -> ToolDeclaration:
        """Declare a tool as the user does, else as its decorator, the repository or its profile does."""
        name = tool.name
        by_name = None if self._is_held(tool, enclosing) else self.defaults.get(name)
        effect = self._own_effect(tool, enclosing) or by_name
        profile, default = profile_of(tool) if effect is None else None, self.defaults.get(ALL)
        effect = effect or (profile.effect(None, self._holds) if profile is not None else None) or default
        effect = stricter(effect, hints_in(tool.metadata))
        if effect is not None:
            require_fit(name, effect, [tool])
        is_recorded = not is_checkpoint_tool(tool)
        own = name, effect, tool_path(tool), enclosing, is_recorded, tool, profile, default
        return ToolDeclaration(*own, tool_likeness(tool), declare=self._declare_anywhere)

    def _labels(self, listed: Iterable[ToolDeclaration]) -> dict[str, ToolDeclaration]:
        """Return tools by their names, with the place if several tools have the name, and the function if need be."""
        labels: dict[str, ToolDeclaration] = {}
        for one in listed:
            same_name = {identity for name, identity, _ in self._known if name == one.tool_name}
            label = _full_name(one.enclosing if len(same_name) > 1 else None, one.tool_name)
            if one.tool_name in labels and _is_copy(one, labels[one.tool_name]):
                continue
            if label in labels and labels[label].tool_identity != one.tool_identity:
                label = f"{label} ({one.tool_path})"
            labels.setdefault(label, one)
        return labels

    # -- the calls

    def declaration_of(self, tool: BaseTool, enclosing: str | None = None) -> Declaration:
        """Return what is declared about a tool that is about to run in a tool or subgraph node."""
        name, identity = tool.name, tool_identity(tool)
        if not name:
            raise InvalidInput(f"A tool without a name was called, and was not run: {tool!r}. Give it a name.")
        if (known := self._known.get((name, identity, enclosing))) is not None:
            return known
        declared = self._declare(tool, enclosing)
        for one in self._known.values():
            if (one.tool_name, one.tool_identity) == (name, identity):
                return replace(declared, tool_path=one.tool_path)
        path = str(declared.tool_path).partition(VALUES)[0]
        defaults = self.defaults if not self._own_effect(tool, enclosing) else {}
        for key in (_full_name(enclosing, name), name):
            if (key in self._named or key in defaults) and self._paths_of_named.setdefault(key, path) != path:
                raise InvalidInput(
                    f"effects names {key}, and two tools are called that: {self._paths_of_named[key]} and {path}. The "
                    f"second one was not run. {TELL_APART}"
                )
        others = [
            one for one in self._known.values() if (one.tool_name, tool_path(one.tool)) == (name, declared.tool_path)
        ]
        if any(_effect_key(one.effect) != _effect_key(declared.effect) for one in others):
            raise InvalidInput(
                f"The graph shows another tool {name} than the one that was called, and both have a function of the "
                f"name {path}. Their calls could not be told apart, so it was not run. {TELL_APART}"
            )
        return declared

    def _declare_anywhere(self, tool: BaseTool) -> Sequence[Declaration]:
        """Declare a tool in each place where the graph has it or `effects` names it."""
        name, identity = tool.name, tool_identity(tool)
        known = {place for of_name, one, place in self._known if (of_name, one) == (name, identity)}
        named = {key.removesuffix(name).removesuffix(".") or None for key in self._named if key.split(".")[-1] == name}
        return [self.declaration_of(tool, place) for place in known | named or {None}]

    def find(self, tool: BaseTool) -> Declaration | None:
        """Return what is declared about a tool; None if the graph does not have it."""
        wanted = tool.name, tool_identity(tool)
        return next((one for one in self._known.values() if (one.tool_name, one.tool_identity) == wanted), None)

    def declaration_of_call(self, call: ToolInvocation) -> Declaration | None:
        """Return what is declared about the tool of a recorded call; None if it is not known which one that was."""
        named = [one for one in self.declarations if one.tool_name == call.tool_name]
        fitting = [one for one in named if one.has_path(call.tool_path)]
        exact = [one for one in fitting if one.enclosing == call.enclosing]
        return next((same[0] for same in (exact, fitting, named) if len(same) == 1), None)

    def is_of_tool(self, call: ToolInvocation, tool_path: str | None, enclosing: str | None) -> bool | None:
        """Return whether a recorded call was made by a tool of the same name; None if that is not known."""
        if call.tool_path is None or tool_path is None:
            return True
        fitting = [
            one for one in self._known.values() if one.tool_name == call.tool_name and one.has_path(call.tool_path)
        ]
        if is_different(FunctionName.read(call.tool_path), FunctionName.read(tool_path)):
            return False if fitting else None
        if SEVERAL not in tool_path:
            return True
        there = {one.tool_identity for one in fitting if one.enclosing == enclosing}
        return False if call.enclosing != enclosing else True if len(there) == 1 else None

    # -- all of them

    @property
    def has_effects(self) -> bool:
        """True if any tool that may be called is declared with an effect that must not happen twice."""
        kinds = {effect.kind for effect in (*self.tools.values(), *self.defaults.values()) if effect is not None}
        return any(kind_of(kind).is_exclusive for kind in kinds | decorated_kinds)

    def kinds(self) -> dict[str, str]:
        return {name: effect.kind if effect else UNDECLARED for name, effect in sorted(self.tools.items())}


def _places(found: Sequence[ReachableTool], *, are_copies_one: bool = True) -> list[str]:
    """List the places of tools, if they are several. Those that deepagents makes for each subagent may count as one."""
    is_one = are_copies_one and all(profile_of(one.tool) for one in found)
    if is_one or len({tool_identity(one.tool) for one in found}) < 2:
        return []
    return sorted({_full_name(one.enclosing, one.tool.name) for one in found})


def _full_name(enclosing: str | None, name: str) -> str:
    return name if enclosing is None else f"{enclosing}.{name}"


def _effect_key(effect: Effect | None) -> Hashable:
    return effect and tuple(likeness(getattr(effect, one.name)) for one in fields(effect))


def _is_copy(one: ToolDeclaration, other: ToolDeclaration) -> bool:
    """Return whether two tools have one function and one effect, as those that deepagents makes for each subagent."""
    return tool_path(one.tool) == tool_path(other.tool) and _effect_key(one.effect) == _effect_key(other.effect)
