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

from sqlalchemy import and_, select

from agentgit.errors import Corrupt
from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, checked, format_value, read_raw_rows, read_rows
from agentgit.store.maintenance.fsck.values import StoredHashes, describe_missing
from agentgit.store.objects.blobs import RECORD, Leaf, leaf, list_hash, pack, unpack
from agentgit.store.objects.content import Body, Part
from agentgit.store.objects.packing import HASH_BYTES, split_hashes
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import KEY_COLUMNS, GraphCheckpoint, conversation_channel, hash_state, is_shown
from agentgit.values import as_object, from_json


def check_heads(transaction: Reading, store: Store, report: FsckReport) -> None:
    """Rebuild the state at the end of each branch, and compare its hash with the recorded hash."""
    columns = (BRANCH.c.id, BRANCH.c.name, BRANCH.c.thread_id, BRANCH.c.head_id)
    for branch in read_rows(transaction, checked(report, *columns), report, counted=False):
        report.attempt(f"internal_session {branch.id}", partial(_check_head, transaction, store, branch, report))


def _check_head(transaction: Reading, store: Store, branch: StoredRow, report: FsckReport) -> None:
    name = f"internal_session {branch.id}"
    newest = store.graphs.newest(transaction, branch.thread_id)
    heads = store.checkpoints.find(transaction, CHECKPOINT.c.id == branch.head_id) if branch.head_id is not None else []
    head = heads[0] if heads else None  # a missing head is already reported
    if newest is None:
        if head is not None and head.graph_checkpoint_id is not None:
            report.add(name, f"the thread of branch {branch.name} is empty, but its head has a state", RESTORE)
        return
    if _compute_state_hash(transaction, store, newest) != newest.state_hash:
        report.add(name, f"the state of branch {branch.name} differs from the recorded state", RESTORE)
    store.read_state(transaction, branch.thread_id, newest.key.checkpoint_id)
    if head is not None and head.graph_checkpoint_id not in (None, newest.key.checkpoint_id):
        head_state = store.graphs.find(transaction, newest.key._replace(checkpoint_id=head.graph_checkpoint_id))
        if head_state is not None and _compute_state_hash(transaction, store, head_state) != head.state_hash:
            report.add(name, f"the state of the head of branch {branch.name} differs from the recorded state", RESTORE)


def _compute_state_hash(transaction: Reading, store: Store, graph_checkpoint: GraphCheckpoint) -> bytes:
    bodies = store.graphs.content(graph_checkpoint.session_id).get(transaction, graph_checkpoint.values.values())
    return hash_state(
        {**{name: _hash_body(bodies[key]) for name, key in graph_checkpoint.values.items()}, **graph_checkpoint.digests}
    )


def _hash_body(body: Body) -> bytes:
    if isinstance(body, dict):
        return leaf(RECORD, pack({name: _hash_part(part) for name, part in body.items()})).hash
    return _hash_part(body)


def _hash_part(part: Part) -> bytes:
    return leaf(part.type, part.data).hash if isinstance(part, Leaf) else list_hash(item.hash for item in part)


_COUNT = struct.Struct(">I")


class StateLayout(NamedTuple):
    """The names of a state's values, and the offsets of their hashes in the column `channels`.

    `end` is the offset at which the hashes end. `hashed_parts` lists the parts of the state hash, in the order of the
    names. Each part is the bytes that precede a value's hash, and the offset of that hash.
    """

    names: frozenset[str]
    end: int
    hashed_parts: tuple[tuple[bytes, int], ...]


@lru_cache(4096)
def _parse_layout(names_json: bytes) -> StateLayout:
    """Parse the names of a state. The result is cached because nearly all states of a graph have the same names."""
    names = [str(name) for name in from_json(names_json)]
    offsets = {name: _COUNT.size + n * HASH_BYTES for n, name in enumerate(names)}
    hashed_names = sorted((name.encode(errors="surrogatepass"), at) for name, at in offsets.items() if is_shown(name))
    end = _COUNT.size + len(names) * HASH_BYTES
    return StateLayout(frozenset(offsets), end, tuple((name + b"\0", at) for name, at in hashed_names))


def check_states(transaction: Reading, stored_hashes: StoredHashes, report: FsckReport) -> None:
    """Check the graph checkpoints and the pending writes."""
    check = _StateCheck(stored_hashes, report)
    c, w = GRAPH_CHECKPOINT.c, GRAPH_WRITE.c
    columns = (c.external_session_id, c.thread_id, c.ns, c.checkpoint_id, c.channels)
    recorded = (c.message_count, c.state_hash, c.header, c.meta) if report.with_hashes else ()
    rows = read_rows(transaction, checked(report, *columns, *recorded), report)
    for session_id, thread, ns, id, channels, *recorded in rows:
        check.check_state(session_id, (thread, ns, id), channels, recorded)
    _check_ancestry(transaction, report)
    _check_owners(transaction, report)
    write_columns = (w.external_session_id, w.thread_id, w.ns, w.checkpoint_id, w.task_id, w.idx, w.value)
    for session_id, *key, value in read_raw_rows(transaction, checked(report, *write_columns), report):
        check.check_write(session_id, key, value)


def check_pending(transaction: Reading, stored_hashes: StoredHashes, report: FsckReport) -> None:
    """Check the pending writes that checkpoints keep: their values, and the graph checkpoints of their subgraphs."""
    branch_join = BRANCH.c.id == CHECKPOINT.c.internal_session_id
    columns = (CHECKPOINT.c.id, CHECKPOINT.c.pending, BRANCH.c.thread_id, BRANCH.c.external_session_id)
    query = checked(report, *columns).join_from(CHECKPOINT, BRANCH, branch_join)
    query = query.where(CHECKPOINT.c.pending != pending_writes.NO_WRITES)
    for id, data, thread, session_id in read_rows(transaction, query, report, counted=False):
        name = f"checkpoint {id}"
        session_hashes = stored_hashes[session_id]
        try:
            pending = pending_writes.unpack(data, name) or ()
        except Corrupt:
            report.add(name, "its pending writes cannot be read", RESTORE)
            continue
        if missing := [key for key in pending_writes.hashes(data, name) if key not in session_hashes]:
            report.add(name, f"the value {missing[0].hex()} of a pending write is missing", RESTORE)
        for pending_at in pending:
            key = (thread, pending_at.ns, pending_at.checkpoint_id)
            key_conditions = (
                GRAPH_CHECKPOINT.c[column] == value for column, value in zip(KEY_COLUMNS, key, strict=True)
            )
            if (
                pending_at.ns
                and transaction.execute(select(GRAPH_CHECKPOINT.c.seq).where(*key_conditions)).first() is None
            ):
                report.add(name, f"the checkpoint {pending_at.checkpoint_id} of its pending writes is missing", RESTORE)


class _StateCheck:
    """A check of the graph checkpoints and writes."""

    def __init__(self, stored_hashes: StoredHashes, report: FsckReport) -> None:
        self._stored_hashes = stored_hashes
        self.report = report

    def check_state(self, session_id: int, key: Sequence[str], channels: bytes, recorded: Sequence[Any]) -> None:
        """Check that the values of a graph checkpoint are stored and match its hash."""
        try:
            end = _COUNT.size + _COUNT.unpack_from(channels)[0] * HASH_BYTES
            layout = _parse_layout(channels[end:])
            if layout.end != end:
                raise ValueError
            stored_hashes = self._stored_hashes[session_id]
            if not stored_hashes >= set(split_hashes(channels[_COUNT.size : end])):
                self._add_finding(key, describe_missing(stored_hashes, unpack(channels)))
        except (ValueError, TypeError, struct.error):
            self._add_finding(key, "its channels cannot be read")
            return
        if recorded:
            try:
                self._check_hash(key, channels, layout, *recorded)
            except (Corrupt, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                self._add_finding(key, "its channels, header or metadata cannot be read")

    def _check_hash(
        self,
        key: Sequence[str],
        channels: bytes,
        layout: StateLayout,
        messages: int,
        state_hash: bytes,
        header: bytes,
        meta: bytes,
    ) -> None:
        """Compare the hash and the number of messages that a graph checkpoint records with its values."""
        parsed_header = as_object(header)
        as_object(meta)
        if not layout.names.issuperset(parsed_header.get("folded", ())):
            raise KeyError
        if parsed_header.get("digests"):  # the digests replace values that are not known
            digests = {name: bytes.fromhex(digest) for name, digest in parsed_header["digests"].items()}
            computed_hash = hash_state({**unpack(channels), **digests})
        else:
            parts = [
                part for name, offset in layout.hashed_parts for part in (name, channels[offset : offset + HASH_BYTES])
            ]
            computed_hash = sha256(b"".join(parts)).digest()
        if computed_hash != state_hash:
            self._add_finding(key, "its state_hash does not match its values")
        counts = parsed_header["counts"]
        count = counts.get(conversation_channel(counts) or "", 0)
        if count != messages:
            self._add_finding(key, f"it records {messages} messages, but its header {count}")

    def check_write(self, session_id: int, key: Sequence[Any], value: Any) -> None:
        """Check that the values of a pending write are stored. Its graph checkpoint may be saved later."""
        stored_hashes = self._stored_hashes[session_id]
        if missing := [value_hash for value_hash in split_hashes(value) if value_hash not in stored_hashes]:
            name = f"graph_write {'/'.join(map(format_value, key))}"
            self.report.add(name, f"its value {missing[0].hex()} is missing", RESTORE)

    def _add_finding(self, key: Sequence[str], problem: str) -> None:
        self.report.add(f"graph_checkpoint {'/'.join(key)}", problem, RESTORE)


def _check_ancestry(transaction: Reading, report: FsckReport) -> None:
    """Report graph checkpoints that come before their parents, as each cycle of ancestors needs one."""
    parent = GRAPH_CHECKPOINT.alias("parent")
    same_thread = and_(*(parent.c[name] == GRAPH_CHECKPOINT.c[name] for name in ("thread_id", "ns")))
    query = (
        checked(report, GRAPH_CHECKPOINT.c.thread_id, GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.checkpoint_id)
        .join_from(GRAPH_CHECKPOINT, parent, and_(same_thread, parent.c.checkpoint_id == GRAPH_CHECKPOINT.c.parent_id))
        .where(parent.c.seq >= GRAPH_CHECKPOINT.c.seq)
    )
    for key in transaction.execute(query).all():
        report.add(f"graph_checkpoint {'/'.join(key)}", "its parent was saved after it", RESTORE)


def _check_owners(transaction: Reading, report: FsckReport) -> None:
    for table in (GRAPH_CHECKPOINT, GRAPH_WRITE):
        c = table.c
        is_own = BRANCH.c.thread_id == c.thread_id
        query = checked(report, c.thread_id, c.ns, c.checkpoint_id).distinct().join_from(table, BRANCH, is_own)
        for key in transaction.execute(query.where(c.external_session_id != BRANCH.c.external_session_id)).all():
            report.add(f"{table.name} {'/'.join(key)}", "it belongs to another session than its branch", RESTORE)
