"""The database behind what LangGraph's savers take: a connection or a pool. SQLAlchemy's engines are taken, too."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import URL, Engine

from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.sql.encryption import load_keyring
from agentgit.store.sql.postgres import POOL_SIZE
from agentgit.store.sql.url import POSTGRES_DRIVER, libpq_url, parse_url

OWN_SETTINGS = ("autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context")
"""The arguments of psycopg's `connect` that do not name the database."""


class DatabaseLocation(NamedTuple):
    """A database, as the saver opens it.

    Args:
        url: Its URL.
        pool_size: The maximum number of connections.
        connect: Returns a new connection of the driver; None to connect to the URL.
    """

    url: URL
    pool_size: int = POOL_SIZE
    connect: Callable[[], Any] | None = None


def open_database(conn: Any) -> Database:
    """Open the database that `locate` finds."""
    location = locate(conn)
    return Database(location.url, pool_size=location.pool_size, connect=location.connect, keyring=load_keyring(None))


def locate(conn: Any) -> DatabaseLocation:
    """Return the database of a path, a URL, libpq's parameters, a connection, a pool or an engine.

    The saver does not use the given connection or pool: its transactions need connections in a state that others do not
    expect. It opens its own ones, with the same parameters.

    Args:
        conn: What `SQLModelSaver` received.

    Raises:
        InvalidInput: It is none of these, or has no database that a second connection can open.
    """
    if isinstance(conn, (str, Path, URL)):
        return DatabaseLocation(parse_url(conn))
    if isinstance(conn, Engine):
        return _locate_engine(conn)
    if isinstance(conn, sqlite3.Connection):
        return _locate_sqlite(conn)
    package, name = type(conn).__module__.partition(".")[0], type(conn).__name__
    if package == "psycopg" and hasattr(conn, "info"):
        return _locate_connection(conn)
    if package == "psycopg_pool" and hasattr(conn, "conninfo"):
        return _locate_pool(conn)
    if hasattr(conn, "sync_engine"):  # SQLAlchemy's AsyncEngine, whose module needs greenlet
        return DatabaseLocation(parse_url(conn.sync_engine.url))
    if package == "aiosqlite":
        raise InvalidInput("The file of an aiosqlite connection is not known. Give its path: SQLModelSaver(path).")
    raise InvalidInput(
        f"{name} is not a database: give a path, a URL, a connection or a pool of psycopg, a connection of sqlite3, or "
        "an engine of SQLAlchemy."
    )


def _locate_engine(engine: Engine) -> DatabaseLocation:
    url = parse_url(engine.url)
    if url.drivername != POSTGRES_DRIVER and url.database in (None, "", ":memory:"):
        raise InvalidInput(
            'Only this engine can read its database in memory. Give a file, or ":memory:" for a new database in memory.'
        )
    if url.drivername != POSTGRES_DRIVER:
        return DatabaseLocation(url)

    def connect() -> Any:
        """Let the engine connect, because its arguments and event listeners may be needed for that."""
        fairy = engine.raw_connection()
        connection = fairy.driver_connection
        fairy.detach()
        return connection

    return DatabaseLocation(url, connect=connect)


def _locate_sqlite(connection: sqlite3.Connection) -> DatabaseLocation:
    databases = {name: path for _, name, path in connection.execute("PRAGMA database_list")}
    path = databases["main"]
    if not path and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise InvalidInput(
            "This connection has a database in memory with tables in it, which only this connection can read. Give a "
            'file, or ":memory:" for a database in memory that the saver keeps.'
        )
    return DatabaseLocation(URL.create("sqlite", database=path or ":memory:"))


def _locate_connection(connection: Any) -> DatabaseLocation:
    if connection.closed:
        raise InvalidInput("This connection is closed. Give an open one, or the URL of its database.")
    info = connection.info
    parameters = {**info.get_parameters(), "password": info.password or None}
    if parameters.get("host"):
        parameters.pop("hostaddr", None)  # the address that the host had when the connection was opened
    return DatabaseLocation(libpq_url("", parameters))


def _locate_pool(pool: Any) -> DatabaseLocation:
    text, settings = pool.conninfo, pool.kwargs
    if not isinstance(text, str) or not isinstance(settings, Mapping | None):
        raise InvalidInput(
            "This pool computes its parameters for each connection. Give an engine that does the same: "
            'create_engine("postgresql+psycopg://", creator=…).'
        )
    parameters = {name: value for name, value in (settings or {}).items() if name not in OWN_SETTINGS}
    return DatabaseLocation(libpq_url(text, parameters), pool_size=pool.max_size)
