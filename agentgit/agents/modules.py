"""What is found in a module of the user: tools, to run again and be undone without a wrapped graph, and graphs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, tool
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentgit.agents.capture import tools_of
from agentgit.agents.checkpoint_tools import is_ours
from agentgit.agents.tools import declared_of
from agentgit.agents.wrap import register
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.tools.declared import Declared
from agentgit.tools.effects import declared_on

if TYPE_CHECKING:
    from agentgit.repository import Repository


def provide(repository: Repository, session_id: int, path: str) -> None:
    """Make the tools in a module known for a session.

    These are its LangChain tools, lists of them, functions with a decorator of ours, and the tools of its graphs.

    Args:
        repository: where.
        session_id: the external session.
        path: `package.module`, or `package.module:name` for one thing in it; a function is called for what it gives.

    Raises:
        NotFound: it cannot be imported, or a function of an effect cannot; or there are no tools.
        InvalidInput: an effect does not fit its tool.
    """
    _provide(repository, session_id, _found(path))


def _provide(repository: Repository, session_id: int, of_module: list[BaseTool]) -> None:
    tools: dict[str, list[BaseTool]] = {}
    for found in of_module:
        if not is_ours(found) and not any(found is other for other in tools.get(found.name, ())):
            tools.setdefault(found.name, []).append(found)
    effects = declared_of(tools, {}, repository.effects, check=False)
    register(repository.registry, session_id, tools, Declared(effects, repository.effects))


def offer(repository: Repository, paths: Sequence[str]) -> None:
    """Make the tools in modules known for every session whose calls are looked at from now on.

    Args:
        repository: where, and in all handles that come from it.
        paths: as `provide` takes them.

    Raises:
        NotFound: one cannot be imported, or has no tools.
    """
    modules = [_found(path) for path in paths]

    def ask(session_id: int) -> None:
        for found in modules:
            _provide(repository, session_id, found)

    repository.registry.offer(ask)


def graph_in(path: str) -> Any:
    """Give a compiled graph of a module.

    Args:
        path: `package.module:name`; a function is called for the graph; without a name it is the only graph there.

    Raises:
        NotFound: it cannot be imported, or there is no graph.
        Ambiguous: there are several.
    """
    values = imported(path)
    if ":" in path:
        value = values[0]
        return called(value, path) if callable(value) and not isinstance(value, (Pregel, StateGraph)) else value
    graphs = [value for value in values if isinstance(value, Pregel)]
    if not graphs:
        raise NotFound(f"{path} has no compiled graph. Name it, or the function that makes it: {path}:NAME")
    if any(graph is not graphs[0] for graph in graphs):
        raise Ambiguous(f"{path} has {len(graphs)} graphs. Name one: {path}:NAME")
    return graphs[0]


def called(function: Callable[[], Any], path: str) -> Any:
    """Call the function that a path names.

    Args:
        function: it.
        path: how it was named.

    Raises:
        InvalidInput: it needs arguments.
    """
    try:
        with suppress(ValueError):  # one of C may not tell what it takes
            inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidInput(f"{path} cannot be called: {error}. Name a function that needs no argument.") from error
    return function()


def value_in(path: str) -> Any:
    """Give one thing of a module.

    Args:
        path: `package.module:name`.

    Raises:
        InvalidInput: no name is given.
        NotFound: it cannot be imported.
    """
    if ":" not in path:
        raise InvalidInput(f"{path} names a module, and not what is meant in it. Write {path}:NAME")
    return imported(path)[0]


def imported(path: str) -> list[Any]:
    """Give what a module has: the one thing that is named, or all.

    Args:
        path: `package.module`, or `package.module:name`.

    Raises:
        NotFound: it cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        return [getattr(found, name)] if name else list(vars(found).values())
    except (ImportError, AttributeError, ValueError) as error:
        raise NotFound(f"{path} cannot be imported here: {error}. Is its folder in PYTHONPATH?") from error


def _found(path: str) -> list[BaseTool]:
    named = imported(path)
    found = [one for value in named for one in _tools(value)]
    found = found or [one for value in named if ":" in path and callable(value) for one in _tools(called(value, path))]
    if not found:
        name = "" if ":" in path else f" Name the list, the graph, or the function that makes it: {path}:NAME"
        raise NotFound(f"{path} has no tools.{name}")
    return found


def _tools(value: Any) -> Iterator[BaseTool]:
    """Visit the tools that a value is, or has."""
    if isinstance(value, BaseTool):
        yield value
    elif isinstance(value, Pregel):
        yield from tools_of(value)
    elif isinstance(value, (list, tuple)):
        yield from (one for one in value if isinstance(one, BaseTool))
    elif callable(value) and declared_on(value) is not None:
        yield tool(value)
