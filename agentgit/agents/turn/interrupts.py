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

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langgraph.errors import GraphInterrupt

from agentgit.agents.instrumentation import in_batch
from agentgit.agents.turn.fence_errors import as_bubble_up, parallel_graphs_error
from agentgit.agents.turn.scopes import LocatedCall, ReportedRun, Scopes
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
from agentgit.store.unit_of_work import UnitOfWork


@dataclass
class TaskShare:
    """The share of a call in the answers and numbers of its task."""

    task: str
    call: str
    """The scope of the call, which is the same when it is made again."""
    direct: bool
    """True if it has the numbers that LangGraph gives, as a call of a node's own code."""
    place: int = 0
    taken: list[int] = field(default_factory=list)
    question: str | None = None
    calls: list[int] = field(default_factory=list)
    graphs: dict[str, int | None] = field(default_factory=dict)
    """The places of the graphs that it ran, each with its number in the task, if LangGraph gave one."""
    scratchpad: PregelScratchpad | None = None

    def record(self) -> dict[str, Any]:
        """Return the form in which the journal stores it."""
        return {name: value for name, value in vars(self).items() if name != "scratchpad"}


class TaskAnswers:
    """The answers that one task has received, whose ToolNode runs a batch of calls."""

    def __init__(self, shares: Sequence[TaskShare], answer_count: int, shown_question: str | None) -> None:
        self._shares: dict[str, TaskShare] = {}
        self._new_number: int | None = answer_count
        self._is_recorded = bool(shares) or answer_count == 0
        matches = []
        for share in shares:
            # A call that took the answer that would come next is the one that asked the question shown now.
            question = shown_question if answer_count in share.taken else share.question
            # Answers that its task does not have were lost, or given on another branch.
            known_answers = [number for number in share.taken if number < answer_count]
            self._shares[share.call] = replace(share, taken=known_answers, question=question)
            if question is not None and question == shown_question:
                matches.append((share.place, share.call))
        self._asking_call = min(matches)[1] if matches else None
        self._lock = threading.Lock()

    def share(self, new: TaskShare) -> TaskShare:
        """Return the share of a call: the one from an earlier attempt, or else a new one."""
        return self._shares.setdefault(new.call, new)

    def answer_number(self, share: TaskShare, question_index: int, scratchpad: PregelScratchpad) -> int:
        with self._lock:
            if question_index < len(share.taken):
                return share.taken[question_index]
            number = self._new_answer_number(share.call, scratchpad)
            if number is None:
                return len(scratchpad.resume)
            share.taken.append(number)
            share.question = None
            return number

    def _new_answer_number(self, call: str, scratchpad: PregelScratchpad) -> int | None:
        number = self._new_number
        if not self._is_recorded:  # the questions predate the record, so LangGraph's numbers apply
            number = scratchpad.interrupt_counter()
            if number < len(scratchpad.resume):
                return number
        if number is None or self._asking_call not in (None, call):
            return None
        if number >= len(scratchpad.resume) and scratchpad.get_null_resume(False) is None:
            return None
        self._asking_call, self._new_number = call, None
        return number

    def unnumbered_answer(self, call: str, scratchpad: PregelScratchpad, consume: bool) -> Any:
        """Return the answer that was given without a question id, if it is for this call."""
        with self._lock:
            if self._asking_call not in (None, call):
                return None
            answer = scratchpad.get_null_resume(consume)
            if consume and answer is not None:
                self._asking_call = call
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

    def __init__(self, store: Store, branch: StoredRow, codec: Codec, unit_of_work: UnitOfWork, scopes: Scopes) -> None:
        self.store = store
        self.branch = branch
        self._codec = codec
        self._unit_of_work = unit_of_work
        self._scopes = scopes
        self._task_answers: dict[str, TaskAnswers] = {}
        self._shares: dict[LocatedCall, TaskShare] = {}
        self._lock = threading.RLock()

    @functools.cached_property
    def _known_shares(self) -> dict[str, TaskShare]:
        """The shares that calls on the path of the branch used in earlier attempts, by their scopes."""
        shares: dict[str, TaskShare] = {}
        with self.store.database.reading() as transaction:
            path = self.store.track_parts(transaction, self.branch)
            for record in self.store.recorded_calls.used_answers(transaction, path):
                share = TaskShare(**record)
                share.graphs = {**(shares[share.call].graphs if share.call in shares else {}), **share.graphs}
                shares[share.call] = share
        return shares

    @contextmanager
    def call_view(self, call: LocatedCall) -> Iterator[None]:
        """Set a call's own view of the answers and numbers of its task until the block ends."""
        self._scopes.enter_tool(call.run_id)
        config = var_child_runnable_config.get()
        scratchpad = (config or {}).get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
        if not call.is_in_batch:
            self._shares[call] = TaskShare(call.task, call.scope, direct=True)
        if config is not None and isinstance(scratchpad, PregelScratchpad):
            config = self._view(config, scratchpad, call)
        token = var_child_runnable_config.set(config)
        try:
            with in_batch(None):  # calls made inside the tool come from its own code
                yield
        finally:
            var_child_runnable_config.reset(token)

    def _view(self, config: RunnableConfig, scratchpad: PregelScratchpad, call: LocatedCall) -> RunnableConfig:
        """Return a config with counters for the call: its own if it is one of a batch, else LangGraph's."""
        configurable = config.get("configurable", {})
        send: Callable[[Sequence[tuple[str, Any]]], None] = configurable[CONFIG_KEY_SEND]
        question_indexes = itertools.count()

        def next_answer_number() -> int:
            answers, share = self._batch_share(call)
            answer_index = answers.answer_number(share, next(question_indexes), scratchpad)
            if scratchpad.resume:
                send([(RESUME, scratchpad.resume)])  # keeps the answers of calls that do not ask again
            return answer_index

        def unnumbered_answer(consume: bool) -> Any:
            answers, share = self._batch_share(call)
            return answers.unnumbered_answer(share.call, scratchpad, consume)

        def send_all_answers(writes: Sequence[tuple[str, Any]]) -> None:
            send([(channel, scratchpad.resume if channel == RESUME else value) for channel, value in writes])

        counters: dict[str, Any] = {}
        if call.is_in_batch or call.is_of_node:  # else the tool around it counts its graphs
            counters["subgraph_counter"] = lambda: self._next_graph_number(call, scratchpad)
        if not call.is_in_batch:
            share = self._shares[call]
            share.scratchpad = scratchpad
            counters["interrupt_counter"] = _recording(scratchpad.interrupt_counter, share.taken)
            counters["call_counter"] = _recording(scratchpad.call_counter, share.calls)
        else:
            counters |= {"interrupt_counter": next_answer_number, "get_null_resume": unnumbered_answer}
            configurable = {**configurable, CONFIG_KEY_SEND: send_all_answers}
        view = replace(scratchpad, **counters)
        return {**config, "configurable": {**configurable, CONFIG_KEY_SCRATCHPAD: view}}

    def use_numbers(self, call: LocatedCall) -> None:
        """Use up the numbers of a call of a node's own code that is now answered from the record."""
        scratchpad = (var_child_runnable_config.get() or {}).get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
        if not call.used_numbers or not isinstance(scratchpad, PregelScratchpad):
            return
        share = TaskShare(**call.used_numbers)
        for number in share.taken:
            if number < len(scratchpad.resume):  # otherwise LangGraph has lost that answer and counts from there
                scratchpad.interrupt_counter()
        for _ in share.calls:
            scratchpad.call_counter()
        if call.is_of_node:
            for _ in filter(lambda number: number is not None, share.graphs.values()):
                scratchpad.subgraph_counter()

    # -- graphs

    def _next_graph_number(self, call: LocatedCall, scratchpad: PregelScratchpad) -> int:
        """Return the number of a graph that begins: the one from an earlier attempt, or else the next free one."""
        caller, place = self._scopes.beginning_graph()
        with self._lock:
            number = scratchpad.subgraph_counter()
            if caller is None:
                return number
            if (recorded := self._graph_share(caller).graphs.get(place)) is not None:
                return recorded
            shares = [share for share in self._known_shares.values() if share.task == call.task]
            while any(number in share.graphs.values() for share in shares):
                number = scratchpad.subgraph_counter()
            self._add_graph(caller, place, number)
            return number

    def begin_parallel_graph(self, call: LocatedCall, run: ReportedRun, place: str) -> None:
        """Record a graph that a tool runs beside others, if it is known which one it was when the tool ran before."""
        kind, _, number = place.rpartition("#")
        with self._lock:
            recorded = self._graph_share(call).graphs
            if run.earlier_graphs is None:
                run.earlier_graphs = {one for one in recorded if not one.startswith("#")}
            earlier, missing = run.earlier_graphs, run.earlier_graphs.difference(run.graphs.values())
            if earlier and (number != "0" or f"{kind}#1" in earlier):
                raise as_bubble_up(parallel_graphs_error(call.intent, "have one name and one input"))
            if missing and place not in earlier:
                raise as_bubble_up(parallel_graphs_error(call.intent, "got another input than now"))
            self._add_graph(call, place, recorded.get(place))

    def _add_graph(self, call: LocatedCall, place: str, number: int | None) -> None:
        """Record a graph of a call before the graph acts."""
        share = self._graph_share(call)
        share.graphs[place] = number
        self._unit_of_work.add_answers(call.intent, share.record())

    def _graph_share(self, call: LocatedCall) -> TaskShare:
        """Return the share of a call, with the graphs of earlier attempts."""
        share = self._batch_share(call)[1] if call.is_in_batch else self._shares[call]
        share.graphs = self._known_shares.setdefault(share.call, share).graphs
        return share

    # -- what calls have used

    def _batch_share(self, call: LocatedCall) -> tuple[TaskAnswers, TaskShare]:
        """Return the answers of the task whose ToolNode makes a call, and the call's share of them."""
        with self._lock:
            if call.task not in self._task_answers:
                self._task_answers[call.task] = self._load_answers(call.configurable)
            answers = self._task_answers[call.task]
            share = answers.share(TaskShare(call.task, call.scope, False, call.intent.batch_index))
            return answers, self._shares.setdefault(call, share)

    def _load_answers(self, configurable: Mapping[str, Any]) -> TaskAnswers:
        """Read the answers that a task received before this turn."""
        task, store = configurable[CONFIG_KEY_CHECKPOINT_NS], self.store
        ns = task.rpartition("|")[0]
        checkpoint_id = configurable.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(ns, "")
        with store.database.reading() as transaction:
            writes = store.graphs.writes(transaction, GraphKey(configurable[CONFIG_KEY_THREAD_ID], ns, checkpoint_id))
            hashes = {one.channel: one.value for one in writes if one.task_id == configurable[CONFIG_KEY_TASK_ID]}
            content = store.graphs.content(self.branch.external_session_id)
            bodies = content.get(transaction, [hashes[RESUME]] if RESUME in hashes else [])
        count = sum(len(self._codec.decode(body)) for body in bodies.values())
        question = hashes[INTERRUPT].hex() if INTERRUPT in hashes else None
        shares = [one for one in self._known_shares.values() if one.task == task and not one.direct]
        return TaskAnswers(shares, count, question)

    def end(self, call: LocatedCall, error: BaseException | None = None) -> dict[str, Any] | None:
        """Return the record of the answers and numbers that a call has used; None if there are none."""
        share = self._shares.get(call)
        if share is not None and share.direct:
            resume = share.scratchpad.resume if share.scratchpad is not None else ()
            # The next attempt uses the number of an unanswered question.
            share.taken = [number for number in share.taken if number < len(resume)]
            if not (share.taken or share.graphs or share.calls or isinstance(error, GraphInterrupt)):
                return None
        elif share is not None and isinstance(error, GraphInterrupt):
            body = self._codec.encode(error.args[0]).body  # encoded like in the saver, so that the hashes match
            share.question = body.hash.hex() if isinstance(body, Leaf) else None
        return share.record() if share is not None else None


def _recording(counter: Callable[[], int], numbers: list[int]) -> Callable[[], int]:

    def next_number() -> int:
        numbers.append(number := counter())
        return number

    return next_number
