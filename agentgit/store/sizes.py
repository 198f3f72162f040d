"""How much of the database a session takes, and would take without some of its checkpoints, after a collection."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, func, select

from agentgit.store.blobs import BLOB, LIST
from agentgit.store.chunks import HASH_BYTES
from agentgit.store.collect import in_use
from agentgit.store.graph_rows import CHECKPOINT, Place
from agentgit.store.slices import slices
from agentgit.store.steps import find
from agentgit.store.store import Store


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
        self._rows = self._row_sizes()
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
        return self._measured(frozenset())

    def without(self, points: Collection[int]) -> int:
        """Tell how many bytes it would take without some checkpoints, and without the steps that nothing needs then."""
        return self._measured(
            frozenset(find(self._connection, self._store.tenant_id, frozenset(points), self._branches).gone)
        )

    def _measured(self, gone: Collection[Place]) -> int:
        live, lists = in_use(
            self._connection, self._blobs, lambda place: place.thread not in self._threads or place in gone
        )
        total = sum(size for place, size in self._rows.items() if place not in gone)
        for key in live & self._sizes.keys():
            stored, in_full = self._sizes[key]
            base = lists.get(key)
            total += in_full if base is not None and base not in lists else stored
        return total

    def _row_sizes(self) -> dict[Place, int]:
        c, found = CHECKPOINT.c, dict[Place, int]()
        size = func.length(c.meta) + func.length(c.header) + func.length(c.channels)
        for part in slices(sorted(self._threads)):
            query = select(c.thread_id, c.ns, c.checkpoint_id, size).where(c.tenant_id == self._store.tenant_id)
            found.update((Place(*at), n) for *at, n in self._connection.execute(query.where(c.thread_id.in_(part))))
        return found
