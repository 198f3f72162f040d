"""Access to the migrations, and ways to run them with Alembic. `schema` decides what to run."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from agentgit.errors import InvalidInput

BASE = "base"
"""Alembic's name for a database before the first migration."""

VERSION_TABLE = "agentgit_version"

ADVISORY_LOCK = 0x61676974
"""PostgreSQL's lock for one migration at a time across processes ("agit")."""

one_at_a_time = threading.RLock()
"""Alembic's context is a module global: two migrations in one process would mix."""

_FORCED = text(
    "SELECT quote_ident(relname) FROM pg_class "
    "WHERE relnamespace = to_regnamespace(current_schema()) AND relforcerowsecurity ORDER BY relname"
)


def folder() -> Path:
    """Find the migrations: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).parents[2]
    shipped = package / "migrations"
    return shipped if shipped.is_dir() else package.parent / "alembic"


def revisions() -> list[str]:
    """List the revisions that this library knows, the oldest first.

    Example:
        >>> revisions()[0]
        '0001'
    """
    return sorted(path.name[:4] for path in (folder() / "versions").glob("[0-9]*.py"))


def known(revision: str) -> str:
    """Return a revision if there is one of that name.

    Raises:
        InvalidInput: There is no such revision.
    """
    if revision != BASE and revision not in revisions():
        raise InvalidInput(f"There is no schema {revision!r}. Use one of {', '.join(revisions())}, or {BASE} for none.")
    return revision


def run(connection: Connection, verb: str, revision: str, *, schema: str | None = None) -> None:
    """Run Alembic in the transaction of a connection.

    Args:
        connection: A connection in a transaction that writes.
        verb: `upgrade`, `downgrade` or `stamp`.
        revision: The revision to reach.
        schema: The schema of PostgreSQL that holds the tables, if it is not the one that is looked in first.
    """
    from alembic import command

    with one_at_a_time:
        forced = _forced(connection)
        _force(connection, forced, "NO FORCE")  # a migration moves rows of all tenants
        getattr(command, verb)(_config(connection=connection, schema=schema), revision)
        _force(connection, [name for name in forced if name in _forced(connection, all_tables=True)], "FORCE")


def _forced(connection: Connection, *, all_tables: bool = False) -> list[str]:
    """List the tables whose owner is behind the wall of row-level security, too."""
    if connection.dialect.name != "postgresql":
        return []
    query = text(str(_FORCED).replace("AND relforcerowsecurity", "")) if all_tables else _FORCED
    return list(connection.execute(query).scalars())


def _force(connection: Connection, names: list[str], how: str) -> None:
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {name} {how} ROW LEVEL SECURITY")


def script(kind: str, start: str, end: str) -> str:
    """Write down the SQL that brings a database from one revision to a later one, in one transaction.

    Args:
        kind: `postgresql` or `sqlite`.
        start: The revision that it has; `base` if it has no tables.
        end: The revision that it is to have.

    Raises:
        InvalidInput: There is no such revision, or the first is not older than the second.
    """
    from alembic import command

    order = [BASE, *revisions()]
    if order.index(known(start)) >= order.index(known(end)):
        raise InvalidInput(f"Schema {start} is not older than {end}. Scripts exist only for upgrades.")
    written = io.StringIO()
    with one_at_a_time:
        command.upgrade(_config(written, dialect=kind), f"{start}:{end}", sql=True)
    return written.getvalue()


def _config(buffer: Any = None, **attributes: Any) -> Any:
    from alembic.config import Config

    config = Config(output_buffer=buffer) if buffer is not None else Config()
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    config.attributes.update(attributes, version_table=VERSION_TABLE)
    return config
