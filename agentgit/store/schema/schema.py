"""The schema of a database: checks, and the upgrade to the schema that this library needs (Alembic)."""

from __future__ import annotations

import shlex
from typing import Any

from sqlalchemy import Connection, MetaData, inspect, select, text

from agentgit.errors import InvalidInput, NotAllowed, SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import migrations
from agentgit.store.schema.introspection import (
    FTS_TABLE,
    TABLE_NAMES,
    Shape,
    build_shape,
    list_schema_differences,
    read_shape,
)
from agentgit.store.schema.migrations import ADVISORY_LOCK, BASE, VERSION_TABLE
from agentgit.store.sql.url import redacted_url

REVISION = "0001"
"""The newest migration. A test compares it with the folder."""

_REDACTION_HINT = "  (with the password in place of ***)"

_OTHER_OWNER = text(
    "SELECT pg_get_userbyid(relowner) AS owner, current_user AS role FROM pg_class WHERE relname = ANY(:names) "
    "AND relnamespace = to_regnamespace(current_schema()) AND NOT pg_has_role(relowner, 'USAGE') LIMIT 1"
)


def current_revision(database: Database) -> str | None:
    """Return the schema's revision; None if the database has no tables of agentgit."""
    with database.reading() as connection:
        return _read_revision(connection)


def _read_revision(connection: Connection) -> str | None:
    if VERSION_TABLE not in _table_names(connection):
        return None
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608  # a constant
    return str(revision) if revision is not None else None


def _table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def check(database: Database, *, deep: bool = False) -> None:
    """Check that this library can use the database without an upgrade."""
    revision = current_revision(database)
    _require_not_newer(database, revision)
    if revision is None or revision < REVISION:
        state = "has no tables yet" if revision is None else f"has schema {revision} and this library needs {REVISION}"
        commands = _command("upgrade", database) if revision is None else _upgrade_commands(database)
        raise SchemaMismatch(f"{database.name} {state}. Run: {commands}")
    if deep and (differences := database.write(lambda connection: _check_deep(connection, database))):
        raise SchemaMismatch(
            f"The schema of {database.name} does not match its migrations: {'; '.join(differences)}. "
            "Undo the manual changes, or restore a backup."
        )


def _require_not_newer(database: Database, revision: str | None) -> None:
    if revision is not None and revision > REVISION:
        raise SchemaMismatch(
            f"{database.name} has schema {revision}, which is newer than this library's {REVISION}. "
            "Run: pip install --upgrade agentgit"
        )


def _check_deep(connection: Connection, database: Database) -> list[str]:
    require_owner(connection, database, "check --deep")
    return list_schema_differences(connection, REVISION)


def _command(verb: str, database: Database, owner: str | None = None) -> str:
    """Return a command that can be pasted, except for the password, which is not shown."""
    name = database.name if owner is None else redacted_url(database.url.set(username=owner))
    command = f"agentgit db {verb} --db {shlex.quote(name)}"
    return f"{command}{_REDACTION_HINT}" if "***" in name else command


def _upgrade_commands(database: Database) -> str:
    """Return the commands that upgrade a database. If another role owns the tables, that role must run them."""
    with database.reading() as connection:
        other_owner = _find_other_owner(connection)
    if other_owner is None:
        return _command("upgrade", database)
    grant_command = _command(f"grant {shlex.quote(other_owner.role)}", database, other_owner.owner)
    return f"{_command('upgrade', database, other_owner.owner).removesuffix(_REDACTION_HINT)}, then {grant_command}"


def _find_other_owner(connection: Connection) -> Any:
    """Return the owner of the tables and the current role; None if the role owns the tables or there are none."""
    if connection.dialect.name == "sqlite":
        return None
    return connection.execute(_OTHER_OWNER, {"names": sorted(TABLE_NAMES)}).first()


def require_owner(connection: Connection, database: Database, verb: str) -> None:
    """Check that the current role owns the tables, so that it can change them."""
    if (other_owner := _find_other_owner(connection)) is not None:
        raise NotAllowed(
            f"{other_owner.role} does not own the tables of {database.name} and cannot change them. Ask their owner "
            f"{other_owner.owner} to run: {_command(verb, database, other_owner.owner)}"
        )


def upgrade(database: Database, revision: str | None = None) -> str:
    """Upgrade the schema to a revision, and return that revision.

    Tables of another application in the same database are not changed.
    """
    target = migrations.require_revision(revision or REVISION)
    existing = current_revision(database)
    _require_not_newer(database, existing)
    if target == migrations.BASE and existing is None:
        raise InvalidInput(f"{database.name} has no schema to remove. Run: {_command('upgrade', database)}")
    if existing is not None and (existing > target or target == migrations.BASE):
        raise InvalidInput(f"{database.name} has schema {existing}. Run: {_command(f'downgrade {target}', database)}")
    if existing is None:
        prepare_file(database)
    if existing != target:
        database.write(lambda connection: _upgrade_in_transaction(connection, database, target), durable=True)
    return target


def prepare_file(database: Database) -> None:
    """Switch a new SQLite file to WAL mode, which cannot be done in a transaction. No effect on other databases."""
    if database.is_sqlite and not database.in_memory:
        database.use_wal()


def _upgrade_in_transaction(connection: Connection, database: Database, revision: str) -> None:
    existing = begin_upgrade(connection, database)
    _require_not_newer(
        database, existing
    )  # another process may have upgraded it meanwhile, perhaps with a newer library
    if existing is None or existing < revision:
        migrations.run(connection, "upgrade", revision)


def begin_upgrade(connection: Connection, database: Database) -> str | None:
    """Lock the schema for a transaction that upgrades it, and return its revision; None if there are no tables."""
    lock_migrations(connection)
    existing = _read_revision(connection)
    if existing is None:
        _require_no_other_tables(connection, database)
    require_owner(connection, database, "upgrade")
    return existing


def lock_migrations(connection: Connection) -> None:
    """Wait until no other process migrates. On SQLite a transaction that writes is exclusive anyway."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def _require_no_other_tables(connection: Connection, database: Database) -> None:
    conflicting_names = sorted(_table_names(connection) & TABLE_NAMES - {VERSION_TABLE})
    if not database.is_sqlite and connection.execute(text("SELECT current_schema()")).scalar() is None:
        raise SchemaMismatch(
            f"The search_path of {database.name} names no existing schema. Create it first, with CREATE SCHEMA."
        )
    if conflicting_names:
        advice = (
            "Give agentgit a file of its own."
            if database.is_sqlite
            else "Give agentgit a database of its own, or a schema: CREATE SCHEMA agentgit, and "
            "?options=-csearch_path%3Dagentgit at the end of the URL."
        )
        raise SchemaMismatch(
            f"{database.name} has tables of another application with names of agentgit: "
            f"{', '.join(conflicting_names)}. {advice} "
            "Nothing was changed."
        )


def downgrade(database: Database, revision: str, *, allow_data_loss: bool = False) -> list[str]:
    """Downgrade the schema to an earlier revision in one transaction, and return a list of the lost data."""
    migrations.require_revision(revision)

    def work(connection: Connection) -> list[str]:
        lock_migrations(connection)
        existing = _read_revision(connection)
        _require_not_newer(database, existing)
        if existing is None:
            raise SchemaMismatch(f"{database.name} has no agentgit tables.")
        if revision != BASE and revision > existing:
            raise InvalidInput(f"{database.name} has schema {existing}, which is older than {revision}.")
        losses = begin_downgrade(connection, database, revision, allow_data_loss=allow_data_loss)
        migrations.run(connection, "downgrade", revision)
        return losses

    return database.write(work, durable=True)


def begin_downgrade(
    connection: Connection, database: Database, revision: str, *, allow_data_loss: bool = False
) -> list[str]:
    """Lock the schema for a transaction that downgrades it, and return a list of the data that will be lost."""
    lock_migrations(connection)
    require_owner(connection, database, f"downgrade {revision}")
    losses = _lost_data(connection, read_shape(connection), build_shape(connection, revision))
    if losses and not allow_data_loss:
        raise NotAllowed(
            f"A downgrade of {database.name} to {revision} loses {', '.join(losses)}. Back it up, then run: "
            f"{_command(f'downgrade {revision} --yes', database)}"
        )
    return losses


def _lost_data(connection: Connection, actual: Shape, target: Shape) -> list[str]:
    """List the rows and values that would be lost, because `target` has no table or column for them."""
    metadata = MetaData()
    metadata.reflect(connection, only=[name for name in actual if name != FTS_TABLE])
    losses = []
    for name, table in sorted(metadata.tables.items()):
        if name not in actual:
            continue  # reflected only because one of our tables references it
        lost_columns = [column for column in table.c if f"column {column.name}" not in target.get(name, {})]
        if name not in target:
            losses += _describe_count(connection, f"of {name}", select(text("1")).select_from(table))
        else:
            for column in lost_columns:
                default: Any = column.server_default
                default_value = default.arg.text.split("::")[0].strip("'") if default is not None else None
                is_filled = column.is_not(None) if default_value is None else column != text(f"'{default_value}'")
                losses += _describe_count(
                    connection, f"with a {column.name} in {name}", select(column).where(is_filled)
                )
    return losses


def _describe_count(connection: Connection, description: str, query: Any) -> list[str]:
    count = connection.execute(select(text("count(*)")).select_from(query.subquery())).scalar_one()
    return [f"{count} row{'s' * (count != 1)} {description}"] if count else []


def stamp(database: Database, revision: str) -> None:
    """Record that the tables have a revision, after a check that they match it.

    This is for databases whose tables were created with the SQL of `script`.
    """
    migrations.require_revision(revision)

    def work(connection: Connection) -> None:
        begin_stamp(connection, database, revision)
        migrations.run(connection, "stamp", revision)

    database.write(work, durable=True)


def begin_stamp(connection: Connection, database: Database, revision: str) -> None:
    """Lock the schema for a transaction that records its revision, after a check that the tables match it."""
    lock_migrations(connection)
    require_owner(connection, database, f"stamp {revision}")
    if differences := list_schema_differences(connection, revision):
        raise SchemaMismatch(f"The tables of {database.name} do not match schema {revision}: {'; '.join(differences)}.")


def script(kind: str, start: str | None = None, end: str | None = None) -> str:
    """Return the SQL of an upgrade, for an administrator who runs it by hand."""
    if kind not in ("postgresql", "sqlite"):
        raise InvalidInput(f"agentgit supports sqlite and postgresql, not {kind!r}.")
    return migrations.script(kind, start or BASE, end or REVISION)


def prepare(database: Database) -> None:
    """Prepare a database for use: upgrade SQLite, but only check a server, which its administrator upgrades."""
    if not database.is_sqlite:
        check(database)
        return
    with database.reading() as connection:
        existing, names = _read_revision(connection), _table_names(connection)
    if existing is None and (other_tables := sorted(names - {VERSION_TABLE})):
        raise SchemaMismatch(
            f"{database!r} has tables of another application ({', '.join(other_tables[:3])}) and none of agentgit. Use "
            f"another file or, to keep both in this one, run: {_command('upgrade', database)}"
        )
    if existing != REVISION:
        upgrade(database)
