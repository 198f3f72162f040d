"""The time of an exploration in one process, and in two processes of an executor, over one PostgreSQL."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from sqlalchemy import URL

import agentgit
from bench import postgres
from bench.graphs import Graph
from bench.measure import Counts, timed
from bench.stage import Stage

TITLE = "Exploring in several processes"

NOTE = (
    "Each of n steps is gone in a ways, one call of a model a step, which takes 50 ms. In one process the turns run\n"
    "one after the other. The aim is 1.7 times as fast with two processes."
)

SECONDS = 0.05
"""The time of a call of the model."""


def build(branch: str) -> Graph:
    """Build the graph in the process of a turn."""

    def model(state: MessagesState) -> dict[str, Any]:
        time.sleep(SECONDS)
        return {"messages": [("ai", "yes")]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_edge(START, "model")
    return graph.compile()


def explore(url: URL, choices: int, steps: int, pool: ProcessPoolExecutor | None) -> int:
    """Explore, and return the number of turns."""
    inputs = [f"step {n}" for n in range(steps)]
    with agentgit.open(url) as repo:
        agent = repo.wrap(build("main"), session="s", auto_checkpoint="off")
        how: dict[str, Any] = {} if pool is None else {"executor": pool, "factory": build}
        return len(agent.explore(inputs, choices, **how).branches)


def measure(stage: Stage) -> Counts:
    """Measure the largest exploration of the scale in one process and in two."""
    rows: list[list[str]] = []
    if postgres.about():
        choices, steps = stage.scale.explored[-1]
        case, alone = f"a = {choices}, n = {steps}", 0.0
        for processes in (1, 2):
            with postgres.scratch() as url, _pool(processes) as pool:
                agentgit.SQLModelSaver.from_conn_string(url).setup()
                seconds, turns = timed(lambda url=url, pool=pool: explore(url, choices, steps, pool))  # type: ignore[misc]
            alone = alone or seconds
            name = "one process" if pool is None else f"{processes} processes"
            rows.append([case, name, f"{turns:,}", f"{seconds:.1f}", f"{alone / seconds:.2f}x"])
    return Counts(TITLE, NOTE, ("turns", "seconds", "as fast"), rows)


def _pool(processes: int) -> Any:
    """Open an executor whose processes have imported what they need; None for one process."""
    if processes == 1:
        return nullcontext()
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    list(pool.map(time.sleep, [SECONDS * 10] * processes * 2))
    return pool
