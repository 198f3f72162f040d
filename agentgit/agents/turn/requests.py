"""The tool calls that the AI messages of a turn request, which give the calls their order and their names."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.messages import AIMessage, ToolMessage


class Batch(NamedTuple):
    """The calls that one AI message requests, which a turn continues."""

    message: str
    number: int
    call_ids: Sequence[str]


class Requests:
    """The requests of one turn."""

    def __init__(self, next_batch: int, unfinished: Batch | None, parent_of: Callable[[UUID], UUID | None]) -> None:
        self._numbers = itertools.count(next_batch)
        self._parent_of = parent_of
        self._positions: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> its batch
        self._received: dict[UUID, tuple[str, list[Any]]] = {}  # run -> its task, the conversation that it received
        if unfinished is not None:
            self._batches[unfinished.message] = unfinished.number
            self._positions.update((id, (unfinished.message, index)) for index, id in enumerate(unfinished.call_ids))
        self._lock = threading.Lock()

    def add(self, message: Any) -> None:
        """Add the requests of a message that a model has just returned."""
        if isinstance(message, AIMessage) and message.tool_calls:
            self._add(message, is_new=True)

    def begin_run(self, run_id: UUID, task: str, messages: list[Any]) -> None:
        """Add the requests in the conversation that a run receives."""
        message = _newest_message(messages)
        if message is not None and message.tool_calls:
            self._add(message)
            self._received[run_id] = task, messages

    def end_run(self, run_id: UUID) -> None:
        """Forget the conversation that a run received."""
        self._received.pop(run_id, None)

    def _add(self, message: AIMessage, *, is_new: bool = False) -> None:
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
        """Return the batch of a call and its index there."""
        with self._lock:
            message, index = self._positions.get(tool_call_id or "", (str(run_id), 0))
            if message not in self._batches:
                self._batches[message] = next(self._numbers)
            return self._batches[message], index

    def name(self, tool_call_id: str | None, run_id: UUID | None, task: str) -> str | None:
        """Return a name for the request of a call, if the task that makes the call received its AI message.

        The name consists of the AI message and the number of answers that the call id already has, because some models
        reuse ids and some programs reuse whole messages. Messages that only other tasks received do not count: those
        tasks may not run again with this one.
        """
        while run_id is not None:
            receiving_task, messages = self._received.get(run_id, ("", []))
            message = _newest_message(messages) if receiving_task == task else None
            if message is not None and any(call["id"] == tool_call_id for call in message.tool_calls):
                answers = sum(isinstance(m, ToolMessage) and m.tool_call_id == tool_call_id for m in messages)
                return f"{message_name(message.id, message.tool_calls)} {answers}"
            run_id = self._parent_of(run_id)
        return None


def _newest_message(messages: Sequence[Any]) -> AIMessage | None:
    return next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)


def message_name(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an AI message: its id, or the id of its first tool call if it has none."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def input_messages(value: Any) -> list[Any]:
    """Return the messages in the input of a node, oldest first."""
    if isinstance(value, Mapping):
        # A ToolNode that is sent a single call receives it together with the state.
        inner = value.get("messages")
        return input_messages(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return value if isinstance(value, list) else []
