"""The memory that a process keeps of sessions that it has served."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path

import agentgit
from bench.contenders import OURS, WRAPPED
from bench.graphs import EFFECTS, TOOL, build, said
from bench.measure import Subject, lines
from bench.stage import Stage

LENGTH = 200
"""The number of characters in a message."""

WARM_UP = 20

NOTE = (
    "Bytes that Python still has allocated for each session or thread, after a garbage collection. Each one runs one\n"
    "turn with a tool call and is dropped. What is kept are the caches, until they are full, and a reference from the\n"
    "session to its declarations."
)


def measure(stage: Stage) -> Subject:
    """Measure over stretches of ever more sessions, wrapped and with the saver alone."""
    served = (0, *stage.scale.served)
    kept = {WRAPPED: _wrapped(stage.where / "memory.db", served), OURS: _saved(stage.where / "memory-saver.db", served)}
    found = [
        line
        for number, (first, last) in enumerate(pairwise(served))
        for line in lines(
            f"sessions {first + 1:,} to {last:,}",
            {name: [sizes[number]] for name, sizes in kept.items()},
            [],
            unit="bytes",
            scale=1,
        )
    ]
    return Subject("Memory kept of sessions that are no longer served", NOTE, found)


def _wrapped(path: Path, served: Sequence[int]) -> list[float]:
    graph = build(LENGTH)
    with agentgit.open(path) as repo:
        return _kept(lambda n: repo.wrap(graph, f"session-{n}", effects=EFFECTS).run(said(TOOL, n, LENGTH)), served)


def _saved(path: Path, served: Sequence[int]) -> list[float]:
    with agentgit.SQLModelSaver.from_conn_string(path) as saver:
        graph = build(LENGTH, saver)

        def serve(n: int) -> object:
            return graph.invoke(
                {"messages": [("user", said(TOOL, n, LENGTH))]}, {"configurable": {"thread_id": f"thread-{n}"}}
            )

        return _kept(serve, served)


def _kept(serve: Callable[[int], object], served: Sequence[int]) -> list[float]:
    """Serve sessions, and return the bytes that each stretch between these numbers of them leaves for a session."""
    numbers = count()
    for _ in range(WARM_UP):
        serve(next(numbers))
    tracemalloc.start()
    try:
        kept, before = [], _used()
        for first, last in pairwise(served):
            for _ in range(last - first):
                serve(next(numbers))
            after = _used()
            kept.append((after - before) / (last - first))
            before = after
        return kept
    finally:
        tracemalloc.stop()


def _used() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
