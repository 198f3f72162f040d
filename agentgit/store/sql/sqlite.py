"""SQLite's connections, and its transactions on the driver itself: SQLAlchemy takes five times as long for both."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool, StaticPool

BUSY_SECONDS = 30
"""The time that a writer waits for another one before it gives up."""

READING, WRITING, DURABLE = "reading", "NORMAL", "FULL"
"""The modes of a transaction. The writing ones are named after the value that SQLite's `synchronous` needs."""

KEPT = 16
"""Connections that stay open between transactions."""

_SYNCHRONOUS = "agentgit_synchronous"
"""A note on a connection: how SQLite writes now."""


class Lite:
    """The connections to one SQLite database; each transaction has one to itself.

    Args:
        url: The database.
        in_memory: True if it lives as long as its only connection.
    """

    def __init__(self, url: URL, *, in_memory: bool) -> None:
        self.engine: Engine = create_engine(
            url,
            hide_parameters=True,  # what a failure shows has no contents and no secrets
            poolclass=StaticPool if in_memory else NullPool,
            connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "begin", _begin_reading)
        # Not in SQLAlchemy's pool: taking a connection out and giving it back costs what two small statements cost.
        self._idle: list[Connection] = []
        self._room = KEPT

    @contextmanager
    def transaction(self, mode: str) -> Iterator[Connection]:
        """Yield a connection in a transaction that is committed, or rolled back if the block raises."""
        connection = self._take()
        try:
            raw: Any = connection.connection.dbapi_connection
            _begin(raw, connection.info, mode)
            yield connection
            connection.commit()  # SQLAlchemy's part, if a statement went through it
            raw.commit()
        except BaseException:
            connection.close()  # takes back what was done
            raise
        if len(self._idle) < self._room:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.engine.connect()

    def close(self) -> None:
        """Close all connections; those in use are closed when their transaction ends."""
        self._room = 0
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()


def _prepare(raw: sqlite3.Connection, _record: Any) -> None:
    raw.isolation_level = None  # transactions begin when we say so
    for pragma in ("foreign_keys=ON", f"synchronous={WRITING}", f"busy_timeout={BUSY_SECONDS * 1000}"):
        raw.execute(f"PRAGMA {pragma}")


def _begin_reading(connection: Connection) -> None:
    raw: Any = connection.connection.dbapi_connection
    if not raw.in_transaction:
        raw.execute("BEGIN")


def _begin(raw: sqlite3.Connection, info: dict[str, Any], mode: str) -> None:
    if mode == READING:
        raw.execute("BEGIN")
        return
    if info.get(_SYNCHRONOUS, WRITING) != mode:
        raw.execute(f"PRAGMA synchronous={mode}")
        info[_SYNCHRONOUS] = mode
    # IMMEDIATE, because a transaction that reads first and then writes cannot wait: it fails at once.
    raw.execute("BEGIN IMMEDIATE")
