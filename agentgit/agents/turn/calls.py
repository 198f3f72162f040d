"""The calls of one turn: as requested and admitted, the tasks they are made in, and those that run a second time.

The tasks of one turn, each by a name that it has again when LangGraph runs it again. A task of the graph itself has an
id that LangGraph makes from the graph checkpoint before it. What such a task calls in its turn (a graph, a `@task`) is
named by its place there: the ids that LangGraph gives it are others when the task is retried, or where the inner graph
is not saved.
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

from agentgit.agents.turn.fence_errors import broken_off, unswallowed
from agentgit.effects.effects import IDEMPOTENT, READ_ONLY, UNDECLARED, Effect
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS, PUSH, recast_checkpoint_ns
from agentgit.store.records.journal import Intent

HARMLESS = frozenset({READ_ONLY, IDEMPOTENT, UNDECLARED})
"""The effects that may run again where the record cannot answer: nothing is lost by it, or nobody said so."""


@dataclass(frozen=True)
class Calling:
    """A call that is about to be made by a copy of its tool, which can be answered for.

    Args:
        parent: The run that it is made in.
        conf: LangGraph's configuration of the task that makes it.
        effect: The effect of its tool; None if it is undeclared.
        acts: True if its tool may change the world.
        is_in_batch: True if a ToolNode makes it, beside others.
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
        intent: The record of it; the interceptor makes its idempotency key.
        task: The task of the graph that makes it.
        place: The place where it is made, the same each time: its AI message, or else the task.
        run: The run of the task or of the tool that makes it.
        same: The hash of what it has in common with its repetitions.
        is_named: True if its id is the same each time: an AI message asked for it.
        is_in_batch: True if a ToolNode makes it, beside others.
        once: True if its tool happens at most once in a session.
        is_reachable: True if the tool can be answered for: it runs as a copy of ours.
    """

    intent: Intent
    task: str
    place: str
    run: UUID | None
    same: str
    is_named: bool
    is_in_batch: bool
    once: bool
    is_reachable: bool

    @property
    def call_id(self) -> str | None:
        """Its id, if that is the same each time."""
        return self.intent.tool_call_id if self.is_named else None

    @property
    def again(self) -> tuple[str, str, int]:
        """The key that stays the same if LangGraph runs the call once more in this turn."""
        return self.intent.idempotency_key, self.task, self.intent.batch if self.is_named else 0

    @property
    def is_harmless(self) -> bool:
        """True if it may run again where the record cannot answer."""
        return self.intent.effect in HARMLESS and not self.once


@dataclass(frozen=True)
class AdmittedCall:
    """A call that was let in.

    Args:
        intent: The record of it.
        id: The id of its row, once that is on disk.
        answer: The answer that it gets instead of running; the row is then a replay, if there is one.
        attempt: The attempt by which it is recognised, if LangGraph runs it once more in this turn.
        used: If it is answered, the numbers of its task that it used up when it ran; see `Questions.skip`.
        name: The name that tells it from the other calls of its place, the same each time.
        scope: The name of what is called in it, the same each time.
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


@dataclass(frozen=True)
class InflightResult:
    """A result that is returned instead of running a tool, perhaps only after another run of the same call ends.

    Args:
        future: Yields the value that the tool returned, or raises what the tool raised.
    """

    future: Future[Any]

    @classmethod
    def of(cls, value: Any) -> InflightResult:
        """Make the answer that is known already."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future)

    def wait(self) -> Any:
        """Wait for the result and return it."""
        return self.future.result()

    async def come(self) -> Any:
        """Wait for the result without blocking the event loop, and return it."""
        return await asyncio.wrap_future(self.future)


class Attempt:
    """A call of this turn that runs or has ended.

    Args:
        intent: The record of it.
    """

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # whoever waits for it and is cancelled must not cancel it
        self._was_broken_off = False
        self.is_unsure = False
        """True if it raised, and its tool could not see whether it happened all the same."""
        self.used: dict[str, Any] | None = None
        """The numbers of its task that it has used up; see `Questions.skip`."""

    @property
    def answer(self) -> InflightResult:
        """The result that a second run of the call receives."""
        return InflightResult(self._future)

    @property
    def has_failed(self) -> bool:
        """True if it raised or was broken off: the next equal call is another attempt at the same."""
        error = self._future.exception() if self._future.done() else None
        return error is not None and not isinstance(error, ParentCommand)  # by that a tool hands over

    def is_over(self, *, is_harmless: bool) -> bool:
        """Return whether the call may be made again: it failed; or it was broken off, and that does no harm."""
        return self.has_failed and (is_harmless or not self._was_broken_off)

    def end(self, value: Any) -> None:
        """Note what the tool returned."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException, invocation_id: int | None = None) -> None:
        """Note what was raised; if that is no error of the tool, the call was broken off, nobody knows where."""
        if self._future.done():
            return
        self._was_broken_off = not isinstance(error, Exception)
        self._future.set_exception(
            unswallowed(broken_off(self.intent, invocation_id)) if self._was_broken_off else error
        )


@dataclass
class Slot:
    """One call among those of one run of a task.

    Args:
        name: The name that tells it from the others, the same each time that the task runs.
        identity: The value that it shares with its repetitions.
        keys: The idempotency keys that it has, or had when it was made.
        attempt: The newest attempt at it.
    """

    name: str
    identity: str
    keys: set[str] = field(default_factory=set)
    attempt: Attempt | None = None

    @property
    def is_free(self) -> bool:
        """True if the next equal call is this one again."""
        return self.attempt is not None and self.attempt.has_failed


class Slots:
    """The calls of one run of a task, in their order.

    LangGraph's ids of calls are not enough: a node's own code has none, or makes new ones each time; and middleware may
    make a call several times under one id. So equal calls are counted. Who comes again after an error is the same call.
    """

    def __init__(self) -> None:
        self.all: list[Slot] = []

    def take(self, call_id: str | None, identity: str) -> Slot:
        """Assign a call to its slot, and return that.

        Args:
            call_id: Its id in the AI message that asked for it; None if none did.
            identity: The value that it shares with its repetitions.
        """
        equal = [slot for slot in self.all if slot.identity == identity]
        slot = next((slot for slot in equal if slot.is_free), None)
        if slot is None:
            slot = Slot(self._name(call_id, identity, len(equal)), identity)
            self.all.append(slot)
        return slot

    def _name(self, call_id: str | None, identity: str, number: int) -> str:
        if call_id is None:
            return f"#{identity}#{number}"
        if not self.all:
            return call_id  # what was asked for; what comes then is middleware's doing
        if self.all[0].identity == identity:
            return f"{call_id}#{number}"
        return f"{call_id}#{identity}#{number}"
