"""The tool calls of one turn: their requests, their pending results, and the tasks and tools that make them.

Each task has a name that stays the same when LangGraph runs the task again. LangGraph derives the id of a task of the
graph itself from the preceding graph checkpoint, so that id does not change. What such a task calls (a graph, a
`@task`) is named by its position in the task: LangGraph gives it a different id when the task is retried or when the
inner graph is not saved.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langgraph.errors import ParentCommand

from agentgit.agents.turn.fence_errors import aborted_call, as_bubbling
from agentgit.effects.effects import IDEMPOTENT, READ_ONLY, UNDECLARED, Effect
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS, PUSH, recast_checkpoint_ns
from agentgit.store.records.journal import Intent

HARMLESS = frozenset({READ_ONLY, IDEMPOTENT, UNDECLARED})
"""The effects of calls that may run again when the record has no answer: repeating does no harm, or is undeclared."""


@dataclass(frozen=True)
class ExpectedCall:
    """A call that a copy of its tool is about to make; the record can answer it instead.

    Args:
        parent: The run that makes the call.
        conf: LangGraph's configuration of the task that makes the call.
        effect: The effect of its tool; None if it is undeclared.
        acts: True if its tool may change the world.
        is_in_batch: True if a ToolNode makes the call as part of a batch.
    """

    parent: UUID | None
    conf: Mapping[str, Any]
    effect: Effect | None
    acts: bool
    is_in_batch: bool

    @property
    def task(self) -> str:
        """The name that LangGraph gives to the task that makes the call."""
        return str(self.conf.get(CONFIG_KEY_CHECKPOINT_NS) or "")


@dataclass(frozen=True)
class RequestedCall:
    """A call that is about to begin.

    Args:
        intent: The record of the call; the interceptor sets its idempotency key.
        task: The task of the graph that makes the call.
        place: Where the call is made, the same every time: its AI message, or else the task.
        run: The run of the task or tool that makes the call.
        repeat_hash: A hash that the call shares with its repetitions.
        is_named: True if the call has the same id every time, because an AI message requested it.
        is_in_batch: True if a ToolNode makes the call as part of a batch.
        once: True if the tool takes effect at most once in a session.
        is_reachable: True if the record can answer the call, because its tool runs as a copy made by agentgit.
    """

    intent: Intent
    task: str
    place: str
    run: UUID | None
    repeat_hash: str
    is_named: bool
    is_in_batch: bool
    once: bool
    is_reachable: bool

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
        return self.intent.effect in HARMLESS and not self.once


@dataclass(frozen=True)
class AdmittedCall:
    """A call that the interceptor has authorized or answered.

    Args:
        intent: The record of the call.
        id: The id of its row; None if the row is not on disk yet.
        answer: The answer that the call gets instead of running its tool; its row, if it has one, is then a replay.
        attempt: The attempt that identifies the call if LangGraph runs it again in this turn.
        used: For an answered call, the numbers of its task that it used when it ran; see `Interrupts.use_numbers`.
        name: A name that distinguishes the call from the others of its place, the same every time.
        scope: The scope of what runs inside the call, the same every time.
    """

    intent: Intent
    id: int | None
    answer: InflightResult | None = None
    attempt: Attempt | None = None
    used: dict[str, Any] | None = None
    name: str = ""
    scope: str = ""


@dataclass
class Frame:
    """One run of a task or a tool, in which the calls are numbered from its start.

    Args:
        scope: The name of the scope, the same every time.
        run_id: This run.
        task: LangGraph's name of the task.
        first_graph: The number of the first graph that this run calls.
        first_call: The number of the first `@task` that this run calls.
        graphs: For a tool, a function that returns the numbers of the graphs that it has called.
    """

    scope: str
    run_id: UUID
    task: str
    first_graph: int = 0
    first_call: int = 0
    graphs: Callable[[], list[int]] | None = None
    others: list[UUID] = field(default_factory=list)
    """The graphs that were called in this run and are not subgraphs of its task."""


def scope_of(*parts: object) -> str:
    """Hash several parts into one name."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogatepass")).hexdigest()[:32]


class Scopes:
    """The runs of tasks and tools of one turn.

    Args:
        saved: A function that returns the numbers of the graphs that a task has called before, as far as they are
            saved.
    """

    def __init__(self, saved: Callable[[str], Iterable[int]]) -> None:
        self._saved = saved
        self._frames: dict[UUID, Frame] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._used: dict[str, tuple[int, int]] = {}  # task -> number of graphs and of calls in its runs
        self._tasks: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, run_id: UUID, parent: UUID | None, metadata: Mapping[str, Any] | None) -> None:
        """Record the start of a run; if it is the run of a task, name the task."""
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
        """Record the start of a tool's run."""
        self._parents[run_id] = parent
        above = self.frame(parent)
        self._frames[run_id] = Frame(scope, run_id, above.task if above else "", graphs=graphs)

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

    def parent(self, run_id: UUID) -> UUID | None:
        """Return the parent of a run."""
        return self._parents.get(run_id)

    def _frame(
        self, run_id: UUID, parent: UUID | None, task: str, metadata: Mapping[str, Any], above: Frame | None
    ) -> Frame:
        name = scope_of(task) if above is None else scope_of(above.scope, *self._place(task, parent, metadata, above))
        if task in self._tasks:  # LangGraph continues counting where the previous run stopped
            graphs, calls = self._used.get(task, (0, 0))
            graphs = max([graphs, *(number + 1 for number in self._saved(task))])
            return Frame(name, run_id, task, graphs, calls)
        self._tasks.add(task)
        return Frame(name, run_id, task)

    def _place(self, task: str, parent: UUID | None, metadata: Mapping[str, Any], above: Frame) -> list[object]:
        """Return the position of a task inside the enclosing run."""
        step, path = metadata.get("langgraph_step"), tuple(metadata.get("langgraph_path") or ())
        graph, _, node = task.rpartition("|")
        name = node.partition(":")[0]
        graphs, calls = self._used.get(above.task, (0, 0))
        if path[:1] == (PUSH,) and path[-1:] == (True,):  # a `@task`, numbered by its caller
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
    """Return the number of a subgraph in its task; None if the graph is not a subgraph of the task."""
    for name in (task, recast_checkpoint_ns(task)):  # a subgraph with its own thread has no ids in its name
        if graph == name:
            return 0
        if graph.startswith(f"{name}|") and graph[len(name) + 1 :].isdigit():
            return int(graph[len(name) + 1 :])
    return None


@dataclass(frozen=True)
class InflightResult:
    """A result returned instead of running a tool; it may depend on another run of the same call that has not ended.

    Args:
        future: Holds the value that the tool returned, or the exception that it raised.
    """

    future: Future[Any]

    @classmethod
    def of(cls, value: Any) -> InflightResult:
        """Create a result whose value is already known."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future)

    def wait(self) -> Any:
        """Wait for the result and return it."""
        return self.future.result()

    async def await_result(self) -> Any:
        """Wait for the result without blocking the event loop, and return it."""
        return await asyncio.wrap_future(self.future)


class Attempt:
    """A call of this turn that is running or has ended.

    Args:
        intent: The record of the call.
    """

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # a cancelled waiter must not cancel it
        self._was_broken_off = False
        self.is_unsure = False
        """True if the call raised and its tool could not verify whether it happened anyway."""
        self.used: dict[str, Any] | None = None
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

    def can_repeat(self, *, is_harmless: bool) -> bool:
        """Return whether the call may be made again: it failed, or it was aborted and repeating it does no harm."""
        return self.has_failed and (is_harmless or not self._was_broken_off)

    def end(self, value: Any) -> None:
        """Record what the tool returned."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException, invocation_id: int | None = None) -> None:
        """Record what was raised; anything but an `Exception` (Ctrl-C) aborted the call at an unknown point."""
        if self._future.done():
            return
        self._was_broken_off = not isinstance(error, Exception)
        self._future.set_exception(
            as_bubbling(aborted_call(self.intent, invocation_id)) if self._was_broken_off else error
        )


@dataclass
class Slot:
    """One call of one run of a task.

    Args:
        name: A name that distinguishes the call from the others, the same every time the task runs.
        identity: A value that the call shares with its repetitions.
        keys: The idempotency keys of the call and of its earlier attempts.
        attempt: The newest attempt at the call.
    """

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

    def take(self, call_id: str | None, identity: str) -> Slot:
        """Assign a call to a slot and return the slot.

        Args:
            call_id: Its id in the AI message that requested it; None if no message did.
            identity: A value that the call shares with its repetitions.
        """
        equal = [slot for slot in self.all if slot.identity == identity]
        slot = next((slot for slot in equal if slot.is_retryable), None)
        if slot is None:
            slot = Slot(self._name(call_id, identity, len(equal)), identity)
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
