"""Graphs with subgraphs that have a memory (`checkpointer=True`) and tools that act on a world.

Each item that a tool puts into the world is in the state, in `log` of the graph or in the memory of a subgraph, which
the subgraph reports in `memory`. So the state of an ended run and the world must have the same items.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt
from scripted import World

from agentgit import reversible

Graph = Any


def _replace(old: dict[str, list[str]], new: dict[str, list[str]]) -> dict[str, list[str]]:
    return {**old, **new}


class Outer(TypedDict, total=False):
    """The state of the whole graph; `memory` has what each subgraph remembers."""

    turn: str
    log: Annotated[list[str], operator.add]
    memory: Annotated[dict[str, list[str]], _replace]


class Memory(TypedDict, total=False):
    """What a subgraph remembers and returns."""

    own: Annotated[list[str], operator.add]


class Inner(Memory, total=False):
    """The state of a subgraph."""

    turn: str


def items(values: Outer) -> list[str]:
    """Return the items of which a state tells."""
    return sorted([*values.get("log", ()), *(one for log in values.get("memory", {}).values() for one in log)])


class Builder:
    """Builds graphs whose nodes act on a world."""

    def __init__(self, world: World) -> None:
        self.put, self.effects = world.tool("add"), {"add": reversible(world.remove)}
        self.ran: list[str] = []
        """The names of the nodes that began."""

    def act(self, name: str) -> Callable[[Any], Any]:
        """Return a node that puts an item into the world."""

        def node(state: Any) -> Any:
            self.ran.append(name)
            item = f"{name}{state['turn']}"
            self.put.invoke({"item": item})
            return {"log": [item], "own": [item]}

        return node

    def ask(self, name: str) -> Callable[[Any], Any]:
        """Return a node that puts an item into the world if a person says yes."""

        def node(state: Any) -> Any:
            self.ran.append(name)
            item = f"{name}{state['turn']}"
            if interrupt(f"{name}?") != "yes":
                return {}
            self.put.invoke({"item": item})
            return {"log": [item], "own": [item]}

        return node

    def expert(self, name: str, *, asks: bool = False, memory: bool | None = True) -> Graph:
        """Build a subgraph that acts twice; if it asks, twice in between."""
        nodes = [self.act(f"{name}-a"), *([self.ask(f"{name}-q"), self.ask(f"{name}-r")] if asks else [])]
        return _chain(StateGraph(Inner, output_schema=Memory), [*nodes, self.act(f"{name}-b")]).compile(
            checkpointer=memory
        )

    def consulting(self, name: str, expert: Graph) -> Callable[[Any], Any]:
        """Return a node that calls a subgraph, and reports what it remembers."""

        def node(state: Any) -> Any:
            return {"memory": {name: expert.invoke({"turn": state["turn"], "own": []})["own"]}}

        return node

    def consulting_by_tool(self, name: str, expert: Graph) -> Callable[[Any], Any]:
        """Return a node that calls a tool which calls a subgraph."""

        @tool
        def consult(turn: str) -> list[str]:
            """Ask the expert."""
            log: list[str] = expert.invoke({"turn": turn, "own": []})["own"]
            return log

        return lambda state: {"memory": {name: consult.invoke({"turn": state["turn"]})}}

    def nested(self, name: str, expert: Graph) -> Graph:
        """Build a subgraph with memory whose second node is a subgraph with memory."""

        def call(state: Inner) -> Any:
            told = expert.invoke({"turn": state["turn"], "own": []})["own"]
            return {"own": [one for one in told if one not in state["own"]]}

        return _chain(StateGraph(Inner), [self.act(f"{name}-m"), call]).compile(checkpointer=True)

    def graph(self, *nodes: Any) -> Graph:
        """Build a graph that acts, runs these nodes, and acts."""
        return _chain(self._outer(), [self.act("first"), *nodes, self.act("last")]).compile()

    def _outer(self) -> Any:
        """Return an empty graph, in whose node `tools`, which never runs, agentgit finds the tool to run it again."""
        return StateGraph(Outer).add_node("tools", ToolNode([self.put]))

    def parallel(self, *, asks: bool = False) -> Graph:
        """Build a graph that sends work to two subgraphs without memory, then asks one with memory."""
        worker = _chain(StateGraph(Inner), [self.act("work"), *([self.ask("worker")] if asks else [])]).compile()
        graph = self._outer()
        graph.add_node("first", self.act("first"))
        graph.add_node("worker", lambda state: {"log": worker.invoke(state)["own"]})
        graph.add_node("expert", self.consulting("e", self.expert("e")))
        graph.add_edge(START, "first")
        graph.add_conditional_edges(
            "first",
            lambda state: [Send("worker", {"turn": f"{state['turn']}.{n}", "own": []}) for n in "12"],
            ["worker"],
        )
        return graph.add_edge("worker", "expert").compile()


def _chain(graph: Any, nodes: list[Any]) -> Any:
    names = [f"n{n}" for n, _ in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for before, after in zip([START, *names], names, strict=False):
        graph.add_edge(before, after)
    return graph


KINDS: dict[str, Callable[..., Graph]] = {
    "called": lambda b, asks: b.graph(b.consulting("e", b.expert("e", asks=asks))),
    "in a tool": lambda b, asks: b.graph(b.consulting_by_tool("e", b.expert("e", asks=asks))),
    "nested": lambda b, asks: b.graph(b.consulting("m", b.nested("m", b.expert("e", asks=asks)))),
    "two": lambda b, asks: b.graph(b.consulting("e", b.expert("e", asks=asks)), b.consulting("f", b.expert("f"))),
    "parallel": lambda b, asks: b.parallel(asks=asks),
}
"""Every way to have a subgraph with memory, for `@pytest.mark.parametrize("kind", KINDS)`."""


def build(kind: str, world: World, *, asks: bool = False) -> tuple[Graph, Builder]:
    """Build a graph of a kind, and return it with its builder."""
    builder = Builder(world)
    return KINDS[kind](builder, asks), builder
