"""The time that the journal adds to one tool call, whose intent is on the disk before the tool runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph

import agentgit
from agentgit.effects import Effect, reversible
from bench.graphs import Graph
from bench.measure import Subject, interleaved, lines
from bench.stage import Stage

TITLE = "What the journal adds to a call"

NOTE = (
    "Milliseconds a call: a turn in which a node calls a tool that does nothing 50 times, one after the other, less a\n"
    "turn without a call. What is added is the difference in a round. An effectful call is on the disk before its\n"
    "tool runs, and is written again with its result; a read-only one is written with others, in a transaction that\n"
    "its turn makes anyway. The aims are 2 ms and 0.1 ms."
)

CALLS = 50
"""The number of calls in a turn."""

ALONE, WRAPPED, ADDED = "SQLModelSaver", "wrapped by agentgit", "added"


def build(noted: BaseTool, checkpointer: Any = None) -> Graph:
    """Build a graph whose node calls a tool as many times as the user's message says."""

    def work(state: MessagesState) -> dict[str, Any]:
        for n in range(int(state["messages"][-1].text)):
            noted.invoke({"n": n})
        return {"messages": [AIMessage("done")]}

    return StateGraph(MessagesState).add_node("work", work).add_edge(START, "work").compile(checkpointer=checkpointer)


def measure(stage: Stage) -> Subject:
    """Time turns with and without the journal."""
    kinds: dict[str, Effect | str] = {"reversible": reversible(lambda args, result: None), "read_only": "read_only"}
    found = [line for kind, effect in kinds.items() for line in lines(kind, _times(stage, kind, effect), [ALONE])]
    return Subject(TITLE, NOTE, found)


def _times(stage: Stage, kind: str, effect: Effect | str) -> dict[str, list[float]]:
    """Time calls of one kind, in seconds per call."""

    @tool
    def note(n: int) -> int:
        """Note a number."""
        return n

    busy, idle = ({"messages": [("user", str(calls))]} for calls in (CALLS, 0))
    with (
        agentgit.SQLModelSaver.from_conn_string(str(stage.where / f"alone-{kind}.db")) as saver,
        agentgit.open(stage.where / f"overhead-{kind}.db") as repo,
    ):
        alone = build(note, saver)
        agent = repo.wrap(build(note), session="s", effects={"note": effect}, check_effects=False)
        thread: Any = {"configurable": {"thread_id": "t"}}
        runs: dict[str, Callable[[], Any]] = {
            ALONE: lambda: alone.invoke(busy, thread),
            WRAPPED: lambda: agent.invoke(busy),
            f"{ALONE}, no call": lambda: alone.invoke(idle, thread),
            f"{WRAPPED}, no call": lambda: agent.invoke(idle),
        }
        interleaved(runs, 2)  # warms up: statements are built once
        turns = interleaved(runs, stage.scale.looks * 10)
    times = {
        name: [(b - a) / CALLS for a, b in zip(turns[f"{name}, no call"], turns[name], strict=True)]
        for name in (ALONE, WRAPPED)
    }
    return times | {ADDED: [b - a for a, b in zip(times[ALONE], times[WRAPPED], strict=True)]}
