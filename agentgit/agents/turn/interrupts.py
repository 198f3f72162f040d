"""Assignment of a user's answers to the tool calls that asked for them.

A ToolNode runs all calls of an AI message in one task, and LangGraph numbers the answers of a task in the order in
which `interrupt()` is called there. That order changes from one attempt to the next: calls run in parallel, and a call
that is done does not ask again. Therefore each call gets its own view of the answers. It receives the answers that it
took before, in its own order. A new answer goes to the call whose question was shown to the user. Any other call asks
again.

A node's own code calls one tool after the other and asks between them. There LangGraph's numbers are right, provided
that a call answered from the record uses as many of them as it did when it ran: see `Interrupts.use_numbers`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langgraph.errors import GraphInterrupt

from agentgit.langgraph_internals import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    PregelScratchpad,
)
from agentgit.saver.codec import Codec
from agentgit.store.objects.blobs import Leaf
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import INTERRUPT, RESUME, GraphKey


@dataclass
class TaskShare:
    """The part of a task's answers and numbers that belongs to one call.

    Args:
        place: The position of the call in its AI message.
        taken: The numbers of the answers that the call took, in the order in which it asked.
        graphs: The numbers of the graphs that the call ran; the graphs find their state by these numbers.
        question: The hash of the question that the call waits for, as LangGraph stores it; None if it does not wait.
        calls: The numbers of the `@task`s that the call ran.
    """

    place: int
    taken: list[int] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    question: str | None = None
    calls: list[int] = field(default_factory=list)


_batch: ContextVar[str | None] = ContextVar("agentgit_batch", default=None)
"""The task whose ToolNode runs a batch of calls in this context."""


@contextmanager
def in_batch(config: RunnableConfig) -> Iterator[None]:
    """Mark this block as the run of a batch of calls by a ToolNode.

    Args:
        config: The config that the node received.
    """
    token = _batch.set(config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS))
    try:
        yield
    finally:
        _batch.reset(token)


def is_in_batch(task: str) -> bool:
    """Return whether the ToolNode of a task makes the current call as part of a batch."""
    return bool(task) and _batch.get() == task


class TaskAnswers:
    """The answers that one task has received.

    Args:
        shares: The share of each call that asked before, by the id of the call.
        count: The number of answers that the task had when this turn began; a new answer gets this number.
        shown: The hash of the question that was shown to the user; None if there was none.
    """

    def __init__(self, shares: Mapping[str, TaskShare], count: int, shown: str | None) -> None:
        self._shares = dict(shares)
        self._fresh: int | None = count
        self._is_recorded = bool(shares) or count == 0
        same = [(share.place, call_id) for call_id, share in shares.items() if shown and share.question == shown]
        self._asker = min(same)[1] if same else None
        self._lock = threading.Lock()

    def share(self, call_id: str, place: int) -> TaskShare:
        """Return the share of a call."""
        return self._shares.setdefault(call_id, TaskShare(place))

    def number(self, call_id: str, share: TaskShare, asked: int, pad: PregelScratchpad) -> int:
        """Return the number of the task's answer to a question.

        Args:
            call_id: The id of the call that asks.
            share: The share of the call.
            asked: The number of questions that the call has already asked in this attempt.
            pad: LangGraph's own view of the answers.
        """
        with self._lock:
            if asked < len(share.taken):
                return share.taken[asked]
            number = self._new(call_id, pad)
            if number is None:
                return len(pad.resume)
            share.taken.append(number)
            share.question = None
            return number

    def _new(self, call_id: str, pad: PregelScratchpad) -> int | None:
        """Return the number of the new answer if it is for this call; None if there is no answer for it."""
        number = self._fresh
        if not self._is_recorded:  # the questions predate the record, so LangGraph's numbers apply
            number = pad.interrupt_counter()
            if number < len(pad.resume):
                return number
        if number is None or self._asker not in (None, call_id):
            return None
        if number >= len(pad.resume) and pad.get_null_resume(False) is None:
            return None
        self._asker, self._fresh = call_id, None
        return number

    def graph(self, share: TaskShare, run: int) -> int:
        """Return the number of a graph that a call runs: the one from an earlier attempt, or else the next free one.

        Args:
            share: The share of the call.
            run: The number of graphs that the call has already run in this attempt.
        """
        with self._lock:
            if run == len(share.graphs):
                used = {number for one in self._shares.values() for number in one.graphs}
                share.graphs.append(next(number for number in itertools.count() if number not in used))
            return share.graphs[run]

    def unnumbered(self, call_id: str, pad: PregelScratchpad, consume: bool) -> Any:
        """Return the answer that was given without a question id, if it is for this call."""
        with self._lock:
            if self._asker not in (None, call_id):
                return None
            answer = pad.get_null_resume(consume)
            if consume and answer is not None:
                self._asker = call_id
            return answer


def with_own_view(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments with the call's own view in the config, which the tool may pass to a graph.

    Args:
        kwargs: The arguments of the tool. The view is the one set by `Interrupts.asking`.
    """
    given, current = kwargs.get("config"), var_child_runnable_config.get()
    if not isinstance(given, dict) or current is None:
        return kwargs
    conf, seen = given.get("configurable", {}), current.get("configurable", {})
    own = {name: seen[name] for name in (CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_SEND) if name in conf and name in seen}
    return {**kwargs, "config": {**given, "configurable": {**conf, **own}}} if own else kwargs


class Interrupts:
    """The questions that the tool calls of one turn ask.

    Args:
        store: The store that records them.
        branch: The row of the branch that runs.
        codec: The codec that the saver stores values with.
    """

    def __init__(self, store: Store, branch: StoredRow, codec: Codec) -> None:
        self.store = store
        self.branch = branch
        self._codec = codec
        self._tasks: dict[str, TaskAnswers] = {}
        self._shares: dict[UUID, tuple[str, str, TaskShare]] = {}
        self._own: dict[UUID, tuple[TaskShare, PregelScratchpad]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def asking(self, run_id: UUID, call_id: str, place: int | None) -> Iterator[None]:
        """Set a call's own view of the answers until the block ends.

        Args:
            run_id: The run of its tool.
            call_id: The id that distinguishes the call from the others of its task.
            place: Its position in the AI message; None if a node's own code makes the call.
        """
        config = var_child_runnable_config.get()
        view = None
        if config is not None:
            view = self._counted(config, run_id) if place is None else self._view(config, run_id, call_id, place)
        token = var_child_runnable_config.set(view or config)
        # Calls made inside the tool come from its own code, not from a ToolNode.
        batch = _batch.set(None)
        try:
            yield
        finally:
            _batch.reset(batch)
            var_child_runnable_config.reset(token)

    def _counted(self, config: RunnableConfig, run_id: UUID) -> RunnableConfig | None:
        """Return a config that gives a call of a node's own code LangGraph's numbers and records which ones it uses."""
        conf = config.get("configurable", {})
        pad = conf.get(CONFIG_KEY_SCRATCHPAD)
        if not isinstance(pad, PregelScratchpad):
            return None
        share = TaskShare(0)
        self._own[run_id] = share, pad

        def noting(count: Callable[[], int], numbers: list[int]) -> Callable[[], int]:
            def counted() -> int:
                numbers.append(number := count())
                return number

            return counted

        view = replace(
            pad,
            interrupt_counter=noting(pad.interrupt_counter, share.taken),
            subgraph_counter=noting(pad.subgraph_counter, share.graphs),
            call_counter=noting(pad.call_counter, share.calls),
        )
        return {**config, "configurable": {**conf, CONFIG_KEY_SCRATCHPAD: view}}

    def use_numbers(self, used: Mapping[str, Any] | None) -> None:
        """Use up the numbers of a call of a node's own code that is now answered from the record.

        Args:
            used: The numbers that were recorded for the call; None if it used none.
        """
        conf = (var_child_runnable_config.get() or {}).get("configurable", {})
        pad = conf.get(CONFIG_KEY_SCRATCHPAD)
        if not used or not isinstance(pad, PregelScratchpad):
            return
        for number in used["taken"]:
            if number < len(pad.resume):  # otherwise LangGraph has lost that answer and counts from there
                pad.interrupt_counter()
        for count, numbers in ((pad.subgraph_counter, used["graphs"]), (pad.call_counter, used.get("calls", ()))):
            for _ in numbers:
                count()

    def graphs(self, run_id: UUID) -> list[int]:
        """List the numbers of the graphs that a call has run."""
        if (own := self._own.get(run_id)) is not None:
            return own[0].graphs
        shared = self._shares.get(run_id)
        return shared[2].graphs if shared is not None else []

    def _view(self, config: RunnableConfig, run_id: UUID, call_id: str, place: int) -> RunnableConfig | None:
        conf = config.get("configurable", {})
        pad, send = conf.get(CONFIG_KEY_SCRATCHPAD), conf.get(CONFIG_KEY_SEND)
        if not isinstance(pad, PregelScratchpad) or send is None:
            return None
        asked, graphs = itertools.count(), itertools.count()

        def number() -> int:
            task, share = self._of(conf, run_id, call_id, place)
            found = task.number(call_id, share, next(asked), pad)
            if pad.resume:
                send([(RESUME, pad.resume)])  # keeps the answers of calls that do not ask again
            return found

        def unnumbered(consume: bool) -> Any:
            return self._of(conf, run_id, call_id, place)[0].unnumbered(call_id, pad, consume)

        def whole(writes: Sequence[tuple[str, Any]]) -> None:
            send([(channel, pad.resume if channel == RESUME else value) for channel, value in writes])

        def graph() -> int:
            task, share = self._of(conf, run_id, call_id, place)
            return task.graph(share, next(graphs))

        view = replace(pad, interrupt_counter=number, get_null_resume=unnumbered, subgraph_counter=graph)
        return {**config, "configurable": {**conf, CONFIG_KEY_SCRATCHPAD: view, CONFIG_KEY_SEND: whole}}

    def _of(self, conf: Mapping[str, Any], run_id: UUID, call_id: str, place: int) -> tuple[TaskAnswers, TaskShare]:
        name = conf[CONFIG_KEY_CHECKPOINT_NS]
        with self._lock:
            if name not in self._tasks:
                self._tasks[name] = self._read(conf)
        task = self._tasks[name]
        share = task.share(call_id, place)
        self._shares[run_id] = name, call_id, share
        return task, share

    def _read(self, conf: Mapping[str, Any]) -> TaskAnswers:
        """Read the answers that a task received before this turn."""
        name, store = conf[CONFIG_KEY_CHECKPOINT_NS], self.store
        ns = name.rpartition("|")[0]
        place = GraphKey(conf[CONFIG_KEY_THREAD_ID], ns, conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(ns, ""))
        with store.database.reading() as connection:
            writes = store.graphs.writes(connection, place)
            held = {write.channel: write.value for write in writes if write.task_id == conf[CONFIG_KEY_TASK_ID]}
            bodies = store.graphs.content.get(connection, [held[RESUME]] if RESUME in held else [])
            recorded = store.fences.used_answers(connection, store.parts(connection, self.branch), name)
        answers = [answer for body in bodies.values() for answer in self._codec.decode(body)]
        shown, count = held[INTERRUPT].hex() if INTERRUPT in held else None, len(answers)
        shares = {one["call"]: _share(one, count, shown) for one in recorded}
        return TaskAnswers(shares, count, shown)

    def end(self, run_id: UUID, error: BaseException | None = None) -> dict[str, Any] | None:
        """Return the record of the answers and numbers that a call has used; None if there are none.

        Args:
            run_id: The run of its tool.
            error: The exception that the call raised; an interrupt contains the question.
        """
        own = self._own.pop(run_id, None)
        if own is not None:
            share, pad = own
            # The next attempt uses the number of an unanswered question.
            share.taken = [number for number in share.taken if number < len(pad.resume)]
            has_used = share.taken or share.graphs or share.calls or isinstance(error, GraphInterrupt)
            return _recorded("", "", share) if has_used else None
        found = self._shares.pop(run_id, None)
        if found is None:
            return None
        task, call_id, share = found
        if isinstance(error, GraphInterrupt):
            body = self._codec.encode(error.args[0]).body  # encoded like in the saver, so that the hashes match
            share.question = body.hash.hex() if isinstance(body, Leaf) else None
        return _recorded(task, call_id, share)


def _recorded(task: str, call_id: str, share: TaskShare) -> dict[str, Any]:
    kept = {"task": task, "call": call_id, **asdict(share)}
    return kept if share.calls else {name: value for name, value in kept.items() if name != "calls"}


def _share(recorded: Mapping[str, Any], count: int, shown: str | None) -> TaskShare:
    """Read a share, without the answers that its task does not have: they were lost, or given on another branch.

    A call that took the answer that would come next is the one that asked the question shown now.
    """
    taken = recorded["taken"]
    question = shown if count in taken else recorded["question"]
    return TaskShare(recorded["place"], [number for number in taken if number < count], recorded["graphs"], question)
