"""Checks of graph checkpoints and writes, and of the state at the head of each branch.

The values of a graph checkpoint must be stored, its hash must match them, and no graph checkpoint may be its own
ancestor. The checks keep no rows, so a database with millions of rows takes no more memory than one with a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import and_, select

from agentgit.errors import Corrupt
from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, checked, format_value, read_raw_rows, read_rows
from agentgit.store.maintenance.fsck.values import StoredHashes, describe_missing
from agentgit.store.objects.blobs import RECORD, Leaf, leaf, list_hash, pack, unpack
from agentgit.store.objects.content import Body, Part
from agentgit.store.objects.packing import split_hashes
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import KEY_COLUMNS, GraphCheckpoint, hash_state, parse_graph_checkpoint


def check_heads(transaction: Reading, store: Store, report: FsckReport) -> None:
    """Rebuild the state at the end of each branch, and compare its hash with the recorded hash."""
    columns = (BRANCH.c.id, BRANCH.c.name, BRANCH.c.thread_id, BRANCH.c.head_id)
    for branch in read_rows(transaction, checked(report, *columns), report, counted=False):
        report.attempt(f"internal_session {branch.id}", partial(_check_head, transaction, store, branch, report))


def _check_head(transaction: Reading, store: Store, branch: StoredRow, report: FsckReport) -> None:
    name = f"internal_session {branch.id}"
    newest = store.graphs.newest(transaction, branch.thread_id)
    # A missing head is already reported.
    head = store.checkpoints.find_one(transaction, branch.head_id) if branch.head_id is not None else None
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


def check_states(transaction: Reading, stored_hashes: StoredHashes, report: FsckReport) -> None:
    c, w = GRAPH_CHECKPOINT.c, GRAPH_WRITE.c
    columns = c if report.with_hashes else (c.external_session_id, c.thread_id, c.ns, c.checkpoint_id, c.channels)
    for row in read_rows(transaction, checked(report, *columns), report):
        for problem in _problems_of_state(row, stored_hashes[row.external_session_id], report):
            report.add(f"graph_checkpoint {row.thread_id}/{row.ns}/{row.checkpoint_id}", problem, RESTORE)
    _check_ancestry(transaction, report)
    _check_owners(transaction, report)
    write_columns = (w.external_session_id, w.thread_id, w.ns, w.checkpoint_id, w.task_id, w.idx, w.value)
    for session_id, *key, value in read_raw_rows(transaction, checked(report, *write_columns), report):
        # Its graph checkpoint may be saved later.
        if missing := [one for one in split_hashes(value) if one not in stored_hashes[session_id]]:
            name = f"graph_write {'/'.join(map(format_value, key))}"
            report.add(name, f"its value {missing[0].hex()} is missing", RESTORE)


def _problems_of_state(row: Any, stored_hashes: set[bytes], report: FsckReport) -> Iterator[str]:
    """Yield what is wrong if the values of a graph checkpoint are not stored, or do not match what it records."""
    try:
        if problem := describe_missing(stored_hashes, unpack(row.channels)):
            yield problem
    except ValueError:
        yield "its channels cannot be read"
        return
    if not report.with_hashes:
        return
    try:
        state = parse_graph_checkpoint(row)
        if hash_state({**state.values, **state.digests}) != row.state_hash:
            yield "its state_hash does not match its values"
        count = state.header["counts"].get(state.conversation_channel or "", 0)
        if count != row.message_count:
            yield f"it records {row.message_count} messages, but its header {count}"
    except (Corrupt, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        yield "its channels, header or metadata cannot be read"


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
        query = checked(report, BRANCH.c.thread_id, c.ns, c.checkpoint_id).distinct().join_from(BRANCH, table, is_own)
        for key in transaction.execute(query.where(c.external_session_id != BRANCH.c.external_session_id)).all():
            report.add(f"{table.name} {'/'.join(key)}", "it belongs to another session than its branch", RESTORE)
