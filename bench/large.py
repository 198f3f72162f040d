"""The time of a turn that stores a large value."""

from __future__ import annotations

import random
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

import agentgit
from bench.contenders import OURS, SQLITE, WRAPPED
from bench.measure import Subject, lines, rotated, timed
from bench.stage import Stage

NOTE = (
    "Milliseconds of one graph.invoke whose only node returns bytes that do not compress, which are new in each turn.\n"
    "Each turn is the first one of a conversation. `first` is the first turn of the open database."
)


class State(TypedDict):
    """A state with one large value."""

    value: bytes


def build(size: int, checkpointer: Any = None) -> Any:
    """Compile a graph whose node returns new bytes of a size."""
    source = random.Random(size)  # noqa: S311  # not a secret

    def fill(state: State) -> dict[str, bytes]:
        return {"value": source.randbytes(size)}

    return StateGraph(State).add_node("fill", fill).add_edge(START, "fill").compile(checkpointer=checkpointer)


def measure(stage: Stage) -> Subject:
    """Time turns with values of each size."""
    found = []
    for size in stage.scale.values:
        folder = stage.where / f"large-{size}"
        folder.mkdir()
        with (
            SqliteSaver.from_conn_string(str(folder / "sqlite.db")) as theirs,
            agentgit.SQLModelSaver.from_conn_string(folder / "saver.db") as ours,
            agentgit.open(folder / "agentgit.db") as repo,
        ):
            graphs = {SQLITE: build(size, theirs), OURS: build(size, ours), WRAPPED: build(size)}

            def turn(name: str, number: int, graphs: Any = graphs, repo: Any = repo) -> object:
                if name == WRAPPED:
                    return repo.wrap(graphs[name], f"session-{number}").invoke({"value": b""})
                return graphs[name].invoke({"value": b""}, {"configurable": {"thread_id": str(number)}})

            times: dict[str, list[float]] = {name: [] for name in graphs}
            for number in range(1 + stage.scale.looks * 3):
                for name in rotated(list(graphs), number):
                    times[name].append(timed(lambda name=name, number=number: turn(name, number))[0])
        case = f"{size / 1e6:g} MB"
        found += lines(f"{case}, first", {name: took[:1] for name, took in times.items()}, [SQLITE])
        found += lines(f"{case}, later", {name: took[1:] for name, took in times.items()}, [SQLITE])
    return Subject("Time of a turn with a large value", NOTE, found)
