"""The migrations, and functions that run them with Alembic. `schema` decides which ones to run."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from agentgit.errors import InvalidInput

if TYPE_CHECKING:
    from alembic.migration import MigrationContext
    from alembic.runtime.migration import MigrationStep
    from alembic.script import ScriptDirectory

BASE = "base"
"""Alembic's name for a database before the first migration."""

VERSION_TABLE = "agentgit_version"

ADVISORY_LOCK = 0x61676974
"""The key ("agit") of the PostgreSQL advisory lock that allows only one process at a time to migrate."""

migration_lock = threading.RLock()
"""A lock for one migration at a time in this process, because Alembic binds `alembic.op` to one at a time."""

_FORCED = text(
    "SELECT quote_ident(relname) FROM pg_class "
    "WHERE relnamespace = to_regnamespace(current_schema()) AND relforcerowsecurity ORDER BY relname"
)


def folder() -> Path:
    """Return the folder of the migrations: inside the installed package or, in a checkout, beside it."""
    package = Path(__file__).parents[2]
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "alembic"


def revisions() -> list[str]:
    """List the revisions of this library, oldest first.

    Example:
        >>> revisions()[0]
        '0001'
    """
    return sorted(path.name[:4] for path in (folder() / "versions").glob("[0-9]*.py"))


def require_revision(revision: str) -> str:
    """Check that a revision exists, and return it."""
    if revision != BASE and revision not in revisions():
        raise InvalidInput(f"There is no schema {revision!r}. Use one of {', '.join(revisions())}, or {BASE} for none.")
    return revision


def run(connection: Connection, verb: str, revision: str, *, schema: str | None = None) -> None:
    """Run Alembic in the transaction of a connection."""
    from alembic.migration import MigrationContext

    scripts = _scripts()
    options: dict[str, Any] = {"version_table": VERSION_TABLE, "version_table_schema": schema, "script": scripts}
    with migration_lock, unforced_row_security(connection):
        if verb == "stamp":
            MigrationContext.configure(connection, opts=options).stamp(scripts, revision)
        else:
            options["fn"] = lambda heads, _: _list_steps(scripts, verb, heads[0] if heads else BASE, revision)
            _run_steps(MigrationContext.configure(connection, opts=options))


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(folder()))


def _list_steps(scripts: ScriptDirectory, verb: str, start: str, end: str) -> list[MigrationStep]:
    from alembic.runtime.migration import MigrationStep

    if verb == "downgrade":
        passed = scripts.iterate_revisions(start, end, select_for_downgrade=True)
        return [MigrationStep.downgrade_from_script(scripts.revision_map, one) for one in passed]
    passed = reversed(list(scripts.iterate_revisions(end, start)))
    return [MigrationStep.upgrade_from_script(scripts.revision_map, one) for one in passed]


def _run_steps(context: MigrationContext) -> None:
    from alembic.operations import Operations

    with Operations.context(context), context.begin_transaction():
        context.run_migrations()


@contextmanager
def unforced_row_security(connection: Connection) -> Iterator[None]:
    """Let the owner of the tables see the rows of all tenants, which a migration changes, until the block ends."""
    forced_tables = _list_forced_tables(connection)
    _set_row_security(connection, forced_tables, "NO FORCE")
    yield
    existing_tables = _list_forced_tables(connection, all_tables=True)
    _set_row_security(connection, [name for name in forced_tables if name in existing_tables], "FORCE")


def _list_forced_tables(connection: Connection, *, all_tables: bool = False) -> list[str]:
    """List the tables whose row-level security also applies to their owner."""
    if connection.dialect.name != "postgresql":
        return []
    query = text(str(_FORCED).replace("AND relforcerowsecurity", "")) if all_tables else _FORCED
    return list(connection.execute(query).scalars())


def _set_row_security(connection: Connection, names: list[str], mode: str) -> None:
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {name} {mode} ROW LEVEL SECURITY")


def script(kind: str, start: str, end: str) -> str:
    """Return the SQL that upgrades a database from one revision to a later one, in one transaction."""
    from alembic.migration import MigrationContext

    all_revisions = [BASE, *revisions()]
    if all_revisions.index(require_revision(start)) >= all_revisions.index(require_revision(end)):
        raise InvalidInput(f"Schema {start} is not older than {end}. Scripts exist only for upgrades.")
    scripts, output = _scripts(), io.StringIO()
    options = {
        "version_table": VERSION_TABLE,
        "fn": lambda *_: _list_steps(scripts, "upgrade", start, end),
        "starting_rev": start,
        "as_sql": True,
        "output_buffer": output,
        "literal_binds": True,
        "transactional_ddl": True,
    }
    with migration_lock:
        _run_steps(MigrationContext.configure(dialect_name=kind, opts=options))
    return output.getvalue()
