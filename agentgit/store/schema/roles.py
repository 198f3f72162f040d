"""Rights of a PostgreSQL role that does not own the tables. It cannot change tables or edit the audit trail."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from sqlalchemy import Connection, text

from agentgit.errors import InvalidInput, NotAllowed, NotFound
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.schema.introspection import is_distributed
from agentgit.store.schema.migrations import VERSION_TABLE
from agentgit.store.sql.tables import METADATA

FULL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"

REDUCED_RIGHTS = {
    VERSION_TABLE: "SELECT",
    "audit_event": "SELECT, INSERT, DELETE",
    "erasure": "SELECT, INSERT",
    "tenant": "SELECT, INSERT, UPDATE",
}
"""The tables with fewer rights than `FULL_RIGHTS`. A trigger allows DELETE only for the events of an erased session."""


class Grant(NamedTuple):
    """The rights of a role."""

    tables: int
    is_limited_to_tenant: bool


# A member of a role can become that role with SET ROLE.
_ROLE = text(
    "SELECT EXISTS (SELECT FROM pg_roles past WHERE (past.rolsuper OR past.rolbypassrls) "
    "AND pg_has_role(own.oid, past.oid, 'MEMBER')) AS past FROM pg_roles own WHERE own.rolname = :role"
)
_OWNED_TABLES = text(
    "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(current_schema()) AND relname = ANY(:names) "
    "AND pg_has_role(:role, relowner, 'MEMBER')"
)


def grant(database: Database, role: str) -> Grant:
    """Grant a role the rights that agentgit needs. Its earlier rights on the tables are revoked first."""
    if database.is_sqlite:
        raise InvalidInput("SQLite has no roles: anyone who can write the file can do everything in it.")
    schema.check(database)

    def work(connection: Connection) -> Grant:
        schema.require_owner(connection, database, f"grant {shlex.quote(role)}")
        schema.lock_migrations(connection)  # concurrent changes to the rights of one table fail
        return Grant(_grant(connection, role), is_limited_to_tenant=not is_distributed(connection))

    return database.write(work, durable=True)


def _grant(connection: Connection, role: str) -> int:
    names = [*METADATA.tables, VERSION_TABLE]
    role_row = connection.execute(_ROLE, {"role": role}).first()
    if role_row is None:
        raise NotFound(f"The server has no role {role!r}. Create one: CREATE ROLE name LOGIN")
    if role_row.past:
        raise NotAllowed(
            f"Row-level security does not apply to {role!r}. First revoke SUPERUSER and BYPASSRLS from it, and its "
            "membership in roles that have either."
        )
    if connection.execute(_OWNED_TABLES, {"names": names, "role": role}).scalar_one():
        raise NotAllowed(f"{role!r} owns the tables, so grants do not limit it. Use another role.")
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema_name = quote(str(connection.execute(text("SELECT current_schema()")).scalar_one()))
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema_name} TO {quote(role)}")
    for name in names:
        table = f"{schema_name}.{quote(name)}"
        connection.exec_driver_sql(f"REVOKE ALL ON {table} FROM {quote(role)}")
        connection.exec_driver_sql(f"GRANT {REDUCED_RIGHTS.get(name, FULL_RIGHTS)} ON {table} TO {quote(role)}")
    return len(names)
