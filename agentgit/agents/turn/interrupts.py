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
    """The part of a task's answers and numbers that belongs to one call."""

    place: int
    taken: list[int] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    question: str | None = None
    calls: list[int] = field(default_factory=list)


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
        matches = [
            (share.place, call_id)
            for call_id, share in shares.items()
            if shown_question and share.question == shown_question
        ]
        self._asking_call_id = min(matches)[1] if matches else None
        self._lock = threading.Lock()

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

    def graph_number(self, share: TaskShare, graph_index: int) -> int:
        """Return the number of a graph that a call runs: the one from an earlier attempt, or else the next free one."""
        with self._lock:
            if graph_index == len(share.graphs):
                used_numbers = {number for other_share in self._shares.values() for number in other_share.graphs}
                share.graphs.append(next(number for number in itertools.count() if number not in used_numbers))
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
    """The questions that the tool calls of one turn ask."""

    def __init__(self, store: Store, branch: StoredRow, codec: Codec) -> None:
        self.store = store
        self.branch = branch
        self._codec = codec
        self._task_answers: dict[str, TaskAnswers] = {}
        self._batch_shares: dict[UUID, tuple[str, str, TaskShare]] = {}
        self._node_shares: dict[UUID, tuple[TaskShare, PregelScratchpad]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def call_view(self, run_id: UUID, call_id: str, batch_index: int | None) -> Iterator[None]:
        """Set a call's own view of the answers until the block ends."""
        config = var_child_runnable_config.get()
        view = None
        if config is not None:
            view = (
                self._node_call_view(config, run_id)
                if batch_index is None
                else self._batch_call_view(config, run_id, call_id, batch_index)
            )
        token = var_child_runnable_config.set(view or config)
        # Calls made inside the tool come from its own code, not from a ToolNode.
        batch_token = _batch_task.set(None)
        try:
            yield
        finally:
            _batch_task.reset(batch_token)
            var_child_runnable_config.reset(token)

    def _node_call_view(self, config: RunnableConfig, run_id: UUID) -> RunnableConfig | None:
        """Return a config that gives a call of a node's own code LangGraph's numbers and records which ones it uses."""
        configurable = config.get("configurable", {})
        scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
        if not isinstance(scratchpad, PregelScratchpad):
            return None
        share = TaskShare(0)
        self._node_shares[run_id] = share, scratchpad

        def recording_counter(counter: Callable[[], int], numbers: list[int]) -> Callable[[], int]:
            def next_number() -> int:
                numbers.append(number := counter())
                return number

            return next_number

        view = replace(
            scratchpad,
            interrupt_counter=recording_counter(scratchpad.interrupt_counter, share.taken),
            subgraph_counter=recording_counter(scratchpad.subgraph_counter, share.graphs),
            call_counter=recording_counter(scratchpad.call_counter, share.calls),
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

    def graph_numbers(self, run_id: UUID) -> list[int]:
        """List the numbers of the graphs that a call has run."""
        if (node_entry := self._node_shares.get(run_id)) is not None:
            return node_entry[0].graphs
        batch_entry = self._batch_shares.get(run_id)
        return batch_entry[2].graphs if batch_entry is not None else []

    def _batch_call_view(
        self, config: RunnableConfig, run_id: UUID, call_id: str, batch_index: int
    ) -> RunnableConfig | None:
        configurable = config.get("configurable", {})
        scratchpad, send = configurable.get(CONFIG_KEY_SCRATCHPAD), configurable.get(CONFIG_KEY_SEND)
        if not isinstance(scratchpad, PregelScratchpad) or send is None:
            return None
        question_indexes, graph_indexes = itertools.count(), itertools.count()

        def next_answer_number() -> int:
            task_answers, share = self._find_share(configurable, run_id, call_id, batch_index)
            answer_index = task_answers.answer_number(call_id, share, next(question_indexes), scratchpad)
            if scratchpad.resume:
                send([(RESUME, scratchpad.resume)])  # keeps the answers of calls that do not ask again
            return answer_index

        def unnumbered_answer(consume: bool) -> Any:
            return self._find_share(configurable, run_id, call_id, batch_index)[0].unnumbered_answer(
                call_id, scratchpad, consume
            )

        def send_all_answers(writes: Sequence[tuple[str, Any]]) -> None:
            send([(channel, scratchpad.resume if channel == RESUME else value) for channel, value in writes])

        def next_graph_number() -> int:
            task_answers, share = self._find_share(configurable, run_id, call_id, batch_index)
            return task_answers.graph_number(share, next(graph_indexes))

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

    def _find_share(
        self, configurable: Mapping[str, Any], run_id: UUID, call_id: str, batch_index: int
    ) -> tuple[TaskAnswers, TaskShare]:
        task_name = configurable[CONFIG_KEY_CHECKPOINT_NS]
        with self._lock:
            if task_name not in self._task_answers:
                self._task_answers[task_name] = self._load_answers(configurable)
        task_answers = self._task_answers[task_name]
        share = task_answers.share(call_id, batch_index)
        self._batch_shares[run_id] = task_name, call_id, share
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

    def end(self, run_id: UUID, error: BaseException | None = None) -> dict[str, Any] | None:
        """Return the record of the answers and numbers that a call has used; None if there are none."""
        node_entry = self._node_shares.pop(run_id, None)
        if node_entry is not None:
            share, scratchpad = node_entry
            # The next attempt uses the number of an unanswered question.
            share.taken = [number for number in share.taken if number < len(scratchpad.resume)]
            is_worth_recording = share.taken or share.graphs or share.calls or isinstance(error, GraphInterrupt)
            return _share_record("", "", share) if is_worth_recording else None
        batch_entry = self._batch_shares.pop(run_id, None)
        if batch_entry is None:
            return None
        task_name, call_id, share = batch_entry
        if isinstance(error, GraphInterrupt):
            body = self._codec.encode(error.args[0]).body  # encoded like in the saver, so that the hashes match
            share.question = body.hash.hex() if isinstance(body, Leaf) else None
        return _share_record(task_name, call_id, share)


def _share_record(task_name: str, call_id: str, share: TaskShare) -> dict[str, Any]:
    record = {"task": task_name, "call": call_id, **asdict(share)}
    return record if share.calls else {name: value for name, value in record.items() if name != "calls"}


def _read_share(record: Mapping[str, Any], answer_count: int, shown_question: str | None) -> TaskShare:
    """Read a share, without the answers that its task does not have: they were lost, or given on another branch.

    A call that took the answer that would come next is the one that asked the question shown now.
    """
    answer_numbers = record["taken"]
    question = shown_question if answer_count in answer_numbers else record["question"]
    return TaskShare(
        record["place"], [number for number in answer_numbers if number < answer_count], record["graphs"], question
    )
