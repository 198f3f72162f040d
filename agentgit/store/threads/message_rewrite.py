"""Rewriting of messages: new tool results in a branch that is not published yet, after its tools ran again."""

from __future__ import annotations

import json
import secrets
import uuid
from typing import Any

import orjson
from sqlalchemy import Connection, select

from agentgit.effects.results import ResultRewriter
from agentgit.store.objects.blobs import Leaf, compact, leaf, pack
from agentgit.store.objects.content import Body
from agentgit.store.objects.plain_values import MESSAGE, MESSAGE_PY, READERS
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.sql.writes import update_rows
from agentgit.store.threads import model_calls
from agentgit.store.threads.graph_rows import GraphCheckpoint, hash_state, parse_graph_checkpoint
from agentgit.store.threads.graph_store import GraphStore

READABLE_TYPES = (MESSAGE, MESSAGE_PY)
"""The forms of messages that can be read and written without LangChain."""


def rewrite_messages(connection: Connection, graphs: GraphStore, thread: str, rewriter: ResultRewriter) -> None:
    """Put new tool results into the messages of a thread, in the graph checkpoints that a fork has just copied.

    If its state changes, the newest graph checkpoint of the root graph gets a new id, because an id identifies one
    state. It keeps its id while it has pending writes, because LangGraph finds its waiting and unfinished tasks by that
    id.

    Two kinds of messages are not changed: those that only a serializer could store, and those that LangGraph computes
    from the writes of earlier steps (DeltaChannel).
    """
    thread_conditions = (GRAPH_CHECKPOINT.c.tenant_id == graphs.tenant_id, GRAPH_CHECKPOINT.c.thread_id == thread)
    head, is_changed = graphs.newest(connection, thread), False
    for row in connection.execute(select(GRAPH_CHECKPOINT).where(*thread_conditions)).all():
        checkpoint = parse_graph_checkpoint(row)
        changed_values = _changed_values(connection, graphs, checkpoint, rewriter)
        if not changed_values:
            continue
        is_changed |= head is not None and checkpoint.key == head.key
        hashes = graphs.content(checkpoint.session_id).put(
            connection, [(body, checkpoint.channels[name]) for name, body in changed_values.items()]
        )
        channels = {**checkpoint.values, **dict(zip(changed_values, hashes, strict=True))}
        row_conditions = (GRAPH_CHECKPOINT.c.ns == row.ns, GRAPH_CHECKPOINT.c.checkpoint_id == row.checkpoint_id)
        state_hash = hash_state({**channels, **checkpoint.digests})
        new_columns = {
            "channels": pack({**channels, **model_calls.named(checkpoint.model_calls)}),
            "state_hash": state_hash,
        }
        update_rows(connection, GRAPH_CHECKPOINT, *thread_conditions, *row_conditions, **new_columns)
    if head is not None and is_changed and not graphs.writes(connection, head.key):
        _replace_id(connection, graphs.tenant_id, head)


def _replace_id(connection: Connection, tenant_id: int, head: GraphCheckpoint) -> None:
    """Replace the id of the newest graph checkpoint of a thread, and record the id in its subgraphs' checkpoints."""
    graph_key, new_id = head.key, new_checkpoint_id()
    thread_conditions = (GRAPH_CHECKPOINT.c.tenant_id == tenant_id, GRAPH_CHECKPOINT.c.thread_id == graph_key.thread)
    subgraph_query = select(GRAPH_CHECKPOINT).where(
        *thread_conditions, GRAPH_CHECKPOINT.c.root_id == graph_key.checkpoint_id
    )
    for row in connection.execute(subgraph_query).all():
        checkpoint = parse_graph_checkpoint(row)
        meta = {**checkpoint.meta, "parents": {**(checkpoint.meta.get("parents") or {}), "": new_id}}
        row_conditions = (GRAPH_CHECKPOINT.c.ns == row.ns, GRAPH_CHECKPOINT.c.checkpoint_id == row.checkpoint_id)
        update_rows(
            connection, GRAPH_CHECKPOINT, *thread_conditions, *row_conditions, root_id=new_id, meta=compact(meta)
        )
    row_conditions = (
        GRAPH_CHECKPOINT.c.ns == graph_key.ns,
        GRAPH_CHECKPOINT.c.checkpoint_id == graph_key.checkpoint_id,
    )
    update_rows(connection, GRAPH_CHECKPOINT, *thread_conditions, *row_conditions, checkpoint_id=new_id)


def new_checkpoint_id() -> str:
    """Return a new id of a graph checkpoint in LangGraph's format: a UUID of version 6, which sorts by time."""
    timestamp = uuid.uuid1().time
    random_bits = secrets.randbits(62) | 0b10 << 62
    return str(uuid.UUID(int=(timestamp >> 12) << 80 | 6 << 76 | (timestamp & 0xFFF) << 64 | random_bits))


def _changed_values(
    connection: Connection, graphs: GraphStore, checkpoint: GraphCheckpoint, rewriter: ResultRewriter
) -> dict[str, Body]:
    """Return the values whose messages change, by channel."""
    hashes = {name: checkpoint.channels[name] for name in checkpoint.header["counts"] if name in checkpoint.channels}
    bodies = graphs.content(checkpoint.session_id).get(connection, hashes.values())
    changed = {name: _replace_results(bodies[key], rewriter) for name, key in hashes.items()}
    return {name: body for name, body in changed.items() if body is not None}


def _replace_results(body: Body, rewriter: ResultRewriter) -> Body | None:
    """Return a value with new results in its messages; None if nothing changes."""
    if isinstance(body, list):
        return _replace_in_list(body, rewriter)
    if isinstance(body, dict):
        parts = {name: _replace_in_list(part, rewriter) for name, part in body.items() if isinstance(part, list)}
        changed = {name: part for name, part in parts.items() if part is not None}
        return {**body, **changed} if changed else None
    return None


def _replace_in_list(items: list[Leaf], rewriter: ResultRewriter) -> list[Leaf] | None:
    messages: list[dict[str, Any]] = [
        READERS[item.type](item.data) if item.type in READABLE_TYPES else {} for item in items
    ]
    changed = rewriter.changed_messages(messages)
    return [_encode_message(changed[n]) if n in changed else item for n, item in enumerate(items)] if changed else None


def _encode_message(message: dict[str, Any]) -> Leaf:
    """Encode a message exactly as the saver's codec does, so that equal messages are stored as one value."""
    try:
        return leaf(MESSAGE, orjson.dumps(message))
    except TypeError:
        return leaf(MESSAGE_PY, json.dumps(message, separators=(",", ":")).encode())
