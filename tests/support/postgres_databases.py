"""Databases of the tests on a PostgreSQL server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import InternalError

from agentgit.store.database import Database
from agentgit.store.schema import roles

PATIENCE = 60
"""How long `drop` waits for a disk that another test has filled, in seconds."""


@contextmanager
def on(server: URL) -> Iterator[Engine]:
    """Open an engine without transactions for a server, and close its connections at the end."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 30})
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def created(server: URL, tablespace: str = "pg_default") -> Iterator[URL]:
    """Create an empty database beside another one, yield its URL, and drop it at the end."""
    name = f"agentgit_test_{uuid.uuid4().hex}"
    with on(server) as engine:
        with engine.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}" TABLESPACE {tablespace}'))
        try:
            yield server.set(database=name)
        finally:
            with engine.connect() as connection:
                drop(connection, f'DATABASE "{name}" WITH (FORCE)')


def drop(connection: Connection, what: str) -> None:
    """Drop a database or a tablespace, again and again while the server cannot make a checkpoint.

    A checkpoint writes the pages of all databases, so it fails while a test fills the disk of one of them.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute(text(f"DROP {what}"))
        except InternalError as error:
            if "checkpoint request failed" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


@contextmanager
def as_role(url: URL) -> Iterator[URL]:
    """Create a role that owns nothing, grant it the rights to work, and yield a URL for it."""
    role = f"agentgit_{uuid.uuid4().hex}"
    with closing(Database(url)) as owner:
        owner.write(lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN"))
        try:
            roles.grant(owner, role)
            yield url.set(username=role)
        finally:
            owner.write(lambda c: c.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}"))
