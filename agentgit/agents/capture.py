"""A copy of a graph that tells the recorder what its tools really returned; the graph itself stays as it was.

A ToolNode turns what a tool returned into the text of a message, so an undo function could not get at an order's id
again. In the copy each ToolNode has clones of its tools, which hand the value to the recorder first. And where the gate
has an answer for a call, a clone returns that instead of running. Nothing else is changed: the same functions run, with
the same error handling.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode

from agentgit.agents.attempts import Answer
from agentgit.agents.questions import passed_on
from agentgit.agents.recorder import CLONE, Recorder

_of_batch: ContextVar[list[asyncio.Future[Any]]] = ContextVar("of_batch")
"""The calls of the batch that a ToolNode runs here."""


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
    clone.func, clone.afunc = clone._func, _waiting(clone)
    clone._tools_by_name = {name: _gated(tool) for name, tool in node.tools_by_name.items()}
    return clone


def _waiting(node: ToolNode) -> Callable[..., Awaitable[Any]]:
    """Let a batch one of whose calls fails, or asks a person, end with the last of its calls, as without asyncio.

    Else the turn would end while calls run, and nobody would know what became of them.
    """
    run, run_one = node._afunc, node._arun_one

    @functools.wraps(run_one)
    def begun(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        call = asyncio.ensure_future(run_one(*args, **kwargs))
        _of_batch.get().append(call)
        return call

    @functools.wraps(run)
    async def waiting(*args: Any, **kwargs: Any) -> Any:
        calls: list[asyncio.Future[Any]] = []
        _of_batch.set(calls)
        try:
            return await run(*args, **kwargs)
        except Exception:
            await asyncio.gather(*calls, return_exceptions=True)
            raise

    object.__setattr__(node, "_arun_one", begun)
    return waiting


def clone_of(tool: BaseTool, tell: Callable[[Any], None]) -> BaseTool:
    """Copy a tool; the copy tells what it really returned, before a message is made of that.

    Args:
        tool: stays as it is.
        tell: gets each value.
    """
    clone = copy.copy(tool)
    # On the instance, past pydantic: the class is the user's, or shared by all tools.
    object.__setattr__(clone, "_run", _telling(tool._run, tell))
    object.__setattr__(clone, "_arun", _atelling(tool._arun, tell))
    return clone


def _telling(run: Callable[..., Any], tell: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(run)
    def telling(*args: Any, **kwargs: Any) -> Any:
        value = run(*args, **kwargs)
        tell(value)
        return value

    return telling


def _atelling(run: Callable[..., Awaitable[Any]], tell: Callable[[Any], None]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(run)
    async def telling(*args: Any, **kwargs: Any) -> Any:
        value = await run(*args, **kwargs)
        tell(value)
        return value

    return telling


def _gated(tool: BaseTool) -> BaseTool:
    """Copy a tool; the copy asks for an answer before it runs, and tells what it returned if it did."""
    clone = clone_of(tool, _tell)
    run, arun = clone._run, clone._arun

    @functools.wraps(run)
    def asking(*args: Any, **kwargs: Any) -> Any:
        answer = _answer()
        if answer is not None:
            return _as_returned(tool, answer.wait())
        with _known():
            return run(*args, **passed_on(kwargs))

    @functools.wraps(arun)
    async def aasking(*args: Any, **kwargs: Any) -> Any:
        answer = _answer()
        if answer is not None:
            return _as_returned(tool, await answer.come())
        try:
            with _known():
                return await arun(*args, **passed_on(kwargs))
        except asyncio.CancelledError as error:
            for recorder, run_id in _recorders():
                recorder.cancelled(run_id, error)
            raise

    for name, value in (("_run", asking), ("_arun", aasking), ("metadata", {**(tool.metadata or {}), CLONE: True})):
        object.__setattr__(clone, name, value)
    return clone


def _as_returned(tool: BaseTool, value: Any) -> Any:
    """Give an answer the form in which its tool returns; the record has lists where there were tuples."""
    return tuple(value) if tool.response_format == "content_and_artifact" and isinstance(value, list) else value


def _answer() -> Answer | None:
    """Ask the recorder of this run what the call gets instead of running."""
    return next((answer for recorder, run_id in _recorders() if (answer := recorder.answer(run_id))), None)


def _known() -> AbstractContextManager[None]:
    """Let the tool that runs inside know which call it is, and see the answers that are for it."""
    calls = (recorder.known(run_id) for recorder, run_id in _recorders() if recorder.has(run_id))
    return next(calls, nullcontext())


def _tell(value: Any) -> None:
    """Hand a returned value to the recorder of this run, under the run id of the tool."""
    for recorder, run_id in _recorders():
        recorder.returned(run_id, value)


def _recorders() -> Iterator[tuple[Recorder, UUID]]:
    manager: Any = (var_child_runnable_config.get() or {}).get("callbacks")
    for handler in getattr(manager, "handlers", ()):
        if isinstance(handler, Recorder):
            yield handler, manager.parent_run_id
