"""Export of graph checkpoints, pending writes and values, one page at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, literal, or_, select, tuple_

from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.objects.blobs import RECORD, Blobs, Leaf, shared_prefix, unpack
from agentgit.store.objects.plain_values import READERS
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE, LIST
from agentgit.store.threads import fork, pending_writes
from agentgit.store.threads.delta_values import ancestors
from agentgit.store.threads.graph_rows import GraphKey, parse_graph_checkpoint
from agentgit.store.transfer import export_records
from agentgit.store.transfer.lines import with_contents

Write = Callable[[dict[str, Any]], None]
"""Writes one record."""

RECENT = 8
"""The number of recent lists that a list may continue. A reader of the file keeps as many in memory."""

SHORT = 8
"""The number of items up to which a list is written in full and never used as a base. Otherwise the short lists of
messages that each step wrote would push the conversation out of the recent lists."""

LARGEST = 2**30
"""The maximum size of one value, in bytes. An export with a larger value fails."""

AT_ONCE = 64
"""The number of values in memory at a time."""


class RecentLists:
    """The lists that were written or read most recently, which the next list may continue."""

    def __init__(self) -> None:
        self._lists: dict[bytes, tuple[bytes, ...]] = {}

    def add(self, key: bytes, items: tuple[bytes, ...]) -> None:
        """Remember a list unless it is short, and forget the oldest one if there are too many."""
        if len(items) <= SHORT:
            return
        self._lists[key] = items
        if len(self._lists) > RECENT:
            del self._lists[next(iter(self._lists))]

    def get(self, key: bytes) -> tuple[bytes, ...] | None:
        """Return the items of a recent list; None if the list is not among the recent ones."""
        return self._lists.get(key)

    def find_base(self, items: tuple[bytes, ...]) -> tuple[bytes | None, int]:
        """Return the recent list that shares the longest prefix with these items, and the length of that prefix."""
        best: tuple[bytes | None, int] = None, 0
        for key, known in reversed(self._lists.items()):
            kept = shared_prefix(known, items)
            if kept > best[1]:
                best = key, kept
            if 2 * best[1] > len(items):
                break
        return best


class ValueWriter:
    """Writes the values of one export.

    Args:
        blobs: The store of the values.
        connection: Any open connection.
        write: The function that writes one record.
    """

    def __init__(self, blobs: Blobs, connection: Connection, write: Write) -> None:
        self.blobs = blobs
        self.connection = connection
        self.write = write
        self._done: set[bytes] = set()
        self._recent = RecentLists()

    def put(self, hashes: Iterable[bytes]) -> None:
        """Write the values that were not written before, with all values that they refer to.

        Raises:
            Corrupt: A value is missing, or does not match its hash.
            InvalidInput: A value is too large.
        """
        fresh = [key for key in dict.fromkeys(hashes) if key not in self._done]
        for part in slices(fresh, AT_ONCE):
            found = self.blobs.get_many(self.connection, part)
            for key in part:
                if key not in self._done:  # an earlier value may have referred to it
                    self._one(found[key])

    def _one(self, value: Leaf) -> None:
        if value.type == LIST:
            self._list(value.hash)
        else:
            if value.type == RECORD:
                self.put(unpack(value.data).values())
            self._leaf(value)
        self._done.add(value.hash)

    def _list(self, key: bytes) -> None:
        items = self.blobs.item_hashes(self.connection, key)
        base, kept = self._recent.find_base(items)
        self.put(items[kept:])
        self.write(
            {
                "record": "list",
                "id": key.hex(),
                "base": base.hex() if base is not None else None,
                "keep": kept,
                "items": [item.hex() for item in items[kept:]],
            }
        )
        self._recent.add(key, items)

    def _leaf(self, value: Leaf) -> None:
        if len(value.data) > LARGEST:
            raise InvalidInput(f"The value {value.hash.hex()} has {len(value.data)} bytes and cannot be exported.")
        record = {"record": "value", "id": value.hash.hex(), "type": value.type}
        for part in with_contents(record, value.data, is_text=value.type in READERS):
            self.write(part)


PAGE = 64
"""The number of graph checkpoints in memory at a time."""

States = Sequence[Mapping[str, Any]]


class StateWriter:
    """Writes the graph checkpoints of one branch, a page at a time: values first, then graph checkpoints, then writes.

    A duplicate of a graph checkpoint, such as the copy at the beginning of a fork, is left out.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        values: The writer of the values.
        write: The function that writes one record.
        branch_id: The branch that they belong to in the export.
    """

    def __init__(
        self, connection: Connection, tenant_id: int, values: ValueWriter, write: Write, branch_id: int
    ) -> None:
        self.connection = connection
        self.tenant_id = tenant_id
        self.values = values
        self.write = write
        self.branch_id = branch_id
        self._count: dict[str, int] = defaultdict(int)

    def thread(self, thread: str) -> None:
        """Write a whole thread."""
        for rows in self._pages(thread):
            self._put(rows, self._writes(rows))

    def path(self, ways: Sequence[tuple[str, str]], end: str | None, points: Sequence[Any] = ()) -> None:
        """Write a path through several threads as one thread.

        Args:
            ways: The threads, root first, each with the id of the graph checkpoint where the path leaves it. If `end`
                is None, the path ends at the last of these graph checkpoints.
            end: The thread to write whole at the end; None if the path ends at a checkpoint.
            points: The checkpoints on the path, oldest first.
        """
        states, writes = self._end(ways, points) if end is None and ways else ((), ())
        own = {(row["ns"], row["checkpoint_id"]) for row in states} if end is None else self._ids(end)
        chains = [self._chain(*way) for way in ways]
        keys = [self._keys(thread, chain) for (thread, _), chain in zip(ways, chains, strict=True)]
        for n, (thread, left_at) in enumerate(ways):
            later = own.union(*keys[n + 1 :], {("", left) for _, left in ways[n + 1 :]})
            for ids in slices(chains[n], PAGE):
                rows = [row for row in self._of_chain(thread, ids) if (row["ns"], row["checkpoint_id"]) not in later]
                self._put(self._linked(rows, ways[:n]), self._writes(rows))
            if ("", left_at) not in later:  # else the next branch has its own copy
                self._put(self._linked([self._one(thread, left_at)._asdict()], ways[:n]), [])
        self._below_points(points, own.union(*keys))
        self._put(self._linked(states, ways), writes)
        for page in self._pages(end) if end is not None else ():
            self._put(self._linked(page, ways), self._writes(page))

    def _end(self, ways: Sequence[tuple[str, str]], points: Sequence[Any]) -> tuple[States, States]:
        """Return the rows that a fork at the end of the path would copy."""
        last = points[-1] if points and (points[-1].thread_id, points[-1].graph_checkpoint_id) == ways[-1] else None
        return self._forked(*ways[-1], last)

    def _forked(self, thread: str, checkpoint_id: str, point: Any) -> tuple[States, States]:
        """Return the rows that a fork at a graph checkpoint would copy; `point` is None if no checkpoint is there."""
        pending = pending_writes.unpack(point.pending, f"checkpoint {point.id}") if point is not None else None
        return fork.rows_of(self.connection, self.tenant_id, GraphKey(thread, "", checkpoint_id), pending)

    def _below_points(self, points: Sequence[Any], written: set[tuple[str, str]]) -> None:
        """Write the subgraph checkpoints that these checkpoints recorded, unless they were written before."""
        for point in points:
            if point.pending in (None, pending_writes.NO_WRITES):
                continue
            rows = self._forked(point.thread_id, point.graph_checkpoint_id, point)[0]
            fresh = [row for row in rows if row["ns"] and (row["ns"], row["checkpoint_id"]) not in written]
            self._put(fresh, ())
            written.update((row["ns"], row["checkpoint_id"]) for row in fresh)

    def _put(self, rows: States, writes: States) -> None:
        self.values.put(export_records.hashes_of(rows, writes))
        for row in rows:
            self._count[row["ns"]] += 1
            self.write(export_records.of_state(row, self.branch_id, seq=self._count[row["ns"]]))
        for row in writes:
            self.write(export_records.of_write(row, self.branch_id))

    # -- reading

    def _pages(self, thread: str) -> Iterator[States]:
        c = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).where(c.tenant_id == self.tenant_id, c.thread_id == thread)
        query, after = query.order_by(c.ns, c.seq).limit(PAGE), None
        while True:
            here = query
            if after is not None:
                here = query.where(tuple_(c.ns, c.seq) > tuple_(literal(after[0], c.ns.type), literal(after[1])))
            rows = self._read(GRAPH_CHECKPOINT, here)
            if not rows:
                return
            yield rows
            after = rows[-1]["ns"], rows[-1]["seq"]

    def _writes(self, rows: States) -> States:
        if not rows:
            return []
        of = [and_(GRAPH_WRITE.c.ns == row["ns"], GRAPH_WRITE.c.checkpoint_id == row["checkpoint_id"]) for row in rows]
        thread = GRAPH_WRITE.c.thread_id == rows[0]["thread_id"]
        query = select(GRAPH_WRITE).where(GRAPH_WRITE.c.tenant_id == self.tenant_id, thread, or_(*of))
        order = (GRAPH_WRITE.c.ns, GRAPH_WRITE.c.checkpoint_id, GRAPH_WRITE.c.task_id, GRAPH_WRITE.c.idx)
        return self._read(GRAPH_WRITE, query.order_by(*order))

    def _ids(self, thread: str) -> set[tuple[str, str]]:
        c = GRAPH_CHECKPOINT.c
        query = select(c.ns, c.checkpoint_id).where(c.tenant_id == self.tenant_id, c.thread_id == thread)
        return {(row.ns, row.checkpoint_id) for row in self.connection.execute(query)}

    def _chain(self, thread: str, checkpoint_id: str) -> list[str]:
        """List the ids of the ancestors of a graph checkpoint, oldest first."""
        start = self._one(thread, checkpoint_id)
        if start is None:
            raise Corrupt(
                f"The graph checkpoint {checkpoint_id} of thread {thread} is missing, and a branch begins there. Run: "
                "agentgit fsck",
                row=f"graph_checkpoint {thread}//{checkpoint_id}",
            )
        back = [
            at.place.checkpoint_id for at in ancestors(self.connection, self.tenant_id, parse_graph_checkpoint(start))
        ]
        return back[::-1]

    def _of_chain(self, thread: str, ids: Sequence[str]) -> States:
        """Read these graph checkpoints of the root graph, and the subgraph checkpoints below them."""
        query = (
            select(GRAPH_CHECKPOINT)
            .where(*self._below(thread, ids))
            .order_by(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.seq)
        )
        return self._read(GRAPH_CHECKPOINT, query)

    def _keys(self, thread: str, ids: Sequence[str]) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for part in slices(ids):
            query = select(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.checkpoint_id).where(*self._below(thread, part))
            found.update((row.ns, row.checkpoint_id) for row in self.connection.execute(query))
        return found

    def _below(self, thread: str, ids: Sequence[str]) -> Sequence[Any]:
        c = GRAPH_CHECKPOINT.c
        of = or_(and_(c.ns == "", c.checkpoint_id.in_(ids)), c.root_id.in_(ids))
        return c.tenant_id == self.tenant_id, c.thread_id == thread, of

    def _linked(self, rows: States, ways: Iterable[tuple[str, str]]) -> States:
        """Restore the parent of a thread's first graph checkpoint from the thread that it was copied from."""
        return [self._with_parent(row, ways) if row["parent_id"] is None and not row["ns"] else row for row in rows]

    def _with_parent(self, row: Mapping[str, Any], ways: Iterable[tuple[str, str]]) -> Mapping[str, Any]:
        parents = (self._one(thread, row["checkpoint_id"]) for thread, _ in ways)
        parent = next((found.parent_id for found in parents if found is not None and found.parent_id), None)
        return {**row, "parent_id": parent}

    def _one(self, thread: str, checkpoint_id: str) -> Any:
        c = GRAPH_CHECKPOINT.c
        same = (c.tenant_id == self.tenant_id, c.thread_id == thread, c.ns == "", c.checkpoint_id == checkpoint_id)
        return row_codes.first(self.connection, GRAPH_CHECKPOINT, select(GRAPH_CHECKPOINT).where(*same))

    def _read(self, table: Table, query: Select[Any]) -> States:
        return [row._asdict() for row in row_codes.authentic(self.connection, table, self.connection.execute(query))]
