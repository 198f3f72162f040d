"""Copies a graph so that its ToolNodes wait for all their calls; the graph itself is not modified.

In the copy, a batch in which a call fails or asks the user ends only after its other calls have ended, and each call
can detect that it belongs to a batch. Nothing else changes: the same tools run, with the same error handling.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS, PregelNode, tool_node_functions, wrap_each_call

REWRITING_NODES = (".before_agent", ".before_model", ".after_model", ".after_agent")
"""The ends of the names of the nodes in which a middleware of LangChain can change messages."""

_batch_calls: ContextVar[list[asyncio.Future[Any]]] = ContextVar("of_batch")
"""The calls of the batch that a ToolNode runs in this context."""

_batch_task: ContextVar[str | None] = ContextVar("agentgit_batch", default=None)
"""The task whose ToolNode runs a batch of calls in this context."""

WrapChannel = Callable[[Any], Any]
"""A function that returns the channel of a copy, given the channel of its graph."""


def instrumented_copy(
    graph: Pregel[Any, Any, Any, Any], wrap_channel: WrapChannel | None = None, **changes: Any
) -> Pregel[Any, Any, Any, Any]:
    """Copy a compiled graph, its subgraphs and its ToolNodes."""
    nodes = {name: _copy_node(node, wrap_channel) for name, node in graph.nodes.items()}
    changes["nodes"] = nodes
    if wrap_channel is not None:
        changes["channels"] = {name: wrap_channel(channel) for name, channel in graph.channels.items()}
    if type(graph).copy is not Pregel.copy:
        return graph.copy(changes)
    copied = copy.copy(graph)  # `Pregel.copy` also validates the nodes again, at each turn of a served graph
    copied.__dict__.update(changes)
    return copied


def may_rewrite_input(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Return whether a middleware of LangChain can rewrite the user's message, to redact it, say."""
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True) if isinstance(inner, Pregel))]
    return any(name.endswith(REWRITING_NODES) for one in graphs for name in one.nodes)


def _copy_node(node: PregelNode, wrap_channel: WrapChannel | None) -> PregelNode:
    if isinstance(node.bound, ToolNode):
        return node.copy({"bound": _copy_tool_node(node.bound)})
    if isinstance(node.bound, Pregel):
        inner = instrumented_copy(node.bound, wrap_channel)
        return node.copy({"bound": inner, "subgraphs": [inner]})
    return node


def _copy_tool_node(node: ToolNode) -> ToolNode:
    clone = copy.copy(node)
    # A ToolNode calls the function it was given at construction, which is bound to the original.
    clone.func, clone.afunc = _batch_run(clone), _waiting_batch_run(clone)
    return clone


@contextmanager
def in_batch(task: str | None) -> Iterator[None]:
    """Mark this block as the run of a batch of calls by the ToolNode of a task, or of none."""
    token = _batch_task.set(task)
    try:
        yield
    finally:
        _batch_task.reset(token)


def is_in_batch(task: str) -> bool:
    """Return whether the ToolNode of a task makes the current call as part of a batch."""
    return bool(task) and _batch_task.get() == task


def _task_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the task from the config that LangGraph passes to a node, as its second argument or by keyword."""
    config: RunnableConfig = kwargs["config"] if "config" in kwargs else args[1]
    return config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS)


def _batch_run(node: ToolNode) -> Callable[..., Any]:
    run, _ = tool_node_functions(node)

    @functools.wraps(run)
    def run_batch(*args: Any, **kwargs: Any) -> Any:
        with in_batch(_task_of(args, kwargs)):
            return run(*args, **kwargs)

    return run_batch


def _waiting_batch_run(node: ToolNode) -> Callable[..., Awaitable[Any]]:
    """Make a batch in which a call fails or asks wait for its other calls, so that their outcomes are recorded."""
    _, run = tool_node_functions(node)

    def tracked(run_one: Callable[..., Any]) -> Callable[..., asyncio.Future[Any]]:
        @functools.wraps(run_one)
        def start_call(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
            call: asyncio.Future[Any] = asyncio.ensure_future(run_one(*args, **kwargs))
            _batch_calls.get().append(call)
            return call

        return start_call

    @functools.wraps(run)
    async def arun_batch(*args: Any, **kwargs: Any) -> Any:
        calls: list[asyncio.Future[Any]] = []
        _batch_calls.set(calls)
        with in_batch(_task_of(args, kwargs)):
            try:
                return await run(*args, **kwargs)
            except Exception:
                await asyncio.gather(*calls, return_exceptions=True)
                raise

    wrap_each_call(node, tracked)
    return arun_batch
