"""The shape of a database: its tables, columns, keys, indexes and triggers, read from its own catalog."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine.reflection import Inspector

from agentgit.store.database import Database
from agentgit.store.schema import migrations
from agentgit.store.sql.tables import METADATA

FTS_TABLE = "search_words"
"""The name of SQLite's full-text index. FTS5 stores it in tables whose names begin with this name."""

FTS_INDEX = "ix_search_text_words"
"""The name of PostgreSQL's full-text index."""

TABLE_NAMES = frozenset({*METADATA.tables, FTS_TABLE, migrations.VERSION_TABLE})
"""The names of all tables that agentgit creates."""

Shape = dict[str, dict[str, str]]
"""For each table, the name and the definition of each of its parts."""

_TRIGGERS = {
    "sqlite": "SELECT tbl_name, name, 'on', sql, NULL, NULL FROM sqlite_master WHERE type = 'trigger' "
    "AND :place IS NOT NULL",
    # A trigger that is enabled only for replicas does not fire either.
    "postgresql": "SELECT c.relname, t.tgname, CASE WHEN t.tgenabled IN ('D', 'R') THEN 'off' ELSE 'on' END, "
    "replace(pg_get_triggerdef(t.oid), quote_ident(:place) || '.', ''), p.proname, "
    "concat_ws(' ', p.prosrc, array_to_string(p.proconfig, ', '), p.prosecdef) "
    "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid "
    "WHERE NOT t.tgisinternal AND c.relnamespace = to_regnamespace(quote_ident(:place))",
}
_ROW_SECURITY = (
    "SELECT c.relname, 'row-level security', CASE WHEN c.relforcerowsecurity THEN 'forced' ELSE 'enabled' END "
    "FROM pg_class c WHERE c.relrowsecurity AND c.relnamespace = to_regnamespace(quote_ident(:place)) "
    "UNION ALL SELECT tablename, 'policy ' || policyname, permissive || ' ' || cmd || ' to ' || "
    "array_to_string(roles, ', ') || ': ' || coalesce(qual, 'any') || ', of new rows ' || "
    "coalesce(with_check, qual, 'any') FROM pg_policies WHERE schemaname = :place "
    # A policy also depends on the functions that it calls.
    "UNION ALL SELECT c.relname, 'function ' || f.proname, concat_ws(' ', f.prosrc, "
    "replace(array_to_string(f.proconfig, ', '), quote_ident(:place), 'its schema'), f.prosecdef) FROM pg_policy p "
    "JOIN pg_class c ON c.oid = p.polrelid JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid "
    "JOIN pg_proc f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid "
    "WHERE c.relnamespace = to_regnamespace(quote_ident(:place)) "
    "UNION ALL SELECT c.relname, 'rule ' || r.rulename, pg_get_ruledef(r.oid) FROM pg_rewrite r "
    "JOIN pg_class c ON c.oid = r.ev_class WHERE c.relnamespace = to_regnamespace(quote_ident(:place))"
)

_DISTRIBUTION = text(
    # Tables of Citus that are not distributed, and belong to one machine, have neither a key nor copies.
    "SELECT c.relname, column_to_column_name(p.logicalrelid, p.partkey) AS key, p.repmodel = 't' AS is_copied, "
    "p.colocationid FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid "
    "WHERE c.relnamespace = to_regnamespace(current_schema()) AND c.relname = ANY(:names)"
)
_UNDISTRIBUTED_PARTS = ("trigger ", "definition of trigger ", "function ", "policy ", "row-level security")
"""The parts of tables that Citus does not have on distributed tables: triggers, and row-level security."""


def include_object(object: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Exclude agentgit's tables from another application's Alembic, as `include_object` of its `context.configure`.

    Example:
        >>> include_object(None, "audit_event", "table", True, None)
        False
        >>> include_object(None, "invoice", "table", True, None)
        True
    """
    is_extra_table = kind == "table" and reflected and compare_to is None
    return not (is_extra_table and name is not None and (name in TABLE_NAMES or name.startswith(FTS_TABLE)))


def is_compared(name: str | None, kind: str, parents: Any) -> bool:
    """Exclude the parts of the full-text index, which no model has, as `include_name` of Alembic's `context.configure`.

    Example:
        >>> is_compared("ix_search_text_words", "index", {}), is_compared("ix_tenant_name", "index", {})
        (False, True)
    """
    if kind == "index":
        return name != FTS_INDEX
    return kind != "table" or name is None or not name.startswith(FTS_TABLE)


def read_shape(connection: Connection, schema: str | None = None) -> Shape:
    """Read the shape of agentgit's tables."""
    inspector = inspect(connection)
    schema_name = schema or inspector.default_schema_name
    shape: Shape = {name: {} for name in inspector.get_table_names(schema=schema_name) if name in TABLE_NAMES}
    shape.pop(migrations.VERSION_TABLE, None)
    # The parts of the FTS5 table are not read: its columns have no type, and SQLite itself creates them.
    for name, parts in _list_parts(inspector, connection, schema_name, [name for name in shape if name != FTS_TABLE]):
        if name in shape:
            shape[name] |= parts
    return shape


def _list_parts(
    inspector: Inspector, connection: Connection, schema_name: str | None, names: list[str]
) -> list[tuple[str, dict[str, str]]]:
    kind, parts = connection.dialect.name, []
    options: Any = {"schema": schema_name, "filter_names": names}
    for (_, name), columns in inspector.get_multi_columns(**options).items():
        parts.append((name, {f"column {one['name']}": _column_definition(one, connection) for one in columns}))
    for (_, name), primary_key in inspector.get_multi_pk_constraint(**options).items():
        parts.append((name, {"primary key": ", ".join(primary_key["constrained_columns"])} if primary_key else {}))
    for (_, name), keys in inspector.get_multi_unique_constraints(**options).items():
        parts.append((name, {f"unique ({', '.join(key['column_names'])})": "there" for key in keys}))
    for (_, name), indexes in inspector.get_multi_indexes(**options).items():
        plain_indexes = [one for one in indexes if "duplicates_constraint" not in one]
        parts.append(
            (name, {f"index {one['name']}": ", ".join(map(str, one["column_names"])) for one in plain_indexes})
        )
    for (_, name), foreign_keys in inspector.get_multi_foreign_keys(**options).items():
        parts.append(
            (
                name,
                {
                    f"reference ({', '.join(one['constrained_columns'])})": _foreign_key_target(one)
                    for one in foreign_keys
                    if one["referred_table"] in TABLE_NAMES
                },
            )
        )
    parameters = {"place": schema_name or "main"}
    for name, trigger, state, definition, function, code in connection.execute(text(_TRIGGERS[kind]), parameters):
        definitions = {f"trigger {trigger}": state, f"definition of trigger {trigger}": definition}
        parts.append((name, definitions | ({f"function {function}": code} if function else {})))
    if kind == "postgresql":
        parts += [
            (name, {part: part_definition})
            for name, part, part_definition in connection.execute(text(_ROW_SECURITY), parameters)
        ]
    return parts


def _column_definition(column: Any, connection: Connection) -> str:
    sql_type = column["type"].compile(connection.dialect)
    return sql_type if column["nullable"] else f"{sql_type} NOT NULL"


def _foreign_key_target(foreign_key: Any) -> str:
    return f"{foreign_key['referred_table']} ({', '.join(foreign_key['referred_columns'])})"


def build_shape(connection: Connection, revision: str) -> Shape:
    """Return the shape that the migrations create, by running them in memory or, on a server, in a temporary schema."""
    if revision == migrations.BASE:
        return {}
    if connection.dialect.name == "sqlite":
        with closing(Database(":memory:")) as database:
            database.write(lambda other: migrations.run(other, "upgrade", revision))
            with database.reading() as temporary_connection:
                return read_shape(temporary_connection)
    name = f"agentgit_{secrets.token_hex(8)}"
    with connection.begin_nested() as savepoint:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        connection.exec_driver_sql(f"SET LOCAL search_path = {name}")
        migrations.run(connection, "upgrade", revision, schema=name)
        shape = read_shape(connection, name)
        savepoint.rollback()
    return shape


def list_differences(actual: Shape, expected: Shape) -> list[str]:
    """List the differences between a shape and the expected one. Additional indexes are allowed.

    Example:
        >>> list_differences({"tag": {"column name": "TEXT"}}, {"tag": {"column name": "TEXT NOT NULL"}, "blob": {}})
        ['table blob is missing', 'tag: column name is TEXT, not TEXT NOT NULL']
    """
    messages = [f"table {name} is missing" for name in sorted(expected.keys() - actual.keys())]
    messages += [f"table {name} is unexpected" for name in sorted(actual.keys() - expected.keys())]
    for name in sorted(actual.keys() & expected.keys()):
        actual_parts, expected_parts = actual[name], expected[name]
        messages += [f"{name}: {part} is missing" for part in sorted(expected_parts.keys() - actual_parts.keys())]
        extra = sorted(part for part in actual_parts.keys() - expected_parts.keys() if not part.startswith("index "))
        messages += [f"{name}: {part} is unexpected" for part in extra]
        for part in sorted(actual_parts.keys() & expected_parts.keys()):
            if actual_parts[part] != expected_parts[part]:
                is_code = part.startswith(("function ", "policy ", "definition "))
                difference = "was modified" if is_code else f"is {actual_parts[part]}, not {expected_parts[part]}"
                messages.append(f"{name}: {part} {difference}")
    return messages


def is_distributed(connection: Connection) -> bool:
    """Return whether Citus distributes the tables, or keeps a copy of them on each machine."""
    return bool(_read_distribution(connection))


def _read_distribution(connection: Connection) -> Shape:
    """Read how Citus distributes each table, in words; empty if it distributes none, or is not there."""
    if connection.dialect.name == "sqlite" or not connection.scalar(
        text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
    ):
        return {}
    rows = connection.execute(_DISTRIBUTION, {"names": sorted(METADATA.tables)}).all()
    groups = Counter(row.colocationid for row in rows if row.key is not None)
    main_group = max(groups, key=lambda group: groups[group], default=None)
    shape: Shape = {}
    for row in rows:
        how = f"by {row.key}" if row.key is not None else "a copy on each machine" if row.is_copied else "none"
        is_apart = row.key is not None and row.colocationid != main_group
        shape[row.relname] = {"distribution": f"{how}, apart from the other tables" if is_apart else how}
    return shape


def list_schema_differences(connection: Connection, revision: str) -> list[str]:
    """List how the tables differ from those that the migrations create.

    If Citus distributes the tables, triggers and row-level security are not compared, because Citus has neither on
    distributed tables. Instead, every table must be distributed by tenant together with the others, and the table of
    tenants must have a copy on each machine.
    """
    actual, expected = read_shape(connection), build_shape(connection, revision)
    if distribution := _read_distribution(connection):
        expected_distribution = {
            name: {"distribution": "by tenant_id" if "tenant_id" in table.c else "a copy on each machine"}
            for name, table in METADATA.tables.items()
        }
        actual = _merge_distribution(actual, distribution)
        expected = _merge_distribution(expected, expected_distribution)
    return list_differences(actual, expected)


def _merge_distribution(shape: Shape, distribution: Shape) -> Shape:
    return {
        name: {part: value for part, value in parts.items() if not part.startswith(_UNDISTRIBUTED_PARTS)}
        | distribution.get(name, {})
        for name, parts in shape.items()
    }
