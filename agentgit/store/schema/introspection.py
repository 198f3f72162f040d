"""The shape of a database: its tables, columns, keys, indexes and triggers, read from its own catalog."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine.reflection import Inspector

from agentgit.store.database import Database
from agentgit.store.schema import migrations
from agentgit.store.sql.tables import METADATA

WORDS = "search_words"
"""The name of SQLite's full-text index. FTS5 stores it in tables whose names begin with this name."""

TABLE_NAMES = frozenset({*METADATA.tables, WORDS, migrations.VERSION_TABLE})
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
    "UNION ALL SELECT c.relname, 'function ' || f.proname, "
    "concat_ws(' ', f.prosrc, array_to_string(f.proconfig, ', '), f.prosecdef) FROM pg_policy p "
    "JOIN pg_class c ON c.oid = p.polrelid JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid "
    "JOIN pg_proc f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid "
    "WHERE c.relnamespace = to_regnamespace(quote_ident(:place)) "
    "UNION ALL SELECT c.relname, 'rule ' || r.rulename, pg_get_ruledef(r.oid) FROM pg_rewrite r "
    "JOIN pg_class c ON c.oid = r.ev_class WHERE c.relnamespace = to_regnamespace(quote_ident(:place))"
)


def include_object(object: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Exclude agentgit's tables from another application's Alembic, as `include_object` of its `context.configure`.

    Args:
        object: The object that Alembic examines.
        name: The name of the object.
        kind: `table`, or another kind.
        reflected: True if it was found in the database.
        compare_to: The object of that name in the application's models.

    Example:
        >>> include_object(None, "audit_event", "table", True, None)
        False
        >>> include_object(None, "invoice", "table", True, None)
        True
    """
    found = kind == "table" and reflected and compare_to is None
    return not (found and name is not None and (name in TABLE_NAMES or name.startswith(WORDS)))


def shape_of(connection: Connection, schema: str | None = None) -> Shape:
    """Read the shape of agentgit's tables.

    Args:
        connection: Any open connection.
        schema: The PostgreSQL schema; None for the first one in the search path.
    """
    inspector = inspect(connection)
    place = schema or inspector.default_schema_name
    found: Shape = {name: {} for name in inspector.get_table_names(schema=place) if name in TABLE_NAMES}
    found.pop(migrations.VERSION_TABLE, None)
    # The parts of the FTS5 table are not read: its columns have no type, and SQLite itself creates them.
    for name, parts in _parts(inspector, connection, place, [name for name in found if name != WORDS]):
        if name in found:
            found[name] |= parts
    return found


def _parts(
    inspector: Inspector, connection: Connection, place: str | None, names: list[str]
) -> list[tuple[str, dict[str, str]]]:
    kind, parts = connection.dialect.name, []
    of: Any = {"schema": place, "filter_names": names}
    for (_, name), columns in inspector.get_multi_columns(**of).items():
        parts.append((name, {f"column {one['name']}": _column(one, connection) for one in columns}))
    for (_, name), key in inspector.get_multi_pk_constraint(**of).items():
        parts.append((name, {"primary key": ", ".join(key["constrained_columns"])} if key else {}))
    for (_, name), keys in inspector.get_multi_unique_constraints(**of).items():
        parts.append((name, {f"unique ({', '.join(key['column_names'])})": "there" for key in keys}))
    for (_, name), indexes in inspector.get_multi_indexes(**of).items():
        plain = [one for one in indexes if "duplicates_constraint" not in one]
        parts.append((name, {f"index {one['name']}": ", ".join(map(str, one["column_names"])) for one in plain}))
    for (_, name), links in inspector.get_multi_foreign_keys(**of).items():
        parts.append(
            (
                name,
                {
                    f"reference ({', '.join(one['constrained_columns'])})": _target(one)
                    for one in links
                    if one["referred_table"] in TABLE_NAMES
                },
            )
        )
    given = {"place": place or "main"}
    for name, trigger, state, definition, function, code in connection.execute(text(_TRIGGERS[kind]), given):
        said = {f"trigger {trigger}": state, f"definition of trigger {trigger}": definition}
        parts.append((name, said | ({f"function {function}": code} if function else {})))
    if kind == "postgresql":
        parts += [(name, {what: how}) for name, what, how in connection.execute(text(_ROW_SECURITY), given)]
    return parts


def _column(one: Any, connection: Connection) -> str:
    kind = one["type"].compile(connection.dialect)
    return kind if one["nullable"] else f"{kind} NOT NULL"


def _target(one: Any) -> str:
    return f"{one['referred_table']} ({', '.join(one['referred_columns'])})"


def shape_at(connection: Connection, revision: str) -> Shape:
    """Return the shape that the migrations create, by running them in memory or, on a server, in a temporary schema.

    Args:
        connection: A connection in a transaction that writes.
        revision: The wanted revision.
    """
    if revision == migrations.BASE:
        return {}
    if connection.dialect.name == "sqlite":
        with closing(Database(":memory:")) as database:
            database.write(lambda other: migrations.run(other, "upgrade", revision))
            with database.reading() as other:
                return shape_of(other)
    name = f"agentgit_{secrets.token_hex(8)}"
    with connection.begin_nested() as nothing_stays:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        connection.exec_driver_sql(f"SET LOCAL search_path = {name}")
        migrations.run(connection, "upgrade", revision, schema=name)
        found = shape_of(connection, name)
        nothing_stays.rollback()
    return found


def differences(found: Shape, wanted: Shape) -> list[str]:
    """List the differences between a shape and the expected one. Additional indexes are allowed.

    Args:
        found: The actual shape.
        wanted: The expected shape.

    Example:
        >>> differences({"tag": {"column name": "TEXT"}}, {"tag": {"column name": "TEXT NOT NULL"}, "blob": {}})
        ['table blob is missing', 'tag: column name is TEXT, not TEXT NOT NULL']
    """
    said = [f"table {name} is missing" for name in sorted(wanted.keys() - found.keys())]
    said += [f"table {name} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(found.keys() & wanted.keys()):
        has, needs = found[name], wanted[name]
        said += [f"{name}: {part} is missing" for part in sorted(needs.keys() - has.keys())]
        extra = sorted(part for part in has.keys() - needs.keys() if not part.startswith("index "))
        said += [f"{name}: {part} is unexpected" for part in extra]
        for part in sorted(has.keys() & needs.keys()):
            if has[part] != needs[part]:
                is_code = part.startswith(("function ", "policy ", "definition "))
                how = "was modified" if is_code else f"is {has[part]}, not {needs[part]}"
                said.append(f"{name}: {part} {how}")
    return said
