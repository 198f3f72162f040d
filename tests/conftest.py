"""Databases for the tests: SQLite always, PostgreSQL where a server answers."""

import os
import shutil
import uuid
from contextlib import closing

import pytest
from hypothesis import settings
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

import agentgit
from agentgit.store import schema
from agentgit.store.database import Database
from agentgit.store.tables import METADATA

POSTGRES = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))

# The same examples each time, so that what fails fails again; with AGENTGIT_EXPLORE=1 new ones are looked for.
settings.register_profile("same", derandomize=True)
settings.load_profile("default" if os.environ.get("AGENTGIT_EXPLORE") else "same")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A SQLite file with its tables, to be copied; making one takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "agentgit.db"
    with closing(Database(path)) as database:
        schema.ready(database)
    return path


@pytest.fixture(scope="session")
def postgres_url():
    """A fresh PostgreSQL database with its tables, dropped at the end.

    Where no server answers the test is skipped, and the summary says so; with $AGENTGIT_REQUIRE_POSTGRES it fails.
    """
    missing = pytest.fail if os.environ.get("AGENTGIT_REQUIRE_POSTGRES") else pytest.skip
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 2})
    name = f"agentgit_test_{uuid.uuid4().hex}"
    try:
        with server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
    except OperationalError:
        server.dispose()
        missing(f"left out on PostgreSQL: no server answers at {POSTGRES}; set $AGENTGIT_TEST_POSTGRES_URL")
    url = POSTGRES.set(database=name)
    with closing(Database(url)) as database:
        schema.upgrade(database)
    yield url
    with server.connect() as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    server.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """A ready, empty database of each kind."""
    if request.param == "sqlite":
        path = tmp_path / "agentgit.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        with closing(Database(path)) as database:
            yield database
        return
    with closing(Database(request.getfixturevalue("postgres_url"))) as database:
        yield database
        names = ", ".join(f'"{table.name}"' for table in METADATA.sorted_tables)

        def empty(connection):
            connection.execute(text("SET LOCAL session_replication_role = replica"))  # past the trail's trigger
            connection.execute(text(f"TRUNCATE {names}"))

        database.write(empty)


@pytest.fixture
def repo(database):
    """A repository on a ready, empty database of each kind."""
    with agentgit.open(database.url) as repo:
        yield repo
