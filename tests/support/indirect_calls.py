"""Tools, and a node, that call the tools of a shop themselves, in every way in which code does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from operator import itemgetter
from typing import Any

import orjson
from langchain.agents.middleware import wrap_tool_call
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from scripted import Graph, agent_graph, quick_tool, tool_node_graph
from shop import DESK, Broken, obey, wish

from agentgit import NotDone
from agentgit.demo import ScriptedModel

Orders = Sequence[tuple[str, str]]
"""Calls of tools of the shop: each a tool with its item."""


HELPERS = ("in_order", "at_once", "gathered", "in_threads", "secretly", "delegate", "remember")
"""The names of the helpers."""


def written(orders: Orders) -> str:
    """Write orders as the item of one call."""
    return orjson.dumps(orders).decode()


def orders_of(name: str, item: str) -> list[tuple[str, str]]:
    """Return the orders of a call of a tool: the call itself, or those that it makes if the tool is a helper."""
    return _read(item) if name in HELPERS or name == DESK else [(name, item)]


def memory_request(item: str) -> str:
    """Return the message that the agent with memory gets for the item of a call."""
    return str(wish(_read(item))["messages"][0][1])


def _read(item: str) -> list[tuple[str, str]]:
    return [(name, one) for name, one in orjson.loads(item)]


def helpers(
    tools: Mapping[str, BaseTool],
    hidden: Mapping[str, BaseTool] | None = None,
    recalled: Callable[[list[str]], None] = lambda asked: None,
) -> list[BaseTool]:
    """Make a tool for each way in which a tool calls others; the item of its call is a list of orders.

    Args:
        tools: The tools that it calls.
        hidden: Tools that no graph has; `secretly` calls them in place of those of the same name in `tools`.
        recalled: A function that gets what the agent with memory remembers to have been asked, at the end of each run.
    """
    agent = agent_graph(ScriptedModel(rule=obey), list(tools.values()))
    remembering_agent = tool_node_graph(ScriptedModel(rule=obey), list(tools.values()), checkpointer=True)
    own_tools = {**tools, **(hidden or {})}

    def in_order(item: str) -> str:
        """Make calls one after the other."""
        return str([tools[name].invoke({"item": one}) for name, one in _read(item)])

    def at_once(item: str) -> str:
        """Make calls at the same time, those of each tool in a batch."""
        groups = itertools.groupby(sorted(_read(item)), key=itemgetter(0))
        many = {"max_concurrency": 4}
        return str([tools[name].batch([{"item": one} for _, one in group], many) for name, group in groups])

    def gathered(item: str) -> str:
        """Await calls at the same time."""

        async def gather() -> list[Any]:
            return await asyncio.gather(*(tools[name].ainvoke({"item": one}) for name, one in _read(item)))

        return str(asyncio.run(gather()))

    def in_threads(item: str) -> str:
        """Make calls in threads that get the context."""
        return str(called_in_threads(tools, _read(item)))

    def secretly(item: str) -> str:
        """Make calls of tools that no graph shows."""
        return str([own_tools[name].invoke({"item": one}) for name, one in _read(item)])

    def delegate(item: str) -> str:
        """Let an agent do it, which asks for all calls in one message."""
        return str(agent.invoke(wish(_read(item)))["messages"][-1].content)

    def remember(item: str) -> str:
        """Let an agent with memory do it."""
        result = remembering_agent.invoke(wish(_read(item)))
        recalled([str(one.content) for one in result["messages"] if isinstance(one, HumanMessage)])
        return str(result["messages"][-1].content)

    return [quick_tool(one) for one in (in_order, at_once, gathered, in_threads, secretly, delegate, remember)]


def called_in_threads(tools: Mapping[str, BaseTool], orders: Orders) -> list[Any]:
    """Make calls in new threads, each with a copy of the context."""
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(copy_context().run, tools[name].invoke, {"item": item}) for name, item in orders]
    return [one.result() for one in made]


def with_desk(tools: Mapping[str, BaseTool], agent: Graph) -> Graph:
    """Build a graph whose first node makes the calls of the batches for it in threads, before an agent runs."""

    def desk(state: MessagesState) -> dict[str, Any]:
        batches = orjson.loads(str(state["messages"][-1].content))
        orders = [order for batch in batches for name, item in batch if name == DESK for order in _read(item)]
        called_in_threads(tools, orders)
        return {}

    graph = StateGraph(MessagesState).add_node(DESK, desk).add_node("agent", agent)
    return graph.add_edge(START, DESK).add_edge(DESK, "agent").compile()


def _as_message(request: Any, handler: Callable[[Any], Any]) -> Any:
    try:
        return handler(request)
    except (Broken, NotDone) as error:
        return ToolMessage(str(error), tool_call_id=request.tool_call["id"], status="error")


def _tool_node(tools: Mapping[str, BaseTool], more: Sequence[BaseTool]) -> Graph:
    return tool_node_graph(ScriptedModel(rule=obey), [*tools.values(), *more], handle_tool_errors=True)


def _create_agent(tools: Mapping[str, BaseTool], more: Sequence[BaseTool]) -> Graph:
    return agent_graph(ScriptedModel(rule=obey), [*tools.values(), *more], middleware=[wrap_tool_call(_as_message)])


AGENTS: dict[str, Callable[[Mapping[str, BaseTool], Sequence[BaseTool]], Graph]] = {
    "tool_node": _tool_node,
    "create_agent": _create_agent,
    "tool_node_after_desk": lambda tools, more: with_desk(tools, _tool_node(tools, more)),
    "create_agent_after_desk": lambda tools, more: with_desk(tools, _create_agent(tools, more)),
}
"""Graphs that obey the user's message with the tools of a shop and with helpers, and tell the model of errors."""
