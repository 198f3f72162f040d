"""Rewriting of messages: new tool results in a branch that is not published yet, after its tools ran again."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from agentgit.effects.results import SERIALIZED_KEY
from agentgit.store.objects.blobs import Leaf, compact, pack
from agentgit.store.objects.content import Body
from agentgit.store.objects.plain_values import MESSAGE, MESSAGE_PY, READERS, encode_leaf
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import model_calls
from agentgit.store.threads.graph_rows import GraphCheckpoint, hash_state, parse_graph_checkpoint
from agentgit.store.threads.graph_store import GraphStore

READABLE_TYPES = (MESSAGE, MESSAGE_PY)
"""The forms of messages that can be read and written without LangChain."""


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


ChangesByCallId = Mapping[str, Sequence[ResultChange]]


def content_of(value: Any) -> Any:
    """Return the message content that `ToolNode` makes of a tool's return value."""
    is_blocks = isinstance(value, list) and all(
        isinstance(b, dict) and b.get("type") in CONTENT_BLOCK_TYPES for b in value
    )
    return value if isinstance(value, str) or is_blocks else json.dumps(value, ensure_ascii=False)


def rewrite_messages(transaction: Writing, graphs: GraphStore, thread: str, changes: Sequence[ResultChange]) -> None:
    """Put new tool results into the messages of a thread, in the graph checkpoints that a fork has just copied.

    If its state changes, the newest graph checkpoint of the root graph gets a new id, because an id identifies one
    state. It keeps its id while it has pending writes, because LangGraph finds its waiting and unfinished tasks by that
    id.

    Two kinds of messages are not changed: those that only a serializer could store, and those that LangGraph computes
    from the writes of earlier steps (DeltaChannel).
    """
    changes_by_call_id: dict[str, list[ResultChange]] = {}
    for change in changes:
        changes_by_call_id.setdefault(change.tool_call_id, []).append(change)
    head, is_changed = graphs.newest(transaction, thread), False
    for row in transaction.execute(select(GRAPH_CHECKPOINT).where(GRAPH_CHECKPOINT.c.thread_id == thread)).all():
        checkpoint = parse_graph_checkpoint(row)
        changed_values = _changed_values(transaction, graphs, checkpoint, changes_by_call_id)
        if not changed_values:
            continue
        is_changed |= head is not None and checkpoint.key == head.key
        hashes = graphs.content(checkpoint.session_id).put(
            transaction, [(body, checkpoint.channels[name]) for name, body in changed_values.items()]
        )
        channels = {**checkpoint.values, **dict(zip(changed_values, hashes, strict=True))}
        new_columns = {
            "channels": pack({**channels, **model_calls.named(checkpoint.model_calls)}),
            "state_hash": hash_state({**channels, **checkpoint.digests}),
        }
        update_rows(transaction, GRAPH_CHECKPOINT, *checkpoint.key.conditions(GRAPH_CHECKPOINT), **new_columns)
    if head is not None and is_changed and not graphs.writes(transaction, head.key):
        _replace_id(transaction, head)


def _replace_id(transaction: Writing, head: GraphCheckpoint) -> None:
    """Replace the id of the newest graph checkpoint of a thread, and record the id in its subgraphs' checkpoints."""
    c, new_id = GRAPH_CHECKPOINT.c, new_checkpoint_id()
    of_subgraphs = (c.thread_id == head.key.thread, c.root_id == head.key.checkpoint_id)
    for row in transaction.execute(select(GRAPH_CHECKPOINT).where(*of_subgraphs)).all():
        checkpoint = parse_graph_checkpoint(row)
        meta = {**checkpoint.meta, "parents": {**(checkpoint.meta.get("parents") or {}), "": new_id}}
        is_row = checkpoint.key.conditions(GRAPH_CHECKPOINT)
        update_rows(transaction, GRAPH_CHECKPOINT, *is_row, root_id=new_id, meta=compact(meta))
    update_rows(transaction, GRAPH_CHECKPOINT, *head.key.conditions(GRAPH_CHECKPOINT), checkpoint_id=new_id)


def new_checkpoint_id() -> str:
    """Return a new id of a graph checkpoint in LangGraph's format: a UUID of version 6, which sorts by time."""
    timestamp = uuid.uuid1().time
    random_bits = secrets.randbits(62) | 0b10 << 62
    return str(uuid.UUID(int=(timestamp >> 12) << 80 | 6 << 76 | (timestamp & 0xFFF) << 64 | random_bits))


def _changed_values(
    transaction: Reading, graphs: GraphStore, checkpoint: GraphCheckpoint, changes: ChangesByCallId
) -> dict[str, Body]:
    hashes = {name: checkpoint.channels[name] for name in checkpoint.header["counts"] if name in checkpoint.channels}
    bodies = graphs.content(checkpoint.session_id).get(transaction, hashes.values())
    changed = {name: _replace_results(bodies[key], changes) for name, key in hashes.items()}
    return {name: body for name, body in changed.items() if body is not None}


def _replace_results(body: Body, changes: ChangesByCallId) -> Body | None:
    if isinstance(body, list):
        return _replace_in_list(body, changes)
    if isinstance(body, dict):
        parts = {name: _replace_in_list(part, changes) for name, part in body.items() if isinstance(part, list)}
        changed = {name: part for name, part in parts.items() if part is not None}
        return {**body, **changed} if changed else None
    return None


def _replace_in_list(items: list[Leaf], changes: ChangesByCallId) -> list[Leaf] | None:
    messages: list[dict[str, Any]] = [
        READERS[item.type](item.data) if item.type in READABLE_TYPES else {} for item in items
    ]
    changed = _changed_messages(messages, changes)
    return (
        [encode_leaf(MESSAGE, changed[n]) if n in changed else item for n, item in enumerate(items)]
        if changed
        else None
    )


def _changed_messages(messages: Sequence[Mapping[str, Any]], changes: ChangesByCallId) -> dict[int, dict[str, Any]]:
    """Return the messages that change, by index. A message that does not match its recorded result is not changed.

    Messages are matched with calls from the newest to the oldest, because models may reuse an id and old messages may
    be gone.
    """
    remaining = {id: list(candidates) for id, candidates in changes.items()}
    changed: dict[int, dict[str, Any]] = {}
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        data = message.get("data") or {}
        candidates = remaining.get(data.get("tool_call_id") or "", []) if message.get("type") == "tool" else []
        for n in range(len(candidates) - 1, -1, -1):
            if fields := _updated_fields(data, candidates[n]):
                del candidates[n:]
                if fields != {name: data.get(name) for name in fields}:
                    changed[index] = {**message, "data": {**data, **fields}}
                break
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
