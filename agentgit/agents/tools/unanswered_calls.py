"""The calls that a turn left open when it broke off, and what a new message does about them.

A provider refuses a conversation in which a tool call has no result. So a new message comes after an answer to each
call that is open: what the journal knows of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Command

from agentgit.agents.tools.recorded_results import UnreadableResult, rebuild_result
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import DONE, FAILED, PAUSED, SIMULATED, UNKNOWN, call_text
from agentgit.errors import Conflict, TurnAbandoned, warn_caller
from agentgit.next_steps import Next
from agentgit.sessions.messages import unanswered_calls
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import INTERRUPT

ANSWER, UNDO, REFUSE = "answer", "undo", "raise"
ON_UNANSWERED = (ANSWER, UNDO, REFUSE)
"""The values of `wrap(on_unanswered=...)`."""

ADDED = "agentgit_added"
"""The mark, in the `additional_kwargs` of a message, of a result that no node has returned."""

MAX_NAMED_CALLS = 5
"""The maximum number of calls that an error or a warning names."""


class UndoNeeded(Conflict):
    """The turn that left calls open must be undone before a new one begins."""


@dataclass(frozen=True)
class UnansweredCall:
    """A tool call of the conversation that has no result there."""

    message_id: str | None
    """The id of the message that requested it."""
    requested: Mapping[str, Any]
    recorded: ToolInvocation | None
    written: ToolMessage | None = None
    """Its result in a step that has not ended; for a call that is not in the journal of this branch."""
    is_in_asking_step: bool = False

    def __str__(self) -> str:
        return call_text(self.requested["name"], self.requested["args"])

    def answer(self) -> ToolMessage:
        """Return the result of the call for the model: that of the tool, or what is known instead."""
        result, id = self._result(), uuid5(NAMESPACE_OID, f"{self.message_id} {self.requested['id']}")
        added = {**result.additional_kwargs, ADDED: True}
        return result.model_copy(update={"id": str(id), "additional_kwargs": added})  # the same id in a rerun

    def _result(self) -> ToolMessage:
        call, id = self.recorded, self.requested["id"]
        if call is not None and call.status in (DONE, SIMULATED):
            try:
                return _as_message(rebuild_result(call.result, id), id)
            except UnreadableResult:
                return ToolMessage("Done; the result cannot be shown.", tool_call_id=id)
        if call is None and self.written is not None:
            return self.written
        return ToolMessage(self._what_is_known(), tool_call_id=id, status="error")

    def _what_is_known(self) -> str:
        call = self.recorded
        if call is None and self.is_in_asking_step:
            return "No result: its step asked the user, who wrote a new message instead of an answer."
        if call is None:
            return "No result: the turn ended before this call was made, or before its end was recorded."
        if call.status == FAILED:
            return f"Error: {call.error_message}"
        if call.status == UNKNOWN:
            ending = f"it {call.failure}" if call.ended_with_error else "it was interrupted"
            return f"Unknown: {ending}, and it is not known whether the call happened."
        if call.status == PAUSED:
            return "No result: it asked the user, who wrote a new message instead of an answer."
        return f"No result: the call is {call.status.replace('_', ' ')}."


def _as_message(value: Any, id: str) -> ToolMessage:
    parts = value.update.values() if isinstance(value, Command) and isinstance(value.update, dict) else ()
    for one in chain([value], *(part for part in [value, *parts] if isinstance(part, list))):
        if isinstance(one, ToolMessage) and one.tool_call_id == id:
            return one
    return ToolMessage(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), tool_call_id=id)


def read_unanswered(
    store: Store, transaction: Reading, branch: StoredRow, messages: Sequence[Mapping[str, Any]]
) -> list[UnansweredCall]:
    """Return the calls of the last message of the model, which `messages` begins with, that have no result."""
    ids = unanswered_calls(messages)
    if not ids:  # at nearly every turn, so nothing is read
        return []
    path, unanswered = store.track_parts(transaction, branch), list[UnansweredCall]()
    for call in messages[0]["tool_calls"]:
        if call["id"] in ids:
            attempts = store.recorded_calls.attempts(transaction, path, call["name"], call["id"], None)
            newest = store.world.last_run(transaction, attempts[0]) if attempts else None
            unanswered.append(UnansweredCall(messages[0]["id"], call, newest))
    return unanswered


def add_written(calls: Sequence[UnansweredCall], writes: Sequence[tuple[str, Any]]) -> list[UnansweredCall]:
    """Add to calls what their step has written, by channel, before it ended."""
    values = [one for _, value in writes for one in (value if isinstance(value, list) else [value])]
    results = {one.tool_call_id: one for one in values if isinstance(one, ToolMessage)}
    asks = any(channel == INTERRUPT for channel, _ in writes)
    return [replace(one, written=results.get(one.requested["id"]), is_in_asking_step=asks) for one in calls]


def answer_all(
    store: Store, branch: StoredRow, conversation: Sequence[BaseMessage], writes: Sequence[tuple[str, Any]]
) -> Sequence[BaseMessage]:
    """Return a conversation with an answer to each open call of the last message of the model.

    `writes` are those of the step at its end, by channel.
    """
    start = next((n for n in reversed(range(len(conversation))) if isinstance(conversation[n], AIMessage)), None)
    if start is None:
        return conversation
    last = conversation[start]
    shown: list[dict[str, Any]] = [{"role": "assistant", "id": last.id, "tool_calls": getattr(last, "tool_calls", ())}]
    results = [one for one in conversation[start:] if isinstance(one, ToolMessage)]
    shown += [{"role": "tool", "tool_call_id": one.tool_call_id} for one in results]
    if not unanswered_calls(shown):
        return conversation
    with store.database.reading() as transaction:
        calls = add_written(read_unanswered(store, transaction, branch, shown), writes)
    return insert_answers(conversation, [call.answer() for call in calls])


def insert_answers(conversation: Sequence[BaseMessage], answers: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Insert answers to open calls, and move late results, directly after the last message of the model."""
    start = max(number for number, one in enumerate(conversation, 1) if isinstance(one, AIMessage))
    results = [one for one in conversation[start:] if isinstance(one, ToolMessage)]
    others = [one for one in conversation[start:] if not isinstance(one, ToolMessage)]
    return [*conversation[:start], *results, *answers, *others]


def without_added(value: Any) -> Any:
    """Return a value without the results that agentgit has added to a conversation."""
    if not isinstance(value, list):
        return value
    return [one for one in value if not is_added(one)]


def is_added(message: Any) -> bool:
    """Return whether a message is a result that agentgit has added to a conversation."""
    return isinstance(message, ToolMessage) and ADDED in message.additional_kwargs


def require_answered(branch: StoredRow, calls: Sequence[UnansweredCall], mode: str) -> None:
    """Check that a new message may follow the open calls of a conversation."""
    text = f"The last turn of branch {branch.name} broke off before these calls were answered: {_named(calls)}."
    if calls and mode == UNDO:
        raise UndoNeeded(text)
    if calls and mode == REFUSE:
        undo = [Next("undo")] if branch.head_id is not None else []  # else there is no checkpoint
        raise Conflict(f"{text} Nothing was run.", Next("continue"), *undo, Next("answer_calls"))


def warn_of_abandoned(
    store: Store,
    transaction: Reading,
    branch: StoredRow,
    session_name: str,
    owner: str,
    calls: Sequence[UnansweredCall],
) -> None:
    """Warn that a new message follows a turn whose process died; as an error, the warning ends the transaction."""
    ids = {call.requested["id"] for call in calls}
    recorded = store.journal.invocations(transaction, [*store.journal.calls_of_turn(transaction, branch.id, owner)])
    # A call that no message requested is answered when its node ends, which the conversation does not show.
    unsure = [one for one in recorded.values() if one.tool_call_id is None or one.status == UNKNOWN]
    if named := _named([*calls, *(one for one in unsure if one.tool_call_id not in ids)]):
        text = (
            f"The last turn of session {session_name}, branch {branch.name}, died before these calls were answered: "
            f"{named}. This message begins another turn. Its model is told what is known of them, and may make them "
            "again, unless that turn is continued first."
        )
        warn_caller(TurnAbandoned(text, Next("continue")))


def _named(calls: Sequence[object]) -> str:
    return ", ".join(map(str, calls[:MAX_NAMED_CALLS])) + (", …" if len(calls) > MAX_NAMED_CALLS else "")
