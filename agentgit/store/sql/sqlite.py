"""Connections and transactions of SQLite, managed without SQLAlchemy, which takes five times as long for both."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.pool import NullPool, StaticPool

from agentgit.errors import Unavailable

OLDEST = (3, 37, 0)

BUSY_SECONDS = 30
"""The number of seconds that a writer waits for another one before it gives up."""

READING, WRITING, DURABLE = "reading", "NORMAL", "FULL"
"""The modes of a transaction. The values of the writing modes are the settings of SQLite's `synchronous`."""

MAX_IDLE = 16
"""The maximum number of connections that stay open between transactions."""


class SQLiteConnections:
    """The connections to one SQLite database. Each transaction has its own connection."""

    def __init__(self, url: URL, *, in_memory: bool) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise Unavailable(
                f"agentgit needs SQLite 3.37 or newer, for strict tables. This Python has {sqlite3.sqlite_version}."
            )
        self.engine: Engine = create_engine(
            url,
            hide_parameters=True,  # errors must not contain values or secrets
            poolclass=StaticPool if in_memory else NullPool,
            connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(self.engine, "connect", _configure)
        event.listen(self.engine, "begin", _begin_if_needed)
        event.listen(self.engine, "handle_error", _keep_connection)
        # Not in SQLAlchemy's pool, because checkout and return take as long as two small statements.
        self._idle: list[tuple[Connection, str]] = []
        """The connections, each with its `synchronous` setting."""
        self._max_idle = MAX_IDLE

    @contextmanager
    def transaction(self, mode: str) -> Iterator[tuple[Connection, None]]:
        """Yield a connection in a transaction that is committed, or rolled back if the block raises."""
        connection, synchronous = self._checkout()
        dbapi_connection: Any = connection.connection.dbapi_connection
        try:
            if mode not in (READING, synchronous):
                dbapi_connection.execute(f"PRAGMA synchronous={mode}")
                synchronous = mode
            # IMMEDIATE, because a transaction that first reads and then writes fails at once instead of waiting.
            dbapi_connection.execute("BEGIN" if mode == READING else "BEGIN IMMEDIATE")
            yield connection, None
            connection.commit()  # SQLAlchemy's transaction, if a statement went through it
            dbapi_connection.commit()
        except BaseException:
            dbapi_connection.rollback()  # before any Python code, in which Ctrl-C could come again
            connection.close()
            raise
        if len(self._idle) < self._max_idle:
            self._idle.append((connection, synchronous))
        else:
            connection.close()

    def _checkout(self) -> tuple[Connection, str]:
        try:
            return self._idle.pop()
        except IndexError:
            return self.engine.connect(), WRITING

    def close(self) -> None:
        """Close all connections. A connection in use is closed when its transaction ends."""
        self._max_idle = 0
        self.close_idle()

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


def _configure(dbapi_connection: sqlite3.Connection, _record: Any) -> None:
    dbapi_connection.isolation_level = None  # agentgit begins transactions itself
    for pragma in ("foreign_keys=ON", f"synchronous={WRITING}", f"busy_timeout={BUSY_SECONDS * 1000}"):
        dbapi_connection.execute(f"PRAGMA {pragma}")


def _keep_connection(context: ExceptionContext) -> None:
    """Keep SQLAlchemy from closing the connection at Ctrl-C.

    SQLite keeps the transaction of a closed connection until its last cursor is gone, and a traceback has the cursor.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


def _begin_if_needed(connection: Connection) -> None:
    dbapi_connection: Any = connection.connection.dbapi_connection
    if not dbapi_connection.in_transaction:
        dbapi_connection.execute("BEGIN")
