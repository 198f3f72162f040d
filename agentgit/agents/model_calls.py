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

from agentgit.auth.secret_names import without_secrets
from agentgit.errors import InvalidInput
from agentgit.saver.codec import Codec
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.plain_values import MESSAGE, MESSAGE_PY, READERS
from agentgit.store.threads.graph_rows import (
    MODEL_CALLS,
    Draft,
    GraphCheckpoint,
    GraphKey,
    NewCheckpoint,
    NewModelCall,
    NewModelCalls,
    NewWrites,
)
from agentgit.values import portable

OPTIONS = ("tools", "tool_choice", "response_format")
"""The parameters of a model call that are recorded. The others may hold secrets, and are settings of the model."""

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
        self._newest: GraphKey | None = None
        """The newest graph checkpoint that was read or saved."""
        self._step = -1
        """The number of its step."""
        self._unfinished: bytes | None = None
        """The hashes of the calls up to the end of the unfinished step after it."""
        self._replies: dict[str, bytes] = {}
        """The hashes of the stored replies, by their ids."""

    def begin(self, run_id: UUID, messages: Sequence[BaseMessage], params: Any, *, is_in_tool: bool) -> None:
        call = _ModelCall([*messages], sent_options(params or {}), is_in_tool)
        with self._lock:
            self._calls[run_id] = call

    def end(self, run_id: UUID, response: LLMResult) -> None:
        reply = _reply_of(response)
        with self._lock:
            call = self._calls.get(run_id)
            if call is not None and reply is not None:
                call.reply, call.ended_at = reply, datetime.now(UTC)

    def discard(self, run_id: UUID) -> None:
        with self._lock:
            self._calls.pop(run_id, None)

    def record_read(self, checkpoint: GraphCheckpoint) -> None:
        """Record the calls of the unfinished step of a graph checkpoint, which the next one must keep."""
        if (step := _step_of(checkpoint.meta)) >= self._step:  # a node may read an older one
            self._newest, self._step, self._unfinished = checkpoint.key, step, checkpoint.model_calls

    def attach(self, new: NewCheckpoint) -> NewCheckpoint:
        """Return a graph checkpoint with the calls that ended before it."""
        draft, step = new.draft, _step_of(new.draft.meta)
        ended_calls, state = self._take(_made_at(draft)), _newest_messages(draft)
        rewritten = self._find_rewritten(state)
        is_next = self._newest is not None and self._newest.checkpoint_id == draft.parent_id
        earlier_calls = self._unfinished if is_next else None
        self._newest, self._step, self._unfinished = new.key, step, None
        if not ended_calls and not rewritten and earlier_calls is None:
            return new
        calls = [*self._encode(ended_calls, state)]
        return new._replace(draft=replace(draft, model_calls=NewModelCalls(step, calls, earlier_calls, rewritten)))

    def _find_rewritten(self, state: Sequence[Leaf]) -> dict[bytes, Leaf]:
        """Find the replies that the state now has in another form, redacted by a middleware, say."""
        rewritten = {}
        for message_id, key in self._replies.items() if state else ():
            item = _find_message(state, message_id)
            if item is not None and item.hash != key:
                rewritten[key], self._replies[message_id] = item, item.hash
        return rewritten

    def unsaved_writes(self) -> NewWrites | None:
        """Return the writes that keep the calls of a step that ended without a graph checkpoint; None without any."""
        calls = [*self._encode(self._take(datetime.max.replace(tzinfo=UTC)), ())]
        if not calls or self._newest is None:
            return None
        new_calls = NewModelCalls(self._step + 1, calls, self._unfinished)
        return NewWrites(self._newest, MODEL_CALLS, "", (), new_calls)

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
    marker = b'"id":"%b"' % message_id.encode(errors="replace")  # parsing all of them would take longer
    found = (item for item in leaves if marker in item.data)
    return next((item for item in found if READERS[item.type](item.data)["data"].get("id") == message_id), None)


def _made_at(draft: Draft) -> datetime:
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
    given = {name: params[name] for name in OPTIONS if params.get(name) not in (None, [])}
    if isinstance(tools := given.get("tools"), list | tuple):
        given["tools"] = [_as_plain(tool) for tool in tools]
    return {name: without_secrets(_as_plain(value)) for name, value in given.items()}


def _as_plain(value: Any) -> Any:
    """Return a tool, or another option, as JSON types."""
    if isinstance(value, Mapping | str | bool | int | float | list):
        return portable(value)
    try:
        return convert_to_openai_tool(value)
    except Exception:  # noqa: BLE001  # a tool that cannot be described must not stop the call
        return portable(value.model_dump(mode="json")) if isinstance(value, BaseModel) else str(type(value).__name__)
