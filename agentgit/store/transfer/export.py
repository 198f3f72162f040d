"""Export: the rows of a selection as records, in the order of a file, and the values that they refer to.

Only values that the rows refer to are written: no value of what was deleted, and no item that a list has lost. A list
continues the nearest earlier list that is in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Table, case, null, select

from agentgit.store.objects.blobs import RECORD, Blobs, Leaf, link_of, own_items, unpack
from agentgit.store.objects.content import verify_lists
from agentgit.store.objects.packing import CHUNK, CHUNK_BYTES, cut
from agentgit.store.records.json_shapes import encode_bytes
from agentgit.store.sql import tables as t
from agentgit.store.sql.batch import slices
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import referenced_hashes
from agentgit.store.transfer.forms import ListItems, encode_row
from agentgit.store.transfer.selection import Rows, Selection
from agentgit.values import as_object

WriteRecord = Callable[[dict[str, Any]], None]
"""Writes one record."""

WriteSnapshot = Callable[[Mapping[str, Any], str], tuple[int | None, str | None]]
"""Writes a snapshot, given the settings of its workspace and its id, unless it was written before.

Returns the number of its tree and None, or None and the reason why it has no tree."""

VALUES_AT_ONCE = 64
"""The number of values in memory at a time."""


class Sink(Protocol):
    def record(self, record: dict[str, Any]) -> None:
        """Take a record."""

    def value(self, value: Leaf) -> None:
        """Take a value that is no list, after those that it refers to."""

    def items(self, key: bytes, items: ListItems) -> None:
        """Take a list, after its items and the list that it continues."""


class RecordSink:
    def __init__(self, write: WriteRecord) -> None:
        self.record = write
        self._chunks: set[bytes] = set()

    def value(self, value: Leaf) -> None:
        """Write a value, a large one after its chunks."""
        if len(value.data) <= CHUNK_BYTES:
            self._write(value.hash, value.type, encode_bytes(value.data))
            return
        chunks = list(cut(value.data, CHUNK_BYTES))
        for chunk in chunks:
            if chunk.hash not in self._chunks:
                self._chunks.add(chunk.hash)
                self._write(chunk.hash, CHUNK, encode_bytes(bytes(chunk.data)))
        self._write(value.hash, value.type, {"chunks": [chunk.hash.hex() for chunk in chunks]})

    def items(self, key: bytes, items: ListItems) -> None:
        base = items.base.hex() if items.base is not None else None
        self._write(key, t.LIST, {"base": base, "keep": items.keep, "items": [one.hex() for one in items.items]})

    def _write(self, key: bytes, kind: str, data: Any) -> None:
        self.record({"record": t.BLOB.name, "hash": key.hex(), "type": kind, "data": data})


def export(
    store: Store, transaction: Reading, selection: Selection, sink: Sink, write_snapshot: WriteSnapshot | None = None
) -> None:
    """Write all records of an export except its header and its end."""

    def write(table: Table, rows: Rows, **other: Any) -> None:
        with closing(rows):  # before its connection, also if the sink raises
            for row in rows:
                sink.record(encode_row(table, {**row, **other}))

    sink.record(encode_row(t.SESSION, selection.session()))
    write(t.BRANCH, selection.branches())
    _Values(store.graphs.blobs.of(selection.session_id), transaction, _referenced_hashes(selection)).write(sink)
    write(t.GRAPH_CHECKPOINT, selection.states())
    write(t.GRAPH_WRITE, selection.writes())
    # Without files, no checkpoint has a snapshot.
    write(t.CHECKPOINT, selection.points(), **({} if write_snapshot else {"workspace_snapshot_id": None}))
    write(t.TAG, selection.tags())
    if write_snapshot is not None:
        known = {branch.id for branch in selection.path}
        for row in selection.snapshots():
            tree, why = write_snapshot(as_object(row.settings), row.snapshot)
            branch_id = row.internal_session_id if row.internal_session_id in known else selection.path[-1].id
            record = encode_row(t.WORKSPACE_SNAPSHOT, row._asdict() | {"internal_session_id": branch_id})
            sink.record(record | {"tree": tree, "why": why})
    write(t.TOOL_INVOCATION, selection.calls())
    write(t.OPERATION, selection.operations())
    write(t.WORLD_LOG, selection.log())


def _referenced_hashes(selection: Selection) -> set[bytes]:
    hashes: set[bytes] = set()
    for rows in (selection.writes(), selection.states()):
        with closing(rows):  # before its connection, also if a row cannot be read
            for row in rows:
                hashes.update(referenced_hashes(row))
    for row in selection.points():
        hashes.update(pending_writes.hashes(row["pending"], f"checkpoint {row['id']}"))
    return hashes


class _Stored(NamedTuple):
    """A value as it is stored: its type, and its bytes if it is a list."""

    type: str
    data: bytes


class _Values:
    """The values of one export: all that some hashes refer to."""

    def __init__(self, blobs: Blobs, transaction: Reading, hashes: set[bytes]) -> None:
        self.blobs, self.transaction = blobs, transaction
        stored = dict(self._read(hashes))
        self._records = {key for key, one in stored.items() if one.type == RECORD}
        parts = {part for value in self._leaves(self._records) for part in unpack(value.data).values()}
        stored |= self._read(parts - stored.keys())
        self._lists = {key: one.data for key, one in stored.items() if one.type == t.LIST}
        self._plain = stored.keys() - self._records - self._lists.keys()

    def write(self, sink: Sink) -> None:
        """Write all values to a sink, each after those that it refers to."""
        lists = self._read_lists()
        items = {item for one in lists.values() for item in one.items}
        for value in self._leaves(self._plain | items):
            sink.value(value)
        for key, one in lists.items():
            sink.items(key, one)
        for value in self._leaves(self._records):
            sink.value(value)

    def _read_lists(self) -> dict[bytes, ListItems]:
        """Return the lists, each after the one that it continues. All of them are verified."""
        chain = dict(self._lists)
        while unread := {
            base for data in chain.values() if (link := link_of(data)) and (base := link.base) not in chain
        }:
            chain |= {key: one.data for key, one in self._read(unread)}
        lists: dict[bytes, ListItems] = {}
        for verified in verify_lists(self.transaction, self.blobs, chain):
            if verified.problem:
                raise self.blobs.damaged(verified.key, verified.problem)
            if verified.key in self._lists:
                lists[verified.key] = self._rebased(verified.key, chain)
        return lists

    def _rebased(self, key: bytes, chain: Mapping[bytes, bytes]) -> ListItems:
        """Return a list as the continuation of the nearest earlier one that is written."""
        link = first = link_of(chain[key])
        keep = link.kept_count if link is not None else 0
        while link is not None and link.base not in self._lists:
            link = link_of(chain[link.base])
            keep = min(keep, link.kept_count) if link is not None else 0
        items = own_items(chain[key]) if link is first else [*self.blobs.item_hashes(self.transaction, key)[keep:]]
        return ListItems(link.base if link is not None else None, keep, items)

    def _leaves(self, hashes: Iterable[bytes]) -> Iterator[Leaf]:
        for part in slices(sorted(hashes), VALUES_AT_ONCE):
            values = self.blobs.get_many(self.transaction, part)
            yield from (values[key] for key in part)

    def _read(self, hashes: Iterable[bytes]) -> Iterator[tuple[bytes, _Stored]]:
        c = t.BLOB.c
        query = select(c.hash, c.type, case((c.type == t.LIST, c.data), else_=null()).label("data"))
        for part in slices(sorted(hashes)):
            conditions = (c.external_session_id == self.blobs.session_id, c.hash.in_(part))
            rows = {key: _Stored(*rest) for key, *rest in self.transaction.execute(query.where(*conditions))}
            if missing := set(part) - rows.keys():
                raise self.blobs.damaged(min(missing), "is missing")
            yield from ((key, rows[key]) for key in part)
