"""The database: its URL, connections, transactions, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, _GeneratorContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoneFree

from agentgit.async_api import on_loop
from agentgit.auth.keyring import Keyring
from agentgit.errors import AgentGitError, NotAllowed, NotFound, Unavailable
from agentgit.next_steps import Next
from agentgit.store.audit.callbacks import Callbacks
from agentgit.store.audit.trail import finish_events, read_event
from agentgit.store.sql import postgres, process
from agentgit.store.sql.batch import Batch, Statement
from agentgit.store.sql.driver_errors import (
    ConnectionBroken,
    ConstraintRace,
    TransactionConflict,
    is_broken,
    translate_error,
)
from agentgit.store.sql.encryption import Seal, set_seal
from agentgit.store.sql.named_locks import (
    LOCK_FILE_SUFFIX,
    NamedLocks,
    TransactionState,
    enter_transaction,
    is_in_transaction,
)
from agentgit.store.sql.postgres import ASYNC_COMMIT, SYNC_COMMIT, transaction
from agentgit.store.sql.process import LEASE_SECONDS, Leases
from agentgit.store.sql.sqlite import DURABLE, READING, WRITING, SQLiteConnections
from agentgit.store.sql.tables import METADATA, SEARCH_INDEX
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.sql.url import parse_url, redacted_url, sqlite_path

LOG = logging.getLogger("agentgit")

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 6
"""The greatest number of times that a conflicting transaction runs. On a server, four times as many."""

THREADS = 32
"""The greatest number of threads of async callers. There are fewer connections, for which they wait a limited time."""

_SHRINK_STATEMENTS = {
    "sqlite": ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "postgresql": ("VACUUM blob", "VACUUM graph_checkpoint", "VACUUM graph_write", "VACUUM checkpoint"),
}

_WIPE_STATEMENTS = {
    "sqlite": _SHRINK_STATEMENTS["sqlite"],
    "postgresql": (
        # The planner's statistics contain values of deleted rows until the table is analyzed again.
        "VACUUM (ANALYZE) " + ", ".join(f'"{name}"' for name in METADATA.tables),
        # A GIN index keeps every word for good. What an interrupted REINDEX left is in nobody's way but the next one's.
        f"DROP INDEX CONCURRENTLY IF EXISTS {SEARCH_INDEX}_ccnew",
        f"REINDEX INDEX CONCURRENTLY {SEARCH_INDEX}",
    ),
}

_SKIPPED_TABLE_STATE = "01000"
"""The SQLSTATE of PostgreSQL's warning that it skipped a table because another role owns it."""

_SIZE_QUERIES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' "
    "AND relnamespace = to_regnamespace(quote_ident(current_schema()))",
}

_before: ContextVar[Callable[[Database], None] | None] = ContextVar("agentgit_before_transactions", default=None)


@contextmanager
def before_transactions(function: Callable[[Database], None]) -> Iterator[None]:
    """Call a function with the database before each outermost transaction that begins in the context of the block."""
    token = _before.set(function)
    try:
        yield
    finally:
        _before.reset(token)


_write_locks: dict[str, AbstractContextManager[Any]] = {}
"""The write lock of each SQLite file, shared by every `Database` of this process that opens the file."""


class CloseListener(Protocol):
    """An object with rows that wait to be written."""

    def flush_in_background(self) -> None:
        """Write what waits, without raising an error if that fails."""


class Database:
    """An open database. It is thread-safe."""

    def __init__(
        self,
        where: str | Path | URL,
        *,
        pool_size: int = postgres.POOL_SIZE,
        lease_seconds: float = LEASE_SECONDS,
        keyring: Keyring | None = None,
        connect: Callable[[], Any] | None = None,
    ) -> None:
        self.seal = Seal(keyring) if keyring is not None else None
        self.url = parse_url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.path = sqlite_path(self.url) if self.is_sqlite else None
        """The absolute path of the SQLite file; None for a database in memory or on a server."""
        self.absolute_url = self.url.set(database=self.path) if self.path is not None else self.url
        """The URL for use in any folder."""
        self.in_memory = self.is_sqlite and self.path is None
        self.name = redacted_url(self.url)
        self.callbacks = Callbacks()
        self._sqlite = SQLiteConnections(self.absolute_url, in_memory=self.in_memory) if self.is_sqlite else None
        self.engine: Engine = (
            self._sqlite.engine
            if self._sqlite is not None
            else postgres.create_server_engine(self.url, pool_size, connect)
        )
        set_seal(self.engine.dialect, self.seal)
        # Not asyncio's own: a few slow nodes may occupy all of those, and the steps of other turns would wait for them.
        self._threads = ThreadPoolExecutor(THREADS, "agentgit-database")
        self.leases = None if self.is_sqlite else Leases(self.write, lease_seconds)
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        # A database in memory has only one connection, so its users take turns. A file has as many as needed.
        self._connection_lock: AbstractContextManager[Any] = threading.RLock() if self.in_memory else nullcontext()
        self.named_locks = NamedLocks(path=self.path) if self.is_sqlite else NamedLocks(engine=self.engine)
        # SQLite's own lock is polled with sleeps of milliseconds, so writers of one process take turns here instead.
        self._write_lock = self._shared_write_lock()
        self._closed, self._pool = threading.Event(), self.engine.pool
        self._close_listeners: weakref.WeakSet[CloseListener] = weakref.WeakSet()
        self._close_listeners_lock = threading.Lock()
        self._database_key = f"memory {id(self.engine)}" if self.in_memory else str(self.url)
        process.register_for_fork(self)

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def _shared_write_lock(self) -> AbstractContextManager[Any]:
        is_file = self.is_sqlite and not self.in_memory
        return _write_locks.setdefault(str(self.url), threading.RLock()) if is_file else nullcontext()

    @property
    def files(self) -> list[str]:
        """The paths of the SQLite files of this database; empty on a server or in memory."""
        if self.path is None:
            return []
        return [self.path + suffix for suffix in ("", "-wal", "-shm", "-journal", LOCK_FILE_SUFFIX)]

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a sync function of this database in a thread, without blocking the event loop."""
        self.require_open()
        with on_loop():
            work = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _transaction(
        self, mode: str, settings: Sequence[Statement] = (), **kind: bool
    ) -> _GeneratorContextManager[tuple[Connection, Batch | None]]:
        if self._sqlite is not None:
            return self._sqlite.transaction(mode)
        return transaction(self.engine, settings, **kind)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def require_file(self) -> None:
        """Check that the file of a SQLite database exists. A server or a database in memory has none."""
        if self.path is not None and not os.path.exists(self.path):
            raise NotFound(f"There is no database {self.url.database}.", Next("create_database"))

    def require_open(self) -> None:
        """Check that the database is not closed. Otherwise a connection would be opened that nobody closes."""
        if self.is_closed:
            raise Unavailable(
                f"{self.name} was closed, and everything opened through that repository or saver was closed with it. "
                "Open it again."
            )

    @contextmanager
    def _enter_transaction(self, state: TransactionState) -> Iterator[None]:
        """Enter a transaction. Refuse it after `close`, or inside another transaction that it would wait for."""
        self.require_open()
        try:
            with (
                self._translate_errors(state),
                enter_transaction(state, self.name, has_one_connection=self.in_memory),
                self._connection_lock,
            ):
                yield
        finally:
            if self.is_closed:  # closed meanwhile: nobody else would empty the pool that now has the connection
                self._pool.dispose()

    def is_same(self, other: Database) -> bool:
        return self._database_key == other._database_key

    def _call_before(self) -> None:
        function = _before.get()
        if function is not None and not is_in_transaction():
            function(self)

    @contextmanager
    def reading(self, *, repeatable_read: bool = False) -> Iterator[Reading]:
        self._call_before()
        transaction_context = self._transaction(READING, only_reads=True, one_moment=repeatable_read)
        with self._enter_transaction(TransactionState(self._database_key)), transaction_context as (connection, batch):
            yield Reading(connection, self.seal, batch)

    def write(self, work: Callable[[Writing], T], *, durable: bool = False, async_commit: bool = False) -> T:
        """Run `work` in one transaction and commit it; retry if another transaction conflicts."""
        self._call_before()
        # On SQLite each attempt waits for the lock. On a server only one of several conflicting transactions succeeds.
        attempts = ATTEMPTS if self.is_sqlite else 4 * ATTEMPTS
        mode, has_broken, last_refusal = DURABLE if durable else WRITING, False, None
        for attempt in range(1, attempts + 1):
            try:
                return self._write_once(work, mode, ASYNC_COMMIT if async_commit else ())
            except TransactionConflict as error:
                # The retry sees what the other transaction committed. If the same row is refused again, it was no race.
                if isinstance(error, ConstraintRace) and last_refusal == error.words:
                    raise error.final_error from error.__cause__
                # One connection may break by chance. If the next one breaks too, a retry does not help.
                if attempt == attempts or (has_broken and isinstance(error, ConnectionBroken)):
                    raise Unavailable(str(error)) from error
                has_broken |= isinstance(error, ConnectionBroken)
                last_refusal = error.words if isinstance(error, ConstraintRace) else None
                time.sleep(random.uniform(0, min(0.2, 0.01 * 2**attempt)))  # noqa: S311  # only spreads the writers
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _write_once(self, work: Callable[[Writing], T], mode: str, settings: Sequence[Statement]) -> T:
        """Run `work` in one transaction, write its notes to the trail, commit, and call the callbacks."""
        state = TransactionState(self._database_key, writes=True, committing=False)
        entered, transaction_context = self._enter_transaction(state), self._transaction(mode, settings)
        try:
            with entered, self._write_lock, transaction_context as (connection, batch):
                writing = Writing(connection, self.seal, batch)
                result = work(writing)
                rows = finish_events(writing)
                if rows and settings and batch is not None:
                    # If a crash of the server lost an event that a reader has seen, its place could be given again.
                    batch.add(SYNC_COMMIT)
                state.committing = True
        finally:
            # Ctrl-C between a generator and its `with` leaves both as they are until the traceback is gone.
            state.is_open = False
            transaction_context.gen.close()
            entered.gen.close()
        if rows and self.callbacks.subscriptions:
            self.callbacks.call([read_event(row) for row in rows])
        return result

    def shrink(self, *, wipe: bool = False) -> None:
        """Return free space to the file system; `wipe`, which needs the owner, removes what deleted rows have left."""
        statements = (_WIPE_STATEMENTS if wipe else _SHRINK_STATEMENTS)["sqlite" if self.is_sqlite else "postgresql"]
        warning_states: list[str] = []
        with (
            self._enter_transaction(TransactionState(self._database_key, writes=True)),
            self._write_lock,
            self.engine.connect() as connection,
        ):
            dbapi_connection: Any = connection.connection.dbapi_connection
            if not self.is_sqlite:
                dbapi_connection.autocommit = True  # VACUUM cannot run inside a transaction
                dbapi_connection.add_notice_handler(lambda told: warning_states.append(told.sqlstate))
            try:
                cursor = dbapi_connection.cursor()
                for statement in statements:
                    cursor.execute(statement)
                    if wipe and statement.startswith("PRAGMA wal") and cursor.fetchone()[0]:
                        raise Unavailable(f"{self.name} is being read, so its log still holds deleted data.")
                    if wipe and _SKIPPED_TABLE_STATE in warning_states:
                        raise Unavailable("The role of this connection does not own the tables.")
                cursor.close()
            finally:
                if not self.in_memory:  # closing its only connection would delete the database
                    connection.invalidate()  # no other user may get a connection in autocommit mode

    def size(self) -> int:
        """Return the size of the database in bytes: of its files, or as the server reports it."""
        if self.is_sqlite and not self.in_memory:
            return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))
        with self.reading() as reading:
            return int(reading.execute(text(_SIZE_QUERIES[reading.dialect.name])).scalar_one())

    def use_wal(self) -> None:
        """Switch a SQLite file to WAL mode, so that readers and a writer work at once. The file stores the setting."""
        with self._enter_transaction(TransactionState(self._database_key)), self.engine.connect() as connection:
            dbapi_connection: Any = connection.connection.dbapi_connection
            dbapi_connection.execute("PRAGMA journal_mode=WAL")  # SQLite refuses it inside a transaction

    @contextmanager
    def _translate_errors(self, state: TransactionState) -> Iterator[None]:
        """Translate driver errors into errors that say what to do next. Record refusals after the rollback."""
        try:
            yield
        except NotAllowed as error:
            self._record_refusal(error)
            raise
        except KeyboardInterrupt:  # it may have left a lock of the pool, which SQLAlchemy acquires in Python
            self._replace_pool()
            raise
        except NoneFree as error:
            raise Unavailable(
                f"All connections to {self.name} were in use for {postgres.POOL_SECONDS} s. Open it with a larger "
                "pool_size, or let fewer threads or tasks use it at once."
            ) from error
        except DBAPIError as error:
            raise self._translate_driver_error(
                error.orig if isinstance(error.orig, Exception) else error, state
            ) from error
        except self._driver_error as error:  # from a statement that bypassed SQLAlchemy
            raise self._translate_driver_error(error, state) from error

    def _translate_driver_error(self, error: Exception, state: TransactionState) -> Exception:
        if is_broken(error):
            self._replace_pool()  # the server may have restarted, so its other connections may be broken, too
        return translate_error(error, self.name, committing=state.committing)

    def _replace_pool(self) -> None:
        if not self.is_sqlite:
            self.engine.dispose()

    def before_fork(self) -> None:
        """Close idle connections, so that a child process inherits no open file of this database."""
        if self._sqlite is not None and not self.in_memory:
            self._sqlite.close_idle()

    def after_fork(self) -> None:
        """Set up a child process with its own connections. The connections of the parent are left alone."""
        _write_locks.clear()
        self._write_lock = self._shared_write_lock()
        self.named_locks.after_fork()
        if not self.is_sqlite:
            self.engine.dispose(close=False)
        self._threads = ThreadPoolExecutor(THREADS, "agentgit-database")
        if self.leases is not None:
            self.leases.after_fork()

    def register_for_close(self, listener: CloseListener) -> None:
        """Let an object write what waits before the database is closed, for as long as the object exists."""
        with self._close_listeners_lock:
            self._close_listeners.add(listener)

    def _record_refusal(self, refusal: NotAllowed) -> None:
        """Write a refusal to the audit trail, in its own transaction. If that fails, log it; the refusal stands."""
        write_audit, refusal.write_audit = refusal.write_audit, None
        if write_audit is None:
            return
        try:
            self.write(write_audit)
        except AgentGitError as error:
            LOG.warning("A refusal could not be written to the audit trail: %s", error)

    def close(self) -> None:
        """Write what running turns have not written yet, and close all connections."""
        with self._close_listeners_lock:
            listeners = list(self._close_listeners)
        for listener in listeners:
            listener.flush_in_background()
        self._closed.set()
        if self.leases is not None:
            self.leases.close()
        self._threads.shutdown(wait=False)
        if self._sqlite is not None:
            self._sqlite.close()
        self.engine.dispose()
