"""Partitioning by tenant on PostgreSQL, and the SQL that distributes the tables over several machines."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.schema.introspection import is_distributed
from agentgit.store.sql.tables import METADATA

MAX_PARTITIONS = 1024
"""The maximum number of partitions of a table.

Each partition has its own files, and a statement without a tenant reads all of them.
"""

_CATALOG = {
    "keys": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE conrelid = to_regclass(:name) AND contype IN ('p', 'u', 'c') ORDER BY contype, conname",
    "references": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE conrelid = to_regclass(:name) AND contype = 'f' AND conparentid = 0 ORDER BY conname",
    "indexes": "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i "
    "WHERE indrelid = to_regclass(:name) AND NOT EXISTS "
    "(SELECT FROM pg_constraint WHERE conindid = i.indexrelid AND contype IN ('p', 'u'))",
    "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger "
    "WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal",
    "policies": "SELECT policyname, "
    "concat_ws(' ', 'AS', permissive, 'FOR', cmd, 'USING (' || qual || ')', "
    "CASE WHEN cmd <> 'DELETE' THEN 'WITH CHECK (' || coalesce(with_check, qual) || ')' END) FROM pg_policies "
    "WHERE schemaname = current_schema() AND quote_ident(tablename) = :name",
    "grants": "SELECT a.grantee::regrole::text, string_agg(a.privilege_type, ', ') FROM pg_class c, "
    "aclexplode(c.relacl) a WHERE c.oid = to_regclass(:name) AND a.grantee NOT IN (0, c.relowner) GROUP BY 1",
}
"""The queries that list the parts of a table: the name and the definition of each."""

_IS_PLAIN = text("SELECT relkind = 'r' FROM pg_class WHERE oid = to_regclass(:name)")


class _Table(NamedTuple):
    """The definitions of the parts of a table, as PostgreSQL returns them."""

    name: str
    keys: list[Any]
    references: list[Any]
    indexes: list[Any]
    triggers: list[Any]
    policies: list[Any]
    grants: list[Any]


def partition(database: Database, count: int) -> int:
    """Partition each table by tenant, with its rows, in one transaction. Nobody else can use the database meanwhile.

    Tables that are already partitioned stay as they are, so you can run it again after an upgrade that added tables.
    """
    if database.is_sqlite:
        raise InvalidInput("SQLite has no partitions. Move the sessions to PostgreSQL with export and import.")
    if not 2 <= count <= MAX_PARTITIONS:
        raise InvalidInput(
            f"Use 2 to {MAX_PARTITIONS} partitions, not {count}: a few times the number of your processors."
        )
    schema.check(database)

    def work(connection: Connection) -> int:
        schema.require_owner(connection, database, f"partition {count}")
        if is_distributed(connection):
            raise InvalidInput("Citus already divides these tables into shards, by tenant. They need no partitions.")
        return _partition_tables(connection, count)

    return database.write(work, durable=True)


def _partition_tables(connection: Connection, count: int) -> int:
    schema.lock_migrations(connection)
    quote = connection.dialect.identifier_preparer.quote
    names = [quote(table.name) for table in METADATA.sorted_tables if table.name != "tenant"]
    plain_names = {name for name in names if connection.execute(_IS_PLAIN, {"name": name}).scalar_one()}
    tables = [_read_table(connection, name) for name in names] if plain_names else []
    for table in tables:
        for reference, _ in table.references:
            _execute(connection, f"ALTER TABLE {table.name} DROP CONSTRAINT {reference}")
        for policy, _ in table.policies:  # a policy may read another table
            _execute(connection, f"DROP POLICY {policy} ON {table.name}")
    plain_tables = [table for table in tables if table.name in plain_names]
    for table in plain_tables:
        _replace_with_partitioned(connection, table, _partition_names(table.name, count))
    for table in tables:
        for reference, definition in table.references:
            _execute(connection, f"ALTER TABLE {table.name} ADD CONSTRAINT {reference} {definition}")
        for policy, definition in table.policies:
            _execute(connection, f"CREATE POLICY {policy} ON {table.name} {definition}")
    for table in plain_tables:
        _protect(connection, table, _partition_names(table.name, count))
    return len(plain_tables)


def _partition_names(name: str, count: int) -> list[str]:
    unquoted = name.strip('"')
    return [f'"{unquoted}_p{n}"' for n in range(count)]


def _read_table(connection: Connection, name: str) -> _Table:
    rows_by_part = {part: connection.execute(text(query), {"name": name}).all() for part, query in _CATALOG.items()}
    return _Table(name, **{part: list(rows) for part, rows in rows_by_part.items()})


def _replace_with_partitioned(connection: Connection, table: _Table, partitions: list[str]) -> None:
    """Replace a plain table with a partitioned one that has the same rows."""
    name = table.name
    _execute(connection, f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY")  # otherwise its owner sees no rows to copy
    _execute(connection, f"ALTER TABLE {name} RENAME TO agentgit_old")
    for key, _ in table.keys:
        _execute(connection, f"ALTER TABLE agentgit_old DROP CONSTRAINT {key}")
    for index, _ in table.indexes:
        _execute(connection, f"DROP INDEX {index}")
    columns = "LIKE agentgit_old INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING COMMENTS"
    _execute(connection, f"CREATE TABLE {name} ({columns}) PARTITION BY HASH (tenant_id)")
    for remainder, partition_name in enumerate(partitions):
        values = f"FOR VALUES WITH (MODULUS {len(partitions)}, REMAINDER {remainder})"
        _execute(connection, f"CREATE TABLE {partition_name} PARTITION OF {name} {values}")
    _execute(connection, f"INSERT INTO {name} SELECT * FROM agentgit_old")  # noqa: S608  # our own names
    _execute(connection, "DROP TABLE agentgit_old")
    for key, definition in table.keys:
        _execute(connection, f"ALTER TABLE {name} ADD CONSTRAINT {key} {definition}")
    for _, definition in table.indexes:
        _execute(connection, definition)


def _protect(connection: Connection, table: _Table, partitions: list[str]) -> None:
    """Protect a table and its partitions: nobody can read or change a partition except through its table."""
    for _, definition in table.triggers:
        # PostgreSQL itself copies a row-level trigger to the partitions.
        for table_name in (table.name, *(partitions if "FOR EACH STATEMENT" in definition else ())):
            _execute(connection, re.sub(r" ON \S+ FOR EACH ", f" ON {table_name} FOR EACH ", definition))
    for table_name in (table.name, *partitions):
        _execute(connection, f"ALTER TABLE {table_name} ENABLE ROW LEVEL SECURITY")
        _execute(connection, f"ALTER TABLE {table_name} FORCE ROW LEVEL SECURITY")
    for role, rights in table.grants:
        _execute(connection, f"GRANT {rights} ON {table.name} TO {role}")


def _execute(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)


KINDS = ("citus", "cockroach", "yugabyte")
"""The servers for which there is a script. Only the one for Citus has been run on its server."""

_UNSUPPORTED = ("FUNCTION agentgit_", "TRIGGER ", "POLICY ", "ROW LEVEL SECURITY")
"""Parts of statements that Citus cannot run on distributed tables, and CockroachDB cannot run unchanged.

These are the triggers of the audit trail, and row-level security.
"""

_GIN = "USING gin (words) WITH (gin_pending_list_limit=256)"


def distributed_script(kind: str) -> str:
    """Return the SQL that creates the tables in an empty database on a distributed server.

    Example:
        >>> "SELECT create_reference_table('tenant');" in distributed_script("citus")
        True
    """
    if kind not in KINDS:
        raise InvalidInput(f"There is no script for {kind!r}. Use one of postgresql, sqlite, {', '.join(KINDS)}.")
    sql = schema.script("postgresql")
    if kind == "yugabyte":
        return sql.replace(_GIN, "USING ybgin (words)")
    statements = [one for one in sql.split(";\n\n") if not any(word in one for word in _UNSUPPORTED)]
    supported_sql = ";\n\n".join(statements)
    return supported_sql + _distribution_sql() if kind == "citus" else supported_sql.replace(_GIN, "USING gin (words)")


def _distribution_sql() -> str:
    """Return the SQL that distributes the tables by tenant, co-located, with referenced tables first."""
    names = [table.name for table in METADATA.sorted_tables if table.name != "tenant"]
    lines = ["SELECT create_reference_table('tenant');"]
    for name in names:
        colocated_table = "none" if name == names[0] else _quoted(names[0])
        lines.append(
            f"SELECT create_distributed_table('{_quoted(name)}', 'tenant_id', colocate_with => '{colocated_table}');"
        )
    return "\n".join(["", *lines, ""])


def _quoted(name: str) -> str:
    return f'"{name}"'
