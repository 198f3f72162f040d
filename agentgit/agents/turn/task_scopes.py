"""The tasks of one turn, each by a name that it has again when LangGraph runs it again.

A task of the graph itself has an id that LangGraph makes from the graph checkpoint before it. What such a task calls in
its turn (a graph, a `@task`) is named by its place there: the ids that LangGraph gives it are others when the task is
retried, or where the inner graph is not saved.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentgit.langgraph_internals import PUSH, recast_checkpoint_ns


@dataclass
class Frame:
    """One run of a task or of a tool: what is called in it is counted from its beginning.

    Args:
        scope: The name of the scope, the same each time.
        run_id: This run.
        task: LangGraph's name of the task.
        first_graph: The number that the first graph called in this run has.
        first_call: The number that the first `@task` called in this run has.
        graphs: For a tool, the numbers of the graphs that it has called.
    """

    scope: str
    run_id: UUID
    task: str
    first_graph: int = 0
    first_call: int = 0
    graphs: Callable[[], list[int]] | None = None
    others: list[UUID] = field(default_factory=list)
    """The graphs that were called in it and are no subgraphs of its task."""


def scope_of(*parts: object) -> str:
    """Make one name of several."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogatepass")).hexdigest()[:32]


class Scopes:
    """The runs of tasks and tools of one turn.

    Args:
        saved: A function that returns the numbers of the graphs that a task has called before, as far as these
            are saved.
    """

    def __init__(self, saved: Callable[[str], Iterable[int]]) -> None:
        self._saved = saved
        self._frames: dict[UUID, Frame] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._used: dict[str, tuple[int, int]] = {}  # task -> how many graphs and calls its runs have had
        self._tasks: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, run_id: UUID, parent: UUID | None, metadata: Mapping[str, Any] | None) -> None:
        """Take note of a run of anything; if it is that of a task, it gets its name."""
        self._parents[run_id] = parent
        task = str((metadata or {}).get("langgraph_checkpoint_ns") or "")
        if not task:
            return
        above = self.frame(parent)
        if above is not None and above.task == task:
            return
        with self._lock:
            self._frames[run_id] = self._frame(run_id, parent, task, metadata or {}, above)

    def tool(self, run_id: UUID, parent: UUID | None, scope: str, graphs: Callable[[], list[int]]) -> None:
        """Take note of the run of a tool."""
        self._parents[run_id] = parent
        above = self.frame(parent)
        self._frames[run_id] = Frame(scope, run_id, above.task if above else "", graphs=graphs)

    def over(self, run_id: UUID) -> None:
        """Forget the run of a tool that has ended; what it was called from is known for what still runs inside."""
        self._frames.pop(run_id, None)

    def frame(self, run_id: UUID | None) -> Frame | None:
        """Find the innermost task or tool that a run is in."""
        while run_id is not None:
            if run_id in self._frames:
                return self._frames[run_id]
            run_id = self._parents.get(run_id)
        return None

    def parent(self, run_id: UUID) -> UUID | None:
        """Return what a run was called from."""
        return self._parents.get(run_id)

    def _frame(
        self, run_id: UUID, parent: UUID | None, task: str, metadata: Mapping[str, Any], above: Frame | None
    ) -> Frame:
        name = scope_of(task) if above is None else scope_of(above.scope, *self._place(task, parent, metadata, above))
        if task in self._tasks:  # LangGraph goes on counting where the run before has stopped
            graphs, calls = self._used.get(task, (0, 0))
            graphs = max([graphs, *(number + 1 for number in self._saved(task))])
            return Frame(name, run_id, task, graphs, calls)
        self._tasks.add(task)
        return Frame(name, run_id, task)

    def _place(self, task: str, parent: UUID | None, metadata: Mapping[str, Any], above: Frame) -> list[object]:
        """Return where in the run above a task is."""
        step, path = metadata.get("langgraph_step"), tuple(metadata.get("langgraph_path") or ())
        graph, _, node = task.rpartition("|")
        name = node.partition(":")[0]
        graphs, calls = self._used.get(above.task, (0, 0))
        if path[:1] == (PUSH,) and path[-1:] == (True,):  # a `@task`, counted by who calls it
            number = int(path[2])
            self._used[above.task] = graphs, max(calls, number + 1)
            return ["call", name, number - above.first_call]
        place = _number(graph, above.task)
        if place is None:
            return ["other", self._other(parent, above), name, step, path]
        self._used[above.task] = max(graphs, place + 1), calls
        if above.graphs is None:
            return ["graph", place - above.first_graph, name, step, path]
        own = above.graphs()
        return ["graph", own.index(place) if place in own else f"number {place}", name, step, path]

    def _other(self, graph: UUID | None, above: Frame) -> int:
        if graph is not None and graph not in above.others:
            above.others.append(graph)
        return above.others.index(graph) if graph is not None else -1


def _number(graph: str, task: str) -> int | None:
    """Return the number of a subgraph among those of its task; None if it is none of them."""
    for name in (task, recast_checkpoint_ns(task)):  # one that keeps a thread of its own has no ids in its name
        if graph == name:
            return 0
        if graph.startswith(f"{name}|") and graph[len(name) + 1 :].isdigit():
            return int(graph[len(name) + 1 :])
    return None
