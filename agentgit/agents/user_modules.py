"""Discovery of the tools, declared effects and graphs in a user's module."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool, tool
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentgit.agents.memory import as_memory, is_wrappable
from agentgit.agents.session_graph import is_plain
from agentgit.agents.tools.graph_tools import (
    ToolDeclaration,
    declare_tools,
    is_checkpoint_tool,
    tool_likeness,
    tool_path,
)
from agentgit.agents.tools.reachable_tools import ReachableTool, reachable_tools, search
from agentgit.agents.tools.tool_caller import require_fit
from agentgit.effects.declarations import Declaration
from agentgit.effects.effects import Effect, as_effect, declared_on
from agentgit.effects.function_names import MAIN
from agentgit.effects.kinds import KINDS
from agentgit.effects.registry import ALL_SESSIONS, Registry
from agentgit.effects.served_sessions import Declarations
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.saver.data_types import add_types, is_data_type
from agentgit.values import FAILURES, describe_error


def register_modules(registry: Registry, paths: Sequence[str]) -> None:
    """Register what modules declare for every session; one that is still being executed, when it is first needed."""
    running_paths = [path for path in paths if _is_running(_require_module(path))]
    _register_paths(registry, [path for path in paths if path not in running_paths])
    if running_paths:
        registry.defer(lambda: _register_paths(registry, running_paths))


def _register_paths(registry: Registry, paths: Sequence[str]) -> None:
    found = [_load_declarations(path) for path in paths]
    tools = [one for module in found for one in module.tools if not is_checkpoint_tool(one.tool)]
    named = [(name, effect) for module in found for name, effect in module.effects.items()]
    for name, effect in named:
        require_fit(name, effect, [])
    for one in tools:
        if (own_effect := declared_on(one.tool)) is not None:
            require_fit(one.tool.name, own_effect, [one.tool])
    declared = [*(Declaration(*pair) for pair in named), *declare_tools(tools, _declare).values()]
    registry.declare(ALL_SESSIONS, Declarations.of(declared))
    add_types(*(kind for module in found for kind in module.types))
    stores = [store for module in found for store in module.stores]
    if stores and all(store is stores[0] for store in stores):
        registry.memory_of_all = as_memory(stores[0])


def _declare(tool: BaseTool, enclosing: str | None) -> ToolDeclaration:
    own = tool.name, declared_on(tool), tool_path(tool), enclosing
    return ToolDeclaration(
        *own, tool=tool, tool_likeness=tool_likeness(tool), declare=lambda inner: [_declare(inner, None)]
    )


def graph_in(path: str) -> Any:
    values = import_path(path)
    if ":" in path:
        value = values[0]
        return call_function(value, path) if callable(value) and not isinstance(value, (Pregel, StateGraph)) else value
    graphs = [value for value in values if is_plain(value)]
    if not graphs:
        raise NotFound(f"{path} has no compiled graph. Name it, or the function that returns it: {path}:NAME")
    if any(graph is not graphs[0] for graph in graphs):
        raise Ambiguous(f"{path} has {len(graphs)} graphs. Name one: {path}:NAME")
    return graphs[0]


def call_function(function: Callable[[], Any], path: str) -> Any:
    try:
        with suppress(ValueError):  # a function written in C may have no signature
            inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidInput(f"{path} cannot be called: {error}. Name a function that needs no argument.") from error
    return function()


def value_in(path: str) -> Any:
    if ":" not in path:
        raise InvalidInput(f"{path} names only a module. Write {path}:NAME")
    return import_path(path)[0]


def import_path(path: str) -> list[Any]:
    """Return the object that a path names, or all objects of the module."""
    name = path.partition(":")[2]
    module = _import_module(path)
    if name and not hasattr(module, name):
        raise NotFound(f"{path} cannot be imported here: the module has no {name!r}.")
    return [getattr(module, name)] if name else list(vars(module).values())


def _import_module(path: str) -> ModuleType:
    module = _require_module(path)
    if _is_main(module):
        return sys.modules[MAIN]
    try:
        return importlib.import_module(module)
    except FAILURES as error:  # a module may raise anything when it is imported
        raise NotFound(
            f"{path} cannot be imported here: {describe_error(error)}. Is its folder in PYTHONPATH?"
        ) from error


def _require_module(path: str) -> str:
    module, colon, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *([name] if colon else ()))):
        raise InvalidInput(f"{path!r} is not a module path; write package.module or package.module:NAME.")
    return module


def _is_running(module: str) -> bool:
    """Return whether a module is still being executed, so that some of its declarations may be missing."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return _is_main(module) or bool(getattr(spec, "_initializing", False))


def _is_main(module: str) -> bool:
    """Return whether a module is the program itself, which an import under its own name would run again."""
    program = getattr(sys.modules.get(MAIN), "__file__", None)
    if module in sys.modules or program is None:
        return module == MAIN
    try:
        origin = getattr(find_spec(module), "origin", None)
    except Exception:  # noqa: BLE001  # it imports the parent package; the import of the module reports the error
        return False
    return origin is not None and os.path.realpath(origin) == os.path.realpath(program)


class _Found(NamedTuple):
    """The tools, effects, stores and types that a path names."""

    tools: list[ReachableTool]
    effects: dict[str, Effect]
    stores: list[Any]
    types: list[type]


def _load_declarations(path: str) -> _Found:
    named_values, module = import_path(path), _import_module(path)
    found = _find_in(named_values)
    effects = {name: effect for value in vars(module).values() for name, effect in _effects_in(value)}
    if ":" in path and not any(found) and not any(dict(_effects_in(value)) for value in named_values):
        found = _find_in([call_function(value, path) for value in named_values if callable(value)])
        effects = effects if any(found) else {}
    if not any(found) and not effects:
        hint = "" if ":" in path else f" Name the list, the graph, or the function that returns it: {path}:NAME"
        raise NotFound(f"{path} has no tools or data types, and declares no effects.{hint}")
    own_types = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return found._replace(effects=effects, types=[*found.types, *own_types])


def _find_in(values: Sequence[Any]) -> _Found:
    tools = reachable_tools(search(*(tool for value in values for tool in _tools_in(value))))
    stores = [value.store if isinstance(value, Pregel) else value for value in values]
    types = [one for one in values if isinstance(one, type) and is_data_type(one)]
    return _Found(tools, {}, [store for store in stores if is_wrappable(store)], types)


def _effects_in(value: Any) -> Iterator[tuple[str, Effect]]:
    """Yield the effects that a value declares, if it is a mapping like the one that `wrap` takes."""
    if not isinstance(value, Mapping) or not any(isinstance(one, Effect) for one in value.values()):
        return
    if all(isinstance(name, str) and (isinstance(one, Effect) or one in KINDS) for name, one in value.items()):
        yield from ((name, as_effect(one)) for name, one in value.items())


def _tools_in(value: Any) -> Iterator[Any]:
    if isinstance(value, (BaseTool, Pregel)):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (one for one in value if isinstance(one, BaseTool))
    elif inspect.isroutine(value) and declared_on(value) is not None:
        yield tool(value)
