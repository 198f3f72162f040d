"""The record of a branch, as a rerun reads it: the inputs of its turns, its calls, and a person's answers."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage, convert_to_messages
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send
from sqlalchemy import select

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.tools.unanswered_calls import is_added, without_added
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import FAILED, INTENDED, PAUSED, REPLAY, UNOWNED
from agentgit.effects.kinds import MEMORY
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import TASKS
from agentgit.store.objects.content import read_values
from agentgit.store.queries.recorded_turns import (
    INPUT,
    UPDATE,
    TurnRecord,
    read_questions,
    read_tasks,
    read_turns,
    task_place,
)
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import BRANCH_TO, GraphCheckpoint, GraphKey, PendingWrite, is_shown
from agentgit.values import portable, to_json


@dataclass(frozen=True)
class Question:
    """A question that a recorded task asked."""

    value: Any
    place: str
    answer: Any = None
    is_open: bool = False


class RecordedPlace(NamedTuple):
    """The place of a call: its branch, the number of its AI message, its number there; for a direct call, its task."""

    branch_id: int
    batch: int
    number: int
    task: str | None


class Recording:
    """The part of a branch that a rerun repeats."""

    def __init__(self, branch: BranchContext, row: StoredRow, start: StoredRow | None, end: StoredRow | None) -> None:
        self._branch, self._store, self.row, self.start, self.end = branch, branch.store, row, start, end
        graph = branch.graph
        self._input_channels = [graph.input_channels] if isinstance(graph.input_channels, str) else graph.input_channels
        self._is_single_input = isinstance(graph.input_channels, str)
        start_id = start.graph_checkpoint_id if start is not None else None
        end_id = end.graph_checkpoint_id if end is not None else None
        with branch.reading() as transaction:
            newest = self._store.graphs.newest(transaction, row.thread_id)
            self.turns: Sequence[TurnRecord] = (
                read_turns(self._store, transaction, row, start_id, end_id, self._input_channels) if newest else []
            )
            end_id = end_id or (newest.key.checkpoint_id if newest is not None else None)
            self.calls = self._read_calls(transaction)
            self._read_places(transaction)
            self._asked = read_questions(self._store, transaction, row, start_id, end_id) if end_id is not None else []
            self.waiting = self._read_waiting(transaction)
            self.end_state = self._read_end(transaction, end_id) if end_id is not None else None
            self.state = read_values_of(branch, transaction, self.end_state)
        self.questions = list(self._build_questions())
        if not self.turns and not self.questions:
            raise InvalidInput("There is nothing to run again: no turn was recorded between start and end.")
        self._step_times = sorted(time for turn in self.turns for time in (*turn.began, *turn.times))

    # -- inputs

    def input(self, turn: TurnRecord) -> Any:
        """Return what a turn was given, as the graph takes it; for an update, the values."""
        given = map(without_added, self._decode(turn.writes))
        values = [(write.channel, value) for write, value in zip(turn.writes, given, strict=True)]
        if turn.kind == INPUT:
            return values[0][1] if self._is_single_input else dict(values)
        if turn.kind == UPDATE:
            return {name: value for name, value in values if not name.startswith("branch:")}
        goto: list[Any] = [value for name, value in values if name == TASKS and isinstance(value, Send)]
        goto += [name.removeprefix(BRANCH_TO) for name, _ in values if name.startswith(BRANCH_TO)]
        update = [(name, value) for name, value in values if name != TASKS and not name.startswith("branch:")]
        return Command(update=update or None, goto=goto)

    def has_ended(self, turn: TurnRecord) -> bool:
        """Return whether the graph ran to its end in a turn, and did not stop at a breakpoint."""
        return not any(write.channel != TASKS or self._decode([write])[0] for write in turn.pending)

    def state_before(self, turn: TurnRecord) -> dict[str, Any]:
        with self._branch.reading() as transaction:
            found = self._store.graphs.find(transaction, turn.before) if turn.before is not None else None
            return read_values_of(self._branch, transaction, found)

    # -- values

    def _decode(self, writes: Sequence[PendingWrite]) -> list[Any]:
        with self._branch.reading() as transaction:
            keys = {(write.session_id, write.value) for write in writes}
            bodies = read_values(transaction, self._store.graphs.blobs, keys)
        return [self._branch.saver.codec.decode(bodies[write.value]) for write in writes]

    def _read_end(self, transaction: Reading, checkpoint_id: str) -> GraphCheckpoint | None:
        owner = self.end if self.end is not None else self.row
        return self._store.graphs.find(transaction, GraphKey(owner.thread_id, "", checkpoint_id))

    def messages(self) -> Iterator[BaseMessage]:
        for value in map(without_added, self.state.values()):
            if isinstance(value, list):
                yield from (item for item in value if isinstance(item, BaseMessage))

    # -- calls

    def _read_calls(self, transaction: Reading) -> list[ToolInvocation]:
        """Read the calls between start and end that have an outcome, and all writes to memory since the start."""
        skipped = self.start.position if self.start is not None else 0
        position = self.end.position if self.end is not None else None
        track = self._store.track(transaction, self.row)
        self.memory_writes = [call for call in track[skipped:] if call.effect == MEMORY]
        return [call for call in track[skipped:position] if has_outcome(call)]

    def _read_places(self, transaction: Reading) -> None:
        """Read the place of each call in the AI messages of its branch, and which calls wait for a person."""
        branches = [segment.branch.id for segment in self._store.sessions.lineage(transaction, self.row)]
        columns = TOOL_INVOCATION.c
        place = (columns.internal_session_id, columns.batch, columns.batch_index, columns.task)
        query = select(columns.id, columns.status, columns.idempotency_key, *place).where(
            columns.internal_session_id.in_(branches)
        )
        rows = transaction.execute(query.order_by(columns.id)).all()
        self.places = {row.id: RecordedPlace(*row[3:]) for row in rows}
        self._paused = {row.idempotency_key: row.id for row in rows if row.status == PAUSED}

    def inner_calls(self) -> dict[int, list[int]]:
        """Return for each call whose tool made calls the ids of these, at any depth."""
        parents = {call.id: call.parent_id for call in self.calls}
        inner: dict[int, list[int]] = defaultdict(list)
        for call in self.calls:
            outer_ids: set[int] = set()  # a file may contain a circle
            outer_id = call.parent_id
            while outer_id is not None and outer_id not in outer_ids:
                outer_ids.add(outer_id)
                inner[outer_id].append(call.id)
                outer_id = parents.get(outer_id)
        return inner

    @functools.cached_property
    def task_ids(self) -> Mapping[str, Sequence[str]]:
        """The ids of the recorded tasks of the graph itself, by their paths; see `task_place`."""
        ids: dict[str, list[str]] = defaultdict(list)
        with self._branch.reading() as transaction:
            for path, task_id in read_tasks(self._store, transaction, self.row):
                ids[task_place(path)].append(task_id)
        return ids

    def step(self, call: ToolInvocation) -> int:
        """Return the number of the step of the graph in which a call began. Calls of one step have no order."""
        return bisect_right(self._step_times, call.started_at) if call.started_at is not None else 0

    # -- questions

    def _build_questions(self) -> Iterator[Question]:
        """Yield the questions: those that were answered, and the last one of a task, if it was left open."""
        for task in self._asked:
            given = self._decode([task.answers])[0] if task.answers is not None else []
            for number in range(len(given) + 1):
                is_last = number == len(given) - bool(given)
                question = task.questions.get(number) if task.questions else task.last if is_last else None
                asked = self._decode([question])[0] if question is not None else ()
                if not asked:
                    continue
                value = portable(asked[-1].value)
                if number < len(given):
                    yield Question(value, task.path, given[number])
                else:
                    yield Question(value, task.path, is_open=True)

    def _read_waiting(self, transaction: Reading) -> list[ToolInvocation]:
        """Read the calls that were left waiting for a person, and which question each of them asked."""
        store, ended = self._store, {call.idempotency_key for call in self.calls}
        found = [store.journal.invocation(transaction, id) for key, id in self._paused.items() if key not in ended]
        calls = [call for call in found if call is not None]
        records = {call.id: store.recorded_calls.answers(transaction, call.id) or {} for call in calls}
        hashes = {id: record.get("question") for id, record in records.items()}
        asked = {write.value.hex(): write for task in self._asked for write in task.questions.values()}
        # A call that a node makes itself does not record its question.
        others = [task.last for task in self._asked if task.last is not None]
        self._questions = {id: asked.get(key or "", others[-1] if others else None) for id, key in hashes.items()}
        return calls

    def asked_by(self, call: ToolInvocation) -> Any:
        """Return the question for whose answer a recorded call waits; None if it is not known."""
        write = self._questions[call.id]
        return self._decode([write])[0][-1].value if write is not None else None


def read_values_of(branch: BranchContext, transaction: Reading, state: GraphCheckpoint | None) -> dict[str, Any]:
    """Read the values of a state that a user sees; there are none before the first state."""
    if state is None:
        return {}
    shown = {name: key for name, key in state.values.items() if is_shown(name)}
    bodies = read_values(transaction, branch.store.graphs.blobs, {(state.session_id, key) for key in shown.values()})
    return {name: branch.saver.codec.decode(bodies[key]) for name, key in shown.items()}


def has_outcome(call: ToolInvocation) -> bool:
    """Return whether the record can answer a call with this one."""
    if call.status in (INTENDED, PAUSED) or call.kind == UNOWNED or call.tool_name in MEMORY_TOOLS:
        return False
    return call.ended_at is not None and not (call.kind == REPLAY and call.status == FAILED)


class RecordedIds:
    """The ids of recorded messages, for equal ones that a rerun makes, to which LangGraph gives random ids."""

    def __init__(self, messages: Iterable[BaseMessage]) -> None:
        self._ids: dict[bytes, list[str]] = defaultdict(list)
        for message in messages:
            if message.id is not None:
                self._ids[content_key(message)].append(message.id)

    def wrap_channel(self, channel: Any) -> Any:
        """Return a channel of messages whose reducer gives recorded ids; any other channel stays as it is."""
        reduce = getattr(channel, "operator", None)
        if reduce is not add_messages:
            return channel
        wrapped = channel.copy()

        @functools.wraps(add_messages)
        def reduce_with_ids(left: Any, right: Any) -> Any:
            return add_messages(left, self._with_ids(left, right))

        wrapped.operator = reduce_with_ids
        return wrapped

    def _with_ids(self, left: Any, right: Any) -> Any:
        messages = convert_to_messages(right if isinstance(right, list) else [right])
        if all(message.id is not None for message in messages):
            return messages
        present = {message.id for message in [*convert_to_messages(left or []), *messages]}
        named: list[Any] = []
        for message in messages:
            ids = self._ids.get(content_key(message), ()) if message.id is None else ()
            recorded_id = next((one for one in ids if one not in present), None)
            present.add(recorded_id)
            # The original keeps no id: a conditional edge reads it before the messages of parallel tasks are there.
            named.append(message if recorded_id is None else message.model_copy(update={"id": recorded_id}))
        return named


def named_messages(value: Any) -> Iterator[BaseMessage]:
    """Yield the messages in an input that name earlier ones by their ids, to answer, replace or remove them."""
    if isinstance(value, BaseMessage):
        is_named = value.id is not None and value.type != "human"  # the user's messages have their recorded ids
        if is_named or isinstance(value, ToolMessage):
            yield value
    elif isinstance(value, Command):
        yield from named_messages(value.update)
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from named_messages(item)


def with_ids_of(value: Any, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """Return an input whose messages name those of a rerun in place of the recorded ones at the same place."""
    ids: dict[str | None, str | None] = {}
    call_ids: dict[str | None, str | None] = {}
    for name, messages in recorded.items():
        for old, new in zip_longest(messages, now.get(name) or ()) if isinstance(messages, list) else ():
            if isinstance(old, BaseMessage):
                ids[old.id] = getattr(new, "id", None)
                calls = zip(getattr(old, "tool_calls", ()), getattr(new, "tool_calls", ()), strict=False)
                call_ids |= {one["id"]: other["id"] for one, other in calls}

    known = (one for messages in now.values() if isinstance(messages, list) for one in messages)
    answered = {one.tool_call_id for one in known if isinstance(one, ToolMessage)}

    def renamed(part: Any) -> Any:
        if isinstance(part, BaseMessage):
            named = {"id": ids.get(part.id, part.id)}
            if isinstance(part, ToolMessage):
                named["tool_call_id"] = call_ids.get(part.tool_call_id, part.tool_call_id)
            return part.model_copy(update=named)
        if isinstance(part, Command):
            return replace(part, update=renamed(part.update))
        if isinstance(part, dict):
            return {name: renamed(item) for name, item in part.items()}
        if isinstance(part, list | tuple):
            kept = (item for item in part if not (isinstance(item, RemoveMessage) and ids.get(item.id, "") is None))
            return type(part)(one for one in map(renamed, kept) if not (is_added(one) and one.tool_call_id in answered))
        return part

    return renamed(value)


def content_key(message: BaseMessage) -> bytes:
    """Return a key that is the same for messages with the same content, ids and times left out."""
    return sha256(to_json(portable(_content(message)))).digest()


def content_of(value: Any) -> Any:
    """Return a value, JSON-like, with the content of its messages in their place."""
    if isinstance(value, BaseMessage):
        return portable(_content(value))
    if isinstance(value, dict):
        return {str(name): content_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [content_of(item) for item in value]
    return portable(value)


def _content(message: BaseMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": message.type, "content": message.content, "name": message.name}
    if isinstance(message, ToolMessage):
        fields |= {"status": message.status, "artifact": message.artifact}
    if isinstance(message, AIMessage):
        fields["calls"] = [(call["name"], call["args"]) for call in message.tool_calls]
    return fields
