"""Rewriting of messages: new tool results in a branch that is not published yet, after its tools ran again."""

from __future__ import annotations

import json
import secrets
import uuid
from typing import Any

import orjson
from sqlalchemy import Connection, select

from agentgit.effects.results import Rewriter
from agentgit.store.objects.blobs import Leaf, compact, leaf, pack
from agentgit.store.objects.content import Body
from agentgit.store.objects.plain_values import MESSAGE, MESSAGE_PY, READERS
from agentgit.store.sql import row_codes
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.threads.graph_rows import GraphCheckpoint, hash_state, parse_graph_checkpoint
from agentgit.store.threads.graph_store import GraphStore

READABLE = (MESSAGE, MESSAGE_PY)
"""The forms of messages that can be read and written without LangChain."""


def rewrite(connection: Connection, graphs: GraphStore, thread: str, rewriter: Rewriter) -> None:
    """Put new tool results into the messages of a thread, in the graph checkpoints that a fork has just copied.

    If its state changes, the newest graph checkpoint of the root graph gets a new id, because an id identifies one
    state. It keeps its id while it has pending writes, because LangGraph finds its waiting and unfinished tasks by that
    id.

    Two kinds of messages are not changed: those that only a serializer could store, and those that LangGraph computes
    from the writes of earlier steps (DeltaChannel).

    Args:
        connection: A connection in a transaction that writes.
        graphs: The store of the graph checkpoints.
        thread: A thread that is not in use yet.
        rewriter: The rewriter with the new results.
    """
    mine = (GRAPH_CHECKPOINT.c.tenant_id == graphs.tenant_id, GRAPH_CHECKPOINT.c.thread_id == thread)
    head, is_changed = graphs.newest(connection, thread), False
    for row in row_codes.authentic(
        connection, GRAPH_CHECKPOINT, connection.execute(select(GRAPH_CHECKPOINT).where(*mine))
    ):
        at = parse_graph_checkpoint(row)
        fresh = _fresh(connection, graphs, at, rewriter)
        if not fresh:
            continue
        is_changed |= head is not None and at.place == head.place
        keys = graphs.content.put(connection, [(body, at.channels[name]) for name, body in fresh.items()])
        channels = {**at.values, **dict(zip(fresh, keys, strict=True))}
        this = (GRAPH_CHECKPOINT.c.ns == row.ns, GRAPH_CHECKPOINT.c.checkpoint_id == row.checkpoint_id)
        state_hash = hash_state({**channels, **at.digests})
        new = {"channels": pack(channels), "state_hash": state_hash}
        row_codes.change(connection, GRAPH_CHECKPOINT, *mine, *this, **new)
    if head is not None and is_changed and not graphs.writes(connection, head.place):
        _rename(connection, graphs.tenant_id, head)


def _rename(connection: Connection, tenant_id: int, head: GraphCheckpoint) -> None:
    """Replace the id of the newest graph checkpoint of a thread, and record the id in its subgraphs' checkpoints."""
    place, new = head.place, later_id()
    mine = (GRAPH_CHECKPOINT.c.tenant_id == tenant_id, GRAPH_CHECKPOINT.c.thread_id == place.thread)
    nested = select(GRAPH_CHECKPOINT).where(*mine, GRAPH_CHECKPOINT.c.root_id == place.checkpoint_id)
    for row in row_codes.authentic(connection, GRAPH_CHECKPOINT, connection.execute(nested)):
        at = parse_graph_checkpoint(row)
        meta = {**at.meta, "parents": {**(at.meta.get("parents") or {}), "": new}}
        this = (GRAPH_CHECKPOINT.c.ns == row.ns, GRAPH_CHECKPOINT.c.checkpoint_id == row.checkpoint_id)
        row_codes.change(connection, GRAPH_CHECKPOINT, *mine, *this, root_id=new, meta=compact(meta))
    this = (GRAPH_CHECKPOINT.c.ns == place.ns, GRAPH_CHECKPOINT.c.checkpoint_id == place.checkpoint_id)
    row_codes.change(connection, GRAPH_CHECKPOINT, *mine, *this, checkpoint_id=new)


def later_id() -> str:
    """Return a new id of a graph checkpoint in LangGraph's format: a UUID of version 6, which sorts by time."""
    now = uuid.uuid1().time
    rest = secrets.randbits(62) | 0b10 << 62
    return str(uuid.UUID(int=(now >> 12) << 80 | 6 << 76 | (now & 0xFFF) << 64 | rest))


def _fresh(connection: Connection, graphs: GraphStore, at: GraphCheckpoint, rewriter: Rewriter) -> dict[str, Body]:
    """Return the values whose messages change, by channel."""
    held = {name: at.channels[name] for name in at.header["counts"] if name in at.channels}
    bodies = graphs.content.get(connection, held.values())
    changed = {name: _with_results(bodies[key], rewriter) for name, key in held.items()}
    return {name: body for name, body in changed.items() if body is not None}


def _with_results(body: Body, rewriter: Rewriter) -> Body | None:
    """Return a value with new results in its messages; None if nothing changes."""
    if isinstance(body, list):
        return _in_list(body, rewriter)
    if isinstance(body, dict):
        parts = {name: _in_list(part, rewriter) for name, part in body.items() if isinstance(part, list)}
        changed = {name: part for name, part in parts.items() if part is not None}
        return {**body, **changed} if changed else None
    return None


def _in_list(items: list[Leaf], rewriter: Rewriter) -> list[Leaf] | None:
    messages: list[dict[str, Any]] = [READERS[item.type](item.data) if item.type in READABLE else {} for item in items]
    changed = rewriter.changed_messages(messages)
    return [_leaf(changed[n]) if n in changed else item for n, item in enumerate(items)] if changed else None


def _leaf(message: dict[str, Any]) -> Leaf:
    """Encode a message exactly as the saver's codec does, so that equal messages are stored as one value."""
    try:
        return leaf(MESSAGE, orjson.dumps(message))
    except TypeError:
        return leaf(MESSAGE_PY, json.dumps(message, separators=(",", ":")).encode())
