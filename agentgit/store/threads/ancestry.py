"""The way from a graph checkpoint back to the root, many steps in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, String, bindparam, cast, literal, select

from agentgit.store.sql import row_codes
from agentgit.store.sql.slices import slices
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads.graph_rows import Found, Pending, found, pending, where

STEPS = 64
"""Ancestors read in one statement."""

_SAME = ("tenant_id", "thread_id", "ns")


def ancestors(connection: Connection, tenant_id: int, start: Found) -> Iterator[Found]:
    """Walk from a graph checkpoint to the root of its namespace, nearest first; the checkpoint itself is left out.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        start: The graph checkpoint to start from.
    """
    seen = {start.place.checkpoint_id}
    at = start
    while at.parent_id is not None:
        page = _WALK.all(connection, {**_space(tenant_id, at), "first": at.parent_id, "steps": STEPS})
        for row in page:
            at = found(row)
            if at.place.checkpoint_id in seen:  # damaged rows form a circle
                return
            seen.add(at.place.checkpoint_id)
            yield at
        if len(page) < STEPS:
            return


def writes_of(
    connection: Connection, tenant_id: int, checkpoints: Sequence[Found], channels: Iterable[str]
) -> Mapping[str, list[Pending]]:
    """Read the writes to some channels on some checkpoints of one namespace, in order, by checkpoint id.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        checkpoints: The graph checkpoints.
        channels: The names of the channels.
    """
    by_id: dict[str, list[Any]] = {at.place.checkpoint_id: [] for at in checkpoints}
    ids, names = list(by_id), list(channels)
    for some in slices(ids, STEPS):
        part = {**_space(tenant_id, checkpoints[0]), "ids": some, "names": names}
        for row in row_codes.authentic(connection, GRAPH_WRITE, connection.execute(_WRITES_OF, part)):
            by_id[row.checkpoint_id].append(row)
    return {key: pending(rows) for key, rows in by_id.items()}


def _space(tenant_id: int, at: Found) -> dict[str, Any]:
    return dict(zip(_SAME, (tenant_id, at.place.thread, at.place.ns), strict=True))


def _walk_query() -> Any:
    first = cast(bindparam("first"), String)
    walk = select(first.label("id"), literal(1, Integer).label("distance")).cte("walk", recursive=True)
    older = GRAPH_CHECKPOINT.alias("older")
    step = select(older.c.parent_id, walk.c.distance + 1).where(
        *(older.c[name] == bindparam(name) for name in _SAME),
        older.c.checkpoint_id == walk.c.id,
        older.c.parent_id.is_not(None),
        walk.c.distance < bindparam("steps", type_=Integer),
    )
    walk = walk.union_all(step)
    joined = select(GRAPH_CHECKPOINT).where(
        *where(GRAPH_CHECKPOINT, *_SAME), GRAPH_CHECKPOINT.c.checkpoint_id == walk.c.id
    )
    return joined.order_by(walk.c.distance)


_WALK = row_codes.AuthenticQuery(_walk_query(), GRAPH_CHECKPOINT)
_WRITES_OF = select(GRAPH_WRITE).where(
    *where(GRAPH_WRITE, *_SAME),
    GRAPH_WRITE.c.checkpoint_id.in_(bindparam("ids", expanding=True)),
    GRAPH_WRITE.c.channel.in_(bindparam("names", expanding=True)),
)
