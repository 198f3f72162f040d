"""States of plain checkpoints, as the graph checkpoints, values and messages of an export."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from reprlib import repr as short_repr
from typing import Any

import orjson

from agentgit.checkpoints import Checkpoint
from agentgit.sessions.messages import ROLES
from agentgit.store.objects.blobs import Leaf, leaf, list_hash
from agentgit.store.objects.plain_values import JSON, JSON_PY, MESSAGE, MESSAGE_PY
from agentgit.store.threads.graph_rows import hash_state, is_shown
from agentgit.store.transfer.export_states import RecentLists
from agentgit.store.transfer.json_checks import stored_message
from agentgit.store.transfer.lines import records_with_contents
from agentgit.values import to_json

MESSAGES = "messages"
"""The channel of the conversation."""

_TYPES_BY_ROLE = {role: kind for kind, role in ROLES.items()} | {kind: kind for kind in ROLES}
_MESSAGE_KEYS = frozenset({"role", "content", "id", "name", "tool_calls", "tool_call_id", "usage_metadata"})


@dataclass(frozen=True)
class State:
    """A graph checkpoint of the export."""

    id: str
    hash: bytes
    message_count: int
    channels: Mapping[str, bytes]
    versions: Mapping[str, int]


@dataclass
class States:
    """Writes the states of checkpoints in order: values that were not written before, then a graph checkpoint."""

    branch_id: int
    last: State | None = None
    _seq: int = 0
    _written: set[bytes] = field(default_factory=set)
    _recent: RecentLists = field(default_factory=RecentLists)

    def add(self, checkpoint: Checkpoint, at: datetime) -> Iterator[dict[str, Any]]:
        """Yield the records of a checkpoint's state, unless it is the state before; then it is `last`."""
        values = {name: _value_leaf(value) for name, value in _shown_state(checkpoint).items()}
        messages = [message_leaf(number, one) for number, one in enumerate(checkpoint.conversation_history, 1)]
        channels = {name: value.hash for name, value in values.items()}
        if messages:
            channels[MESSAGES] = list_hash(message.hash for message in messages)
        if not channels and self.last is None:
            return  # as before the first turn of a session
        if self.last is not None and channels == self.last.channels:
            return
        for value in (*values.values(), *messages):
            yield from self._value(value)
        if messages:
            yield from self._list(channels[MESSAGES], tuple(message.hash for message in messages))
        yield self._state(channels, len(messages), at)

    def _value(self, value: Leaf) -> Iterator[dict[str, Any]]:
        if value.hash not in self._written:
            self._written.add(value.hash)
            record = {"record": "value", "id": value.hash.hex(), "type": value.type}
            yield from records_with_contents(record, value.data, is_text=True)

    def _list(self, key: bytes, items: tuple[bytes, ...]) -> Iterator[dict[str, Any]]:
        if key in self._written:
            return
        self._written.add(key)
        base, kept = self._recent.find_base(items)
        yield {
            "record": "list",
            "id": key.hex(),
            "base": base.hex() if base is not None else None,
            "keep": kept,
            "items": [item.hex() for item in items[kept:]],
        }
        self._recent.add(key, items)

    def _state(self, channels: Mapping[str, bytes], message_count: int, at: datetime) -> dict[str, Any]:
        parent, self._seq = self.last, self._seq + 1
        old_channels, old_versions = (parent.channels, parent.versions) if parent is not None else ({}, {})
        versions = {
            name: old_versions[name] if old_channels.get(name) == key else self._seq for name, key in channels.items()
        }
        self.last = State(_graph_checkpoint_id(at, self._seq), hash_state(channels), message_count, channels, versions)
        return {
            "record": "state",
            "branch": self.branch_id,
            "ns": "",
            "id": self.last.id,
            "seq": self._seq,
            "parent": parent.id if parent is not None else None,
            "root": None,
            "run": None,
            "messages": message_count,
            "meta": {"source": "update", "step": self._seq - 1, "parents": {}},
            "header": {
                "v": 4,
                "ts": at.isoformat(),
                "versions": versions,
                "seen": {},
                "updated": None,
                "counts": {MESSAGES: message_count} if message_count else {},
            },
            "channels": {name: key.hex() for name, key in channels.items()},
            "state_hash": self.last.hash.hex(),
        }


def _graph_checkpoint_id(at: datetime, seq: int) -> str:
    """Return a version 6 UUID, which sorts by time, as the ids of LangGraph's checkpoints do."""
    ticks = (at - datetime(1582, 10, 15, tzinfo=UTC)) // timedelta(microseconds=1) * 10
    bits = (ticks >> 12) << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | 2 << 62 | (seq & 0x3FFF) << 48
    return str(uuid.UUID(int=bits | uuid.uuid4().int & (2**48 - 1)))


def _shown_state(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.session_state
    for name in state:
        if not isinstance(name, str) or not is_shown(name):
            raise ValueError(f"session_state cannot have a key {short_repr(name)}, which LangGraph uses itself")
        if name == MESSAGES:
            raise ValueError("session_state cannot have a key 'messages'; put the messages into conversation_history")
    return state


def _value_leaf(value: Any) -> Leaf:
    """Encode a value as JSON, exactly if that is possible, else in the form that `portable` gives it."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME)
        if orjson.loads(data) == value:
            return leaf(JSON, data)
    except (TypeError, ValueError):
        pass
    data = to_json(value)
    return leaf(JSON_PY, data.strip()) if data.startswith(b" ") else leaf(JSON, data)


def message_leaf(number: int, message: Mapping[str, Any]) -> Leaf:
    """Encode a message in LangChain's stored form."""
    role = message.get("role")
    kind = _TYPES_BY_ROLE.get(role) if isinstance(role, str) else None
    if kind is None:
        raise ValueError(f"message {number} has the role {short_repr(role)}, not user, assistant, tool or system")
    try:
        stored = stored_message({"type": kind, "data": _message_data(kind, message)})
    except ValueError as error:
        raise ValueError(f"message {number} {error}") from error
    encoded = _value_leaf(stored)
    return leaf(MESSAGE if encoded.type == JSON else MESSAGE_PY, encoded.data)


def _message_data(kind: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message in the order of LangChain, so that the graph writes the same bytes later."""
    more = {key: value for key, value in message.items() if key not in _MESSAGE_KEYS}
    data = {
        "content": message["content"] if message.get("content") is not None else "",
        "additional_kwargs": more,
        "response_metadata": {},
        "type": kind,
        "name": message.get("name"),
        "id": message.get("id"),
    }
    if kind == "ai":
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) and "name" in call for call in calls):
            raise ValueError("has tool_calls that are not a list of dicts with name, args and id")
        data["tool_calls"] = [
            {"name": call["name"], "args": call.get("args") or {}, "id": call.get("id"), "type": "tool_call"}
            for call in calls
        ]
        data |= {"invalid_tool_calls": [], "usage_metadata": message.get("usage_metadata") or None}
    if kind == "tool":
        data |= {"tool_call_id": message.get("tool_call_id"), "artifact": None, "status": "success"}
    return data
