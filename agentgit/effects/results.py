"""Results and errors of calls: comparing results, updating them in messages, and what an error proves. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SERIALIZED_KEY = "agentgit_packed"
"""The key in the record of a `Command` or a message that holds the serialized object, if it can be rebuilt."""


def comparable(result: Any) -> Any:
    """Return a recorded result without call ids and serialized objects, so that two results can be compared."""
    return _without_ids(result) if isinstance(result, dict) and SERIALIZED_KEY in result else result


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped_keys = {SERIALIZED_KEY, "tool_call_id"} if value.get("type") == "tool" else {SERIALIZED_KEY}
    return {name: _without_ids(item) for name, item in value.items() if name not in dropped_keys}


def returned_error(result: Any) -> str | None:
    """Return the text of the error message that a tool returned, as recorded; None if it returned anything else."""
    is_error = isinstance(result, dict) and SERIALIZED_KEY in result and result.get("status") == "error"
    return str(result.get("content")) if is_error else None


class NothingDone(Exception):  # not an AgentGitError: it only marks the errors of tools
    """The part of `agentgit.NotDone` that does not need LangChain."""

    raised_by: Any = None
    """The call that raised it first. It proves nothing about an outer call that it only passes through."""


CONTENT_BLOCK_TYPES = frozenset(
    ("text", "image_url", "image", "json", "search_result", "custom_tool_call_output", "document", "file")
)
"""The types of content blocks that LangChain accepts in a tool message."""


@dataclass(frozen=True, kw_only=True)
class ResultChange:
    """The answer to a tool call in a conversation."""

    tool_call_id: str
    recorded: Any
    current: Any


def content_of(value: Any) -> Any:
    """Return the message content that `ToolNode` makes of a tool's return value."""
    is_blocks = isinstance(value, list) and all(
        isinstance(b, dict) and b.get("type") in CONTENT_BLOCK_TYPES for b in value
    )
    return value if isinstance(value, str) or is_blocks else json.dumps(value, ensure_ascii=False)


class ResultRewriter:
    """Replaces tool results in the messages of one conversation."""

    def __init__(self, changes: Sequence[ResultChange]) -> None:
        self._changes_by_call_id: dict[str, list[ResultChange]] = {}
        for change in changes:
            self._changes_by_call_id.setdefault(change.tool_call_id, []).append(change)

    def changed_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the messages that change, by index. A message that does not match its recorded result is not changed.

        Messages are matched with calls from the newest to the oldest, because models may reuse an id and old messages
        may be gone.
        """
        remaining = {id: list(changes) for id, changes in self._changes_by_call_id.items()}
        changed: dict[int, dict[str, Any]] = {}
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            data = message.get("data") or {}
            candidates = remaining.get(data.get("tool_call_id") or "", []) if message.get("type") == "tool" else []
            matches = (
                (n, fields)
                for n in range(len(candidates) - 1, -1, -1)
                if (fields := _updated_fields(data, candidates[n]))
            )
            if (match := next(matches, None)) is not None:
                del candidates[match[0] :]
                if match[1] != {name: data.get(name) for name in match[1]}:
                    changed[index] = {**message, "data": {**data, **match[1]}}
        return changed


def _updated_fields(data: Mapping[str, Any], change: ResultChange) -> dict[str, Any] | None:
    """Return the fields of a message with the new result; None if the message does not match the recorded one."""
    for recorded, current in zip(
        _field_variants(change.recorded, change), _field_variants(change.current, change), strict=False
    ):
        if all(data.get(name) == value for name, value in recorded.items()):
            return current
    return None


def _field_variants(value: Any, change: ResultChange) -> Iterator[dict[str, Any]]:
    """Yield the fields that a message may have for a result, one for each way in which a tool can return it."""
    if isinstance(value, dict) and SERIALIZED_KEY in value:
        message = next(
            (m for m in _messages_in(value) if m.get("tool_call_id") == _answered_call_id(value, change)), None
        )
        if message is not None:
            rest = {name: message[name] for name in ("artifact", "status") if name in message}
            yield {"content": content_of(message.get("content")), **rest}
        return
    yield {"content": content_of(value)}
    if isinstance(value, list) and len(value) == 2:  # content and artifact
        yield {"content": content_of(value[0]), "artifact": value[1]}


def _answered_call_id(value: Mapping[str, Any], change: ResultChange) -> str | None:
    """Return the id of the call that a returned message answers: the recorded id, or else the first in the value."""
    ids = [message.get("tool_call_id") for message in _messages_in(value)]
    return change.tool_call_id if change.tool_call_id in ids else next(iter(ids), None)


def _messages_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the tool messages in the record of a message, a `Command`, or a list of these."""
    if isinstance(value, list):
        for item in value:
            yield from _messages_in(item)
    elif isinstance(value, dict):
        if value.get("type") == "tool":
            yield value
        update = value.get("update")
        for part in (value.get("returned"), update.get("messages") if isinstance(update, dict) else None):
            yield from _messages_in(part)
