"""The database behind what LangGraph's savers take: a connection or a pool. SQLAlchemy's engines are taken, too."""

from __future__ import annotations

import os
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
    """A database, as the saver opens it."""

    url: URL
    pool_size: int = POOL_SIZE
    connect: Callable[[], Any] | None = None


def open_database(conn: Any) -> Database:
    location = locate(conn)
    return Database(location.url, pool_size=location.pool_size, connect=location.connect, keyring=load_keyring(None))


def locate(conn: Any) -> DatabaseLocation:
    """Return the database of what was given; transactions of the saver need connections of their own."""
    if isinstance(conn, (str, Path, URL)):
        return DatabaseLocation(parse_url(conn))
    if isinstance(conn, Engine):
        return _locate_engine(conn)
    if isinstance(conn, sqlite3.Connection):
        return _locate_sqlite(conn)
    packages = {one.__module__.partition(".")[0] for one in type(conn).__mro__}  # none of them need be installed
    if "psycopg" in packages and hasattr(conn, "info"):
        return _locate_connection(conn)
    if "psycopg_pool" in packages and hasattr(conn, "conninfo"):
        return _locate_pool(conn)
    if hasattr(conn, "sync_engine"):
        raise InvalidInput(
            "An async engine connects only on its event loop. Give its URL, or a sync engine with the same arguments: "
            "the saver's async methods work with it, too."
        )
    if "aiosqlite" in packages:
        raise InvalidInput("The file of an aiosqlite connection is not known. Give its path: SQLModelSaver(path).")
    raise InvalidInput(
        f"{type(conn).__name__} is not a database: give a path, a URL, a connection or a pool of psycopg, a connection "
        "of sqlite3, or an engine of SQLAlchemy."
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
    try:
        path, tables = _read_sqlite(connection)
    except sqlite3.Error as error:
        raise InvalidInput(f"This connection cannot be used ({error}). Give an open one, or the path.") from error
    if not path and tables:
        raise InvalidInput(
            "This connection has a database in memory with tables in it, which only this connection can read. Give a "
            'file, or ":memory:" for a database in memory that the saver keeps.'
        )
    return DatabaseLocation(URL.create("sqlite", database=path or ":memory:"))


def _read_sqlite(connection: sqlite3.Connection) -> tuple[str, int]:
    """Return the path of a connection's file, empty for a database in memory, and the number of its tables."""
    cursor = connection.cursor()
    cursor.row_factory = None
    path = cursor.execute("SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'").fetchone()[0]
    return os.fsdecode(path or b""), cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


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
