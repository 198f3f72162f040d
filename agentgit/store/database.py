"""One database: its address, its connections, its transactions, and what its failures mean."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, NotAllowed, SchemaMismatch, Unavailable
from agentgit.store.idle import ask_when_idle
from agentgit.store.lite import BUSY_SECONDS, DURABLE, READING, WRITING, Lite
from agentgit.store.telling import outbox
from agentgit.store.telling.bus import Bus, on_loop
from agentgit.store.telling.trail import begin_notes, take_notes, write_notes

if TYPE_CHECKING:
    from agentgit.store.loops import Loops

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 6
"""How often a transaction runs when another one was in its way."""

_SHRINK = {
    "sqlite": ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "postgresql": ("VACUUM blob", "VACUUM graph_checkpoint", "VACUUM graph_write", "VACUUM checkpoint"),
}

_SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT pg_database_size(current_database())",
}

SERIALIZATION_FAILURES = {"40001", "40P01"}
"""PostgreSQL's states for "run the transaction again"."""


REFUSED = "The audit trail cannot be changed"
"""What the triggers of the audit trail say; see migration 0007."""

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
        self._name = self.url.render_as_string(hide_password=True)
        self.bus = Bus()
        self._lite = Lite(self.url, in_memory=self.in_memory) if self.is_sqlite else None
        self.engine: Engine = self._lite.engine if self._lite is not None else _server(self.url)
        self._loops = None if self.is_sqlite else _async_side(self.url)
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        # A database in memory has one connection, so its users take turns; a file has as many as it needs.
        self._turn = threading.RLock() if self.in_memory else nullcontext()
        # SQLite lets a second writer sleep for milliseconds before it looks again; in one process they take turns here.
        one_file = self.is_sqlite and not self.in_memory
        self._writing = _writers.setdefault(str(self.url), threading.Lock()) if one_file else nullcontext()

    def __repr__(self) -> str:
        return f"Database({self.url.render_as_string(hide_password=True)!r})"

    @property
    def files(self) -> list[str]:
        """The files that SQLite keeps it in; none on a server or in memory."""
        if not self.is_sqlite or self.in_memory:
            return []
        path = os.path.realpath(str(self.url.database))
        return [path + end for end in ("", "-wal", "-shm", "-journal")]

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a sync function that uses this database, while the event loop goes on.

        On PostgreSQL it runs on the loop itself, through the async driver. On SQLite, whose driver is sync, and where
        greenlet is not installed, it runs in a thread.
        """
        with on_loop():
            if self._loops is None:
                return await asyncio.to_thread(call, *args, **kwargs)
            return await self._loops.run(call, *args, **kwargs)

    def _transaction(self, mode: str) -> AbstractContextManager[Connection]:
        if self._lite is not None:
            return self._lite.transaction(mode)
        return ((self._loops and self._loops.engine()) or self.engine).begin()

    def _sleep(self, seconds: float) -> None:
        if self._loops is not None and self._loops.engine() is not None:
            self._loops.sleep(seconds)
        else:
            time.sleep(seconds)

    @contextmanager
    def reading(self, *, one_moment: bool = False) -> Iterator[Connection]:
        """Give a connection that changes nothing.

        Args:
            one_moment: True if all its statements must see the same moment. On SQLite they always do; on PostgreSQL
                each sees what is committed when it begins.
        """
        with self._translated(), self._turn, self._transaction(READING) as connection:
            if one_moment and not self.is_sqlite:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection

    def write(self, work: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Run `work` in one transaction, again if another one was in its way, and commit.

        Args:
            work: does the statements; it may run several times and must make its ids inside.
            durable: True if the commit must survive a loss of power (intents and pointers do).

        Raises:
            Unavailable: the database stayed locked, is read-only, full or out of reach.
        """
        # On SQLite one attempt waits for its turn; on a server only one of those that collide gets through.
        attempts = ATTEMPTS if self.is_sqlite else 4 * ATTEMPTS
        mode = DURABLE if durable else WRITING
        for attempt in range(1, attempts + 1):
            try:
                return self._once(work, mode)
            except _Again as error:
                if attempt == attempts:
                    raise Unavailable(str(error)) from error
                self._sleep(random.uniform(0, min(0.2, 0.01 * 2**attempt)))  # noqa: S311  # only spreads the writers
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, work: Callable[[Connection], T], mode: str) -> T:
        """Run `work` in one transaction, write down what it noted, commit, and tell those who listen."""
        places: Sequence[Any] = ()
        committed = False
        try:
            with self._translated(), self._turn, self._writing, self._transaction(mode) as connection:
                begin_notes(connection)
                answer = work(connection)
                if notes := take_notes(connection):
                    written = write_notes(connection, notes)
                    if written.has_hooks:
                        outbox.put(connection, written.tenant_id, written.events)
                    if self.bus.is_heard:
                        places = self.bus.expect(written.events)
            committed = True
            return answer
        finally:
            if places:
                self.bus.settle(places, committed=committed)

    def shrink(self) -> None:
        """Give the free space of the database back to the file system; writers wait until it is done."""
        with self._translated(), self._turn, self._writing, self.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            if not self.is_sqlite:
                raw.autocommit = True  # a vacuum cannot run inside of a transaction
            cursor = raw.cursor()
            for statement in _SHRINK["sqlite" if self.is_sqlite else "postgresql"]:
                cursor.execute(statement)
            cursor.close()
            if not self.in_memory:  # the one connection of that is the database
                connection.invalidate()  # nobody else should get a connection that commits by itself

    def size(self) -> int:
        """Tell how many bytes the database takes: its files, or on a server what that says."""
        if self.is_sqlite and not self.in_memory:
            return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))
        with self.reading() as connection:
            return int(connection.exec_driver_sql(_SIZE["sqlite" if self.is_sqlite else "postgresql"]).scalar_one())

    def use_wal(self) -> None:
        """Let readers and a writer of a SQLite file work at once. The file keeps it, so it is asked for only once."""
        with self._translated(), self._turn, self.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA journal_mode=WAL")  # SQLite refuses it inside of a transaction

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the drivers' errors into ours, which say what to do next."""
        try:
            yield
        except DBAPIError as error:
            raise _meaning(cast(Exception, error.orig), self._name) from error
        except self._driver_error as error:  # from a statement that went past SQLAlchemy
            raise _meaning(error, self._name) from error

    def close(self) -> None:
        """Give all connections back; the object may not be used afterwards."""
        self.bus.close()
        if self._loops is not None:
            self._loops.close()
        if self._lite is not None:
            self._lite.close()
        self.engine.dispose()


class _Again(Unavailable):
    """Another transaction was in the way; the same work may succeed now."""


def _server(url: URL) -> Engine:
    try:
        engine = create_engine(url, hide_parameters=True)
    except ModuleNotFoundError as error:
        raise Unavailable('PostgreSQL needs its driver. Run: pip install "agentgit[postgres]"') from error
    ask_when_idle(engine)
    return engine


def _async_side(url: URL) -> Loops | None:
    if find_spec("greenlet") is None:  # SQLAlchemy's async side needs it; without it a thread does
        return None
    from agentgit.store.loops import Loops  # costs 30 ms, which SQLite needs not pay

    return Loops(url)


def _meaning(error: Exception, where: str) -> AgentGitError:
    """Say what a failure of the driver means.

    Args:
        error: the driver's own.
        where: the database, without its password.
    """
    text = str(error)
    if REFUSED in text:
        return NotAllowed(f"{REFUSED} in {where}. What happened has happened; new events are added by what is done.")
    if getattr(error, "sqlstate", None) in SERIALIZATION_FAILURES or _is_a(error, "IntegrityError"):
        return _Again(f"Another writer was in the way in {where}: {text}. Try again.")
    if "locked" in text or "busy" in text:
        # Not again: SQLite has waited for that long already.
        return Unavailable(f"{where} stayed locked for {BUSY_SECONDS} s. Close what holds it, then try again.")
    if "readonly" in text or "read-only" in text:
        return Unavailable(f"{where} cannot be written. Give this user the right to write the file and its folder.")
    if "unable to open database file" in text:
        return Unavailable(f"{where} cannot be opened. Does its folder exist, and may this user write there?")
    if "malformed" in text:
        return Corrupt(
            f"{where} is damaged: {text}. Restore it from a copy; agentgit fsck tells more.", row="the database file"
        )
    if "not a database" in text:
        return SchemaMismatch(f"{where} is not a SQLite database. Give another path; this file was not touched.")
    if "disk I/O error" in text or "is full" in text:
        return Unavailable(f"{where} could not be written: {text}. Free some space, then try again.")
    if _is_a(error, "OperationalError"):
        return Unavailable(f"{where} is out of reach: {text}")
    return AgentGitError(f"{where} refused a statement: {text}")


def _is_a(error: Exception, name: str) -> bool:
    """Tell whether a driver's error is of a class that PEP 249 names; psycopg has subclasses of them."""
    return any(kind.__name__ == name for kind in type(error).__mro__)
