"""How much of the database a session takes, and would take without some of its checkpoints, after a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import Connection, func, select

from agentgit.store.blobs import BLOB, LIST
from agentgit.store.chunks import HASH_BYTES
from agentgit.store.collect import in_use
from agentgit.store.graph_rows import CHECKPOINT as GRAPH
from agentgit.store.graph_rows import WRITE, Place
from agentgit.store.journal import INVOCATION
from agentgit.store.sessions import CHECKPOINT
from agentgit.store.slices import slices
from agentgit.store.steps import find
from agentgit.store.store import Store

OF_THREADS = {GRAPH: (GRAPH.c.meta, GRAPH.c.header, GRAPH.c.channels), WRITE: (WRITE.c.value,)}
"""The columns whose contents count, of the rows of a thread."""

OF_BRANCHES = {
    INVOCATION: (INVOCATION.c.args, INVOCATION.c.result, INVOCATION.c.answers),
    CHECKPOINT: (CHECKPOINT.c.data, CHECKPOINT.c.pending),
}
"""The columns whose contents count, of the rows of a branch."""


def lengths(columns: Sequence[Any]) -> Any:
    """Tell how long the contents of some columns are together."""
    return reduce(add, (func.coalesce(func.length(column), 0) for column in columns))


class Sizes:
    """The bytes of one session that nothing else needs; see `agentgit.sessions.stats.Storage`.

    Each answer walks through what is stored, but reads no state.

    Args:
        connection: any; all answers are of the moment that it sees.
        store: where.
        session_id: which.
    """

    def __init__(self, connection: Connection, store: Store, session_id: int) -> None:
        self._connection = connection
        self._store = store
        self._blobs = store.graphs.content.blobs
        branches = store.sessions.branches(connection, session_id)
        self._branches = {row.id for row in branches}
        self._threads = {row.thread_id for row in branches}
        self._steps = self._step_sizes()
        self._calls = sum(self._branch_rows(INVOCATION).values())
        self._points = self._branch_rows(CHECKPOINT)
        others, _ = in_use(connection, self._blobs, lambda place: place.thread in self._threads)
        query = select(BLOB.c.hash, BLOB.c.type, BLOB.c.size, func.length(BLOB.c.data))
        rows = connection.execute(query.where(BLOB.c.tenant_id == store.tenant_id))
        self._sizes = {
            key: (stored, 1 + items * HASH_BYTES if type_ == LIST else stored)
            for key, type_, items, stored in rows
            if key not in others
        }

    def now(self) -> int:
        """Tell how many bytes it takes."""
        return self._measured((), ())

    def without(self, points: Collection[int]) -> int:
        """Tell how many bytes it would take without some checkpoints, and without the steps that nothing needs then."""
        spare = find(self._connection, self._store.tenant_id, frozenset(points), self._branches)
        return self._measured(points, {place for one in spare for place in one.gone})

    def _measured(self, points: Collection[int], gone: Collection[Place]) -> int:
        live, lists = in_use(
            self._connection, self._blobs, lambda place: place.thread not in self._threads or place in gone
        )
        total = self._calls + sum(size for place, size in self._steps.items() if place not in gone)
        total += sum(size for point, size in self._points.items() if point not in points)
        for key in live & self._sizes.keys():
            stored, in_full = self._sizes[key]
            base = lists.get(key)
            total += in_full if base is not None and base not in lists else stored
        return total

    def _step_sizes(self) -> Counter[Place]:
        found: Counter[Place] = Counter()
        for table, columns in OF_THREADS.items():
            at = (table.c.thread_id, table.c.ns, table.c.checkpoint_id)
            query = select(*at, func.sum(lengths(columns))).where(table.c.tenant_id == self._store.tenant_id)
            for part in slices(sorted(self._threads)):
                for *place, size in self._connection.execute(query.where(at[0].in_(part)).group_by(*at)):
                    found[Place(*place)] += size
        return found

    def _branch_rows(self, table: Any) -> dict[int, int]:
        query = select(table.c.id, lengths(OF_BRANCHES[table])).where(table.c.tenant_id == self._store.tenant_id)
        parts = (query.where(table.c.internal_session_id.in_(part)) for part in slices(sorted(self._branches)))
        return {id: size for part in parts for id, size in self._connection.execute(part)}
