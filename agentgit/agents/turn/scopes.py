"""The runs of one turn: its tasks and tools, in which calls are made, and the graphs that these run.

Each task has a name that stays the same when LangGraph runs the task again. LangGraph derives the id of a task of the
graph itself from the preceding graph checkpoint, so that id does not change. What such a task calls (a graph, a
`@task`) is named by its place in the task: LangGraph gives it a different id when the task is retried or when the
inner graph is not saved.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage

from agentgit.effects.invocation import identity
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS, PUSH, recast_checkpoint_ns
from agentgit.store.records.journal import Intent
from agentgit.values import portable

_newest_run: ContextVar[ReportedRun | None] = ContextVar("agentgit_newest_run", default=None)
"""The run that began last in this context. When LangGraph numbers a graph, it is the run of that graph."""


@dataclass(eq=False, kw_only=True)
class LocatedCall:
    """A call, by its place: its runs, its task, and the call whose tool makes it."""

    parent: LocatedCall | None
    run_id: UUID
    parent_run_id: UUID | None
    configurable: Mapping[str, Any]
    is_in_batch: bool = False
    """True if a ToolNode makes the call as one of a batch."""
    intent: Intent = field(init=False)
    requester: str = field(init=False)
    """What requested the call: an AI message, or else the task that makes it."""
    name: str = ""
    """The name of the call in what requested it."""
    used_numbers: dict[str, Any] | None = None
    """The numbers of its task that the call has used; see `Interrupts.use_numbers`."""

    @property
    def task(self) -> str:
        """The name that LangGraph gives to the task that makes the call."""
        return str(self.configurable.get(CONFIG_KEY_CHECKPOINT_NS) or "")

    @property
    def scope(self) -> str:
        """The name of the run of the call's tool, in which other calls are made."""
        return scope_name("call", self.requester, self.name, self.intent.tool_name)

    @property
    def is_of_node(self) -> bool:
        """True if the code of a node makes the call, and not a tool that runs in the same task."""
        return self.parent is None or self.parent.task != self.task


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


@dataclass(eq=False)
class ReportedRun:
    """A run that LangChain has reported. In that of a task or a tool, calls and graphs are numbered from its start."""

    id: UUID
    parent: ReportedRun | None
    task: str = ""
    names: Sequence[str | None] = ()
    """Its name and its tags."""
    inputs: Any = None
    """Its input, until it has ended."""
    line: object = None
    """The thread and the asyncio task that run its code."""
    scope: str = ""
    """The name of the task or the tool; empty for other runs."""
    place: TaskPlace | None = None
    first_graph: int = 0
    first_call: int = 0
    call: LocatedCall | None = None
    """The call whose tool it runs."""
    graphs: dict[UUID, str] = field(default_factory=dict)
    """The places of the graphs that its code has begun, by their runs."""
    earlier_graphs: set[str] | None = None
    """The places of the graphs that the tool ran beside others in earlier attempts; None if it is not read."""


def enclosing_name(caller: str | None, caller_task: str, task: str) -> str | None:
    """Return the name of the innermost tool or subgraph node that contains a call."""
    inside = task.removeprefix(caller_task) if caller is not None else task
    *nodes, _ = recast_checkpoint_ns(inside.strip("|")).split("|")
    return nodes[-1] if nodes else caller


def scope_name(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogatepass")).hexdigest()[:32]


class Scopes:
    def __init__(
        self,
        saved_graphs: Callable[[str], Iterable[int]],
        begin_parallel_graph: Callable[[LocatedCall, ReportedRun, str], None],
    ) -> None:
        self._saved_graphs, self._begin_parallel_graph = saved_graphs, begin_parallel_graph
        self._runs: dict[UUID, ReportedRun] = {}
        self._used_numbers: dict[str, tuple[int, int]] = {}  # task -> number of graphs and of calls in its runs
        self._lock = threading.RLock()

    def begin(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any] | None = None,
        names: Sequence[str | None] = (),
        inputs: Any = None,
    ) -> None:
        """Record the start of a run, which may be that of a task."""
        metadata, parent = metadata or {}, self._runs.get(parent_run_id) if parent_run_id is not None else None
        task = str(metadata.get("langgraph_checkpoint_ns") or "")
        run = self._runs[run_id] = ReportedRun(run_id, parent, task, names, inputs, _line())
        _newest_run.set(run)
        enclosing = self.scoped(parent_run_id)
        if task and (enclosing is None or enclosing.task != task):
            with self._lock:
                self._begin_task(run, metadata, enclosing)

    def begin_tool(self, run_id: UUID, enclosing: ReportedRun | None, call: LocatedCall) -> None:
        """Record that the tool of a call will run; what it began may still make calls when it has ended."""
        run = self._runs[run_id]
        run.call, run.scope, run.task = call, call.scope, enclosing.task if enclosing is not None else ""

    def enter_tool(self, run_id: UUID) -> None:
        """Record that this thread and this asyncio task run the code of a tool."""
        self._runs[run_id].line = _line()

    def end(self, run_id: UUID) -> None:
        """Forget the input of a run that has ended."""
        if (run := self._runs.get(run_id)) is not None:
            run.inputs = None

    def ancestors(self, run_id: UUID | None) -> Iterator[ReportedRun]:
        """Yield a run and those that contain it, the innermost first."""
        run = self._runs.get(run_id) if run_id is not None else None
        while run is not None:
            yield run
            run = run.parent

    def scoped(self, run_id: UUID | None) -> ReportedRun | None:
        """Return the run of the innermost task or tool that contains a run."""
        return next((run for run in self.ancestors(run_id) if run.scope), None)

    # -- graphs

    def beginning_graph(self) -> tuple[LocatedCall | None, str]:
        """Return the call whose tool runs the graph that begins in this context, and the graph's place there."""
        run = _newest_run.get()
        caller = self.scoped(run.id) if run is not None else None
        if run is None or caller is None or caller.call is None:  # called without callbacks, in a context of its own
            return None, ""
        return caller.call, self._graph_place(run, caller)

    def _graph_place(self, graph: ReportedRun, caller: ReportedRun) -> str:
        """Return the place of a graph in a task or tool: its order, or beside others its name, tags and input."""
        with self._lock:
            if graph.id not in caller.graphs:
                is_parallel = graph.line != caller.line
                content = {"names": [*graph.names], "input": _without_ids(graph.inputs) if is_parallel else None}
                kind = identity("", content, None) if is_parallel else ""
                place = f"{kind}#{sum(one.rpartition('#')[0] == kind for one in caller.graphs.values())}"
                if is_parallel and caller.call is not None:
                    self._begin_parallel_graph(caller.call, caller, place)
                caller.graphs[graph.id] = place
            return caller.graphs[graph.id]

    # -- tasks

    def _begin_task(self, run: ReportedRun, metadata: Mapping[str, Any], enclosing: ReportedRun | None) -> None:
        if enclosing is None:
            run.scope = scope_name(run.task)
            run.place = TaskPlace(run.task.partition(":")[0], tuple(metadata.get("langgraph_path") or ()))
        else:
            position = tuple(self._position(run, metadata, enclosing))
            run.scope, place = scope_name(enclosing.scope, *position), enclosing.place
            run.place = place and replace(place, positions=(*place.positions, position))
        if run.task in self._used_numbers:  # LangGraph continues counting where the previous run stopped
            run.first_graph, run.first_call = self._used_numbers[run.task]
            run.first_graph = max([run.first_graph, *(number + 1 for number in self._saved_graphs(run.task))])
        self._used_numbers.setdefault(run.task, (0, 0))

    def _position(self, run: ReportedRun, metadata: Mapping[str, Any], enclosing: ReportedRun) -> list[object]:
        step, path = metadata.get("langgraph_step"), tuple(metadata.get("langgraph_path") or ())
        namespace, _, node = run.task.rpartition("|")
        name = node.partition(":")[0]
        graph_count, call_count = self._used_numbers.get(enclosing.task, (0, 0))
        if path[:1] == (PUSH,) and path[-1:] == (True,):  # a `@task`, numbered by its caller
            number = int(path[2])
            self._used_numbers[enclosing.task] = graph_count, max(call_count, number + 1)
            return ["call", name, number - enclosing.first_call]
        graph_number = _subgraph_number(namespace, enclosing.task)
        if graph_number is not None:
            self._used_numbers[enclosing.task] = max(graph_count, graph_number + 1), call_count
            if enclosing.call is None:
                return ["graph", graph_number - enclosing.first_graph, name, step, path]
        place = self._graph_place(run.parent, enclosing) if run.parent is not None else ""
        return ["other" if graph_number is None else "graph", place, name, step, path]


def _line() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        task = None
    return threading.get_ident(), task and weakref.ref(task)


def _without_ids(value: Any) -> Any:
    """Return the JSON form of the input of a graph, without the ids that LangGraph gives to messages."""
    if isinstance(value, Mapping):
        return {str(name): _without_ids(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_ids(item) for item in value]
    return portable(value.model_dump(exclude={"id"}) if isinstance(value, BaseMessage) else value)


def _subgraph_number(namespace: str, task: str) -> int | None:
    for name in (task, recast_checkpoint_ns(task)):  # a subgraph with its own thread has no ids in its name
        if namespace == name:
            return 0
        if namespace.startswith(f"{name}|") and namespace[len(name) + 1 :].isdigit():
            return int(namespace[len(name) + 1 :])
    return None
