"""Writes of graph checkpoints: guards against late writers, and appends in one statement if the head is known.

A late or second writer must not bring back a deleted thread or continue it beside another writer. A run that continues
the newest checkpoint expects that nobody else moved its thread meanwhile.
A checkpoint whose parent is not the newest is stored all the same if the run was called with that parent, if LangGraph
copies it (`source` is `fork`), if it is stored already, or if it does not come from a run.

If this process knows the parent of a graph checkpoint, it stores the checkpoint in one round trip to a server, without
reading first. The statement itself checks that the parent is still the newest one of its namespace. If not, it
stores nothing, and the checkpoint is stored like any other.
"""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy import bindparam, exists, select
from sqlalchemy.dialects import postgresql

from agentgit.errors import Conflict
from agentgit.store.objects.lru import LRUCache
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.threads.graph_rows import NAMESPACE_COLUMNS, GraphCheckpoint, GraphKey, parameter_conditions, upsert

MAX_SEEN_CHECKPOINTS = 100_000


class SeenCheckpoints:
    """The graph checkpoints that this process knows to be stored. It forgets the least recently used."""

    def __init__(self) -> None:
        self._keys: LRUCache[bytes, bool] = LRUCache(MAX_SEEN_CHECKPOINTS)

    def add(self, graph_key: GraphKey) -> None:
        """Remember that a graph checkpoint is stored. Call this after the transaction that stored it, never inside."""
        self._keys.add([(_encode_key(graph_key), True)])

    def __contains__(self, graph_key: GraphKey) -> bool:
        return self._keys.get(_encode_key(graph_key)) is not None


def raise_deleted(graph_key: GraphKey) -> NoReturn:
    raise Conflict(
        f"Thread {graph_key.thread!r} was deleted while a run was writing to it (checkpoint "
        f"{graph_key.checkpoint_id!r} is "
        "gone). Nothing was stored. Run again to start a new thread."
    )


def require_newest_parent(graph_key: GraphKey, parent_id: str | None, newest: GraphCheckpoint | None) -> None:
    """Refuse a checkpoint whose parent is not the newest one, because another run has moved the thread."""
    newest_id = newest.key.checkpoint_id if newest else None
    if newest_id != parent_id:
        raise Conflict(
            f"Two runs use thread {graph_key.thread!r}: this one continues {parent_id or 'an empty thread'}, but the "
            f"thread has since moved to {newest_id or 'nothing: it was deleted'}. Nothing was stored. Run the turn "
            "again from its current state, or give each run its own thread."
        )


def _encode_key(graph_key: GraphKey) -> bytes:
    return "\0".join(graph_key).encode(errors="surrogatepass")


_other = GRAPH_CHECKPOINT.alias("other")
_newest = (
    select(_other.c.checkpoint_id, _other.c.state_hash)
    .where(*parameter_conditions(_other, *NAMESPACE_COLUMNS))
    .order_by(_other.c.seq.desc())
    .limit(1)
    .subquery("newest")
)
_is_parent = exists().where(
    _newest.c.checkpoint_id == bindparam("parent_id"), _newest.c.state_hash == bindparam("parent_hash")
)
UPSERT_IF_NEWEST = CompiledStatement({"postgresql": upsert(postgresql, ["seq"], _is_parent)})
