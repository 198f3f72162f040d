"""Graphs that call the tools of the shop in every possible way, and processes that are killed at any function call."""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import shop
from faults import die
from indirect_calls import called_in_threads, helpers, written
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall
from langchain_core.tools import BaseTool, tool
from langgraph import pregel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, Send
from scripted import Graph, agent_graph, call, calls, tool_node_graph
from shop import Shop

import agentgit
from agentgit.demo import ScriptedModel

ITEMS = {"order": "d", "pay": "e", "mail": "f"}
"""The tool calls of each graph: each tool with its item, in this order if the graph is sequential."""

SAY = {"messages": [("user", "go")]}

Tools = dict[str, BaseTool]


def _invoke(tools: Tools, *names: str) -> dict[str, Any]:
    """Call tools in order with plain arguments, as the code of a node does."""
    return {"messages": [AIMessage(str(tools[name].invoke({"item": ITEMS[name]})), id=name) for name in names]}


def _chain(*steps: tuple[str, Callable[[Any], Any]]) -> Graph:
    """Build a graph that runs its nodes in order."""
    graph = StateGraph(MessagesState)
    for name, step in steps:
        graph.add_node(name, step, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.001))
    for (first, _), (then, _) in zip([(START, None), *steps], [*steps, (END, None)], strict=True):
        graph.add_edge(first, then)
    return graph.compile()


def hand_written(tools: Tools) -> Graph:
    return _chain(
        ("first", lambda state: _invoke(tools, "order")), ("second", lambda state: _invoke(tools, "pay", "mail"))
    )


def hand_written_tool_calls(tools: Tools) -> Graph:
    """Build a graph that calls the tools in two nodes, with tool calls that have new ids each time."""

    def ask(*names: str) -> dict[str, Any]:
        return {
            "messages": [tools[name].invoke({**call(name, os.urandom(8).hex(), item=ITEMS[name])}) for name in names]
        }

    return _chain(("first", lambda state: ask("order")), ("second", lambda state: ask("pay", "mail")))


def tasks(tools: Tools) -> Graph:
    """Build a graph that calls each tool in a task of the functional API, two of them at once."""

    @task
    def act(name: str) -> str:
        return str(tools[name].invoke({"item": ITEMS[name]}))

    @entrypoint()
    def run(inputs: dict[str, Any], *, previous: Any = None) -> Any:
        first = act("order").result()
        others = [act("pay"), act("mail")]
        messages = [HumanMessage("go"), AIMessage("; ".join([first, *(other.result() for other in others)]))]
        return entrypoint.final(value={"messages": messages}, save=messages)

    return run


class _Fan(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


def workers(tools: Tools) -> Graph:
    """Build a graph that sends each tool to a separate worker, all at once."""
    graph = StateGraph(_Fan)
    graph.add_node("plan", lambda state: {})
    graph.add_node("work", lambda state: _invoke(tools, state["name"]))  # type: ignore[type-var]  # Send's own input
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: [Send("work", {"name": name}) for name in tools], ["work"])
    return graph.compile()


def subgraph(tools: Tools) -> Graph:
    return _chain(("before", lambda state: {}), ("inside", hand_written(tools)))


def _model(*batches: tuple[str, ...]) -> ScriptedModel:
    """Make a model that asks for batches of tool calls in order, and then ends the turn."""

    def rule(messages: Any) -> AIMessage:
        done = sum(isinstance(message, AIMessage) for message in messages)
        if done >= len(batches):
            return AIMessage("done")
        return calls(*(call(name, item=ITEMS.get(name, "all")) for name in batches[done]))

    return ScriptedModel(rule=rule)


def tool_node(tools: Tools) -> Graph:
    return tool_node_graph(_model(("order",), ("pay", "mail")), list(tools.values()))


def subagent(tools: Tools) -> Graph:
    """Build a graph that calls the tools in the ToolNode of an agent that another tool runs."""
    inner = tool_node_graph(_model(("order",), ("pay",), ("mail",)), list(tools.values()))

    @tool
    def delegate(item: str) -> str:
        """Have another agent do it."""
        return str(inner.invoke(SAY)["messages"][-1].content)

    return tool_node_graph(_model(("delegate",)), [delegate])


def _helped(build: Callable[..., Graph], tools: Tools, *requests: ToolCall) -> Graph:
    """Build a graph whose model asks for calls of helpers in one message."""
    model = ScriptedModel(rule=lambda messages: AIMessage("done") if len(messages) > 1 else calls(*requests))
    return build(model, [*tools.values(), *helpers(tools)])


def _all(helper: str) -> ToolCall:
    return call(helper, f"{helper}-all", item=written([*ITEMS.items()]))


def tool_that_calls_tools(tools: Tools) -> Graph:
    return _helped(tool_node_graph, tools, _all("in_order"))


def tool_that_awaits_tools(tools: Tools) -> Graph:
    return _helped(agent_graph, tools, _all("gathered"))


def agent_with_memory(tools: Tools) -> Graph:
    return _helped(tool_node_graph, tools, _all("remember"))


def hidden_tools(tools: Tools) -> Graph:
    """Build a graph with one tool, which calls tools that the graph does not show."""

    def build(model: ScriptedModel, helped: list[BaseTool]) -> Graph:
        return tool_node_graph(model, [one for one in helped if one.name == "secretly"])

    return _helped(build, tools, _all("secretly"))


def _two_agents(build: Callable[..., Graph], tools: Tools) -> Graph:
    first, second = list(ITEMS.items())[:2], list(ITEMS.items())[2:]
    return _helped(
        build, tools, *(call("delegate", f"c{len(items)}", item=written(items)) for items in (first, second))
    )


def two_agents_in_a_tool_node(tools: Tools) -> Graph:
    return _two_agents(tool_node_graph, tools)


def two_agents_in_tasks(tools: Tools) -> Graph:
    return _two_agents(agent_graph, tools)


def threads_of_a_node(tools: Tools) -> Graph:
    """Build a graph with a node that calls each tool in a thread, all at once."""

    def act(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(called_in_threads(tools, [*ITEMS.items()])), id="act")]}

    return _chain(("act", act))


def middleware(tools: Tools) -> Graph:
    """Build LangChain's agent that calls the tools, with a middleware that retries after any error."""
    from langchain.agents.middleware import ToolRetryMiddleware

    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    return agent_graph(_model(("order",), ("pay", "mail")), list(tools.values()), middleware=[retry])


GRAPHS: dict[str, Callable[[Tools], Graph]] = {
    build.__name__: build
    for build in (
        hand_written, hand_written_tool_calls, tasks, workers, subgraph, tool_node, subagent, middleware,
        tool_that_calls_tools, tool_that_awaits_tools, agent_with_memory, hidden_tools, two_agents_in_a_tool_node,
        two_agents_in_tasks, threads_of_a_node,
    )
}  # fmt: skip
"""The graphs, by the name of the way they call tools."""


def wrapped(repo: Any, kind: str, *, verify: bool) -> Any:
    """Wrap one of the graphs around the shop of this process."""
    tools = {tool.name: tool for tool in shop.here().tools() if tool.name in ITEMS}
    effects = shop.imported(verify=verify)
    return repo.wrap(GRAPHS[kind](tools), "s", effects=effects, check_effects=False)  # a tool's inner graph is unseen


def run(agent: Any, held: Shop) -> None:
    # Not `next`: a task whose writes are saved, but not the step after it, is in `tasks` only.
    waits = bool(agent.get_state().tasks) or bool(held.standing)
    agent.invoke(None if waits else SAY)


PLACES = (str(Path(agentgit.__file__).parent), str(Path(pregel.__file__).parent), shop.__file__)
"""The paths of the code whose function calls are counted."""


def _count(dies_at: int | None) -> Callable[[], int]:
    """Start to count function calls, kill this process at one of them, and return a function that returns the count."""
    counted, lock = [0], threading.Lock()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PLACES):
            with lock:
                counted[0] += 1
                if counted[0] == dies_at:
                    die()

    threading.setprofile(profile)
    sys.setprofile(profile)
    return lambda: counted[0]


def main(url: str, path: str, kind: str, verify: bool, dies_at: int | None, told: str) -> None:
    """Run or continue the turn, and kill this process during it."""
    os.environ["SHOP"] = path
    held = shop.here()
    with agentgit.open(url) as repo:
        agent = wrapped(repo, kind, verify=verify)
        so_far = _count(dies_at)
        try:
            run(agent, held)
        finally:
            sys.setprofile(None)
        Path(told).write_text(str(so_far()), "utf-8")
