"""Graphs that one tool runs at the same time keep their places when the turn is continued in another order."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from scripted import Graph, agent_graph, call, calls, node_graph, say, scripted

from agentgit import Fenced, compensable

NAMES = ("ann", "bob")

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own thread": {"configurable": {"thread_id": "desk"}},
    "own namespace": {"configurable": {"checkpoint_ns": ""}},
}


class Desks:
    """Two desks with an agent each, which pay; `paid` is what they really paid.

    Attributes:
        waits: The seconds after which each desk begins.
        stuck: The seconds for which each desk goes on when its agent has ended.
        inputs: The input of each desk.
    """

    def __init__(self, config: str = "plain", inner: str = "agent", way: str = "gather") -> None:
        self.config, self.inner, self.way = config, inner, way
        self.paid: list[str] = []
        self.waits, self.stuck = {"ann": 0.08, "bob": 0.0}, 30.0
        self.inputs = {name: f"pay {name}" for name in NAMES}
        self.labels: dict[str, RunnableConfig] = {}

    def effects(self) -> dict[str, Any]:
        return {"pay": compensable(lambda args, result: self.paid.remove(args["to"]))}

    def pay(self) -> BaseTool:
        @tool
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"paid {to}"

        return pay

    def agent(self, name: str) -> Graph:
        pay = self.pay()
        if self.inner == "agent":
            return agent_graph(scripted(call("pay", to=name), f"{name} is paid"), [pay])

        async def act(state: MessagesState) -> dict[str, Any]:
            await pay.ainvoke({"to": name})
            return {"messages": [("ai", f"{name} is paid")]}

        return node_graph(act)

    async def desk(self, name: str) -> str:
        await asyncio.sleep(self.waits[name])
        config: RunnableConfig = {**CONFIGS[self.config], **self.labels.get(name, {})}
        result = await self.agent(name).ainvoke(say(self.inputs[name]), config)
        await asyncio.sleep(self.stuck)
        return str(result["messages"][-1].content)

    async def both(self) -> str:
        if self.way == "gather":
            return str(await asyncio.gather(*map(self.desk, NAMES)))
        with ThreadPoolExecutor() as pool:
            desks = [pool.submit(copy_context().run, asyncio.run, self.desk(name)) for name in NAMES]
            return str([await asyncio.wrap_future(one) for one in desks])

    def outer(self) -> BaseTool:
        @tool
        async def outer(what: str) -> str:
            """Let both desks pay."""
            return await self.both()

        return outer

    def in_tool_node(self) -> Graph:
        request = calls(call("outer", "c1", what="pay")).model_copy(update={"id": "m"})
        built = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [request]})
        built.add_node("tools", ToolNode([self.outer()]))
        return built.add_edge(START, "ask").add_edge("ask", "tools").compile()

    def in_node(self) -> Graph:
        async def act(state: MessagesState) -> dict[str, Any]:
            return {"messages": [("ai", await self.outer().ainvoke({"what": "pay"}))]}

        return node_graph(act)

    def in_tool_of_tool(self) -> Graph:
        @tool
        async def around(what: str) -> str:
            """Let somebody else do it."""
            return str(await self.outer().ainvoke({"what": what}))

        async def act(state: MessagesState) -> dict[str, Any]:
            return {"messages": [("ai", await around.ainvoke({"what": "pay"}))]}

        return node_graph(act)

    async def interrupted(self, repo: Any, graph: Graph, until: int = 2) -> Any:
        """Cancel the turn after some payments, and return an agent whose desks begin in the other order."""
        agent = repo.wrap(graph, "s", effects=self.effects(), check_effects=False)
        running = asyncio.ensure_future(agent.ainvoke(say()))
        while len(self.paid) < until:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        self.stuck = 0.0 if self.way == "gather" else 0.1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        self.waits = {"ann": 0.0, "bob": 0.08}
        return repo.wrap(graph, "s", effects=self.effects(), check_effects=False)


def run(desks: Desks, repo: Any, graph: Graph) -> str:
    """Interrupt a turn, continue it in the other order, and return its answer."""

    async def story() -> str:
        agent = await desks.interrupted(repo, graph)
        return str((await agent.ainvoke(None))["messages"][-1].content)

    return asyncio.run(story())


BOTH = "['ann is paid', 'bob is paid']"


@pytest.mark.parametrize("inner", ["agent", "code"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("where", ["tool_node", "node", "tool_of_tool"])
def test_graphs_gathered_in_a_tool_keep_their_places(repo, where, config, inner):
    desks = Desks(config, inner)
    assert run(desks, repo, getattr(desks, f"in_{where}")()) == BOTH
    assert sorted(desks.paid) == ["ann", "bob"]


@pytest.mark.parametrize("config", CONFIGS)
def test_graphs_in_threads_of_a_tool_keep_their_places(repo, config):
    desks = Desks(config, way="threads")
    desks.stuck = 0.6
    assert run(desks, repo, desks.in_tool_node()) == BOTH
    assert sorted(desks.paid) == ["ann", "bob"]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("label", [lambda name: {"run_name": name}, lambda name: {"tags": [name]}], ids=["name", "tag"])
def test_graphs_with_one_input_and_labels_of_their_own_keep_their_places(repo, config, label):
    desks = Desks(config)
    desks.inputs, desks.labels = dict.fromkeys(NAMES, "pay"), {name: label(name) for name in NAMES}
    assert run(desks, repo, desks.in_tool_node()) == BOTH
    assert sorted(desks.paid) == ["ann", "bob"]


@pytest.mark.parametrize("config", CONFIGS)
def test_graphs_with_one_name_and_one_input_are_not_guessed(repo, config):
    desks = Desks(config)
    desks.inputs = dict.fromkeys(NAMES, "pay")
    with pytest.raises(Fenced, match=r"graphs in tasks or threads of their own.*one name and one input"):
        run(desks, repo, desks.in_tool_node())
    assert sorted(desks.paid) == ["ann", "bob"]


@pytest.mark.parametrize("config", CONFIGS)
def test_graphs_whose_inputs_are_new_each_time_are_not_guessed(repo, config):
    desks = Desks(config)

    async def story() -> None:
        agent = await desks.interrupted(repo, desks.in_tool_node())
        desks.inputs = {name: f"pay {name} today" for name in NAMES}
        await agent.ainvoke(None)

    with pytest.raises(Fenced, match=r"graphs in tasks or threads of their own.*another input"):
        asyncio.run(story())
    assert sorted(desks.paid) == ["ann", "bob"]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_graph_that_had_not_begun_begins_beside_one_that_had(repo, config):
    desks = Desks(config)
    desks.waits["ann"] = 30.0

    async def story() -> str:
        agent = await desks.interrupted(repo, desks.in_tool_node(), until=1)
        desks.waits = {"ann": 0.08, "bob": 0.0}
        return str((await agent.ainvoke(None))["messages"][-1].content)

    assert asyncio.run(story()) == BOTH
    assert desks.paid == ["bob", "ann"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_graphs_called_one_after_the_other_may_get_another_input_each_time(repo, is_async):
    """A tool tells its graphs the time; each asks a person, and continues where it was."""
    times, asked = count(), node_graph(lambda state: {"messages": [("ai", interrupt(state["messages"][-1].content))]})

    @tool
    def ask(what: str) -> str:
        """Ask twice."""
        said = [asked.invoke(say(f"{what} at {next(times)}"))["messages"][-1].content for what in NAMES]
        return ", ".join(said)

    @tool
    async def aask(what: str) -> str:
        """Ask twice."""
        said = [(await asked.ainvoke(say(f"{what} at {next(times)}")))["messages"][-1].content for what in NAMES]
        return ", ".join(said)

    request = calls(call("ask", "c1", what="x")).model_copy(update={"id": "m"})
    built = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [request]})
    aask.name = "ask"
    built.add_node("tools", ToolNode([aask if is_async else ask]))
    agent = repo.wrap(built.add_edge(START, "ask").add_edge("ask", "tools").compile(), "s")

    def told(given: Any) -> Any:
        return asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)

    questions = [told(say())["__interrupt__"][0].value, told(Command(resume="yes"))["__interrupt__"][0].value]
    assert questions == ["ann at 0", "bob at 2"]
    assert told(Command(resume="no"))["messages"][-1].content == "yes, no"
