"""Conversion of tool results to their recorded form and back.

The recorded form is JSON-like. Where LangGraph needs the object itself, that is recorded too.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.errors import ParentCommand
from langgraph.types import Command

from agentgit.effects.results import SERIALIZED_KEY
from agentgit.saver.leaf_codec import type_names
from agentgit.saver.serializer import StrictSerializer, can_rebuild
from agentgit.store.objects.plain_values import MSGPACK
from agentgit.values import portable

_SERDE = StrictSerializer()
_MESSAGES = "messages"


class UnreadableResult(ValueError):
    """A recorded result cannot be rebuilt as the object that it was."""


def as_recorded(value: Any) -> Any:
    """Return what a tool returned in the form that the journal stores.

    Example:
        >>> as_recorded({"order": 7})
        {'order': 7}
        >>> sorted(as_recorded(Command(goto="seller")))
        ['agentgit_packed', 'goto', 'graph', 'resume', 'update']
    """
    # A tool's own dict with the key of the record is data, not a record.
    is_marked = isinstance(value, dict) and SERIALIZED_KEY in value
    if is_marked or (isinstance(value, list) and any(isinstance(one, (Command, ToolMessage)) for one in value)):
        return {"returned": portable(value), SERIALIZED_KEY: _serialize(value)}
    if isinstance(value, (Command, ToolMessage)):
        return {**portable(value), SERIALIZED_KEY: _serialize(value)}
    return portable(value)


def has_command(value: Any) -> bool:
    """Return whether a tool returned a command, which holds what the call changes in the state of the graph."""
    return any(isinstance(one, Command) for one in (value if isinstance(value, list) else [value]))


def handover_record(error: ParentCommand) -> Any:
    """Return the record of a handover to the graph around a tool; the command was raised, for that run only."""
    return {**portable(replace(error.args[0], graph=None)), SERIALIZED_KEY: None}


def rebuild_result(result: Any, tool_call_id: str | None) -> Any:
    """Rebuild what a tool returned, as the answer to one call."""
    if not isinstance(result, dict) or SERIALIZED_KEY not in result:
        return result
    packed = result[SERIALIZED_KEY]
    try:
        body = base64.b64decode(packed)
        value = _SERDE.loads_typed((MSGPACK, body)) if _can_rebuild(body) else None
    except (TypeError, ValueError):  # there is no object, or the row is damaged
        value = None
    if value is None:
        raise UnreadableResult("it returned objects that cannot be rebuilt from the record")
    return _readdress(value, tool_call_id)


def _serialize(value: Any) -> str | None:
    """Serialize an object; return None if that fails or if it could not be rebuilt."""
    try:
        kind, body = _SERDE.dumps_typed(value)
    except Exception:  # noqa: BLE001  # the tool has returned, and must not fail because of its record
        return None
    return base64.b64encode(body).decode() if kind == MSGPACK and _can_rebuild(body) else None


def _can_rebuild(body: bytes) -> bool:
    return all(map(can_rebuild, type_names(body)))


def _readdress(value: Any, tool_call_id: str | None) -> Any:
    """Readdress what a tool returned to another call."""
    if isinstance(value, list):
        return [_readdress(one, tool_call_id) for one in value]
    if isinstance(value, ToolMessage) and tool_call_id is not None and value.tool_call_id != tool_call_id:
        return value.model_copy(update={"tool_call_id": tool_call_id, "id": None})
    if isinstance(value, Command) and isinstance(value.update, dict) and _MESSAGES in value.update:
        return replace(value, update={**value.update, _MESSAGES: _readdress(value.update[_MESSAGES], tool_call_id)})
    return value


def value_of(output: Any) -> Any:
    """Extract what a tool returned from its message, for when only the message is known."""
    if not isinstance(output, ToolMessage):
        return output
    if output.artifact is not None or not isinstance(output.content, str):
        return output.artifact if output.artifact is not None else output.content
    if output.content[:1] not in ("{", "["):
        return output.content  # text that looks like a number may really be text
    try:
        return json.loads(output.content)
    except ValueError:
        return output.content
