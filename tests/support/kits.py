"""The scripts of deploy/ and databases of PostgreSQL for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_databases
import pytest
from command_line import run
from sqlalchemy import URL, text

import agentgit
from agentgit.demo import EFFECTS, build
from agentgit.store.sql.url import in_schema

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TENANT = "acme | 'ltd'"
"""The schema of a second tenant."""


def libpq(url: URL, **more: str) -> dict[str, str]:
    """Return the environment of a script: this one, with libpq's variables for a database."""
    found = {"PGHOST": url.host, "PGPORT": str(url.port or 5432), "PGUSER": url.username, "PGPASSWORD": url.password}
    found |= {"PGDATABASE": url.database, "PYTHONPATH": str(ROOT)}
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTGIT_", "PG"))}
    return ours | {name: value for name, value in found.items() if value is not None} | more


def script(name: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(DEPLOY / name), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.fixture
def postgres_tables(empty_server: URL) -> URL:
    """Create a database with all tables, and return its URL; skip without the programs that copy databases."""
    if missing := [name for name in ("pg_dump", "pg_restore", "createdb", "vacuumdb") if not shutil.which(name)]:
        pytest.skip(f"left out: {', '.join(missing)} is not installed: apt-get install postgresql-client")
    assert run("db", "upgrade", "--db", empty_server.render_as_string(hide_password=False)).code == 0
    return empty_server


@pytest.fixture
def postgres_spare(postgres_tables: URL) -> Iterator[URL]:
    """Return the URL of a database that does not exist, and drop it at the end."""
    url = postgres_tables.set(database=f"agentgit_test_{uuid.uuid4().hex}")
    yield url
    execute(postgres_tables, f'DROP DATABASE IF EXISTS "{url.database}" WITH (FORCE)')


def execute(url: URL, *statements: str) -> None:
    """Execute statements of a superuser, for whom no trigger fires."""
    with postgres_databases.on(url) as engine, engine.connect() as connection:
        connection.execute(text("SET session_replication_role = replica"))
        for statement in statements:
            connection.execute(text(statement))


def count(url: URL, table: str) -> int:
    with postgres_databases.on(url) as engine, engine.connect() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608  # our own words


def live(url: URL, folder: Path) -> None:
    """Order and roll back in two tenants of a database, with a shop in a folder."""
    execute(url, f'CREATE SCHEMA "{TENANT}"')
    assert run("db", "upgrade", "--schema", TENANT, "--db", url.render_as_string(hide_password=False)).code == 0
    for tenant in (url, in_schema(url, TENANT)):
        with agentgit.open(tenant) as repo:
            agent = repo.wrap(build(folder / "shop.db"), session="support-42", effects=EFFECTS)
            agent.run("order two chairs")
            agent.checkpoint("before the table")
            agent.run("and a table")
            agent.rollback("before the table").run("rather a sofa")


def told(url: URL) -> list[Any]:
    """Return everything that a session says about itself."""
    with agentgit.open(url) as repo:
        session = repo.session("support-42")
        calls = [
            str(call) + call.status for branch in session.branches() for call in session.tool_track(branch=branch.name)
        ]
        points = [point.to_dict() for point in session.checkpoints()]
        return [str(session.tree()), calls, points, [str(one) for one in session.operations()]]


def backup(url: URL, folder: Path, **environment: str) -> Path:
    """Make a backup, and return its path."""
    done = script("backup", folder, **libpq(url, **environment))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
