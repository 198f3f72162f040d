"""The tool calls that the AI messages of a turn request, which give the calls their order and their names."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.messages import AIMessage, ToolMessage

from agentgit.agents.turn.scopes import Scopes


class Batch(NamedTuple):
    """The calls that one AI message requests, which a turn continues."""

    message: str
    number: int
    call_ids: Sequence[str]


class Requests:
    """The requests of one turn."""

    def __init__(self, next_batch: int, unfinished: Batch | None, scopes: Scopes) -> None:
        self._numbers = itertools.count(next_batch)
        self._scopes = scopes
        self._positions: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> its batch
        if unfinished is not None:
            self._batches[unfinished.message] = unfinished.number
            self._positions.update((id, (unfinished.message, index)) for index, id in enumerate(unfinished.call_ids))
        self._lock = threading.Lock()

    def receive(self, inputs: Any) -> None:
        """Add the requests in the conversation that a run receives."""
        self.add(_newest_message(_messages_in(inputs)), is_new=False)

    def add(self, message: Any, *, is_new: bool = True) -> None:
        """Add the requests of a message that a model has just returned, or that a run has received."""
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return
        name = message_name(message.id, message.tool_calls)
        with self._lock:
            if is_new or name not in self._batches:  # some models reuse the ids of calls
                self._batches[name] = next(self._numbers)
            for index, call in enumerate(message.tool_calls):
                self._positions[call["id"] or ""] = name, index

    def batch_of(self, message: str) -> int | None:
        """Return the batch of the calls that an AI message of this turn requested; see `message_name`."""
        with self._lock:
            return self._batches.get(message)

    def position(self, tool_call_id: str | None, run_id: UUID) -> tuple[int, int]:
        with self._lock:
            message, index = self._positions.get(tool_call_id or "", (str(run_id), 0))
            if message not in self._batches:
                self._batches[message] = next(self._numbers)
            return self._batches[message], index

    def name(self, tool_call_id: str | None, run_id: UUID | None, task: str) -> str | None:
        """Return a name for the request of a call, if the task that makes the call received its AI message."""
        # Some models reuse ids, so the name has the number of answers that the id already has.
        for run in self._scopes.ancestors(run_id):
            messages = _messages_in(run.inputs) if run.task == task else []
            message = _newest_message(messages)
            if message is not None and any(call["id"] == tool_call_id for call in message.tool_calls):
                answers = sum(isinstance(m, ToolMessage) and m.tool_call_id == tool_call_id for m in messages)
                return f"{message_name(message.id, message.tool_calls)} {answers}"
        return None


def _newest_message(messages: Sequence[Any]) -> AIMessage | None:
    return next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)


def message_name(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an AI message: its id, or the id of its first tool call if it has none."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def _messages_in(value: Any) -> list[Any]:
    """Return the messages in the input of a node, oldest first."""
    if isinstance(value, Mapping):
        # A ToolNode that is sent a single call receives it together with the state.
        inner = value.get("messages")
        return _messages_in(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return value if isinstance(value, list) else []
