"""One database: its address, its connections, its transactions, and what its failures mean."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.pool import QueuePool, StaticPool

from agentgit.errors import AgentGitError, InvalidInput, SchemaMismatch, Unavailable

T = TypeVar("T")

BUSY_SECONDS = 30
"""How long a writer waits for another one before it gives up."""

ATTEMPTS = 6
"""How often a transaction runs when another one was in its way."""

SERIALIZATION_FAILURES = {"40001", "40P01"}
"""PostgreSQL's states for "run the transaction again"."""


_writers: dict[str, threading.Lock] = {}
"""One lock for each SQLite file, whoever has opened it in this process."""


def parse_url(where: str | Path | URL) -> URL:
    """Read what a user may give as a database: a path, `:memory:`, or a SQLAlchemy URL.

    Args:
        where: the database.

    Raises:
        InvalidInput: it is neither.

    Example:
        >>> parse_url("notes.db").render_as_string()
        'sqlite:///notes.db'
    """
    if isinstance(where, URL):
        return where
    text = str(where)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidInput(f"{text!r} is no database URL; give a path or like sqlite:///agentgit.db.") from error
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidInput(f"agentgit keeps its data in SQLite or PostgreSQL, not in {url.get_backend_name()}.")
    return url


class Database:
    """An open database. Safe to use from many threads.

    Args:
        where: a path, `:memory:` or a URL.
    """

    def __init__(self, where: str | Path | URL) -> None:
        self.url = parse_url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.in_memory = self.is_sqlite and self.url.database in (None, "", ":memory:")
        self.engine: Engine = self._create_engine()
        # A database in memory has one connection, so its users take turns; a file has as many as it needs.
        self._turn = threading.RLock() if self.in_memory else nullcontext()
        # SQLite lets a second writer sleep for milliseconds before it looks again; in one process they take turns here.
        one_file = self.is_sqlite and not self.in_memory
        self._writing = _writers.setdefault(str(self.url), threading.Lock()) if one_file else nullcontext()

    def __repr__(self) -> str:
        return f"Database({self.url.render_as_string(hide_password=True)!r})"

    def _create_engine(self) -> Engine:
        if not self.is_sqlite:
            return create_engine(self.url, pool_pre_ping=True)
        engine = create_engine(
            self.url,
            poolclass=StaticPool if self.in_memory else QueuePool,
            connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one consistent moment and changes nothing."""
        with _translated(self.url), self._turn, self.engine.connect() as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Run `work` in one transaction, again if another one was in its way, and commit.

        Args:
            work: does the statements; it may run several times and must make its ids inside.
            durable: True if the commit must survive a loss of power (intents and pointers do).

        Raises:
            Unavailable: the database stayed locked, is read-only, full or out of reach.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with _translated(self.url), self._turn, self._writing, self.engine.connect() as connection:
                    connection = connection.execution_options(agentgit_durable=durable, agentgit_write=True)
                    with connection.begin():
                        return work(connection)
            except _Again:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311  # only spreads the writers
        raise AssertionError("unreachable: the last attempt returns or raises")

    def use_wal(self) -> None:
        """Let readers and a writer of a SQLite file work at once. The file keeps it, so it is asked for only once."""
        with _translated(self.url), self._turn, self.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA journal_mode=WAL")  # SQLite refuses it inside of a transaction

    def close(self) -> None:
        """Give all connections back; the object may not be used afterwards."""
        self.engine.dispose()


class _Again(Unavailable):
    """Another transaction was in the way; the same work may succeed now."""


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's transactions are ours, see _begin_sqlite
    for pragma in ("foreign_keys=ON", "synchronous=NORMAL", f"busy_timeout={BUSY_SECONDS * 1000}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("agentgit_write"):
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('agentgit_durable') else 'NORMAL'}")
    # IMMEDIATE, because a transaction that reads first and then writes cannot wait: it fails at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _translated(url: URL) -> Iterator[None]:
    """Turn the drivers' errors into ours, which say what to do next."""
    try:
        yield
    except DBAPIError as error:
        raise _meaning(error, url.render_as_string(hide_password=True)) from error
    except AgentGitError:
        raise


def _meaning(error: DBAPIError, where: str) -> AgentGitError:
    text = str(error.orig)
    if getattr(error.orig, "sqlstate", None) in SERIALIZATION_FAILURES or isinstance(error, IntegrityError):
        return _Again(f"Another writer was in the way in {where}: {text}. Try again.")
    if "locked" in text or "busy" in text:
        return _Again(f"{where} stayed locked for {BUSY_SECONDS} s. Close the program that holds it, then try again.")
    if "readonly" in text or "read-only" in text:
        return Unavailable(f"{where} cannot be written. Give this user the right to write the file and its folder.")
    if "unable to open database file" in text:
        return Unavailable(f"{where} cannot be opened. Does its folder exist, and may this user write there?")
    if "not a database" in text:
        return SchemaMismatch(f"{where} is not a SQLite database. Give another path; this file was not touched.")
    if "disk I/O error" in text or "is full" in text:
        return Unavailable(f"{where} could not be written: {text}. Free some space, then try again.")
    if isinstance(error, OperationalError):
        return Unavailable(f"{where} is out of reach: {text}")
    return AgentGitError(f"{where} refused a statement: {text}")
