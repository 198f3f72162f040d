"""Checks of graph checkpoints and writes, and of the state at the head of each branch.

The values of a graph checkpoint must be stored, its hash must match them, and no graph checkpoint may be its own
ancestor. The checks keep no rows, so a database with millions of rows takes no more memory than one with a few.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import and_

from agentgit.errors import Corrupt
from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, checked, format_value, read_raw_rows, read_rows
from agentgit.store.maintenance.fsck.values import StoredHashes
from agentgit.store.objects.blobs import unpack
from agentgit.store.objects.packing import split_hashes
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import CHECKPOINT_EXISTS, GraphKey, hash_state, parse_graph_checkpoint
from agentgit.values import UNREADABLE


def check_heads(transaction: Reading, store: Store, report: FsckReport) -> None:
    """Rebuild the state at the end of each branch. The other levels compare its hash and those of its values."""
    for branch in read_rows(transaction, checked(report, BRANCH.c.id, BRANCH.c.thread_id), report, counted=False):
        report.attempt(f"internal_session {branch.id}", partial(_read_head, transaction, store, branch.thread_id))


def _read_head(transaction: Reading, store: Store, thread: str) -> None:
    if (newest := store.graphs.newest(transaction, thread)) is not None:
        store.read_state(transaction, thread, newest.key.checkpoint_id)


def check_states(transaction: Reading, stored_hashes: StoredHashes, report: FsckReport) -> None:
    c, w = GRAPH_CHECKPOINT.c, GRAPH_WRITE.c
    columns = c if report.with_hashes else (c.external_session_id, c.thread_id, c.ns, c.checkpoint_id, c.channels)
    for row in read_rows(transaction, checked(report, *columns), report):
        _check_state(row, stored_hashes[row.external_session_id], report)
    _check_ancestry(transaction, report)
    _check_owners(transaction, report)
    write_columns = (w.external_session_id, w.thread_id, w.ns, w.checkpoint_id, w.task_id, w.idx, w.value)
    for session_id, *key, value in read_raw_rows(transaction, checked(report, *write_columns), report):
        # Its graph checkpoint may be saved later.
        name = f"graph_write {'/'.join(map(format_value, key))}"
        report.add_missing(name, "its value", split_hashes(value), stored_hashes[session_id])


def _check_state(row: Any, stored_hashes: set[bytes], report: FsckReport) -> None:
    """Check that the values of a graph checkpoint are stored, and match what it records."""
    name = f"graph_checkpoint {row.thread_id}/{row.ns}/{row.checkpoint_id}"
    try:
        for channel, key in unpack(row.channels).items():
            report.add_missing(name, f"its value {channel!r}", [key], stored_hashes)
        if not report.with_hashes:
            return
        state = parse_graph_checkpoint(row)
        if hash_state({**state.values, **state.digests}) != row.state_hash:
            report.add(name, "its state_hash does not match its values", RESTORE)
        count = state.header["counts"].get(state.conversation_channel or "", 0)
        if count != row.message_count:
            report.add(name, f"it records {row.message_count} messages, but its header {count}", RESTORE)
    except (Corrupt, *UNREADABLE):
        report.add(name, "its channels, header or metadata cannot be read", RESTORE)


def check_pending(transaction: Reading, stored_hashes: StoredHashes, report: FsckReport) -> None:
    """Check the pending writes that checkpoints keep: their values, and the graph checkpoints of their subgraphs."""
    branch_join = BRANCH.c.id == CHECKPOINT.c.internal_session_id
    columns = (CHECKPOINT.c.id, CHECKPOINT.c.pending, BRANCH.c.thread_id, BRANCH.c.external_session_id)
    query = checked(report, *columns).join_from(CHECKPOINT, BRANCH, branch_join)
    query = query.where(CHECKPOINT.c.pending != pending_writes.NO_WRITES)
    for id, data, thread, session_id in read_rows(transaction, query, report, counted=False):
        name = f"checkpoint {id}"
        try:
            pending = pending_writes.unpack(data, name) or ()
        except Corrupt:
            report.add(name, "its pending writes cannot be read", RESTORE)
            continue
        report.add_missing(name, "its pending write", pending_writes.hashes(data, name), stored_hashes[session_id])
        for ns, checkpoint_id, _ in pending:
            key = GraphKey(thread, ns, checkpoint_id).columns()
            if ns and CHECKPOINT_EXISTS.first(transaction, key) is None:
                report.add(name, f"the checkpoint {checkpoint_id} of its pending writes is missing", RESTORE)


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
