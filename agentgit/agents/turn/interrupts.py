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
from typing import Any, Protocol
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
from agentgit.store.records.journal import Intent
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import INTERRUPT, RESUME, GraphKey
from agentgit.store.unit_of_work import UnitOfWork


@dataclass
class TaskShare:
    """The part of a task's answers and numbers that belongs to one call."""

    place: int
    taken: list[int] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    question: str | None = None
    calls: list[int] = field(default_factory=list)


class NumberedCall(Protocol):
    """A call, as far as the numbers of its task depend on it."""

    intent: Intent
    name: str
    caller_run_id: UUID | None

    @property
    def is_in_batch(self) -> bool:
        """True if a ToolNode makes the call as one of a batch."""

    @property
    def is_of_node(self) -> bool:
        """True if the code of a node makes the call, and not a tool that runs in the same task."""


_batch_task: ContextVar[str | None] = ContextVar("agentgit_batch", default=None)
"""The task whose ToolNode runs a batch of calls in this context."""


@contextmanager
def in_batch(config: RunnableConfig) -> Iterator[None]:
    """Mark this block as the run of a batch of calls by a ToolNode."""
    token = _batch_task.set(config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS))
    try:
        yield
    finally:
        _batch_task.reset(token)


def is_in_batch(task: str) -> bool:
    """Return whether the ToolNode of a task makes the current call as part of a batch."""
    return bool(task) and _batch_task.get() == task


class TaskAnswers:
    """The answers that one task has received."""

    def __init__(self, shares: Mapping[str, TaskShare], answer_count: int, shown_question: str | None) -> None:
        self._shares = dict(shares)
        self._new_number: int | None = answer_count
        self._is_recorded = bool(shares) or answer_count == 0
        self._first_run: UUID | None = None
        matches = [
            (share.place, call_id)
            for call_id, share in shares.items()
            if shown_question and share.question == shown_question
        ]
        self._asking_call_id = min(matches)[1] if matches else None
        self._lock = threading.Lock()

    def is_first_run(self, run_id: UUID | None) -> bool:
        """Return whether a run of the task is its first in this turn. LangGraph numbers the graphs of a retry anew."""
        self._first_run = self._first_run or run_id
        return run_id == self._first_run

    def share(self, call_id: str, batch_index: int) -> TaskShare:
        """Return the share of a call."""
        return self._shares.setdefault(call_id, TaskShare(batch_index))

    def answer_number(self, call_id: str, share: TaskShare, question_index: int, scratchpad: PregelScratchpad) -> int:
        """Return the number of the task's answer to a question."""
        with self._lock:
            if question_index < len(share.taken):
                return share.taken[question_index]
            number = self._new_answer_number(call_id, scratchpad)
            if number is None:
                return len(scratchpad.resume)
            share.taken.append(number)
            share.question = None
            return number

    def _new_answer_number(self, call_id: str, scratchpad: PregelScratchpad) -> int | None:
        """Return the number of the new answer if it is for this call; None if there is no answer for it."""
        number = self._new_number
        if not self._is_recorded:  # the questions predate the record, so LangGraph's numbers apply
            number = scratchpad.interrupt_counter()
            if number < len(scratchpad.resume):
                return number
        if number is None or self._asking_call_id not in (None, call_id):
            return None
        if number >= len(scratchpad.resume) and scratchpad.get_null_resume(False) is None:
            return None
        self._asking_call_id, self._new_number = call_id, None
        return number

    def graph_number(self, share: TaskShare, graph_index: int, count: Callable[[], int] | None = None) -> int:
        """Return the number of a graph that a call runs: the one from an earlier attempt, or else the next free one.

        `count` is LangGraph's counter, which also numbers the graphs that a node's own code runs.
        """
        with self._lock:
            number = count() if count is not None else 0
            if graph_index == len(share.graphs):
                used_numbers = {number for other_share in self._shares.values() for number in other_share.graphs}
                while number in used_numbers:
                    number = count() if count is not None else number + 1
                share.graphs.append(number)
            return share.graphs[graph_index]

    def unnumbered_answer(self, call_id: str, scratchpad: PregelScratchpad, consume: bool) -> Any:
        """Return the answer that was given without a question id, if it is for this call."""
        with self._lock:
            if self._asking_call_id not in (None, call_id):
                return None
            answer = scratchpad.get_null_resume(consume)
            if consume and answer is not None:
                self._asking_call_id = call_id
            return answer


def with_own_view(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments with the call's own view in the config, which the tool may pass to a graph."""
    config, current_config = kwargs.get("config"), var_child_runnable_config.get()
    if not isinstance(config, dict) or current_config is None:
        return kwargs
    configurable, current_configurable = config.get("configurable", {}), current_config.get("configurable", {})
    overrides = {
        name: current_configurable[name]
        for name in (CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_SEND)
        if name in configurable and name in current_configurable
    }
    return {**kwargs, "config": {**config, "configurable": {**configurable, **overrides}}} if overrides else kwargs


class Interrupts:
    """The questions that the tool calls of one turn ask, and the graphs that their tools run."""

    def __init__(self, store: Store, branch: StoredRow, codec: Codec, unit_of_work: UnitOfWork) -> None:
        self.store = store
        self.branch = branch
        self._codec = codec
        self._unit_of_work = unit_of_work
        self._task_answers: dict[str, TaskAnswers] = {}
        self._shares: dict[NumberedCall, _UsedShare] = {}
        self._lock = threading.Lock()

    @contextmanager
    def call_view(self, call: NumberedCall) -> Iterator[None]:
        """Set a call's own view of the answers and numbers of its task until the block ends."""
        config = var_child_runnable_config.get()
        scratchpad = (config or {}).get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
        view = None
        if config is not None and isinstance(scratchpad, PregelScratchpad):
            create = self._batch_call_view if call.is_in_batch else self._direct_call_view
            view = create(config, scratchpad, call)
        token = var_child_runnable_config.set(view or config)
        # Calls made inside the tool come from its own code, not from a ToolNode.
        batch_token = _batch_task.set(None)
        try:
            yield
        finally:
            _batch_task.reset(batch_token)
            var_child_runnable_config.reset(token)

    def _direct_call_view(
        self, config: RunnableConfig, scratchpad: PregelScratchpad, call: NumberedCall
    ) -> RunnableConfig:
        """Return a config that gives a call of a node's own code LangGraph's numbers and records which ones it uses."""
        configurable = config.get("configurable", {})
        used = self._shares[call] = _UsedShare(TaskShare(0), task_of(configurable), scratchpad)
        graph_indexes = itertools.count()

        def recording_counter(counter: Callable[[], int], numbers: list[int]) -> Callable[[], int]:
            def next_number() -> int:
                numbers.append(number := counter())
                return number

            return next_number

        def next_graph_number() -> int:
            answers, share = self._find_share(configurable, call)
            if not call.is_of_node or not answers.is_first_run(call.caller_run_id):
                used.share.graphs.append(number := scratchpad.subgraph_counter())
                return number
            number = answers.graph_number(share, next(graph_indexes), scratchpad.subgraph_counter)
            used.share.graphs = share.graphs
            self._unit_of_work.add_answers(call.intent, used.record(call.name))
            return number

        view = replace(
            scratchpad,
            interrupt_counter=recording_counter(scratchpad.interrupt_counter, used.share.taken),
            subgraph_counter=next_graph_number,
            call_counter=recording_counter(scratchpad.call_counter, used.share.calls),
        )
        return {**config, "configurable": {**configurable, CONFIG_KEY_SCRATCHPAD: view}}

    def use_numbers(self, recorded: Mapping[str, Any] | None) -> None:
        """Use up the numbers of a call of a node's own code that is now answered from the record."""
        configurable = (var_child_runnable_config.get() or {}).get("configurable", {})
        scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
        if not recorded or not isinstance(scratchpad, PregelScratchpad):
            return
        for number in recorded["taken"]:
            if number < len(scratchpad.resume):  # otherwise LangGraph has lost that answer and counts from there
                scratchpad.interrupt_counter()
        for counter, numbers in (
            (scratchpad.subgraph_counter, recorded["graphs"]),
            (scratchpad.call_counter, recorded.get("calls", ())),
        ):
            for _ in numbers:
                counter()

    def graph_numbers(self, call: NumberedCall) -> list[int]:
        """List the numbers of the graphs that a call has run."""
        used = self._shares.get(call)
        return used.share.graphs if used is not None else []

    def _batch_call_view(
        self, config: RunnableConfig, scratchpad: PregelScratchpad, call: NumberedCall
    ) -> RunnableConfig | None:
        configurable = config.get("configurable", {})
        send = configurable.get(CONFIG_KEY_SEND)
        if send is None:
            return None
        question_indexes, graph_indexes = itertools.count(), itertools.count()

        def next_answer_number() -> int:
            task_answers, share = self._find_share(configurable, call)
            answer_index = task_answers.answer_number(call.name, share, next(question_indexes), scratchpad)
            if scratchpad.resume:
                send([(RESUME, scratchpad.resume)])  # keeps the answers of calls that do not ask again
            return answer_index

        def unnumbered_answer(consume: bool) -> Any:
            return self._find_share(configurable, call)[0].unnumbered_answer(call.name, scratchpad, consume)

        def send_all_answers(writes: Sequence[tuple[str, Any]]) -> None:
            send([(channel, scratchpad.resume if channel == RESUME else value) for channel, value in writes])

        def next_graph_number() -> int:
            task_answers, share = self._find_share(configurable, call)
            number = task_answers.graph_number(share, next(graph_indexes))
            self._unit_of_work.add_answers(call.intent, self._shares[call].record(call.name))
            return number

        view = replace(
            scratchpad,
            interrupt_counter=next_answer_number,
            get_null_resume=unnumbered_answer,
            subgraph_counter=next_graph_number,
        )
        return {
            **config,
            "configurable": {**configurable, CONFIG_KEY_SCRATCHPAD: view, CONFIG_KEY_SEND: send_all_answers},
        }

    def _find_share(self, configurable: Mapping[str, Any], call: NumberedCall) -> tuple[TaskAnswers, TaskShare]:
        task_name = task_of(configurable)
        with self._lock:
            if task_name not in self._task_answers:
                self._task_answers[task_name] = self._load_answers(configurable)
        task_answers = self._task_answers[task_name]
        share = task_answers.share(call.name, call.intent.batch_index)
        self._shares.setdefault(call, _UsedShare(share, task_name))
        return task_answers, share

    def _load_answers(self, configurable: Mapping[str, Any]) -> TaskAnswers:
        """Read the answers that a task received before this turn."""
        task_name, store = configurable[CONFIG_KEY_CHECKPOINT_NS], self.store
        ns = task_name.rpartition("|")[0]
        graph_key = GraphKey(
            configurable[CONFIG_KEY_THREAD_ID], ns, configurable.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(ns, "")
        )
        with store.database.reading() as connection:
            writes = store.graphs.writes(connection, graph_key)
            value_hashes = {
                write.channel: write.value for write in writes if write.task_id == configurable[CONFIG_KEY_TASK_ID]
            }
            content = store.graphs.content(self.branch.external_session_id)
            bodies = content.get(connection, [value_hashes[RESUME]] if RESUME in value_hashes else [])
            records = store.recorded_calls.used_answers(
                connection, store.track_parts(connection, self.branch), task_name
            )
        answers = [answer for body in bodies.values() for answer in self._codec.decode(body)]
        shown_question, answer_count = (
            value_hashes[INTERRUPT].hex() if INTERRUPT in value_hashes else None,
            len(answers),
        )
        shares = {record["call"]: _read_share(record, answer_count, shown_question) for record in records}
        return TaskAnswers(shares, answer_count, shown_question)

    def end(self, call: NumberedCall, error: BaseException | None = None) -> dict[str, Any] | None:
        """Return the record of the answers and numbers that a call has used; None if there are none."""
        used = self._shares.get(call)
        if used is None:
            return None
        share = used.share
        if used.scratchpad is not None:
            # The next attempt uses the number of an unanswered question.
            share.taken = [number for number in share.taken if number < len(used.scratchpad.resume)]
            if not (share.taken or share.graphs or share.calls or isinstance(error, GraphInterrupt)):
                return None
        elif isinstance(error, GraphInterrupt):
            body = self._codec.encode(error.args[0]).body  # encoded like in the saver, so that the hashes match
            share.question = body.hash.hex() if isinstance(body, Leaf) else None
        return used.record(call.name)


def task_of(configurable: Mapping[str, Any]) -> str:
    """Return the name of the task that a config belongs to."""
    return str(configurable[CONFIG_KEY_CHECKPOINT_NS])


@dataclass
class _UsedShare:
    """The share of a call in the answers and numbers of its task.

    A call of a node's own code has the numbers that LangGraph gives, from the scratchpad of its task.
    """

    share: TaskShare
    task: str
    scratchpad: PregelScratchpad | None = None

    def record(self, call_name: str) -> dict[str, Any]:
        """Return the form in which the journal stores it."""
        used = {name: value for name, value in asdict(self.share).items() if name != "calls" or value}
        return {"task": self.task, "call": call_name, "direct": self.scratchpad is not None, **used}


def _read_share(record: Mapping[str, Any], answer_count: int, shown_question: str | None) -> TaskShare:
    """Read a share, without the answers that its task does not have: they were lost, or given on another branch.

    A call that took the answer that would come next is the one that asked the question shown now.
    """
    answer_numbers = record["taken"]
    question = shown_question if answer_count in answer_numbers else record["question"]
    return TaskShare(
        record["place"], [number for number in answer_numbers if number < answer_count], record["graphs"], question
    )
