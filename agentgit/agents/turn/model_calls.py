"""Recording of the model calls of a turn: the messages, the options and the reply of each.

The calls of a step are stored with the graph checkpoint after it, in the same statements, so they cost a turn no
statement of their own. `agentgit.store.threads.model_calls` describes how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from agentgit.auth.secret_names import is_secret_name
from agentgit.errors import InvalidInput
from agentgit.saver.codec import Codec
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.plain_values import MESSAGE, MESSAGE_PY, READERS
from agentgit.store.threads.graph_rows import (
    MODEL_CALLS,
    Draft,
    GraphCheckpoint,
    GraphKey,
    NewModelCall,
    NewModelCalls,
    NewWrites,
    Task,
)
from agentgit.values import portable

OPTIONS = ("tools", "tool_choice", "response_format")
"""The parameters of a model call that are recorded. The others may hold secrets, and are settings of the model."""

SCHEMAS = ("function", "parameters", "input_schema", "json_schema", "schema")
"""The keys of a tool under which a schema describes its arguments."""

LAST_MESSAGES = 16
"""The number of newest messages of a state among which the reply of a model is looked for."""


@dataclass
class _ModelCall:
    """A model call."""

    messages: list[BaseMessage]
    options: dict[str, Any]
    is_in_tool: bool
    reply: BaseMessage = field(default_factory=lambda: AIMessage(""))
    ended_at: datetime | None = None


class ModelCalls:
    """The model calls of a turn that are not stored yet. It is thread-safe."""

    def __init__(self, find_codec: Callable[[], Codec]) -> None:
        self._find_codec = find_codec
        self._calls: dict[UUID, _ModelCall] = {}  # in the order in which they began
        self._lock = threading.Lock()
        self._earlier: tuple[str, bytes] | None = None
        """a graph checkpoint, and the hashes of the calls up to the end of the step after it."""
        self._replies: dict[str, bytes] = {}
        """The hashes of the stored replies, by their ids."""
        self._step = -1
        """The number of the last stored step."""

    def begin(self, run_id: UUID, messages: Sequence[BaseMessage], params: Any, *, is_in_tool: bool) -> None:
        """Record that a model is called."""
        call = _ModelCall([*messages], sent_options(params or {}), is_in_tool)
        with self._lock:
            self._calls[run_id] = call

    def end(self, run_id: UUID, response: LLMResult) -> None:
        """Record the reply of a model."""
        reply = _reply_of(response)
        with self._lock:
            call = self._calls.get(run_id)
            if call is not None and reply is not None:
                call.reply, call.ended_at = reply, datetime.now(UTC)

    def discard(self, run_id: UUID) -> None:
        """Forget a call that raised."""
        with self._lock:
            self._calls.pop(run_id, None)

    def record_read(self, checkpoint: GraphCheckpoint) -> None:
        """Record the calls of the unfinished step of a graph checkpoint, which the next one must keep."""
        self._step = max(self._step, _step_of(checkpoint.meta)) if not checkpoint.key.ns else self._step
        if not checkpoint.key.ns and checkpoint.model_calls is not None:
            self._earlier = checkpoint.key.checkpoint_id, checkpoint.model_calls

    def attach(self, draft: Draft) -> Draft:
        """Return a draft of a graph checkpoint with the calls that ended before it."""
        self._step = step = _step_of(draft.meta)
        ended_calls, state = self._take(_made_at(draft)), _newest_messages(draft)
        rewritten = self._find_rewritten(state)
        earlier, self._earlier = self._earlier, None
        earlier_calls = earlier[1] if earlier is not None and earlier[0] == draft.parent_id else None
        if not ended_calls and not rewritten and earlier_calls is None:
            return draft
        calls = [*self._encode(ended_calls, state)]
        return replace(draft, model_calls=NewModelCalls(step, calls, earlier_calls, rewritten))

    def _find_rewritten(self, state: Sequence[Leaf]) -> dict[bytes, Leaf]:
        """Find the replies that the state now has in another form, redacted by a middleware, say."""
        rewritten = {}
        for message_id, key in self._replies.items() if state else ():
            item = _find_message(state, message_id)
            if item is not None and item.hash != key:
                rewritten[key], self._replies[message_id] = item, item.hash
        return rewritten

    def unsaved_writes(self, graph_key: GraphKey) -> NewWrites | None:
        """Return the writes that keep the calls of a step that ended without a graph checkpoint; None without any."""
        calls = [*self._encode(self._take(datetime.max.replace(tzinfo=UTC)), ())]
        if not calls:
            return None
        earlier = self._earlier[1] if self._earlier and self._earlier[0] == graph_key.checkpoint_id else None
        return NewWrites(graph_key, Task(MODEL_CALLS), (), NewModelCalls(self._step + 1, calls, earlier))

    def _take(self, before: datetime) -> list[_ModelCall]:
        with self._lock:
            ended = {
                id: call for id, call in self._calls.items() if call.ended_at is not None and call.ended_at <= before
            }
            for run_id in ended:
                del self._calls[run_id]
        return [*ended.values()]

    def _encode(self, calls: Sequence[_ModelCall], state: Sequence[Leaf]) -> Iterator[NewModelCall]:
        codec = self._find_codec()
        for call in calls:
            with suppress(InvalidInput):  # such a message cannot be in a state either
                *messages, reply = codec.encode_messages([*call.messages, call.reply])
                options = codec.encode_leaf(call.options) if call.options else None
                if call.reply.id is not None:
                    reply = _find_message(state, call.reply.id) or reply
                    self._replies[call.reply.id] = reply.hash
                yield NewModelCall(messages, options, reply, call.is_in_tool)


def _step_of(meta: Mapping[str, Any]) -> int:
    step = meta.get("step")
    return step if isinstance(step, int) else -1


def _reply_of(response: LLMResult) -> BaseMessage | None:
    generation = next((one for group in response.generations for one in group), None)
    if not isinstance(generation, ChatGeneration):
        return None
    message = generation.message
    return message_chunk_to_message(message) if isinstance(message, AIMessageChunk) else message


def _newest_messages(draft: Draft) -> list[Leaf]:
    """Return the newest messages that a graph checkpoint adds to its parent."""
    leaves: list[Leaf] = []
    for name in draft.changed_channels.intersection(draft.channels):
        body = draft.encode(name).body
        parts = body.values() if isinstance(body, dict) else [body]
        leaves.extend(item for part in parts if isinstance(part, list) for item in part[-LAST_MESSAGES:])
    return [item for item in leaves if item.type in (MESSAGE, MESSAGE_PY)]


def _find_message(leaves: Sequence[Leaf], message_id: str) -> Leaf | None:
    """Find a message by its id."""
    marker = b'"id":"%b"' % message_id.encode(errors="replace")  # parsing all of them would take longer
    found = (item for item in leaves if marker in item.data)
    return next((item for item in found if READERS[item.type](item.data)["data"].get("id") == message_id), None)


def _made_at(draft: Draft) -> datetime:
    """Return the time at which a graph checkpoint was made."""
    try:
        made_at = datetime.fromisoformat(str(draft.header.get("ts")))
    except ValueError:
        return datetime.now(UTC)
    return made_at if made_at.tzinfo is not None else made_at.replace(tzinfo=UTC)


def sent_options(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tools and the output format of a model call, without anything that looks like a secret.

    Example:
        >>> sent_options({"tools": [{"type": "mcp", "url": "https://a", "headers": {"X": "1"}}], "api_key": "k"})
        {'tools': [{'type': 'mcp', 'url': 'https://a'}]}
    """
    options: dict[str, Any] = {}
    for name in OPTIONS:
        value = params.get(name)
        if value is None or value == []:
            continue
        if name == "tools" and isinstance(value, list | tuple):
            options[name] = [_without_secrets(_as_plain(tool)) for tool in value]
        else:
            options[name] = _without_secrets(_as_plain(value))
    return options


def _as_plain(value: Any) -> Any:
    """Return a tool, or another option, as JSON types."""
    if isinstance(value, Mapping | str | bool | int | float | list):
        return portable(value)
    try:
        return convert_to_openai_tool(value)
    except Exception:  # noqa: BLE001  # a tool that cannot be described must not stop the call
        return portable(value.model_dump(mode="json")) if isinstance(value, BaseModel) else str(type(value).__name__)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_defaults(item) if name in SCHEMAS else _without_secrets(item)
        for name, item in value.items()
        if name in SCHEMAS or not (is_secret_name(name) or name == "headers")
    }


def _without_defaults(schema: Any) -> Any:
    """Return a schema without the defaults of the properties whose names look like secrets."""
    if isinstance(schema, list):
        return [_without_defaults(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: _without_defaults(item) for name, item in schema.items()}
    properties = shown.get("properties")
    if isinstance(properties, dict):
        for name, item in properties.items():
            if isinstance(item, dict) and is_secret_name(name):
                properties[name] = {
                    key: part for key, part in item.items() if key not in ("default", "examples", "const")
                }
    return shown
