"""The recorder: writes every tool call of one turn into the journal, as it really was.

It is a LangChain callback handler, so it sees tools wherever they are called from: a ToolNode, a subgraph, a task, a
tool that calls tools. `intended` is on disk before a tool runs, the outcome as soon as it ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from sqlalchemy import Connection

from agentgit.errors import Unavailable
from agentgit.store.journal import Intent, Outcome
from agentgit.store.sessions import Found
from agentgit.store.store import Store
from agentgit.tools import Effect
from agentgit.tools.effects import READ_ONLY, UNDECLARED, declared_by_name
from agentgit.tools.invocation import DONE, FAILED, PAUSED, UNKNOWN
from agentgit.values import portable

if TYPE_CHECKING:
    from agentgit.agents.turn import Turn


@dataclass(frozen=True)
class Call:
    """A call that is running: its intent, and its id once that is on disk."""

    intent: Intent
    id: int | None


class Recorder(BaseCallbackHandler):
    """Records the tool calls of one turn.

    Args:
        store: where.
        branch: the row of the branch that runs.
        owner: the turn.
        effects: what the tools do to the world, by name.
        unrecorded: names of tools that are no part of the track: agentgit's own.
        batch: the number of the next batch.
        unfinished: if the turn goes on with calls that were never all answered, their AI message, its batch, their ids.
    """

    raise_error = True  # a call that cannot be recorded must not run
    ignore_chat_model = True  # else LangChain writes the whole conversation as text for it, at every call of a model

    def __init__(
        self,
        store: Store,
        branch: Found,
        owner: str,
        effects: Mapping[str, Effect],
        unrecorded: frozenset[str],
        batch: int,
        unfinished: tuple[str, int, Sequence[str]] | None = None,
    ) -> None:
        self.store = store
        self.branch = branch
        self.owner = owner
        self.effects = effects
        self.unrecorded = unrecorded
        self.turn: Turn | None = None
        self._numbers = itertools.count(batch)
        self._running: dict[UUID, Call] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._returned: dict[UUID, Any] = {}
        self._unrecorded: dict[UUID, int] = {}
        self._unwritten: list[tuple[Call, Outcome]] = []
        self._places: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> its batch
        if unfinished is not None:
            name, batch_of_it, calls = unfinished
            self._batches[name] = batch_of_it
            self._places.update((call, (name, index)) for index, call in enumerate(calls))
        self._lock = threading.Lock()

    # -- learning the order: which calls an AI message asked for

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generation in itertools.chain.from_iterable(response.generations):
            self._learn([getattr(generation, "message", None)], is_new=True)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        self._parents[run_id] = parent_run_id
        self._learn(_messages(inputs))

    def _learn(self, newest_first: Iterable[Any], *, is_new: bool = False) -> None:
        """Note the calls of the newest AI message among these, and number their batch in the order of the messages."""
        message = next((m for m in newest_first if isinstance(m, AIMessage)), None)
        if message is None or not message.tool_calls:
            return
        with self._lock:
            name = name_of(message.id, message.tool_calls)
            if is_new or name not in self._batches:  # some models give their calls the same ids every time
                self._batches[name] = next(self._numbers)
            for index, call in enumerate(message.tool_calls):
                self._places[call["id"] or ""] = (name, index)

    def batch_of(self, name: str) -> int | None:
        """Tell the batch of the calls that an AI message of this turn asked for; see `name_of`."""
        with self._lock:
            return self._batches.get(name)

    def batch_in(self, run_id: UUID) -> int:
        """Tell the batch that an unrecorded tool's run belongs to."""
        return self._unrecorded[run_id]

    # -- the calls

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None, tool_call_id: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._parents[run_id] = parent_run_id
        name = (serialized or {}).get("name") or kwargs.get("name") or "tool"
        with self._lock:
            batch, index = self._place(tool_call_id, run_id, self._above(parent_run_id))
        if name in self.unrecorded:
            self._unrecorded[run_id] = batch
            return
        effect = self.effects.get(name) or declared_by_name(name)
        intent = Intent(
            session_id=self.branch.external_session_id,
            branch_id=self.branch.id,
            batch=batch,
            batch_index=index,
            tool_name=name,
            tool_call_id=tool_call_id,
            effect=effect.kind if effect else UNDECLARED,
            undo=effect.undo_path if effect else None,
            args=portable(inputs if inputs is not None else {"input": input_str}),
            idempotency_key=_key(self.branch.id, tool_call_id or str(run_id), name),
            owner=self.owner,
            started_at=datetime.now(UTC),
        )
        self._running[run_id] = Call(intent, self._begin(intent))

    def _place(self, tool_call_id: str | None, run_id: UUID, above: Intent | None) -> tuple[int, int]:
        """Tell the batch of a call and its place there."""
        if above is not None:
            return above.batch, above.batch_index  # a tool that was called by a tool belongs where that one is
        message, index = self._places.get(tool_call_id or "", (str(run_id), 0))
        if message not in self._batches:
            self._batches[message] = next(self._numbers)
        return self._batches[message], index

    def _above(self, run_id: UUID | None) -> Intent | None:
        """Find the tool call that a run is inside of, if it is inside of one."""
        while run_id is not None:
            if run_id in self._running:
                return self._running[run_id].intent
            run_id = self._parents.get(run_id)
        return None

    def _begin(self, intent: Intent) -> int | None:
        if intent.effect == READ_ONLY:
            return None  # what only reads may be recorded when it has ended
        return self.store.database.write(lambda c: self.store.journal.intend(c, intent), durable=True)

    def returned(self, run_id: UUID, value: Any) -> None:
        """Take what a tool really returned, before LangChain makes the text of a message of it."""
        self._returned[run_id] = value

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        if isinstance(output, ToolMessage) and output.status == "error":
            self._end(run_id, Outcome(status=FAILED, error=str(output.content), ended_at=datetime.now(UTC)))
            return
        value = self._returned.get(run_id, _value(output))
        self._end(run_id, Outcome(status=DONE, result=portable(value), ended_at=datetime.now(UTC)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if isinstance(error, GraphBubbleUp):
            self._end(run_id, Outcome(status=PAUSED))
        elif isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}"
            self._end(run_id, Outcome(status=FAILED, error=text, ended_at=datetime.now(UTC)))
        else:  # the call was broken off (Ctrl-C), nobody knows where
            self._end(run_id, Outcome(status=UNKNOWN, error=type(error).__name__))

    def _end(self, run_id: UUID, outcome: Outcome) -> None:
        self._parents.pop(run_id, None)
        self._returned.pop(run_id, None)
        call = self._running.pop(run_id, None)
        if call is None:
            return
        try:
            self.store.database.write(lambda connection: self._record(connection, call, outcome))
        except Unavailable:
            # The tool has run, and its program must not be told otherwise; the end of the turn writes this down.
            self._unwritten.append((call, outcome))

    def settle(self, connection: Connection) -> None:
        """Write down the outcomes that could not be written when they were known."""
        for call, outcome in self._unwritten:
            self._record(connection, call, outcome)

    def _record(self, connection: Connection, call: Call, outcome: Outcome) -> None:
        if call.id is None:
            self.store.journal.intend(connection, call.intent, outcome)
        else:
            self.store.journal.end(connection, call.id, outcome)


def name_of(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Name an AI message: by its id, or where it has none by its first tool call."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def _messages(value: Any) -> Iterable[BaseMessage]:
    """Find the messages in what a node got, newest first."""
    if isinstance(value, Mapping):
        # A ToolNode that was sent one call gets it together with the state.
        inner = value.get("messages")
        return _messages(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return (m for m in reversed(value) if isinstance(m, BaseMessage)) if isinstance(value, list) else ()


def _value(output: Any) -> Any:
    """Read back from a message what a tool returned, where only the message is known."""
    if not isinstance(output, ToolMessage):
        return output
    if output.artifact is not None or not isinstance(output.content, str):
        return output.artifact if output.artifact is not None else output.content
    if output.content[:1] not in ("{", "["):
        return output.content  # a text that looks like a number may well be a text
    try:
        return json.loads(output.content)
    except ValueError:
        return output.content


def _key(branch_id: int, call: str, name: str) -> str:
    """Make the idempotency key of a call: every attempt at it has the same."""
    return hashlib.sha256(f"{branch_id}\0{call}\0{name}".encode(errors="surrogatepass")).hexdigest()[:32]
