"""The schema of a database: what it is, what this library needs, and the one road from one to the other (Alembic)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from agentgit.errors import SchemaMismatch
from agentgit.store.database import Database

REVISION = "0007"
"""The newest migration; a test holds it against the folder."""

VERSION_TABLE = "agentgit_version"

_one_at_a_time = threading.Lock()
"""Alembic's context is a module global: two upgrades in one process would mix."""

ADVISORY_LOCK = 0x61676974
"""PostgreSQL's lock for the same across processes ("agit")."""


def migrations() -> Path:
    """Find the migrations: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "migrations"
    return shipped if shipped.is_dir() else package.parent / "alembic"


def current(database: Database) -> str | None:
    """Tell the schema's revision; None if the database has no tables of agentgit.

    Raises:
        SchemaMismatch: it is a database, and it belongs to something else.
    """
    with database.reading() as connection:
        return _current(connection, database)


def _current(connection: Connection, database: Database) -> str | None:
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE in names:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608  # a constant
        return str(found) if found is not None else None
    if names:
        raise SchemaMismatch(
            f"{database!r} holds tables of something else ({', '.join(sorted(names)[:3])}). "
            "Give agentgit a database of its own; this one was not touched."
        )
    return None


def check(database: Database) -> None:
    """Make sure that this library can work with the database as it is.

    Raises:
        SchemaMismatch: it is older, newer, empty or not agentgit's; the text says which, and what to do.
    """
    found = current(database)
    if found == REVISION:
        return
    url = database.url.render_as_string(hide_password=True)
    if found is None or found < REVISION:
        state = "has no tables yet" if found is None else f"has schema {found} and this library needs {REVISION}"
        raise SchemaMismatch(f"{url} {state}. Run: agentgit db upgrade --db {url}")
    raise SchemaMismatch(
        f"{url} has schema {found}, which is newer than this library's {REVISION}. Run: pip install --upgrade agentgit"
    )


def upgrade(database: Database) -> str:
    """Bring the schema to this library's revision, and tell the revision that is there then.

    Raises:
        SchemaMismatch: the database is newer than the library, or not agentgit's; it was not touched.
    """
    from alembic import command

    with _one_at_a_time:
        if (found := current(database)) is not None and found > REVISION:
            check(database)
        if found is None and database.is_sqlite and not database.in_memory:
            database.use_wal()
        if found != REVISION:
            database.write(lambda connection: _upgrade(connection, database, command.upgrade), durable=True)
    return REVISION


def _upgrade(connection: Connection, database: Database, run: Any) -> None:
    from alembic.config import Config

    if not database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    if _current(connection, database) == REVISION:
        return  # another process was faster
    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    run(config, REVISION)


def ready(database: Database) -> None:
    """Make a database usable: SQLite is upgraded at once; a server is left to its administrator.

    Raises:
        SchemaMismatch: with the command to run.
    """
    if database.is_sqlite:
        upgrade(database) if current(database) != REVISION else None
    else:
        check(database)
