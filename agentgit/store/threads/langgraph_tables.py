"""The tables of LangGraph's own savers, which may be in the same database."""

from __future__ import annotations

from sqlalchemy import Connection, column, distinct, exists, func, inspect, select, table

from agentgit.store.sql.tables import GRAPH_CHECKPOINT

CHECKPOINTS_COLUMNS = frozenset(
    {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
)
"""The columns of the table `checkpoints` of LangGraph's savers, on SQLite and on PostgreSQL."""


def has_langgraph_tables(connection: Connection) -> bool:
    """Return whether the database has the tables of one of LangGraph's savers."""
    inspector = inspect(connection)
    return inspector.has_table("checkpoints") and CHECKPOINTS_COLUMNS.issubset(
        one["name"] for one in inspector.get_columns("checkpoints")
    )


def count_unread_threads(connection: Connection, tenant_id: int) -> int:
    """Count the threads of LangGraph's savers in this database that a tenant has no thread of the same id for."""
    checkpoints = table("checkpoints", column("thread_id"))
    is_here = exists().where(
        GRAPH_CHECKPOINT.c.tenant_id == tenant_id, GRAPH_CHECKPOINT.c.thread_id == checkpoints.c.thread_id
    )
    query = select(func.count(distinct(checkpoints.c.thread_id))).where(~is_here)
    return int(connection.execute(query).scalar_one())
