"""Rights of a PostgreSQL role that does not own the tables. It cannot change tables or edit the audit trail."""

from __future__ import annotations

import shlex

from sqlalchemy import Connection, text

from agentgit.errors import InvalidInput, NotAllowed, NotFound
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.schema.migrations import VERSION_TABLE
from agentgit.store.sql.tables import METADATA

FULL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"

REDUCED_RIGHTS = {
    VERSION_TABLE: "SELECT",
    "event": "SELECT, INSERT",
    "tenant": "SELECT, INSERT, UPDATE",
}
"""The tables with fewer rights than `FULL_RIGHTS`. Events go with their session, by a right of the tables' owner."""


_ROLE = text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)")
# A superuser is a member of every role, and a member can become the role with SET ROLE.
_OWNED_TABLES = text(
    "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(current_schema()) AND relname = ANY(:names) "
    "AND pg_has_role(:role, relowner, 'MEMBER')"
)


def grant(database: Database, role: str) -> int:
    """Grant a role the rights that agentgit needs, in place of those it has, and return the number of tables."""
    if database.is_sqlite:
        raise InvalidInput("SQLite has no roles: anyone who can write the file can do everything in it.")
    schema.check(database)

    def work(connection: Connection) -> int:
        schema.require_owner(connection, database, f"grant {shlex.quote(role)}")
        schema.lock_migrations(connection)  # concurrent changes to the rights of one table fail
        return _grant(connection, role)

    return database.write(work, durable=True)


def _grant(connection: Connection, role: str) -> int:
    names = [*METADATA.tables, VERSION_TABLE]
    if not connection.execute(_ROLE, {"role": role}).scalar_one():
        raise NotFound(f"The server has no role {role!r}. Create one: CREATE ROLE name LOGIN")
    if connection.execute(_OWNED_TABLES, {"names": names, "role": role}).scalar_one():
        raise NotAllowed(
            f"{role!r} owns the tables or is a superuser, or is a member of such a role, so grants do not limit it. "
            "Use another role."
        )
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema_name = quote(str(connection.execute(text("SELECT current_schema()")).scalar_one()))
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema_name} TO {quote(role)}")
    for name in names:
        table = f"{schema_name}.{quote(name)}"
        connection.exec_driver_sql(f"REVOKE ALL ON {table} FROM {quote(role)}")
        connection.exec_driver_sql(f"GRANT {REDUCED_RIGHTS.get(name, FULL_RIGHTS)} ON {table} TO {quote(role)}")
    return len(names)
