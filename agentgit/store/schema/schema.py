"""The schema of a database: checks, and the upgrade to the schema that this library needs (Alembic)."""

from __future__ import annotations

import shlex
from typing import Any

from sqlalchemy import Connection, MetaData, inspect, select, text

from agentgit.errors import InvalidInput, NotAllowed, SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import migrations
from agentgit.store.schema.introspection import TABLE_NAMES, WORDS, Shape, differences, shape_at, shape_of
from agentgit.store.schema.migrations import ADVISORY_LOCK, BASE, VERSION_TABLE
from agentgit.store.sql.url import shown

REVISION = "0001"
"""The newest migration. A test compares it with the folder."""

_PLACE = "  (with the password in place of ***)"

_OTHERS = text(
    "SELECT pg_get_userbyid(relowner) AS owner, current_user AS role FROM pg_class WHERE relname = ANY(:names) "
    "AND relnamespace = to_regnamespace(current_schema()) AND NOT pg_has_role(relowner, 'USAGE') LIMIT 1"
)


def current(database: Database) -> str | None:
    """Return the schema's revision; None if the database has no tables of agentgit."""
    with database.reading() as connection:
        return _current(connection)


def _current(connection: Connection) -> str | None:
    if VERSION_TABLE not in _names(connection):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608  # a constant
    return str(found) if found is not None else None


def _names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def check(database: Database, *, deep: bool = False) -> None:
    """Check that this library can use the database without an upgrade.

    Args:
        database: Any open database.
        deep: True to compare every table, column, key, index, trigger and policy with what the migrations create. On
            a server this needs the right to create a schema. That schema is temporary.

    Raises:
        SchemaMismatch: The schema is older, newer, empty or not agentgit's, or differs. The message names the problem
            and what to do.
    """
    found = current(database)
    _require_known(database, found)
    if found is None or found < REVISION:
        state = "has no tables yet" if found is None else f"has schema {found} and this library needs {REVISION}"
        way = _command("upgrade", database) if found is None else _upgrade_commands(database)
        raise SchemaMismatch(f"{database.name} {state}. Run: {way}")
    if deep and (wrong := database.write(lambda connection: _changed(connection, database))):
        raise SchemaMismatch(
            f"The schema of {database.name} does not match its migrations: {'; '.join(wrong)}. "
            "Undo the manual changes, or restore a backup."
        )


def _require_known(database: Database, found: str | None) -> None:
    if found is not None and found > REVISION:
        raise SchemaMismatch(
            f"{database.name} has schema {found}, which is newer than this library's {REVISION}. "
            "Run: pip install --upgrade agentgit"
        )


def _changed(connection: Connection, database: Database) -> list[str]:
    require_owner(connection, database, "check --deep")
    return _wrong(connection, REVISION)


def _wrong(connection: Connection, revision: str) -> list[str]:
    return differences(shape_of(connection), shape_at(connection, revision))


def _command(verb: str, database: Database, owner: str | None = None) -> str:
    """Return a command that can be pasted, except for the password, which is not shown.

    Args:
        verb: The subcommand of `agentgit db`.
        database: The database.
        owner: The owner of the tables that the command changes; None for the user in the database's URL.
    """
    name = database.name if owner is None else shown(database.url.set(username=owner))
    command = f"agentgit db {verb} --db {shlex.quote(name)}"
    return f"{command}{_PLACE}" if "***" in name else command


def _upgrade_commands(database: Database) -> str:
    """Return the commands that upgrade a database. If another role owns the tables, that role must run them."""
    with database.reading() as connection:
        others = _other_owner(connection)
    if others is None:
        return _command("upgrade", database)
    again = _command(f"grant {shlex.quote(others.role)}", database, others.owner)
    return f"{_command('upgrade', database, others.owner).removesuffix(_PLACE)}, then {again}"


def _other_owner(connection: Connection) -> Any:
    """Return the owner of the tables and the current role; None if the role owns the tables or there are none."""
    if connection.dialect.name == "sqlite":
        return None
    return connection.execute(_OTHERS, {"names": sorted(TABLE_NAMES)}).first()


def require_owner(connection: Connection, database: Database, verb: str) -> None:
    """Check that the current role owns the tables, so that it can change them.

    Args:
        connection: The connection of the transaction that would change them.
        database: The database.
        verb: The subcommand of `agentgit db`.

    Raises:
        NotAllowed: Another role owns the tables. The message has the command for that role.
    """
    if (others := _other_owner(connection)) is not None:
        raise NotAllowed(
            f"{others.role} does not own the tables of {database.name} and cannot change them. Ask their owner "
            f"{others.owner} to run: {_command(verb, database, others.owner)}"
        )


def upgrade(database: Database, revision: str | None = None) -> str:
    """Upgrade the schema to a revision, and return that revision.

    Tables of another application in the same database are not changed.

    Args:
        database: Any open database.
        revision: The revision to reach; None for this library's.

    Raises:
        SchemaMismatch: The database is newer than the library, or another application uses the name of one of its
            tables. Nothing was changed.
        InvalidInput: There is no such revision, or the database is newer than it.
        NotAllowed: Another role owns the tables.
    """
    wanted = migrations.require_revision(revision or REVISION)
    found = current(database)
    _require_known(database, found)
    if wanted == migrations.BASE and found is None:
        raise InvalidInput(f"{database.name} has no schema to remove. Run: {_command('upgrade', database)}")
    if found is not None and (found > wanted or wanted == migrations.BASE):
        raise InvalidInput(f"{database.name} has schema {found}. Run: {_command(f'downgrade {wanted}', database)}")
    if found is None and database.is_sqlite and not database.in_memory:
        database.use_wal()
    if found != wanted:
        database.write(lambda connection: _upgrade(connection, database, wanted), durable=True)
    return wanted


def _upgrade(connection: Connection, database: Database, revision: str) -> None:
    lock_migrations(connection)
    found = _current(connection)
    _require_known(database, found)  # another process may have upgraded it meanwhile, perhaps with a newer library
    if found is None:
        _require_room(connection, database)
    require_owner(connection, database, "upgrade")
    if found is None or found < revision:
        migrations.run(connection, "upgrade", revision)


def lock_migrations(connection: Connection) -> None:
    """Wait until no other process migrates. On SQLite a transaction that writes is exclusive anyway."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def _require_room(connection: Connection, database: Database) -> None:
    taken = sorted(_names(connection) & TABLE_NAMES - {VERSION_TABLE})
    if not database.is_sqlite and connection.execute(text("SELECT current_schema()")).scalar() is None:
        raise SchemaMismatch(
            f"The search_path of {database.name} names no existing schema. Create it first, with CREATE SCHEMA."
        )
    if taken:
        way = (
            "Give agentgit a file of its own."
            if database.is_sqlite
            else "Give agentgit a database of its own, or a schema: CREATE SCHEMA agentgit, and "
            "?options=-csearch_path%3Dagentgit at the end of the URL."
        )
        raise SchemaMismatch(
            f"{database.name} has tables of another application with names of agentgit: {', '.join(taken)}. {way} "
            "Nothing was changed."
        )


def downgrade(database: Database, revision: str, *, allow_data_loss: bool = False) -> list[str]:
    """Downgrade the schema to an earlier revision in one transaction, and return a list of the lost data.

    Args:
        database: A database that has tables.
        revision: The revision to reach. `base` removes all tables.
        allow_data_loss: True to allow the loss of data.

    Raises:
        InvalidInput: There is no such revision, or the database is older than it.
        NotAllowed: Data would be lost, and the message lists it; or another role owns the tables. Nothing was changed.
        SchemaMismatch: The database has no agentgit tables, or is newer than the library.
    """
    migrations.require_revision(revision)

    def work(connection: Connection) -> list[str]:
        lock_migrations(connection)
        found = _current(connection)
        _require_known(database, found)
        if found is None:
            raise SchemaMismatch(f"{database.name} has no agentgit tables.")
        if revision != BASE and revision > found:
            raise InvalidInput(f"{database.name} has schema {found}, which is older than {revision}.")
        require_owner(connection, database, f"downgrade {revision}")
        goes = _lost_data(connection, shape_of(connection), shape_at(connection, revision))
        if goes and not allow_data_loss:
            raise NotAllowed(
                f"A downgrade of {database.name} from {found} to {revision} loses {', '.join(goes)}. Back it up, then "
                f"run: {_command(f'downgrade {revision} --yes', database)}"
            )
        migrations.run(connection, "downgrade", revision)
        return goes

    return database.write(work, durable=True)


def _lost_data(connection: Connection, found: Shape, kept: Shape) -> list[str]:
    """List the rows and values that would be lost, because `kept` has no table or column for them."""
    tables = MetaData()
    tables.reflect(connection, only=[name for name in found if name != WORDS])
    said = []
    for name, table in sorted(tables.tables.items()):
        if name not in found:
            continue  # reflected only because one of our tables references it
        gone = [column for column in table.c if f"column {column.name}" not in kept.get(name, {})]
        if name not in kept:
            said += _counted(connection, f"of {name}", select(text("1")).select_from(table))
        else:
            for column in gone:
                default: Any = column.server_default
                empty = default.arg.text.split("::")[0].strip("'") if default is not None else None
                filled = column.is_not(None) if empty is None else column != text(f"'{empty}'")
                said += _counted(connection, f"with a {column.name} in {name}", select(column).where(filled))
    return said


def _counted(connection: Connection, what: str, query: Any) -> list[str]:
    count = connection.execute(select(text("count(*)")).select_from(query.subquery())).scalar_one()
    return [f"{count} row{'s' * (count != 1)} {what}"] if count else []


def stamp(database: Database, revision: str) -> None:
    """Record that the tables have a revision, after a check that they match it.

    This is for databases whose tables were created with the SQL of `script`.

    Args:
        database: A database that has the tables.
        revision: The revision of the tables.

    Raises:
        InvalidInput: There is no such revision.
        SchemaMismatch: The tables differ, and the message lists how.
        NotAllowed: Another role owns the tables.
    """
    migrations.require_revision(revision)

    def work(connection: Connection) -> None:
        lock_migrations(connection)
        require_owner(connection, database, f"stamp {revision}")
        if wrong := _wrong(connection, revision):
            raise SchemaMismatch(f"The tables of {database.name} do not match schema {revision}: {'; '.join(wrong)}.")
        migrations.run(connection, "stamp", revision)

    database.write(work, durable=True)


def script(kind: str, start: str | None = None, end: str | None = None) -> str:
    """Return the SQL of an upgrade, for an administrator who runs it by hand.

    Args:
        kind: `postgresql` or `sqlite`.
        start: The revision of the database; None if it has no tables.
        end: The revision to reach; None for this library's.

    Raises:
        InvalidInput: There is no such revision or kind, or `start` is not older than `end`.
    """
    if kind not in ("postgresql", "sqlite"):
        raise InvalidInput(f"agentgit supports sqlite and postgresql, not {kind!r}.")
    return migrations.script(kind, start or BASE, end or REVISION)


def prepare(database: Database) -> None:
    """Prepare a database for use: upgrade SQLite, but only check a server, which its administrator upgrades.

    Raises:
        SchemaMismatch: An upgrade is needed, and the message has the command; or the file belongs to another
            application, and was not changed.
    """
    if not database.is_sqlite:
        check(database)
        return
    with database.reading() as connection:
        found, names = _current(connection), _names(connection)
    if found is None and (others := sorted(names - {VERSION_TABLE})):
        raise SchemaMismatch(
            f"{database!r} has tables of another application ({', '.join(others[:3])}) and none of agentgit. Use "
            f"another file or, to keep both in this one, run: {_command('upgrade', database)}"
        )
    if found != REVISION:
        upgrade(database)
