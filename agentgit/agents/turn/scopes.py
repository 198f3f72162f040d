"""The tasks and tools of one turn, in which calls are made.

Each task has a name that stays the same when LangGraph runs the task again. LangGraph derives the id of a task of the
graph itself from the preceding graph checkpoint, so that id does not change. What such a task calls (a graph, a
`@task`) is named by its position in the task: LangGraph gives it a different id when the task is retried or when the
inner graph is not saved.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from agentgit.langgraph_internals import PUSH, recast_checkpoint_ns


@dataclass(frozen=True)
class TaskPlace:
    """The place of a task in its graph, which is the same in a rerun; the ids of tasks are not."""

    node: str
    path: tuple[Any, ...]
    positions: tuple[tuple[Any, ...], ...] = ()

    def scope(self, task_id: str) -> str:
        """Return the scope of the task if the task of the graph itself has this id."""
        return functools.reduce(
            lambda scope, position: scope_name(scope, *position), self.positions, scope_name(f"{self.node}:{task_id}")
        )


@dataclass
class Frame:
    """One run of a task or a tool, in which the calls are numbered from its start."""

    scope: str
    run_id: UUID
    task: str
    first_graph: int = 0
    first_call: int = 0
    graph_numbers: Callable[[], list[int]] | None = None
    place: TaskPlace | None = None
    foreign_graphs: list[UUID] = field(default_factory=list)
    """The graphs that were called in this run and are not subgraphs of its task."""


def enclosing_name(caller: str | None, caller_task: str, task: str) -> str | None:
    """Return the name of the innermost tool or subgraph node that contains a call.

    Example:
        >>> enclosing_name(None, "", "desk:1|tools:2"), enclosing_name("ask", "tools:1", "tools:1|tools:2")
        ('desk', 'ask')
    """
    inside = task.removeprefix(caller_task) if caller is not None else task
    *nodes, _ = recast_checkpoint_ns(inside.strip("|")).split("|")
    return nodes[-1] if nodes else caller


def scope_name(*parts: object) -> str:
    """Hash several parts into one name."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogatepass")).hexdigest()[:32]


class Scopes:
    """The runs of tasks and tools of one turn."""

    def __init__(self, saved_graphs: Callable[[str], Iterable[int]]) -> None:
        self._saved_graphs = saved_graphs
        self._frames: dict[UUID, Frame] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._used_numbers: dict[str, tuple[int, int]] = {}  # task -> number of graphs and of calls in its runs
        self._tasks: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, run_id: UUID, parent_run_id: UUID | None, task: str, metadata: Mapping[str, Any]) -> None:
        """Record the start of a run; if it is the run of a task, name the task."""
        self._parents[run_id] = parent_run_id
        if not task:
            return
        enclosing = self.frame(parent_run_id)
        if enclosing is not None and enclosing.task == task:
            return
        with self._lock:
            self._frames[run_id] = self._new_frame(run_id, parent_run_id, task, metadata, enclosing)

    def begin_tool(
        self, run_id: UUID, enclosing: Frame | None, scope: str, graph_numbers: Callable[[], list[int]]
    ) -> None:
        """Record the start of a tool's run; what it began may still make calls when it has ended."""
        self._frames[run_id] = Frame(scope, run_id, enclosing.task if enclosing else "", graph_numbers=graph_numbers)

    def frame(self, run_id: UUID | None) -> Frame | None:
        """Return the innermost task or tool that contains a run."""
        while run_id is not None:
            if run_id in self._frames:
                return self._frames[run_id]
            run_id = self._parents.get(run_id)
        return None

    def parent_of(self, run_id: UUID) -> UUID | None:
        """Return the parent of a run."""
        return self._parents.get(run_id)

    def _new_frame(
        self, run_id: UUID, parent_run_id: UUID | None, task: str, metadata: Mapping[str, Any], enclosing: Frame | None
    ) -> Frame:
        place: TaskPlace | None
        if enclosing is None:
            name = scope_name(task)
            place = TaskPlace(task.partition(":")[0], tuple(metadata.get("langgraph_path") or ()))
        else:
            position = tuple(self._position(task, parent_run_id, metadata, enclosing))
            name, place = scope_name(enclosing.scope, *position), enclosing.place
            place = place and replace(place, positions=(*place.positions, position))
        if task in self._tasks:  # LangGraph continues counting where the previous run stopped
            graph_count, call_count = self._used_numbers.get(task, (0, 0))
            graph_count = max([graph_count, *(number + 1 for number in self._saved_graphs(task))])
            return Frame(name, run_id, task, graph_count, call_count, place=place)
        self._tasks.add(task)
        return Frame(name, run_id, task, place=place)

    def _position(
        self, task: str, parent_run_id: UUID | None, metadata: Mapping[str, Any], enclosing: Frame
    ) -> list[object]:
        """Return the position of a task inside the enclosing run."""
        step, path = metadata.get("langgraph_step"), tuple(metadata.get("langgraph_path") or ())
        graph, _, node = task.rpartition("|")
        name = node.partition(":")[0]
        graph_count, call_count = self._used_numbers.get(enclosing.task, (0, 0))
        if path[:1] == (PUSH,) and path[-1:] == (True,):  # a `@task`, numbered by its caller
            number = int(path[2])
            self._used_numbers[enclosing.task] = graph_count, max(call_count, number + 1)
            return ["call", name, number - enclosing.first_call]
        graph_number = _subgraph_number(graph, enclosing.task)
        if graph_number is None:
            return ["other", self._foreign_graph_index(parent_run_id, enclosing), name, step, path]
        self._used_numbers[enclosing.task] = max(graph_count, graph_number + 1), call_count
        if enclosing.graph_numbers is None:
            return ["graph", graph_number - enclosing.first_graph, name, step, path]
        tool_graphs = enclosing.graph_numbers()
        return [
            "graph",
            tool_graphs.index(graph_number) if graph_number in tool_graphs else f"number {graph_number}",
            name,
            step,
            path,
        ]

    def _foreign_graph_index(self, graph_run_id: UUID | None, enclosing: Frame) -> int:
        if graph_run_id is not None and graph_run_id not in enclosing.foreign_graphs:
            enclosing.foreign_graphs.append(graph_run_id)
        return enclosing.foreign_graphs.index(graph_run_id) if graph_run_id is not None else -1


def _subgraph_number(graph: str, task: str) -> int | None:
    """Return the number of a subgraph in its task; None if the graph is not a subgraph of the task."""
    for name in (task, recast_checkpoint_ns(task)):  # a subgraph with its own thread has no ids in its name
        if graph == name:
            return 0
        if graph.startswith(f"{name}|") and graph[len(name) + 1 :].isdigit():
            return int(graph[len(name) + 1 :])
    return None
