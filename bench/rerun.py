"""The time and memory of a rerun beside the same plain graph, and of reruns of many sessions in several processes."""

from __future__ import annotations

import multiprocessing
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import agentgit
from agentgit.agents.agent import RollbackAgent
from bench.graphs import EFFECTS, MESSAGES, TOOL, Graph, build, check, said
from bench.measure import Counts, Line, Subject, lines, rotated, timed
from bench.stage import Stage

LENGTH = 200
"""The number of characters in a message."""

IN_MEMORY, RERUN = "InMemorySaver", "rerun"

NOTE = (
    "All turns of a conversation, each with one tool call; the model and the tool do no work. The plain graph calls\n"
    "its tool, and the rerun answers it from the record. Seconds are those of the CPU, in all threads of the process.\n"
    "Memory is the peak of what Python has allocated in a run, beside that of the shortest conversation per turn."
)

WORKERS_NOTE = (
    "Sessions of 10 turns with one call of a model each, which takes 50 ms, over one SQLite file. In one process they\n"
    "run one after the other. The aim is 1.7 times as fast with two processes."
)

SECONDS = 0.05
"""The time of a call of the model of many sessions."""

TURNS = 10
"""The turns of each of many sessions."""


def measure(stage: Stage) -> Subject:
    """Measure conversations of each length."""
    found: list[Line] = []
    first: dict[str, list[float]] = {}
    for turns in stage.scale.rerun:
        with agentgit.open(stage.where / f"rerun-{turns}.db") as repo:
            agent = repo.wrap(build(LENGTH), session="s", effects=EFFECTS)
            for number in range(turns):
                agent.run(said(TOOL, number, LENGTH))
            runs: dict[str, Callable[[], None]] = {IN_MEMORY: partial(_run, turns), RERUN: partial(_rerun, agent)}
            times: dict[str, list[float]] = {name: [] for name in runs}
            for number in range(stage.scale.reruns):
                for name in rotated(list(runs), number):
                    times[name].append(_cpu(runs[name]))
            found += lines(f"{turns:,} turns", times, [IN_MEMORY], unit="s", scale=1)
            peaks = {name: [_peak(run) / turns] for name, run in runs.items()}
            first = first or peaks
            for name, peak in peaks.items():
                shortest = {name: peak, "shortest": first[name]}
                found += lines(f"{turns:,} turns, memory", shortest, ["shortest"], unit="KB per turn", scale=1e-3)[:1]
    return Subject("Time and memory of a rerun", NOTE, found)


def _run(turns: int) -> None:
    graph, thread = build(LENGTH, InMemorySaver()), {"configurable": {"thread_id": "t"}}
    for number in range(turns):
        state = graph.invoke({"messages": [("user", said(TOOL, number, LENGTH))]}, thread)  # type: ignore[arg-type]  # a dict is a config
    check(state["messages"], turns * MESSAGES[TOOL])


def _rerun(agent: RollbackAgent) -> None:
    report: Any = agent.rerun(build(LENGTH)).report
    if not report.is_same:
        raise RuntimeError(f"the rerun should do what was recorded: {report}")


def _cpu(run: Callable[[], None]) -> float:
    """Run a function once, and return the CPU time of the process in seconds."""
    start = time.process_time()
    run()
    return time.process_time() - start


def _peak(run: Callable[[], None]) -> float:
    """Run a function once, and return the most bytes that Python had allocated in the meantime."""
    tracemalloc.start()
    try:
        run()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def build_slow(session: object) -> Graph:
    """Build the graph of many sessions in the process of a rerun."""

    def model(state: MessagesState) -> dict[str, Any]:
        time.sleep(SECONDS)
        return {"messages": [("ai", "yes")]}

    return StateGraph(MessagesState).add_node("model", model).add_edge(START, "model").compile()


def measure_workers(stage: Stage) -> Counts:
    """Measure reruns of the same sessions in one process and in two."""
    path, rows, alone = stage.where / "reruns.db", [], 0.0
    names = _record(path, stage.scale.rerun_sessions)
    for processes in (1, 2):
        with _pool(processes) as pool, agentgit.open(path) as repo:
            repo.rerun(names[: 2 * processes], factory=build_slow, executor=pool)  # each process imports what it needs
            seconds, results = timed(partial(repo.rerun, names, factory=build_slow, executor=pool))
        if results.matched != 1 or any(row.status != "done" for row in results.rows):
            raise RuntimeError(f"every session should be run again: {results}")
        alone = alone or seconds
        name = "one process" if pool is None else f"{processes} processes"
        rows.append([f"{len(names)} sessions", name, f"{seconds:.1f}", f"{alone / seconds:.2f}"])
    return Counts("Reruns of sessions in several processes", WORKERS_NOTE, ("seconds", "times as fast"), rows)


def _record(path: Path, sessions: int) -> list[str]:
    names = [f"session-{number}" for number in range(sessions)]
    builder = StateGraph(MessagesState).add_node("model", lambda state: {"messages": [("ai", "yes")]})
    graph = builder.add_edge(START, "model").compile()
    with agentgit.open(path) as repo:
        for name in names:
            agent = repo.wrap(graph, session=name)
            for number in range(TURNS):
                agent.run(f"question {number}")
    return names


def _pool(processes: int) -> Any:
    """Open an executor of processes; None for one process."""
    context = multiprocessing.get_context("spawn")
    return nullcontext() if processes == 1 else ProcessPoolExecutor(processes, context)
