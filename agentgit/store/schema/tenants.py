"""Tenants: an embedded database has one; each is created when it is first used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.auth.principal import require_name
from agentgit.checkpoints import references
from agentgit.errors import NotFound
from agentgit.location import DEFAULT_TENANT
from agentgit.store.database import Database
from agentgit.store.sql.ids import new_tenant_id
from agentgit.store.sql.tables import TENANT


def ensure_tenant(database: Database, name: str | None = None, *, create: bool = True) -> int:
    """Return the id of a tenant, and create the tenant if it does not exist.

    Example:
        >>> from agentgit.store.schema import schema
        >>> database = Database(":memory:")
        >>> schema.prepare(database)
        >>> ensure_tenant(database) == ensure_tenant(database, "local")
        True
        >>> ensure_tenant(database, "acme") == ensure_tenant(database)
        False
    """
    tenant_name = DEFAULT_TENANT if name is None else require_name(name, "tenant")
    query = select(TENANT.c.id).where(TENANT.c.name == tenant_name)
    with database.reading() as connection:
        tenant_id = connection.execute(query).scalar()
        if tenant_id is None and not create and tenant_name != DEFAULT_TENANT:
            visible_names = connection.execute(select(TENANT.c.name)).scalars().all()
            raise NotFound(
                f"There is no tenant {tenant_name!r}. Create one with its first user: agentgit --tenant NAME users "
                "add USER",
                near=references.similar_names(tenant_name, visible_names),
            )
    return (
        int(tenant_id)
        if tenant_id is not None
        else database.write(lambda c: _create_if_missing(c, query, tenant_name), durable=True)
    )


def _create_if_missing(connection: Connection, query: Select[Any], name: str) -> int:
    # The name is unique: an insert waits for another transaction that adds the same name, and then does nothing.
    insert = sqlite.insert(TENANT) if connection.dialect.name == "sqlite" else postgresql.insert(TENANT)
    connection.execute(
        insert.on_conflict_do_nothing(index_elements=["name"]),
        {"id": new_tenant_id(), "name": name, "created_at": datetime.now(UTC)},
    )
    return int(connection.execute(query).scalar_one())
