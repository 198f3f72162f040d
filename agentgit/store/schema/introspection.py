"""Whether Citus distributes the tables."""

from __future__ import annotations

from sqlalchemy import Connection, text

_DISTRIBUTED = text(
    "SELECT EXISTS (SELECT FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid "
    "WHERE c.relnamespace = to_regnamespace(current_schema()))"
)


def is_distributed(connection: Connection) -> bool:
    """Return whether Citus distributes the tables, or keeps a copy of them on each machine."""
    if connection.dialect.name == "sqlite" or not connection.scalar(
        text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
    ):
        return False
    return bool(connection.scalar(_DISTRIBUTED))
