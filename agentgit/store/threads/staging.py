"""Staging threads: graph checkpoints are collected under a separate thread id, then moved to a branch in one step."""

from __future__ import annotations

import re
from hashlib import sha256

from sqlalchemy import delete, exists, func, select

from agentgit.store.objects.blobs import BlobStore, family_of
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import BLOB, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import KEY_COLUMNS, GraphKey
from agentgit.store.threads.owners import SESSION_THREAD_PREFIX, copy_values_of_thread

IMPORTED_FROM_KEY = "imported"
"""The metadata key of a branch for the thread that it was imported from."""

STAGING_PREFIX = f"{SESSION_THREAD_PREFIX}import-"
_STAGING_THREAD_ID = re.compile(STAGING_PREFIX + "[0-9a-f]{40}")


def staging_thread_id(user_id: int, session_name: str, thread_id: str) -> str:
    """Return the id of a staging thread. It is deterministic, so that an interrupted import can be resumed."""
    key = "\0".join((str(user_id), session_name, thread_id)).encode(errors="surrogatepass")
    return STAGING_PREFIX + sha256(key).hexdigest()[:40]


def list_staged_threads(transaction: Reading, owner: int) -> list[str]:
    """List the staging threads of running and interrupted imports whose values have an owner."""
    c = GRAPH_CHECKPOINT.c
    conditions = (c.external_session_id == owner, c.thread_id.startswith(STAGING_PREFIX))
    query = select(c.thread_id).where(*conditions).distinct()
    return [thread for thread in transaction.execute(query).scalars() if _STAGING_THREAD_ID.fullmatch(thread)]


def checkpoint_parents(transaction: Reading, thread: str) -> dict[tuple[str, str], str | None]:
    c = GRAPH_CHECKPOINT.c
    query = select(c.ns, c.checkpoint_id, c.parent_id).where(c.thread_id == thread)
    return {(row.ns, row.checkpoint_id): row.parent_id for row in transaction.execute(query)}


def count_writes(transaction: Reading, graph_key: GraphKey) -> int:
    query = select(func.count()).select_from(GRAPH_WRITE).where(*graph_key.conditions(GRAPH_WRITE))
    return int(transaction.execute(query).scalar_one())


def move(transaction: Writing, blobs: BlobStore, source: str, target: str, session_id: int) -> int:
    """Append a thread to another one, whose pending writes it replaces; return the number of checkpoints."""
    copy_values_of_thread(transaction, blobs, source, session_id, with_rows=True)
    transaction.execute(delete(BLOB).where(BLOB.c.external_session_id == family_of(source)))
    key_columns = [name for name in KEY_COLUMNS if name != "thread_id"]
    source_writes = GRAPH_WRITE.alias("newer")
    is_replaced = exists().where(
        source_writes.c.thread_id == source,
        *(source_writes.c[name] == GRAPH_WRITE.c[name] for name in (*key_columns, "task_id", "idx")),
    )
    transaction.execute(delete(GRAPH_WRITE).where(GRAPH_WRITE.c.thread_id == target, is_replaced))
    moved_count = 0
    c = GRAPH_CHECKPOINT.c
    last_seqs = select(c.ns, func.max(c.seq)).where(c.thread_id == target).group_by(c.ns)
    for ns, last_seq in transaction.execute(last_seqs).all():
        conditions = (GRAPH_CHECKPOINT.c.thread_id == source, GRAPH_CHECKPOINT.c.ns == ns)
        moved_count += update_rows(
            transaction, GRAPH_CHECKPOINT, *conditions, seq=GRAPH_CHECKPOINT.c.seq + last_seq, thread_id=target
        )
    for table in (GRAPH_WRITE, GRAPH_CHECKPOINT):
        remaining_count = update_rows(transaction, table, table.c.thread_id == source, thread_id=target)
    return moved_count + remaining_count
