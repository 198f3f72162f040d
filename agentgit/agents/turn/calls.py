"""The tool calls of one turn: their requests, their pending results, and the tasks and tools that make them.

Each task has a name that stays the same when LangGraph runs the task again. LangGraph derives the id of a task of the
graph itself from the preceding graph checkpoint, so that id does not change. What such a task calls (a graph, a
`@task`) is named by its position in the task: LangGraph gives it a different id when the task is retried or when the
inner graph is not saved.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from langgraph.errors import ParentCommand

from agentgit.agents.turn.fence_errors import aborted_call_error, as_bubble_up
from agentgit.agents.turn.recorded_results import has_command
from agentgit.effects.declarations import Declaration
from agentgit.effects.effects import IDEMPOTENT, MEMORY, NEUTRAL, UNDECLARED, WORKSPACE
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS, PUSH, recast_checkpoint_ns
from agentgit.store.records.journal import Intent

HARMLESS = frozenset({*NEUTRAL, WORKSPACE, IDEMPOTENT, MEMORY, UNDECLARED})
"""The effects of calls that may run again when the record has no answer: no harm, can be taken back, or undeclared."""


@dataclass(frozen=True)
class ExpectedCall:
    """A call that a copy of its tool is about to make; the record can answer it instead."""

    parent_run_id: UUID | None
    configurable: Mapping[str, Any]
    declaration: Declaration
    has_effect: bool
    is_in_batch: bool

    @property
    def task(self) -> str:
        """The name that LangGraph gives to the task that makes the call."""
        return str(self.configurable.get(CONFIG_KEY_CHECKPOINT_NS) or "")


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


@dataclass(frozen=True)
class RequestedCall:
    """A call that is about to begin."""

    intent: Intent
    task: str
    requester: str
    caller_run_id: UUID | None
    repeat_hash: str
    is_named: bool
    is_in_batch: bool
    is_once: bool
    is_reachable: bool
    place: TaskPlace | None = None

    @property
    def call_id(self) -> str | None:
        """The id of the call, if it is the same every time."""
        return self.intent.tool_call_id if self.is_named else None

    @property
    def retry_key(self) -> tuple[str, str, int]:
        """The key that stays the same if LangGraph runs the call again in this turn."""
        return self.intent.idempotency_key, self.task, self.intent.batch if self.is_named else 0

    @property
    def is_harmless(self) -> bool:
        """True if the call may run again when the record has no answer."""
        return self.intent.effect in HARMLESS and not self.is_once


@dataclass(frozen=True)
class AdmittedCall:
    """A call that the interceptor has authorized or answered."""

    intent: Intent
    id: int | None
    answer: InflightResult | None = None
    attempt: Attempt | None = None
    used_numbers: dict[str, Any] | None = None
    name: str = ""
    scope: str = ""
    is_simulated: bool = False

    @property
    def runs_tool(self) -> bool:
        """True if the tool of the call runs."""
        return self.answer is None and not self.is_simulated


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

    def begin(self, run_id: UUID, parent_run_id: UUID | None, metadata: Mapping[str, Any] | None) -> None:
        """Record the start of a run; if it is the run of a task, name the task."""
        self._parents[run_id] = parent_run_id
        task = str((metadata or {}).get("langgraph_checkpoint_ns") or "")
        if not task:
            return
        enclosing = self.frame(parent_run_id)
        if enclosing is not None and enclosing.task == task:
            return
        with self._lock:
            self._frames[run_id] = self._new_frame(run_id, parent_run_id, task, metadata or {}, enclosing)

    def begin_tool(
        self, run_id: UUID, parent_run_id: UUID | None, scope: str, graph_numbers: Callable[[], list[int]]
    ) -> None:
        """Record the start of a tool's run."""
        self._parents[run_id] = parent_run_id
        enclosing = self.frame(parent_run_id)
        self._frames[run_id] = Frame(scope, run_id, enclosing.task if enclosing else "", graph_numbers=graph_numbers)

    def end_tool(self, run_id: UUID) -> None:
        """Forget the run of a tool that has ended; its parent stays known for what still runs inside it."""
        self._frames.pop(run_id, None)

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


@dataclass(frozen=True)
class InflightResult:
    """A result returned instead of running a tool; it may depend on another run of the same call that has not ended."""

    future: Future[Any]
    error: str | None = None

    @classmethod
    def of(cls, value: Any, error: str | None = None) -> InflightResult:
        """Create a result whose value is already known."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future, error)

    def wait(self) -> Any:
        """Wait for the result and return it."""
        return self.future.result()

    async def await_result(self) -> Any:
        """Wait for the result without blocking the event loop, and return it."""
        return await asyncio.wrap_future(self.future)


class Attempt:
    """A call of this turn that is running or has ended."""

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # a cancelled waiter must not cancel it
        self._is_aborted = False
        self.used_numbers: dict[str, Any] | None = None
        """The numbers of its task that the call has used; see `Interrupts.use_numbers`."""

    @property
    def answer(self) -> InflightResult:
        """The result that a second run of the call receives."""
        return InflightResult(self._future)

    @property
    def has_failed(self) -> bool:
        """True if the call raised or was aborted: the next equal call is another attempt at it."""
        error = self._future.exception() if self._future.done() else None
        return error is not None and not isinstance(error, ParentCommand)  # a tool hands over by this one

    @property
    def has_only_written(self) -> bool:
        """True if the call ended without a command: what it wrote to the graph's state itself is lost with its task."""
        has_ended = self._future.done() and not self.has_failed
        return has_ended and self._future.exception() is None and not has_command(self._future.result())

    def can_repeat(self, *, is_harmless: bool) -> bool:
        """Return whether the call may be made again: it failed, or it was aborted and repeating it does no harm."""
        return self.has_failed and (is_harmless or not self._is_aborted)

    def end(self, value: Any) -> None:
        """Record what the tool returned."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException, invocation_id: int | None = None) -> None:
        """Record what was raised; anything but an `Exception` (Ctrl-C) aborted the call at an unknown point."""
        if self._future.done():
            return
        self._is_aborted = not isinstance(error, Exception)
        self._future.set_exception(
            as_bubble_up(aborted_call_error(self.intent, invocation_id)) if self._is_aborted else error
        )


@dataclass
class Slot:
    """One call of one run of a task."""

    name: str
    identity: str
    keys: set[str] = field(default_factory=set)
    attempt: Attempt | None = None

    @property
    def is_retryable(self) -> bool:
        """True if the next equal call is another attempt at this one."""
        return self.attempt is not None and self.attempt.has_failed


class Slots:
    """The calls of one run of a task, in order.

    LangGraph's call ids are not enough: calls from a node's own code have none or get new ones every time, and
    middleware may make a call several times under one id. Equal calls are therefore counted. An equal call after an
    error is the same call.
    """

    def __init__(self) -> None:
        self.all: list[Slot] = []

    def assign(self, call_id: str | None, identity: str) -> Slot:
        """Assign a call to a slot and return the slot."""
        equal_slots = [slot for slot in self.all if slot.identity == identity]
        slot = next((slot for slot in equal_slots if slot.is_retryable), None)
        if slot is None:
            slot = Slot(self._name(call_id, identity, len(equal_slots)), identity)
            self.all.append(slot)
        return slot

    def _name(self, call_id: str | None, identity: str, number: int) -> str:
        if call_id is None:
            return f"#{identity}#{number}"
        if not self.all:
            return call_id  # the requested call; middleware makes the others
        if self.all[0].identity == identity:
            return f"{call_id}#{number}"
        return f"{call_id}#{identity}#{number}"
