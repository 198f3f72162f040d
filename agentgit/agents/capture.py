"""A copy of a graph that tells the recorder what its tools really returned; the graph itself stays as it was.

A ToolNode turns what a tool returns into the text of a message, so an undo function could not get at an order's id
again. In the copy each ToolNode has clones of its tools, which hand the value to the recorder first. Nothing else is
changed: the same functions run, with the same error handling.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode

from agentgit.agents.recorder import Recorder


def captured(graph: Pregel[Any, Any, Any, Any], **changes: Any) -> Pregel[Any, Any, Any, Any]:
    """Copy a compiled graph, its subgraphs and its ToolNodes.

    Args:
        graph: stays as it is.
        changes: attributes of the copy, like `checkpointer`.
    """
    nodes = {name: _node(node) for name, node in graph.nodes.items()}
    return graph.copy({"nodes": nodes, **changes})


def tools_of(graph: Pregel[Any, Any, Any, Any]) -> Iterator[BaseTool]:
    """Visit the tools in the ToolNodes of a graph and of the graphs that its nodes and tools call."""
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            yield from node.bound.tools_by_name.values()
        for inner in node.subgraphs:  # LangGraph also finds those that a node's function closes over
            if isinstance(inner, Pregel):
                yield from tools_of(inner)


def _node(node: PregelNode) -> PregelNode:
    if isinstance(node.bound, ToolNode):
        return node.copy({"bound": _tool_node(node.bound)})
    if isinstance(node.bound, Pregel):
        inner = captured(node.bound)
        return node.copy({"bound": inner, "subgraphs": [inner]})
    return node


def _tool_node(node: ToolNode) -> ToolNode:
    clone = copy.copy(node)
    # A ToolNode calls the function it was given at construction, which is bound to the original.
    clone.func, clone.afunc = clone._func, clone._afunc
    clone._tools_by_name = {name: _clone(tool) for name, tool in node.tools_by_name.items()}
    return clone


def _clone(tool: BaseTool) -> BaseTool:
    clone = copy.copy(tool)
    # On the instance, past pydantic: the class is the user's, or shared by all tools.
    object.__setattr__(clone, "_run", _telling(tool._run))
    object.__setattr__(clone, "_arun", _atelling(tool._arun))
    return clone


def _telling(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def tell(*args: Any, **kwargs: Any) -> Any:
        value = run(*args, **kwargs)
        _tell(value)
        return value

    return tell


def _atelling(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(run)
    async def tell(*args: Any, **kwargs: Any) -> Any:
        value = await run(*args, **kwargs)
        _tell(value)
        return value

    return tell


def _tell(value: Any) -> None:
    """Hand a returned value to the recorder of this run, under the run id of the tool."""
    manager: Any = (var_child_runnable_config.get() or {}).get("callbacks")
    for handler in getattr(manager, "handlers", ()):
        if isinstance(handler, Recorder):
            handler.returned(manager.parent_run_id, value)
