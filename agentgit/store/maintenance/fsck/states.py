"""Checks of graph checkpoints and writes, and of the state at the head of each branch.

The values of a graph checkpoint must be stored, its hash must match them, and no graph checkpoint may be its own
ancestor. The checks keep no rows, so a database with millions of rows takes no more memory than one with a few.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select

from agentgit.errors import Corrupt
from agentgit.store.maintenance.fsck.cells import shown
from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, missing_from, raw_rows, rows
from agentgit.store.objects.blobs import RECORD, Leaf, leaf, list_hash, pack, unpack
from agentgit.store.objects.content import Body, Part
from agentgit.store.objects.packing import HASH_BYTES, split_hashes
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import KEY, conversation, hash_state, is_shown
from agentgit.store.threads.graph_rows import GraphCheckpoint as At
from agentgit.values import from_json


def check_heads(connection: Connection, store: Store, report: FsckReport) -> None:
    """Rebuild the state at the end of each branch, and compare its hash with the recorded hash."""
    columns = (BRANCH.c.id, BRANCH.c.name, BRANCH.c.thread_id, BRANCH.c.head_id)
    for branch in rows(
        connection, select(*columns).where(BRANCH.c.tenant_id == store.tenant_id), report, counted=False
    ):
        report.attempt(f"internal_session {branch.id}", partial(_check, connection, store, branch, report))


def _check(connection: Connection, store: Store, branch: StoredRow, report: FsckReport) -> None:
    name = f"internal_session {branch.id}"
    newest = store.graphs.newest(connection, branch.thread_id)
    heads = store.checkpoints.find(connection, CHECKPOINT.c.id == branch.head_id) if branch.head_id is not None else []
    head = heads[0] if heads else None  # a missing head is already reported
    if newest is None:
        if head is not None and head.graph_checkpoint_id is not None:
            report.add(name, f"the thread of branch {branch.name} is empty, but its head has a state", RESTORE)
        return
    if _made(connection, store, newest) != newest.state_hash:
        report.add(name, f"the state of branch {branch.name} differs from the recorded state", RESTORE)
    store.state(connection, branch.thread_id, newest.place.checkpoint_id)
    if head is not None and head.graph_checkpoint_id not in (None, newest.place.checkpoint_id):
        at = store.graphs.find(connection, newest.place._replace(checkpoint_id=head.graph_checkpoint_id))
        if at is not None and _made(connection, store, at) != head.state_hash:
            report.add(name, f"the state of the head of branch {branch.name} differs from the recorded state", RESTORE)


def _made(connection: Connection, store: Store, at: At) -> bytes:
    """Read the values of a graph checkpoint and compute the hash of its state."""
    bodies = store.graphs.content.get(connection, at.values.values())
    return hash_state({**{name: _hashed(bodies[key]) for name, key in at.values.items()}, **at.digests})


def _hashed(body: Body) -> bytes:
    if isinstance(body, dict):
        return leaf(RECORD, pack({name: _part(part) for name, part in body.items()})).hash
    return _part(body)


def _part(part: Part) -> bytes:
    return leaf(part.type, part.data).hash if isinstance(part, Leaf) else list_hash(item.hash for item in part)


_COUNT = struct.Struct(">I")


class Shape(NamedTuple):
    """The names of a state's values, and the offsets of their hashes in the column `channels`.

    `end` is the offset at which the hashes end. `shown` lists the parts of the state hash, in the order of the names.
    Each part is the bytes that precede a value's hash, and the offset of that hash.
    """

    names: frozenset[str]
    end: int
    shown: tuple[tuple[bytes, int], ...]


@lru_cache(4096)
def _shape(names_json: bytes) -> Shape:
    """Parse the names of a state. The result is cached because nearly all states of a graph have the same names."""
    names = [str(name) for name in from_json(names_json)]
    named = {name: _COUNT.size + n * HASH_BYTES for n, name in enumerate(names)}
    shown = sorted((name.encode(errors="surrogatepass"), at) for name, at in named.items() if is_shown(name))
    end = _COUNT.size + len(names) * HASH_BYTES
    return Shape(frozenset(named), end, tuple((name + b"\0", at) for name, at in shown))


def check_states(
    connection: Connection, tenant_id: int, stored: set[bytes], report: FsckReport, *, hashes: bool
) -> None:
    """Check the graph checkpoints and the pending writes.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        stored: The hashes of the values that are stored.
        report: The report that receives the findings.
        hashes: True to also compare the hash of each state.
    """
    check = _States(stored, report)
    c, w = GRAPH_CHECKPOINT.c, GRAPH_WRITE.c
    light = (c.thread_id, c.ns, c.checkpoint_id, c.channels)
    query = select(*light, *((c.message_count, c.state_hash, c.header, c.meta) if hashes else ()))
    for place, ns, id, channels, *said in rows(connection, query.where(c.tenant_id == tenant_id), report):
        check.state((place, ns, id), channels, said)
    _check_ancestry(connection, tenant_id, report)
    query = select(w.thread_id, w.ns, w.checkpoint_id, w.task_id, w.idx, w.value).where(w.tenant_id == tenant_id)
    for *key, value in raw_rows(connection, query, report):
        check.write(key, value)


def check_pending(connection: Connection, tenant_id: int, there: set[bytes], report: FsckReport) -> None:
    """Check the pending writes that checkpoints keep: their values, and the graph checkpoints of their subgraphs.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        there: The hashes of the values that are stored.
        report: The report that receives the findings.
    """
    kept = and_(CHECKPOINT.c.tenant_id == tenant_id, CHECKPOINT.c.pending != pending_writes.NO_WRITES)
    its_branch = and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    query = select(CHECKPOINT.c.id, CHECKPOINT.c.pending, BRANCH.c.thread_id).join_from(CHECKPOINT, BRANCH, its_branch)
    for id, data, thread in rows(connection, query.where(kept), report, counted=False):
        name = f"checkpoint {id}"
        try:
            found = pending_writes.unpack(data, name) or ()
        except Corrupt:
            report.add(name, "its pending writes cannot be read", RESTORE)
            continue
        if missing := [key for key in pending_writes.hashes(data, name) if key not in there]:
            report.add(name, f"the value {missing[0].hex()} of a pending write is missing", RESTORE)
        for at in found:
            key = (tenant_id, thread, at.ns, at.checkpoint_id)
            same = (GRAPH_CHECKPOINT.c[column] == value for column, value in zip(KEY, key, strict=True))
            if at.ns and connection.execute(select(GRAPH_CHECKPOINT.c.seq).where(*same)).first() is None:
                report.add(name, f"the checkpoint {at.checkpoint_id} of its pending writes is missing", RESTORE)


class _States:
    """A check of the graph checkpoints and writes of a tenant."""

    def __init__(self, there: set[bytes], report: FsckReport) -> None:
        self.there = there
        self.report = report

    def state(self, place: Sequence[str], channels: bytes, recorded: Sequence[Any]) -> None:
        """Check that the values of a graph checkpoint are stored and match its hash.

        Args:
            place: The thread, namespace and id, as stored.
            channels: The column `channels`, as stored.
            recorded: The recorded number of messages, hash, header and metadata; empty to check only the values.
        """
        try:
            end = _COUNT.size + _COUNT.unpack_from(channels)[0] * HASH_BYTES
            shape = _shape(channels[end:])
            if shape.end != end:
                raise ValueError
            if not self.there.issuperset(split_hashes(channels[_COUNT.size : end])):
                self._wrong(place, missing_from(self.there, unpack(channels)))
        except (ValueError, TypeError, struct.error):
            self._wrong(place, "its channels cannot be read")
            return
        if recorded:
            try:
                self._hashed(place, channels, shape, *recorded)
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                self._wrong(place, "its channels, header or metadata cannot be read")

    def _hashed(
        self,
        place: Sequence[str],
        channels: bytes,
        shape: Shape,
        messages: int,
        state_hash: bytes,
        header: bytes,
        meta: bytes,
    ) -> None:
        """Compare the hash and the number of messages that a graph checkpoint records with its values."""
        told = from_json(header)
        from_json(meta)
        if not shape.names.issuperset(told.get("folded", ())):
            raise KeyError
        if told.get("digests"):  # the digests replace values that are not known
            digests = {name: bytes.fromhex(digest) for name, digest in told["digests"].items()}
            made = hash_state({**unpack(channels), **digests})
        else:
            parts = [part for name, at in shape.shown for part in (name, channels[at : at + HASH_BYTES])]
            made = sha256(b"".join(parts)).digest()
        if made != state_hash:
            self._wrong(place, "its state_hash does not match its values")
        counts = told["counts"]
        count = counts.get(conversation(counts) or "", 0)
        if count != messages:
            self._wrong(place, f"it records {messages} messages, but its header {count}")

    def write(self, place: Sequence[Any], value: Any) -> None:
        """Check that the values of a pending write are stored. Its graph checkpoint may be saved later."""
        missing = [held for held in split_hashes(value) if held not in self.there] if isinstance(value, bytes) else []
        if missing or not isinstance(value, bytes):
            said = f"its value {missing[0].hex()} is missing" if missing else "its value is not bytes"
            self.report.add(f"graph_write {'/'.join(map(shown, place))}", said, RESTORE)

    def _wrong(self, place: Sequence[str], what: str) -> None:
        self.report.add(f"graph_checkpoint {'/'.join(place)}", what, RESTORE)


def _check_ancestry(connection: Connection, tenant_id: int, report: FsckReport) -> None:
    """Report graph checkpoints that are their own ancestors.

    Later graph checkpoints have a greater `seq`, so a cycle needs a parent whose `seq` is not smaller.
    """
    parent = GRAPH_CHECKPOINT.alias("parent")
    same = and_(*(parent.c[name] == GRAPH_CHECKPOINT.c[name] for name in ("tenant_id", "thread_id", "ns")))
    odd = (
        select(GRAPH_CHECKPOINT.c.thread_id, GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.checkpoint_id)
        .join_from(GRAPH_CHECKPOINT, parent, and_(same, parent.c.checkpoint_id == GRAPH_CHECKPOINT.c.parent_id))
        .where(GRAPH_CHECKPOINT.c.tenant_id == tenant_id, parent.c.seq >= GRAPH_CHECKPOINT.c.seq)
    )
    for thread, ns, id in connection.execute(odd).all():
        if _is_own_ancestor(connection, tenant_id, thread, ns, id):
            said = "it is its own ancestor"
            report.add(f"graph_checkpoint {thread}/{ns}/{id}", said, RESTORE)


def _is_own_ancestor(connection: Connection, tenant_id: int, thread: str, ns: str, start: str) -> bool:
    """Return whether a graph checkpoint is its own ancestor."""
    c = GRAPH_CHECKPOINT.c
    here = select(c.checkpoint_id, c.parent_id).where(c.tenant_id == tenant_id, c.thread_id == thread, c.ns == ns)
    parents: dict[str, str | None] = {row.checkpoint_id: row.parent_id for row in connection.execute(here)}
    seen: set[str] = set()
    at = parents.get(start)
    while at is not None and at != start and at not in seen:
        seen.add(at)
        at = parents.get(at)
    return at == start
