"""The time of a turn beside a model that takes as long as a real one."""

from __future__ import annotations

import time
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import agentgit
from bench.contenders import OURS, SQLITE, WRAPPED
from bench.graphs import text
from bench.measure import Subject, interleaved, lines
from bench.stage import Stage

SECONDS = 1.0
"""The time that a step of the model takes."""

STEPS = 2

NOTE = f"Milliseconds of a turn of {STEPS} steps, each of which waits for {SECONDS:g} s, as for a model."


def build(checkpointer: Any = None) -> Any:
    """Compile a graph of steps that wait."""

    def step(state: MessagesState) -> dict[str, Any]:
        time.sleep(SECONDS)
        return {"messages": [AIMessage(text(len(state["messages"]), 200))]}

    graph = StateGraph(MessagesState)
    for number in range(STEPS):
        graph.add_node(f"step-{number}", step)
        graph.add_edge(f"step-{number - 1}" if number else START, f"step-{number}")
    return graph.compile(checkpointer=checkpointer)


def measure(stage: Stage) -> Subject:
    """Time turns, one contender after the other."""
    with (
        SqliteSaver.from_conn_string(str(stage.where / "model-sqlite.db")) as theirs,
        agentgit.SQLModelSaver.from_conn_string(stage.where / "model-saver.db") as ours,
        agentgit.open(stage.where / "model.db") as repo,
    ):
        saved, alone, agent = build(theirs), build(ours), repo.wrap(build(), session="s")
        thread: Any = {"configurable": {"thread_id": "t"}}
        said: Any = {"messages": [("user", text(0, 200))]}
        runs = {
            SQLITE: lambda: saved.invoke(said, thread),
            OURS: lambda: alone.invoke(said, thread),
            WRAPPED: lambda: agent.invoke(said),
        }
        times = interleaved(runs, stage.scale.waits)
    return Subject(
        "Time of a turn beside a slow model", NOTE, lines(f"{STEPS} steps of {SECONDS:g} s", times, [SQLITE])
    )
