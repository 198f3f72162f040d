"""The recorder: writes every tool call of one turn into the journal, as it really was.

It is a LangChain callback handler, so it sees tools wherever they are called from: a ToolNode, a subgraph, a task, a
tool that calls tools. `intended` is on disk before a tool runs, the outcome as soon as it ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from sqlalchemy import Connection

from agentgit.store.journal import Intent, Outcome
from agentgit.store.sessions import Found
from agentgit.store.store import Store
from agentgit.tools import Effect
from agentgit.tools.effects import READ_ONLY, UNDECLARED
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
        paused: the calls that wait for an answer, by tool call id.
    """

    raise_error = True  # a call that cannot be recorded must not run

    def __init__(
        self,
        store: Store,
        branch: Found,
        owner: str,
        effects: Mapping[str, Effect],
        unrecorded: frozenset[str],
        batch: int,
        paused: Mapping[str, Found],
    ) -> None:
        self.store = store
        self.branch = branch
        self.owner = owner
        self.effects = effects
        self.unrecorded = unrecorded
        self.turn: Turn | None = None
        self._numbers = itertools.count(batch)
        self._paused = dict(paused)
        self._running: dict[UUID, Call] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._returned: dict[UUID, Any] = {}
        self._places: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> the number of its batch
        self._lock = threading.Lock()

    # -- learning the order: which calls an AI message asked for

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generation in itertools.chain.from_iterable(response.generations):
            message = getattr(generation, "message", None)
            if isinstance(message, AIMessage) and message.tool_calls:
                self._batches.pop(_name(message), None)  # some models give their calls the same ids every time
                self._learn([message])

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        self._parents[run_id] = parent_run_id
        self._learn(_messages(inputs))

    def _learn(self, newest_first: Iterable[Any]) -> None:
        """Note the calls of the newest AI message among these."""
        for message in newest_first:
            if isinstance(message, AIMessage):
                for index, call in enumerate(message.tool_calls):
                    self._places[call["id"] or ""] = (_name(message), index)
                return

    # -- the calls

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None, tool_call_id: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._parents[run_id] = parent_run_id
        name = (serialized or {}).get("name") or kwargs.get("name") or "tool"
        if name in self.unrecorded:
            return
        args = portable(inputs if inputs is not None else {"input": input_str})
        waiting = self._paused.pop(tool_call_id or "", None)
        with self._lock:
            batch, index = self._place(tool_call_id, run_id, self._above(parent_run_id))
        effect = self.effects.get(name)
        intent = Intent(
            session_id=self.branch.external_session_id,
            branch_id=self.branch.id,
            batch=batch,
            batch_index=index,
            tool_name=name,
            tool_call_id=tool_call_id,
            effect=effect.kind if effect else UNDECLARED,
            undo=effect.undo_path if effect else None,
            args=args,
            idempotency_key=_key(self.branch.id, tool_call_id or str(run_id), name),
            owner=self.owner,
            started_at=datetime.now(UTC),
        )
        self._running[run_id] = Call(intent, self._begin(intent, waiting))

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

    def _begin(self, intent: Intent, waiting: Found | None) -> int | None:
        journal, write = self.store.journal, self.store.database.write
        if waiting is not None:
            write(lambda c: journal.again(c, waiting.id, self.owner), durable=True)
            return int(waiting.id)
        if intent.effect == READ_ONLY:
            return None  # what only reads may be recorded when it has ended
        return write(lambda c: journal.intend(c, intent), durable=True)

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
        if call is not None:
            self.store.database.write(lambda connection: self._record(connection, call, outcome))

    def _record(self, connection: Connection, call: Call, outcome: Outcome) -> None:
        if call.id is None:
            self.store.journal.intend(connection, call.intent, outcome)
        else:
            self.store.journal.end(connection, call.id, outcome)


def _name(message: AIMessage) -> str:
    """Name an AI message by its first tool call."""
    return (message.tool_calls[0]["id"] or "") if message.tool_calls else ""


def _messages(value: Any) -> list[BaseMessage]:
    """Find the messages in what a node got, newest first."""
    if isinstance(value, Mapping):
        # A ToolNode that was sent one call gets it together with the state.
        value = value.get("messages") or value.get("state") or ()
        return (
            _messages(value) if isinstance(value, Mapping) else _messages([*value] if isinstance(value, list) else ())
        )
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return [m for m in reversed(value) if isinstance(m, BaseMessage)] if isinstance(value, list) else []


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
