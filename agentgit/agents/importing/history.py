"""The history of an imported thread: where its turns began and ended, and which tools were called.

It is read from the stored rows, never from live objects, so that the result does not depend on how often an import was
interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from agentgit.agents import inputs
from agentgit.effects.invocation import DONE, FAILED
from agentgit.sessions.messages import from_stored, text_of
from agentgit.store.objects.content import Body, read_values
from agentgit.store.objects.plain_values import MESSAGES, show_message
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store, checkpoint_state
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey, is_shown
from agentgit.store.threads.pending_writes import NO_WRITES

BY_HAND = ("update", "fork")
"""The sources that LangGraph records for a graph checkpoint that `update_state` created."""


@dataclass(frozen=True, kw_only=True)
class ImportedCall:
    """A past tool call, reconstructed from the messages."""

    message: int
    index: int
    name: str
    args: Mapping[str, Any]
    id: str
    requested_at: datetime
    status: str = ""
    answer: Any = None
    answered_at: datetime | None = None


@dataclass(frozen=True)
class HistoryPoint:
    """An agentgit checkpoint to create."""

    index: int
    snapshot: CheckpointState
    label: Label


@dataclass
class ImportedHistory:
    """The history of a thread: `calls` in the order of their answers, and `points`, oldest first."""

    calls: list[ImportedCall] = field(default_factory=list)
    points: list[HistoryPoint] = field(default_factory=list)


ASKS, UNFINISHED = "asks", "unfinished"
"""Why a graph checkpoint is pending: it waits for a user's answer, or its batch of tool calls was never finished."""


class HistoryReader:
    """Reads the history along the line of graph checkpoints of a thread."""

    def __init__(self, store: Store, user_id: int) -> None:
        self.store = store
        self.user_id = user_id
        self.history = ImportedHistory()
        self._open_calls: dict[str, ImportedCall] = {}
        self._known_hashes: set[bytes] = set()
        self._message_count = 0
        self._unlabeled_index: int | None = None  # the index in `points` of a turn whose user message was not found yet

    def read(self, transaction: Reading, line: Iterable[GraphKey]) -> ImportedHistory | None:
        """Read the history; return None if one of the graph checkpoints does not exist."""
        previous: GraphCheckpoint | None = None
        index = -1
        for index, graph_key in enumerate(line):
            graph_checkpoint = self.store.graphs.find(transaction, graph_key)
            if graph_checkpoint is None:
                return None
            self._read_step(transaction, index, graph_checkpoint, previous)
            previous = graph_checkpoint
        if previous is not None:
            waiting = pending_writes.read(transaction, previous.key)
            self._add_ending(transaction, index, previous, waiting)
            self._read_pending(transaction, previous)
        return self.history

    def _read_step(
        self, transaction: Reading, index: int, graph_checkpoint: GraphCheckpoint, previous: GraphCheckpoint | None
    ) -> None:
        source = graph_checkpoint.meta.get("source")
        if source == "input" or source in BY_HAND:
            if previous is not None:
                self._add_ending(transaction, index - 1, previous)
            self._add_beginning(transaction, index, graph_checkpoint, previous)
        new_messages = self._new_messages(transaction, graph_checkpoint)
        user_messages = [message for message in new_messages if message["type"] == "human"]
        if user_messages and self._unlabeled_index is not None:
            self._label_beginning(from_stored(user_messages[-1]))
        self._read_messages(new_messages, graph_checkpoint.made_at)

    def _new_messages(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> list[dict[str, Any]]:
        hashes = self.store.graphs.message_hashes(transaction, graph_checkpoint)
        new_hashes = [key for key in hashes if key not in self._known_hashes]
        self._known_hashes.update(new_hashes)
        return self.store.graphs.messages_of(transaction, graph_checkpoint.session_id, new_hashes)

    def _read_pending(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> None:
        """Add the calls of an unfinished batch, and of a waiting subgraph, whose messages the graph has not yet."""
        graphs = self.store.graphs
        subgraph_heads = pending_writes.subgraph_heads(transaction, graph_checkpoint.key).items()
        subgraph_checkpoints = (
            graphs.find(transaction, graph_checkpoint.key._replace(ns=ns, checkpoint_id=id))
            for ns, id in subgraph_heads
        )
        for checkpoint in (graph_checkpoint, *filter(None, subgraph_checkpoints)):
            self._read_messages(self._new_messages(transaction, checkpoint), checkpoint.made_at)
            writes = [one for one in graphs.writes(transaction, checkpoint.key) if is_shown(one.channel)]
            bodies = read_values(transaction, graphs.blobs, [(one.session_id, one.value) for one in writes])
            self._read_messages([m for one in writes for m in _written_messages(bodies[one.value])], checkpoint.made_at)

    # -- turns

    def _add_beginning(
        self, transaction: Reading, index: int, graph_checkpoint: GraphCheckpoint, previous: GraphCheckpoint | None
    ) -> None:
        """Add a point at the beginning of a user's turn, unless history is missing before it or a tool waits there."""
        self._unlabeled_index = None
        if graph_checkpoint.meta.get("source") != "input" or (
            previous is None and graph_checkpoint.parent_id is not None
        ):
            return
        if previous is not None and self._pending_reason(transaction, previous) == UNFINISHED:
            return
        self._unlabeled_index = len(self.history.points)
        self._add_point(
            index - 1, previous, Label(kind="before", user_id=self.user_id, created_at=graph_checkpoint.made_at)
        )

    def _label_beginning(self, message: Mapping[str, Any]) -> None:
        """Label the point before a turn with the user's message."""
        index, self._unlabeled_index = self._unlabeled_index or 0, None
        point = self.history.points[index]
        title = inputs.first_line(text_of(message))
        label = replace(point.label, description=title, restore_point=message["id"])
        self.history.points[index] = replace(point, label=label)

    def _add_ending(
        self, transaction: Reading, index: int, graph_checkpoint: GraphCheckpoint, pending: bytes = NO_WRITES
    ) -> None:
        """Add a point at the end of a turn, if nothing waits there."""
        if self._pending_reason(transaction, graph_checkpoint):
            return
        last_message = self.store.last_message(transaction, graph_checkpoint)
        title = inputs.first_line(text_of(last_message)) if last_message else None
        self._add_point(
            index,
            graph_checkpoint,
            Label(kind="after", user_id=self.user_id, description=title, created_at=graph_checkpoint.made_at),
            pending,
        )

    def _add_point(
        self, index: int, graph_checkpoint: GraphCheckpoint | None, label: Label, pending: bytes = NO_WRITES
    ) -> None:
        state = checkpoint_state(graph_checkpoint, len(self.history.calls), pending)
        self.history.points.append(HistoryPoint(index, state, label))

    def _pending_reason(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> str:
        if self.store.asked(transaction, graph_checkpoint):
            return ASKS
        return UNFINISHED if self.store.unanswered(transaction, graph_checkpoint) else ""

    # -- calls

    def _read_messages(self, messages: Sequence[Mapping[str, Any]], saved_at: datetime) -> None:
        for message in messages:
            data = message["data"]
            self._message_count += 1
            if message["type"] == "ai":
                for index, call in enumerate(data.get("tool_calls") or ()):
                    self._open_call(index, call, saved_at)
            elif message["type"] == "tool":
                self._answer_call(data, saved_at)

    def _open_call(self, index: int, call: Mapping[str, Any], requested_at: datetime) -> None:
        call_id, name, args = call.get("id"), call.get("name"), call.get("args")
        if isinstance(call_id, str) and isinstance(name, str):
            arguments = args if isinstance(args, Mapping) else {}
            self._open_calls[call_id] = ImportedCall(
                message=self._message_count,
                index=index,
                name=name,
                args=arguments,
                id=call_id,
                requested_at=requested_at,
            )

    def _answer_call(self, data: Mapping[str, Any], answered_at: datetime) -> None:
        call = self._open_calls.pop(str(data.get("tool_call_id")), None)
        if call is None:
            return
        is_error = data.get("status") == "error"
        status = FAILED if is_error else DONE
        self.history.calls.append(replace(call, status=status, answer=data.get("content"), answered_at=answered_at))


def _written_messages(body: Body) -> Iterator[dict[str, Any]]:
    """Yield the messages among the values that a task wrote, in LangChain's stored form."""
    for part in body.values() if isinstance(body, dict) else (body,):
        for item in part if isinstance(part, list) else (part,):
            if item.type in MESSAGES:
                yield show_message(item)
