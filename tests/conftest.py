"""Databases for the tests: SQLite always, PostgreSQL where a server answers."""

import importlib.util
import os
import shutil
import uuid
from contextlib import closing

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

import agentgit
from agentgit.store import schema
from agentgit.store.database import Database
from agentgit.store.tables import METADATA

POSTGRES = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A SQLite file with its tables, to be copied; making one takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "agentgit.db"
    with closing(Database(path)) as database:
        schema.ready(database)
    return path


@pytest.fixture(scope="session")
def postgres_url():
    """A fresh PostgreSQL database with its tables, dropped at the end; the test is skipped where no server answers."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 2})
    name = f"agentgit_test_{uuid.uuid4().hex}"
    try:
        with server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
    except OperationalError:
        server.dispose()
        pytest.skip("no PostgreSQL server answers")
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
        database.write(lambda connection: connection.execute(text(f"TRUNCATE {names}")))


@pytest.fixture
def repo(database):
    """A repository on a ready, empty database of each kind."""
    with agentgit.open(database.url) as repo:
        yield repo
