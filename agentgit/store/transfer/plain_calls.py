"""Tool calls of plain checkpoints, as the calls and the world log of an export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from reprlib import repr as short_repr
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.effects.effects import MEMORY, NEUTRAL, RECORDED_KINDS, UNDECLARED
from agentgit.effects.invocation import CALL, DONE
from agentgit.effects.memory import names_item
from agentgit.store.records.journal import LAST_LOGGED_STATUSES
from agentgit.store.transfer.export_records import EXPORTED_STATUS
from agentgit.store.transfer.fields import MAX_TEXT_LENGTH, time
from agentgit.store.transfer.records import STATUSES
from agentgit.values import count, portable


class Track:
    """Collects the calls of checkpoints in order. Each has the calls of the one before it, and may have more."""

    def __init__(self, branch_id: int) -> None:
        self.branch_id = branch_id
        self._calls: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
        self._batch = self._place = -1
        self._message: int | None = None

    def add(self, checkpoint: Checkpoint, at: datetime) -> None:
        """Add the calls that a checkpoint has and the one before it has not."""
        calls = checkpoint.tool_invocations
        if len(calls) < len(self._calls) or any(
            _identity(mine) != _identity(earlier) for mine, (earlier, _) in zip(calls, self._calls, strict=False)
        ):
            raise ValueError(
                f"its {count(len(calls), 'tool call')} do not continue the {len(self._calls)} of the checkpoint before "
                "it; import the checkpoints of one branch in their order"
            )
        requests = _requests(checkpoint.conversation_history)
        for call in calls[len(self._calls) :]:
            self._begin_call(requests.get(_call_id(call) or ""))
            try:
                record = self._record(call, at)
            except ValueError as error:
                raise ValueError(f"tool call {len(self._calls) + 1} {error}") from error
            self._calls.append((call, record))

    def _begin_call(self, message: int | None) -> None:
        """Count a call in its batch: the calls that one message requested, one after the other, are a batch."""
        is_next_of_batch = message is not None and message == self._message
        self._batch, self._place = (self._batch, self._place + 1) if is_next_of_batch else (self._batch + 1, 0)
        self._message = message

    def _record(self, call: Mapping[str, Any], at: datetime) -> dict[str, Any]:
        name, args = call.get("tool_name"), call.get("args")
        if not isinstance(name, str) or not name or len(name) > MAX_TEXT_LENGTH:
            raise ValueError(f"has the tool_name {short_repr(name)}, which is not a name")
        if not isinstance(args or {}, dict):
            raise ValueError(f"has args {short_repr(args)}, which are not a dict")
        status = call.get("status") or DONE
        status = EXPORTED_STATUS.get(status, status) if isinstance(status, str) else status
        if not isinstance(status, str) or status not in STATUSES:
            raise ValueError(f"has the status {short_repr(status)}, not one of {', '.join(STATUSES)}")
        result, error = call.get("result"), call.get("error_message")
        arrival = len(self._calls)
        return {
            "record": "call",
            "id": arrival + 1,
            "branch": self.branch_id,
            "made_on": self.branch_id,
            "arrival": arrival,
            "batch": self._batch,
            "batch_index": self._place,
            "tool": name,
            "tool_call_id": _call_id(call),
            "effect": _effect(call.get("effect"), args),
            "status": status,
            "args": portable(args or {}),
            "result": [portable(result)] if result is not None or status == DONE else [],
            "error": str(error) if error is not None else None,
            "started_at": _time_of(call, "started_at") or at.isoformat(),
            "ended_at": _time_of(call, "ended_at"),
            "key": sha256(f"{at}\0{arrival}\0{name}".encode(errors="surrogatepass")).hexdigest()[:32],
            "kind": CALL,
            "identity": None,
            "replay_of": None,
            "answers": None,
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the calls."""
        return (record for _, record in self._calls)

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the world log: how each call that acts on the world ended."""
        logged = [
            call for call in self.records() if call["effect"] not in NEUTRAL and call["status"] in LAST_LOGGED_STATUSES
        ]
        for seq, call in enumerate(logged, 1):
            yield {
                "record": "log",
                "seq": seq,
                "call": call["id"],
                "action": LAST_LOGGED_STATUSES[call["status"]][0],
                "operation": None,
                "created_at": call["ended_at"] or call["started_at"],
            }


def _call_id(call: Mapping[str, Any]) -> str | None:
    tool_call_id = call.get("tool_call_id")
    return tool_call_id if isinstance(tool_call_id, str) else None


def _identity(call: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(call.get(name) for name in ("id", "tool_name", "args", "tool_call_id"))


def _requests(messages: Iterable[Mapping[str, Any]]) -> dict[Any, int]:
    """Return for each tool call that a message requests the number of the message."""
    return {
        call["id"]: number
        for number, message in enumerate(messages)
        if message.get("role") == "assistant"  # only their calls are checked
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("id"), str)
    }


def _effect(effect: Any, args: Any) -> str:
    """Return the effect of a call, if it is a known one; a write to memory must name what it wrote."""
    if not isinstance(effect, str) or effect not in RECORDED_KINDS or (effect == MEMORY and not names_item(args or {})):
        return UNDECLARED
    return effect


def _time_of(call: Mapping[str, Any], name: str) -> str | None:
    value = call.get(name)
    if value is None:
        return None
    try:
        return time(value.isoformat() if isinstance(value, datetime) else value).isoformat()
    except ValueError as error:
        raise ValueError(f"has {name} {short_repr(value)}, which is not a time with a time zone") from error
