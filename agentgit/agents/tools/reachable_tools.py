"""Finds the tools and types that a graph reaches: in its ToolNodes and subgraphs, and in what its functions refer to.

A function refers to what it has captured and to the globals that it names, also through lists, dicts, objects and other
functions of its package. What a tool's own function refers to is searched as well, so a subagent in a tool is found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

FRAMEWORKS = frozenset({"", "builtins", "langchain", "langchain_core", "langgraph", "pydantic", "agentgit"})
"""The packages whose objects and globals are not searched. What their functions have captured may be a user's."""

MAX_VALUES = 20_000
"""The maximum number of values to search, because a program may have captured anything."""

_LEAVES = (str, bytes, bytearray, int, float, complex, type(None))


class ReachableTool(NamedTuple):
    """A tool that a graph reaches."""

    tool: BaseTool
    enclosing: str | None
    """The name of the innermost tool or subgraph node that contains it; None in the graph itself."""
    is_shown: bool
    """True if it is in a ToolNode of the graph or of a subgraph that LangGraph lists."""


class Reached(NamedTuple):
    """A value that a graph reaches."""

    value: Any
    enclosing: str | None = None
    container: str | None = None
    """The name of the node or tool that the value was found in, which is what encloses the tools of a graph there."""
    is_shown: bool = False
    package: str = ""
    """The package whose objects are searched."""
    is_global: bool = False
    """True if a function named it, but has not captured it. Then only functions of the package are searched."""
    is_listed: bool = False
    """True if it is a tool of a ToolNode."""


def reachable_tools(reached: Iterable[Reached]) -> list[ReachableTool]:
    """List the tools among reached values, each once for each place, those of ToolNodes there; shown ones first."""
    found: dict[tuple[int, str | None], ReachableTool] = {}
    listed: set[int] = set()
    for item in reached:
        if _is(item.value, BaseTool):
            place = id(item.value), item.enclosing
            if item.is_listed and id(item.value) not in listed:
                listed.add(id(item.value))
                found = {known: one for known, one in found.items() if known[0] != place[0]}
            if item.is_listed or (place not in found and place[0] not in listed):
                is_shown = item.is_shown or (place in found and found[place].is_shown)
                found[place] = ReachableTool(item.value, item.enclosing, is_shown)
    return sorted(found.values(), key=lambda one: not one.is_shown)


def has_unsaved_graph(reached: Iterable[Reached]) -> bool:
    """Return whether there is a graph that is never saved: it was compiled with `checkpointer=False`."""
    return any(_is(item.value, Pregel) and item.value.checkpointer is False for item in reached)


def reachable_hints(reached: Iterable[Reached]) -> Iterator[Any]:
    """Yield what tells the types in the states of graphs: channels, functions, and the classes they name."""
    for item in reached:
        if _is(item.value, Pregel):
            for channel in item.value.channels.values():
                yield from (getattr(channel, name, None) for name in ("ValueType", "UpdateType"))
        elif _is(item.value, FunctionType, type):
            yield item.value


def search(*values: Any) -> Iterator[Reached]:
    """Yield what graphs and other values reach."""
    waiting = [Reached(value, is_shown=isinstance(value, Pregel)) for value in reversed(values)]
    visited: dict[Hashable, Any] = {}  # it keeps the values, so that no id is used twice
    while waiting and len(visited) < MAX_VALUES:
        item = waiting.pop()
        key = (id(item.value), *item[1:])
        if _is(item.value, *_LEAVES) or key in visited:
            continue
        visited[key] = item.value
        yield item
        if not _is(item.value, type):
            waiting.extend(reversed([*_inside(item)]))


def _inside(item: Reached) -> Iterator[Reached]:
    value = item.value
    if _is(value, Pregel):
        for name, node in value.nodes.items():
            for inner in (node.bound, *node.subgraphs):  # includes graphs that the node's function refers to
                is_shown = item.is_shown and _is(inner, ToolNode, Pregel)
                yield Reached(inner, item.container, name, is_shown)
    elif _is(value, BaseTool):
        functions = [one for name in ("func", "coroutine") if (one := getattr(value, name, None)) is not None]
        package = _package(type(value))
        for one in functions or (value._run, value._arun, *vars(value).values()):
            yield Reached(one, value.name, value.name, package=package)
    elif _is(value, ToolNode):
        yield from (item._replace(value=tool, is_listed=True) for tool in value.tools_by_name.values())
        yield from (item._replace(value=one, is_shown=False) for one in vars(value).values())
    else:
        yield from (found._replace(is_shown=False) for found in _referenced(item))


def _referenced(item: Reached) -> Iterator[Reached]:
    """Yield the values that a function, a container or an object refers to."""
    value = item.value
    inner: Iterable[Any] = ()
    if _is(value, dict):
        inner = value.values()
    elif _is(value, list, tuple, set, frozenset):
        inner = value
    elif _is(value, functools.partial):
        inner = (value.func, value.args, value.keywords)
    elif _is(value, Runnable):
        inner = _attributes(value).values()
        functions = (_attributes(value).get(name) for name in ("func", "afunc"))
        yield from (item._replace(value=one, package=_package(one)) for one in functions)
    elif _is(value, MethodType):
        yield item._replace(value=value.__func__)
        yield item._replace(value=value.__self__, package=_package(value))
    elif _is(value, FunctionType):
        yield from _in_function(item, value)
    elif _package(type(value)) == item.package and not _is_foreign(item.package):
        own = (kind for kind in type(value).__mro__ if not _is_foreign(_package(kind)))
        methods = (one for kind in own for one in vars(kind).values() if _is(one, FunctionType))
        inner = [*_attributes(value).values(), *methods]
    else:
        inner = [_attributes(value).get("__wrapped__")]  # as the tasks of LangGraph have it
    yield from (item._replace(value=one) for one in list(inner))


def _in_function(item: Reached, function: FunctionType) -> Iterator[Reached]:
    package = _package(function)
    if item.is_global and package != item.package:
        return
    captured = item._replace(package=package, is_global=False)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield captured._replace(value=cell.cell_contents)
    for one in (function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None)):
        yield captured._replace(value=one)
    if _is_foreign(package):
        return
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        named = [vars(value)[one] for one in names & vars(value).keys()] if _is(value, ModuleType) else [value]
        yield from (captured._replace(value=one, is_global=True) for one in named)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and those inside it load."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _attributes(value: Any) -> Mapping[str, Any]:
    try:
        attributes: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes


def _is(value: Any, *kinds: type) -> bool:
    """Return whether a value is of a class, without asking the value, which may be a proxy that raises."""
    return issubclass(type(value), kinds)


def _is_foreign(package: str) -> bool:
    return package in FRAMEWORKS or package in sys.stdlib_module_names


def _package(value: Any) -> str:
    """Return the package that a function, a class or the class of an object is from."""
    named = value if _is(value, FunctionType, MethodType, type) else type(value)
    return str(getattr(named, "__module__", None) or "").partition(".")[0]
