"""Operations on whole threads: copy, delete, prune. Values stay stored; a copy shares them, or takes them along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, column, delete, distinct, exists, func, inspect, select, table

from agentgit.errors import Conflict
from agentgit.store.sql.batch import slices
from agentgit.store.sql.rows import copy_rows
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.delta_values import ancestors_with
from agentgit.store.threads.graph_rows import KEY_COLUMNS, GraphCheckpoint, parse_graph_checkpoint
from agentgit.store.threads.owners import OWNER_OF_ROWS, SESSION_THREAD_PREFIX

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""LangGraph's metadata key with the channels whose value is spread over the writes of earlier checkpoints."""


def copy(transaction: Writing, source: str, target: str, owner: int) -> None:
    """Copy the rows of a whole thread into a new one. An empty source is a no-op."""
    if OWNER_OF_ROWS.first(transaction, {"thread_id": target}) is not None:
        raise Conflict(f"Thread {target!r} already has checkpoints. Copy into a new thread, or delete this one first.")
    for rows in (GRAPH_CHECKPOINT, GRAPH_WRITE):
        copy_rows(transaction, rows, rows.c.thread_id == source, thread_id=target, external_session_id=owner)


def delete_thread(transaction: Writing, thread: str) -> None:
    for rows in (GRAPH_WRITE, GRAPH_CHECKPOINT):
        transaction.execute(delete(rows).where(rows.c.thread_id == thread))


def belongs_to_no_session(column: Any) -> Any:
    return func.substr(column, 1, len(SESSION_THREAD_PREFIX)) != SESSION_THREAD_PREFIX


def delete_for_runs(transaction: Writing, run_ids: Sequence[str], *, sessions: bool = False) -> None:
    for batch in slices(run_ids):
        is_of_run = GRAPH_CHECKPOINT.c.run_id.in_(batch)
        _delete_checkpoints(
            transaction, is_of_run if sessions else and_(is_of_run, belongs_to_no_session(GRAPH_CHECKPOINT.c.thread_id))
        )


def prune(transaction: Writing, thread: str) -> None:
    """Delete all graph checkpoints but the newest of each namespace and the ancestors that hold parts of it."""
    other = GRAPH_CHECKPOINT.alias("other")
    newest = (
        select(func.max(other.c.seq))
        .where(*(other.c[name] == GRAPH_CHECKPOINT.c[name] for name in ("thread_id", "ns")))
        .scalar_subquery()
    )
    is_of_thread = GRAPH_CHECKPOINT.c.thread_id == thread
    query = select(GRAPH_CHECKPOINT).where(is_of_thread, GRAPH_CHECKPOINT.c.seq == newest)
    rows = transaction.execute(query).all()
    kept_ids = [
        ancestor.key.checkpoint_id
        for row in rows
        for ancestor in delta_ancestors(transaction, parse_graph_checkpoint(row))
    ]
    _delete_checkpoints(
        transaction,
        and_(
            GRAPH_CHECKPOINT.c.thread_id == thread,
            GRAPH_CHECKPOINT.c.seq < newest,
            GRAPH_CHECKPOINT.c.checkpoint_id.not_in(kept_ids),
        ),
    )


def delta_ancestors(transaction: Reading, start: GraphCheckpoint) -> list[GraphCheckpoint]:
    """List the ancestors whose writes hold parts of a checkpoint's values (LangGraph's DeltaChannel), nearest first."""
    return [*ancestors_with(transaction, start, {*(start.meta.get(DELTA_COUNTERS) or ())} - start.channels.keys())]


def _delete_checkpoints(transaction: Writing, condition: Any) -> None:
    """Delete graph checkpoints and their writes, but no write whose graph checkpoint is not stored yet."""
    of_write = (GRAPH_CHECKPOINT.c[name] == GRAPH_WRITE.c[name] for name in KEY_COLUMNS)
    transaction.execute(delete(GRAPH_WRITE).where(exists().where(*of_write, condition)))
    transaction.execute(delete(GRAPH_CHECKPOINT).where(condition))


CHECKPOINTS_COLUMNS = frozenset(
    {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
)
"""The columns of the table `checkpoints` of LangGraph's savers, on SQLite and on PostgreSQL."""


def has_langgraph_tables(transaction: Reading) -> bool:
    """Return whether the database has the tables of one of LangGraph's savers."""
    inspector = inspect(transaction.connection)
    return inspector.has_table("checkpoints") and CHECKPOINTS_COLUMNS.issubset(
        one["name"] for one in inspector.get_columns("checkpoints")
    )


def count_unread_threads(transaction: Reading) -> int:
    """Count the threads of LangGraph's savers in this database that agentgit has no thread of the same id for."""
    checkpoints = table("checkpoints", column("thread_id"))
    is_here = exists().where(GRAPH_CHECKPOINT.c.thread_id == checkpoints.c.thread_id)
    query = select(func.count(distinct(checkpoints.c.thread_id))).where(~is_here)
    return int(transaction.execute(query).scalar_one())
