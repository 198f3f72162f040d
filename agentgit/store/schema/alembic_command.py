"""The database of the `alembic` command in a checkout, and the checks before the command changes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from agentgit.errors import AgentGitError
from agentgit.location import default_location
from agentgit.store.database import Database
from agentgit.store.schema import migrations, schema
from agentgit.store.sql.url import parse_url

Migrate = Callable[[Connection], None]


def database_url(config: Config, arguments: dict[str, str]) -> Any:
    """Return the URL of the database: `-x db=URL`, `sqlalchemy.url`, `$AGENTGIT_DATABASE_URL` or `./agentgit.db`."""
    own_url = config.get_alembic_option("sqlalchemy.url")
    try:
        return parse_url(arguments.get("db") or own_url or default_location())
    except AgentGitError as error:
        raise CommandError(str(error)) from error


def run(config: Config, url: Any, migrate: Migrate) -> None:
    """Run a command of Alembic in one transaction, with the checks of `agentgit db`."""
    if config.cmd_opts is None:
        raise CommandError("Run the alembic command. In Python, use the functions of agentgit.store.schema.schema.")
    verb = config.cmd_opts.cmd[0].__name__
    try:
        with closing(Database(url)) as database:
            if verb in _CHECKS:
                _change(database, config, verb, migrate)
            else:
                _read(database, migrate)
    except AgentGitError as error:
        raise CommandError(str(error)) from error


def _read(database: Database, migrate: Migrate) -> None:
    if database.files and not os.path.exists(database.files[0]):
        raise CommandError(f"There is no database {database.name}. Create it with: alembic upgrade head")
    with database.reading() as connection:
        migrate(connection)


def _change(database: Database, config: Config, verb: str, migrate: Migrate) -> None:
    def work(connection: Connection) -> None:
        _CHECKS[verb](connection, database, config)
        with migrations.migration_lock, migrations.unforced_row_security(connection):
            migrate(connection)

    if verb == "upgrade" and schema.current_revision(database) is None:
        schema.prepare_file(database)
    database.write(work, durable=True)


def _check_upgrade(connection: Connection, database: Database, config: Config) -> None:
    schema.begin_upgrade(connection, database)


def _check_downgrade(connection: Connection, database: Database, config: Config) -> None:
    existing = schema.current_revision(database)
    passed: list[Any] = []
    if existing is not None:
        scripts, revision = ScriptDirectory.from_config(config), _argument(config, "revision")
        passed = list(scripts.iterate_revisions(existing, revision, select_for_downgrade=True))
    if passed:
        schema.begin_downgrade(connection, database, passed[-1].down_revision or migrations.BASE)


def _check_stamp(connection: Connection, database: Database, config: Config) -> None:
    scripts = ScriptDirectory.from_config(config)
    for revision in _argument(config, "revisions"):
        target = scripts.get_revision(revision)
        schema.begin_stamp(connection, database, target.revision if target is not None else migrations.BASE)


def _argument(config: Config, name: str) -> Any:
    return getattr(config.cmd_opts, name)


_CHECKS: dict[str, Callable[[Connection, Database, Config], None]] = {
    "upgrade": _check_upgrade,
    "downgrade": _check_downgrade,
    "stamp": _check_stamp,
}
"""The check before each command that changes the database."""
