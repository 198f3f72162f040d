"""Tenants: an embedded database has one, made when it is first used."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, insert, select

from agentgit.store.database import Database
from agentgit.store.ids import new_tenant_id
from agentgit.store.tables import TenantRow

FIRST_NAME = "local"

_table = TenantRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table
_FIRST = select(_table.c.id).order_by(_table.c.created_at, _table.c.id).limit(1)


def ensure_tenant(database: Database) -> int:
    """Give the id of the first tenant, making one if there is none.

    Args:
        database: one that has its tables.

    Example:
        >>> from agentgit.store import schema
        >>> database = Database(":memory:")
        >>> schema.ready(database)
        >>> ensure_tenant(database) == ensure_tenant(database)
        True
    """
    with database.reading() as connection:
        found = connection.execute(_FIRST).scalar()
    return int(found) if found is not None else database.write(_ensure, durable=True)


def _ensure(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        # Nothing to lock by row when there is none; a whole-table lock is short and happens once in a database's life.
        connection.exec_driver_sql("LOCK TABLE tenant IN SHARE ROW EXCLUSIVE MODE")
    found = connection.execute(_FIRST).scalar()
    if found is not None:
        return int(found)
    tenant_id = new_tenant_id()
    values = {"id": tenant_id, "name": FIRST_NAME, "created_at": datetime.now(UTC)}
    connection.execute(insert(_table), values)
    return tenant_id
