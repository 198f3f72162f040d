"""Export of graph checkpoints, pending writes and values, one page at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, literal, or_, select, tuple_

from agentgit.errors import Corrupt, InvalidInput
from agentgit.next_steps import Next
from agentgit.store.objects.blobs import RECORD, Blobs, Leaf, shared_prefix, unpack
from agentgit.store.objects.plain_values import READERS
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE, LIST
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads import fork, pending_writes
from agentgit.store.threads.delta_values import ancestors
from agentgit.store.threads.graph_rows import GraphKey, parse_graph_checkpoint
from agentgit.store.transfer import export_records
from agentgit.store.transfer.lines import records_with_contents

WriteRecord = Callable[[dict[str, Any]], None]
"""Writes one record."""

MAX_RECENT_LISTS = 8
"""The number of recent lists that a list may continue. A reader of the file keeps as many in memory."""

SHORT_LIST_ITEMS = 8
"""The number of items up to which a list is written in full and never used as a base. Otherwise the short lists of
messages that each step wrote would push the conversation out of the recent lists."""

MAX_VALUE_BYTES = 2**30
"""The maximum size of one value, in bytes. An export with a larger value fails."""

VALUES_AT_ONCE = 64
"""The number of values in memory at a time."""


class RecentLists:
    """The lists that were written or read most recently, which the next list may continue."""

    def __init__(self) -> None:
        self._lists: dict[bytes, tuple[bytes, ...]] = {}

    def add(self, key: bytes, items: tuple[bytes, ...]) -> None:
        """Remember a list unless it is short, and forget the oldest one if there are too many."""
        if len(items) <= SHORT_LIST_ITEMS:
            return
        self._lists[key] = items
        if len(self._lists) > MAX_RECENT_LISTS:
            del self._lists[next(iter(self._lists))]

    def get(self, key: bytes) -> tuple[bytes, ...] | None:
        """Return the items of a recent list; None if the list is not among the recent ones."""
        return self._lists.get(key)

    def find_base(self, items: tuple[bytes, ...]) -> tuple[bytes | None, int]:
        """Return the recent list that shares the longest prefix with these items, and the length of that prefix."""
        best: tuple[bytes | None, int] = None, 0
        for key, recent_items in reversed(self._lists.items()):
            prefix_length = shared_prefix(recent_items, items)
            if prefix_length > best[1]:
                best = key, prefix_length
            if 2 * best[1] > len(items):
                break
        return best


class ValueWriter:
    """Writes the values of one export."""

    def __init__(self, blobs: Blobs, transaction: Reading, write: WriteRecord) -> None:
        self.blobs = blobs
        self.transaction = transaction
        self.write = write
        self._written: set[bytes] = set()
        self._recent = RecentLists()

    def put(self, hashes: Iterable[bytes]) -> None:
        """Write the values that were not written before, with all values that they refer to."""
        new_hashes = [key for key in dict.fromkeys(hashes) if key not in self._written]
        for part in slices(new_hashes, VALUES_AT_ONCE):
            values = self.blobs.get_many(self.transaction, part)
            for key in part:
                if key not in self._written:  # an earlier value may have referred to it
                    self._write_value(values[key])

    def _write_value(self, value: Leaf) -> None:
        if value.type == LIST:
            self._write_list(value.hash)
        else:
            if value.type == RECORD:
                self.put(unpack(value.data).values())
            self._write_leaf(value)
        self._written.add(value.hash)

    def _write_list(self, key: bytes) -> None:
        items = self.blobs.item_hashes(self.transaction, key)
        base, prefix_length = self._recent.find_base(items)
        self.put(items[prefix_length:])
        self.write(
            {
                "record": "list",
                "id": key.hex(),
                "base": base.hex() if base is not None else None,
                "keep": prefix_length,
                "items": [item.hex() for item in items[prefix_length:]],
            }
        )
        self._recent.add(key, items)

    def _write_leaf(self, value: Leaf) -> None:
        if len(value.data) > MAX_VALUE_BYTES:
            raise InvalidInput(f"The value {value.hash.hex()} has {len(value.data)} bytes and cannot be exported.")
        record = {"record": "value", "id": value.hash.hex(), "type": value.type}
        for part in records_with_contents(record, value.data, is_text=value.type in READERS):
            self.write(part)


PAGE_SIZE = 64
"""The number of graph checkpoints in memory at a time."""

Rows = Sequence[Mapping[str, Any]]


class StateWriter:
    """Writes the graph checkpoints of one branch, a page at a time: values first, then graph checkpoints, then writes.

    A duplicate of a graph checkpoint, such as the copy at the beginning of a fork, is left out.
    """

    def __init__(self, transaction: Reading, values: ValueWriter, write: WriteRecord, branch_id: int) -> None:
        self.transaction = transaction
        self.values = values
        self.write = write
        self.branch_id = branch_id
        self._row_counts: dict[str, int] = defaultdict(int)

    def write_thread(self, thread: str) -> None:
        """Write a whole thread."""
        for rows in self._read_pages(thread):
            self._write_rows(rows, self._read_writes(rows))

    def write_path(
        self, thread_exits: Sequence[tuple[str, str]], end_thread: str | None, points: Sequence[Any] = ()
    ) -> None:
        """Write a path through several threads as one thread."""
        states, writes = self._read_end(thread_exits, points) if end_thread is None and thread_exits else ((), ())
        end_keys = (
            {(row["ns"], row["checkpoint_id"]) for row in states}
            if end_thread is None
            else self._read_thread_keys(end_thread)
        )
        chains = [
            [*self._list_foreign_roots(thread), *self._list_ancestors(thread, exit_id)]
            for thread, exit_id in thread_exits
        ]
        chain_keys = [
            self._read_chain_keys(thread, chain) for (thread, _), chain in zip(thread_exits, chains, strict=True)
        ]
        for n, (thread, exit_id) in enumerate(thread_exits):
            later_keys = end_keys.union(
                *chain_keys[n + 1 :], {("", later_exit_id) for _, later_exit_id in thread_exits[n + 1 :]}
            )
            for ids in slices(chains[n], PAGE_SIZE):
                rows = [
                    row
                    for row in self._read_chain_rows(thread, ids)
                    if (row["ns"], row["checkpoint_id"]) not in later_keys
                ]
                self._write_rows(self._restore_parents(rows, thread_exits[:n]), self._read_writes(rows))
            if ("", exit_id) not in later_keys:  # else the next branch has its own copy
                self._write_rows(
                    self._restore_parents([self._read_row(thread, exit_id)._asdict()], thread_exits[:n]), []
                )
        self._write_subgraphs(points, end_keys.union(*chain_keys))
        self._write_rows(self._restore_parents(states, thread_exits), writes)
        for page in self._read_pages(end_thread) if end_thread is not None else ():
            self._write_rows(self._restore_parents(page, thread_exits), self._read_writes(page))

    def _read_end(self, thread_exits: Sequence[tuple[str, str]], points: Sequence[Any]) -> tuple[Rows, Rows]:
        """Return the rows that a fork at the end of the path would copy."""
        last_point = (
            points[-1]
            if points and (points[-1].thread_id, points[-1].graph_checkpoint_id) == thread_exits[-1]
            else None
        )
        return self._read_forked_rows(*thread_exits[-1], last_point)

    def _read_forked_rows(self, thread: str, checkpoint_id: str, point: Any) -> tuple[Rows, Rows]:
        """Return the rows that a fork at a graph checkpoint would copy; `point` is None if no checkpoint is there."""
        pending = pending_writes.unpack(point.pending, f"checkpoint {point.id}") if point is not None else None
        return fork.select_rows(self.transaction, GraphKey(thread, "", checkpoint_id), pending)

    def _write_subgraphs(self, points: Sequence[Any], written_keys: set[tuple[str, str]]) -> None:
        """Write the subgraph checkpoints that these checkpoints recorded, unless they were written before."""
        for point in points:
            if point.pending in (None, pending_writes.NO_WRITES):
                continue
            rows = self._read_forked_rows(point.thread_id, point.graph_checkpoint_id, point)[0]
            new_rows = [row for row in rows if row["ns"] and (row["ns"], row["checkpoint_id"]) not in written_keys]
            self._write_rows(new_rows, ())
            written_keys.update((row["ns"], row["checkpoint_id"]) for row in new_rows)

    def _write_rows(self, rows: Rows, writes: Rows) -> None:
        self.values.put(export_records.referenced_hashes(rows, writes))
        for row in rows:
            self._row_counts[row["ns"]] += 1
            self.write(export_records.state_record(row, self.branch_id, seq=self._row_counts[row["ns"]]))
        for row in writes:
            self.write(export_records.write_record(row, self.branch_id))

    # -- reading

    def _read_pages(self, thread: str) -> Iterator[Rows]:
        c = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).where(c.thread_id == thread)
        query, last_key = query.order_by(c.ns, c.seq).limit(PAGE_SIZE), None
        while True:
            page_query = query
            if last_key is not None:
                page_query = query.where(
                    tuple_(c.ns, c.seq) > tuple_(literal(last_key[0], c.ns.type), literal(last_key[1]))
                )
            rows = self._read_rows(page_query)
            if not rows:
                return
            yield rows
            last_key = rows[-1]["ns"], rows[-1]["seq"]

    def _read_writes(self, rows: Rows) -> Rows:
        if not rows:
            return []
        key_conditions = [
            and_(GRAPH_WRITE.c.ns == row["ns"], GRAPH_WRITE.c.checkpoint_id == row["checkpoint_id"]) for row in rows
        ]
        thread_condition = GRAPH_WRITE.c.thread_id == rows[0]["thread_id"]
        query = select(GRAPH_WRITE).where(thread_condition, or_(*key_conditions))
        order = (GRAPH_WRITE.c.ns, GRAPH_WRITE.c.checkpoint_id, GRAPH_WRITE.c.task_id, GRAPH_WRITE.c.idx)
        return self._read_rows(query.order_by(*order))

    def _read_thread_keys(self, thread: str) -> set[tuple[str, str]]:
        c = GRAPH_CHECKPOINT.c
        query = select(c.ns, c.checkpoint_id).where(c.thread_id == thread)
        return {(row.ns, row.checkpoint_id) for row in self.transaction.execute(query)}

    def _list_ancestors(self, thread: str, checkpoint_id: str) -> list[str]:
        """List the ids of the ancestors of a graph checkpoint, oldest first."""
        start = self._read_row(thread, checkpoint_id)
        if start is None:
            raise Corrupt(
                f"The graph checkpoint {checkpoint_id} of thread {thread} is missing, and a branch begins there.",
                Next("fsck"),
                row=f"graph_checkpoint {thread}//{checkpoint_id}",
            )
        ancestor_ids = [
            ancestor.key.checkpoint_id for ancestor in ancestors(self.transaction, parse_graph_checkpoint(start))
        ]
        return ancestor_ids[::-1]

    def _list_foreign_roots(self, thread: str) -> list[str]:
        """List the ids of the graph checkpoints that a thread lacks, but has the memory of subgraphs from."""
        c = GRAPH_CHECKPOINT.c
        of_thread = c.thread_id == thread
        own_ids = select(c.checkpoint_id).where(of_thread, c.ns == "")
        query = select(c.root_id).where(of_thread, c.root_id.is_not(None), c.root_id.not_in(own_ids)).distinct()
        return list(self.transaction.execute(query.order_by(c.root_id)).scalars())

    def _read_chain_rows(self, thread: str, ids: Sequence[str]) -> Rows:
        """Read these graph checkpoints of the root graph, and the subgraph checkpoints below them."""
        query = (
            select(GRAPH_CHECKPOINT)
            .where(*self._chain_conditions(thread, ids))
            .order_by(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.seq)
        )
        return self._read_rows(query)

    def _read_chain_keys(self, thread: str, ids: Sequence[str]) -> set[tuple[str, str]]:
        keys: set[tuple[str, str]] = set()
        for part in slices(ids):
            query = select(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.checkpoint_id).where(
                *self._chain_conditions(thread, part)
            )
            keys.update((row.ns, row.checkpoint_id) for row in self.transaction.execute(query))
        return keys

    def _chain_conditions(self, thread: str, ids: Sequence[str]) -> Sequence[Any]:
        c = GRAPH_CHECKPOINT.c
        chain_condition = or_(and_(c.ns == "", c.checkpoint_id.in_(ids)), c.root_id.in_(ids))
        return c.thread_id == thread, chain_condition

    def _restore_parents(self, rows: Rows, thread_exits: Iterable[tuple[str, str]]) -> Rows:
        """Restore the parent of a thread's first graph checkpoint from the thread that it was copied from."""
        return [
            self._restore_parent(row, thread_exits) if row["parent_id"] is None and not row["ns"] else row
            for row in rows
        ]

    def _restore_parent(self, row: Mapping[str, Any], thread_exits: Iterable[tuple[str, str]]) -> Mapping[str, Any]:
        originals = (self._read_row(thread, row["checkpoint_id"]) for thread, _ in thread_exits)
        parent_id = next(
            (original.parent_id for original in originals if original is not None and original.parent_id), None
        )
        return {**row, "parent_id": parent_id}

    def _read_row(self, thread: str, checkpoint_id: str) -> Any:
        c = GRAPH_CHECKPOINT.c
        key_conditions = (c.thread_id == thread, c.ns == "", c.checkpoint_id == checkpoint_id)
        return self.transaction.execute(select(GRAPH_CHECKPOINT).where(*key_conditions).limit(1)).first()

    def _read_rows(self, query: Select[Any]) -> Rows:
        return [row._asdict() for row in self.transaction.execute(query).all()]
