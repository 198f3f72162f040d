"""The history of an imported thread: where its turns began and ended, and which tools were called.

It is read from the stored rows, never from live objects, so that the result does not depend on how often an import was
interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.effects.invocation import DONE, FAILED
from agentgit.sessions.messages import from_stored, text_of
from agentgit.store.objects.content import Body
from agentgit.store.objects.plain_values import MESSAGES, show_message
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.store import Store, snapshot_of
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import is_shown
from agentgit.store.threads.graph_store import GraphCheckpoint, GraphKey

BY_HAND = ("update", "fork")
"""The sources that LangGraph records for a graph checkpoint that `update_state` created."""


@dataclass(frozen=True, kw_only=True)
class ImportedCall:
    """A past tool call, reconstructed from the messages.

    Args:
        message: The number of the AI message that requested it, counted along the thread.
        index: The position of the call in that message.
        name: The name of the tool.
        args: The arguments.
        id: The id of the call in the AI message.
        asked_at: The time of the first graph checkpoint that contains the AI message.
        status: `done` or `failed`; empty while there is no answer.
        answer: The content of the tool message.
        answered_at: The time of the first graph checkpoint that contains the tool message.
    """

    message: int
    index: int
    name: str
    args: Mapping[str, Any]
    id: str
    asked_at: datetime
    status: str = ""
    answer: Any = None
    answered_at: datetime | None = None


@dataclass(frozen=True)
class HistoryPoint:
    """An agentgit checkpoint to create.

    Args:
        at: The index of its graph checkpoint in the line; -1 before the first.
        snapshot: The state at that point.
        label: The label of the checkpoint.
    """

    at: int
    snapshot: Snapshot
    label: Label


@dataclass
class ImportedHistory:
    """The history of a thread: `calls` in the order of their answers, and `points`, oldest first."""

    calls: list[ImportedCall] = field(default_factory=list)
    points: list[HistoryPoint] = field(default_factory=list)


ASKS, UNFINISHED = "asks", "unfinished"
"""Why a graph checkpoint is pending: it waits for a user's answer, or its batch of tool calls was never finished."""


class HistoryReader:
    """Reads the history along the line of graph checkpoints of a thread.

    Args:
        store: The store that has the thread.
        user_id: The id of the user who owns the checkpoints.
    """

    def __init__(self, store: Store, user_id: int) -> None:
        self.store = store
        self.user_id = user_id
        self.past = ImportedHistory()
        self._waiting: dict[str, ImportedCall] = {}
        self._known: set[bytes] = set()
        self._messages = 0
        self._unnamed: int | None = None  # the index in `points` of a turn whose user message was not found yet

    def read(self, connection: Connection, line: Iterable[GraphKey]) -> ImportedHistory | None:
        """Read the history; return None if one of the graph checkpoints does not exist.

        Args:
            connection: An open connection; the transaction may be read-only.
            line: The graph checkpoints of the root graph, oldest first.
        """
        last: GraphCheckpoint | None = None
        number = -1
        for number, place in enumerate(line):
            at = self.store.graphs.find(connection, place)
            if at is None:
                return None
            self._step(connection, number, at, last)
            last = at
        if last is not None:
            self._end(connection, number, last)
            self._take_pending(connection, last)
        return self.past

    def _step(self, connection: Connection, number: int, at: GraphCheckpoint, last: GraphCheckpoint | None) -> None:
        source = at.meta.get("source")
        if source == "input" or source in BY_HAND:
            if last is not None:
                self._end(connection, number - 1, last)
            self._begin(connection, number, at, last)
        new = self._new_messages(connection, at)
        humans = [message for message in new if message["type"] == "human"]
        if humans and self._unnamed is not None:
            self._name_beginning(from_stored(humans[-1]))
        self._take(new, _time(at))

    def _new_messages(self, connection: Connection, at: GraphCheckpoint) -> list[dict[str, Any]]:
        hashes = self.store.graphs.message_hashes(connection, at)
        fresh = [key for key in hashes if key not in self._known]
        self._known.update(fresh)
        return self.store.graphs.messages_of(connection, fresh)

    def _take_pending(self, connection: Connection, at: GraphCheckpoint) -> None:
        """Add the calls of an unfinished batch, whose results are pending writes of the newest graph checkpoint.

        For a waiting subgraph, whose messages reach the graph only when it ends, also add the calls in its messages.
        """
        graphs = self.store.graphs
        places = pending_writes.subgraph_heads(connection, self.store.tenant_id, at.place).items()
        nested = (graphs.find(connection, at.place._replace(ns=ns, checkpoint_id=id)) for ns, id in places)
        for below in (at, *filter(None, nested)):
            self._take(self._new_messages(connection, below), _time(below))
            writes = [one for one in graphs.writes(connection, below.place) if is_shown(one.channel)]
            bodies = graphs.content.get(connection, [one.value for one in writes])
            self._take([m for one in writes for m in _messages(bodies[one.value])], _time(below))

    # -- turns

    def _begin(self, connection: Connection, number: int, at: GraphCheckpoint, last: GraphCheckpoint | None) -> None:
        """Add a point at the beginning of a user's turn, unless history is missing before it or a tool waits there."""
        self._unnamed = None
        if at.meta.get("source") != "input" or (last is None and at.parent_id is not None):
            return
        if last is not None and self._waits(connection, last) == UNFINISHED:
            return
        self._unnamed = len(self.past.points)
        self._add(number - 1, last, Label(kind="before", user_id=self.user_id, made_at=_time(at)))

    def _name_beginning(self, message: Mapping[str, Any]) -> None:
        """Label the point before a turn with the user's message."""
        place, self._unnamed = self._unnamed or 0, None
        point = self.past.points[place]
        title = inputs.first_line(text_of(message))
        label = replace(point.label, description=title, restore_point=message["id"])
        self.past.points[place] = replace(point, label=label)

    def _end(self, connection: Connection, number: int, at: GraphCheckpoint) -> None:
        """Add a point at the end of a turn, if nothing waits there."""
        if self._waits(connection, at):
            return
        last = self.store.last_message(connection, at)
        title = inputs.first_line(text_of(last)) if last else None
        self._add(number, at, Label(kind="after", user_id=self.user_id, description=title, made_at=_time(at)))

    def _add(self, number: int, at: GraphCheckpoint | None, label: Label) -> None:
        self.past.points.append(HistoryPoint(number, snapshot_of(at, len(self.past.calls)), label))

    def _waits(self, connection: Connection, at: GraphCheckpoint) -> str:
        if self.store.is_interrupted(connection, at):
            return ASKS
        return UNFINISHED if self.store.is_unfinished(connection, at) else ""

    # -- calls

    def _take(self, messages: Sequence[Mapping[str, Any]], at: datetime) -> None:
        for message in messages:
            data = message["data"]
            self._messages += 1
            if message["type"] == "ai":
                for index, call in enumerate(data.get("tool_calls") or ()):
                    self._ask(index, call, at)
            elif message["type"] == "tool":
                self._answer(data, at)

    def _ask(self, index: int, call: Mapping[str, Any], at: datetime) -> None:
        call_id, name, args = call.get("id"), call.get("name"), call.get("args")
        if isinstance(call_id, str) and isinstance(name, str):
            held = args if isinstance(args, Mapping) else {}
            self._waiting[call_id] = ImportedCall(
                message=self._messages, index=index, name=name, args=held, id=call_id, asked_at=at
            )

    def _answer(self, data: Mapping[str, Any], at: datetime) -> None:
        asked = self._waiting.pop(str(data.get("tool_call_id")), None)
        if asked is None:
            return
        failed = data.get("status") == "error"
        status = FAILED if failed else DONE
        self.past.calls.append(replace(asked, status=status, answer=data.get("content"), answered_at=at))


def _messages(body: Body) -> Iterator[dict[str, Any]]:
    """Yield the messages among the values that a task wrote, in LangChain's stored form."""
    for part in body.values() if isinstance(body, dict) else (body,):
        for item in part if isinstance(part, list) else (part,):
            if item.type in MESSAGES:
                yield show_message(item)


def _time(at: GraphCheckpoint) -> datetime:
    """Return the creation time of a graph checkpoint; the current time if it records none that is valid."""
    try:
        return datetime.fromisoformat(at.header["ts"]).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)
