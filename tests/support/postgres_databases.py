"""Databases of the tests on a PostgreSQL server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import InternalError

from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.sql.url import in_schema

__all__ = ["in_schema"]

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
def new_schema(server: URL) -> Iterator[URL]:
    """Create the tables in a schema of their own, yield the URL, and drop them at the end."""
    name = f"s{uuid.uuid4().hex}"
    run(server, f"CREATE SCHEMA {name}")
    with closing(Database(in_schema(server, name))) as database:
        schema.upgrade(database)
    try:
        yield in_schema(server, name)
    finally:
        run(server, f"DROP SCHEMA {name} CASCADE")


def run(server: URL, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with on(server) as engine, engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


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
    """Create a tenant with a role that owns nothing in the schema `public`, and yield a URL for it."""
    role = f"agentgit_{uuid.uuid4().hex}"
    with closing(Database(url)) as owner:
        try:
            schema.grant(owner, "public", role)
            yield url.set(username=role)
        finally:
            owner.write(lambda c: c.connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}"))


@contextmanager
def tenants(url: URL, *schemas: str) -> Iterator[dict[str, URL]]:
    """Create a tenant for each schema, and yield a URL for the role of each."""
    names = {schema_name: f"agentgit_{uuid.uuid4().hex}" for schema_name in schemas}
    try:
        with closing(Database(url)) as owner:
            for schema_name, role in names.items():
                schema.grant(owner, schema_name, role)
        yield {schema_name: url.set(username=role) for schema_name, role in names.items()}
    finally:
        run(
            url,
            *(f"DROP OWNED BY {role}" for role in names.values()),
            *(f"DROP ROLE {role}" for role in names.values()),
        )
