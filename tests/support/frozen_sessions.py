"""Record sessions for tests/golden/sessions: `PYTHONPATH=tests/support python tests/support/frozen_sessions.py`.

The files stay as they are when LangGraph or LangChain is upgraded; this script adds those of the installed version. A
test runs each of them again, so that an upgrade with which old recordings can no longer be used is noticed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from scripted import GRAPHS, Graph, World, call, calls, obedient, saying, tool_node_graph
from typing_extensions import TypedDict

import agentgit

FOLDER = Path(__file__).parents[1] / "golden" / "sessions"

TEXTS = ("add chair; charge 5", "look", "send hello", "thanks")
"""What the user says in the sessions of the usual graphs."""


class Items(TypedDict):
    items: list[str]
    said: Annotated[list[str], operator.add]


def sending_graph(model: Any, tools: Sequence[BaseTool]) -> Graph:
    """Build a graph that calls the model once, and a tool in a worker for each item."""
    add = next(tool for tool in tools if tool.name == "add")

    def plan(state: Items) -> dict[str, Any]:
        return {"said": [str(model.invoke([HumanMessage(", ".join(state["items"]))]).content)]}

    def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"said": [str(add.invoke({"item": state["item"]}))]}

    builder = StateGraph(Items)
    builder.add_node("plan", plan)
    builder.add_node("work", work)  # type: ignore[arg-type]  # a worker takes what is sent to it
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"item": item}) for item in state["items"]])
    return builder.compile()


BUILDERS: dict[str, Callable[..., Graph]] = {**GRAPHS, "send": sending_graph, "question": tool_node_graph}
"""How the graph of each file is built from a model and tools, by the name of the file."""


def _model(kind: str) -> Any:
    if kind == "send":
        return saying("both", "one")
    if kind == "question":
        asked = calls(call("add_if_approved", item="chair")), calls(call("add_if_approved", item="sofa"))
        return saying(asked[0], "a chair", asked[1], "no sofa")
    return obedient()


def _inputs(kind: str) -> list[Any]:
    if kind == "send":
        return [{"items": ["chair", "table"]}, {"items": ["lamp"]}]
    if kind == "question":
        return [_said("a chair"), Command(resume="yes"), _said("a sofa"), Command(resume="no")]
    return [_said(text) for text in TEXTS]


def _said(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def record(folder: Path) -> None:
    """Record a session of each graph, and export it into the folder."""
    folder.mkdir(parents=True)
    for kind, build in BUILDERS.items():
        world = World()
        with agentgit.open(":memory:") as repo:
            agent = repo.wrap(build(_model(kind), world.tools()), kind, effects=world.effects())
            for value in _inputs(kind):
                agent.invoke(value)
            agent.session.export(folder / f"{kind}.agentgit", redact=True)


if __name__ == "__main__":
    record(FOLDER / f"langgraph-{version('langgraph')}-langchain-core-{version('langchain-core')}")
