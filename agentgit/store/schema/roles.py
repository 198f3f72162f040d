"""Rights of a PostgreSQL role that owns no table. It cannot change tables or edit the audit trail."""

from __future__ import annotations

from sqlalchemy import text

from agentgit.errors import NotAllowed
from agentgit.store.schema.migrations import VERSION_TABLE
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.transaction import Reading

FULL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"

REDUCED_RIGHTS = {VERSION_TABLE: "SELECT", "event": "SELECT, INSERT"}
"""The tables with fewer rights than `FULL_RIGHTS`. Events go with their session, by a right of the tables' owner."""

TABLE_NAMES = (*METADATA.tables, VERSION_TABLE)

# A superuser is a member of every role, and a member can become the role with SET ROLE.
_IS_UNBOUNDED = text(
    "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role AND (rolsuper OR rolcreaterole)) "
    "OR EXISTS (SELECT FROM pg_database WHERE datname = current_database() AND pg_has_role(:role, datdba, 'MEMBER')) "
    "OR EXISTS (SELECT FROM pg_namespace AS n LEFT JOIN pg_class ON relnamespace = n.oid AND relname = ANY(:names) "
    "WHERE nspname = current_schema() "
    "AND (pg_has_role(:role, nspowner, 'MEMBER') OR pg_has_role(:role, relowner, 'MEMBER')))"
)
# Who may add events is a role of agentgit, and not one that only reads.
_OTHER_SCHEMA = text(
    "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'event' AND relkind = 'r' "
    "AND relnamespace <> to_regnamespace(quote_ident(current_schema())) "
    "AND has_table_privilege(:role, oid, 'INSERT') AND has_schema_privilege(:role, relnamespace, 'USAGE') LIMIT 1"
)
_GRANTED_ROLES = text(
    "SELECT DISTINCT pg_get_userbyid(grantee) FROM pg_class, aclexplode(relacl) WHERE relname = 'event' "
    "AND relnamespace = to_regnamespace(quote_ident(current_schema())) AND privilege_type = 'INSERT' "
    "AND grantee <> relowner AND grantee <> 0"
)


def grant_rights(transaction: Reading, role: str) -> None:
    """Grant a role the rights in the current schema that agentgit needs, in place of those it has there."""
    if transaction.execute(_IS_UNBOUNDED, {"names": [*TABLE_NAMES], "role": role}).scalar_one():
        raise NotAllowed(
            f"{role!r} owns the tables, their schema or the database, is a superuser, may create roles, or is a member "
            "of such a role, so grants do not limit it. Use another role."
        )
    if other := transaction.execute(_OTHER_SCHEMA, {"role": role}).scalar():
        raise NotAllowed(f"{role!r} can use the schema {other}. Use a role of its own for each schema.")
    quote = transaction.dialect.identifier_preparer.quote_identifier
    schema_name = quote(str(transaction.execute(text("SELECT current_schema()")).scalar_one()))
    database_name = quote(str(transaction.execute(text("SELECT current_database()")).scalar_one()))
    transaction.connection.exec_driver_sql(f"REVOKE ALL ON SCHEMA {schema_name} FROM {quote(role)}")
    # What others put there, the owner would run: before PostgreSQL 15, everybody may create in `public`.
    transaction.connection.exec_driver_sql(f"REVOKE CREATE ON SCHEMA {schema_name} FROM PUBLIC")
    transaction.connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema_name} TO {quote(role)}")
    transaction.connection.exec_driver_sql(
        f"ALTER ROLE {quote(role)} IN DATABASE {database_name} SET search_path TO {schema_name}"
    )
    _grant_tables(transaction, role)


def grant_rights_again(transaction: Reading) -> None:
    """Grant each role of agentgit in the current schema its rights in the tables of a new version, too."""
    for role in transaction.execute(_GRANTED_ROLES).scalars().all():
        _grant_tables(transaction, role)


def _grant_tables(transaction: Reading, role: str) -> None:
    quote = transaction.dialect.identifier_preparer.quote_identifier
    for name in TABLE_NAMES:
        transaction.connection.exec_driver_sql(f"REVOKE ALL ON {quote(name)} FROM {quote(role)}, PUBLIC")
        transaction.connection.exec_driver_sql(
            f"GRANT {REDUCED_RIGHTS.get(name, FULL_RIGHTS)} ON {quote(name)} TO {quote(role)}"
        )
