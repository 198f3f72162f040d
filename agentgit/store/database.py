"""The database: its URL, connections, transactions, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoneFree

from agentgit.async_api import on_loop
from agentgit.auth.keyring import Keyring
from agentgit.errors import AgentGitError, NotAllowed, Unavailable
from agentgit.store.audit import outbox
from agentgit.store.audit.bus import Bus
from agentgit.store.audit.trail import begin_notes, end_notes
from agentgit.store.sql import postgres, process
from agentgit.store.sql.driver_errors import (
    ConnectionBroken,
    ConstraintRace,
    TransactionConflict,
    is_broken,
    translate_error,
)
from agentgit.store.sql.encryption import Seal, put_seal
from agentgit.store.sql.nested_transactions import Stage, TimedLock, nested
from agentgit.store.sql.postgres import CARRIED, EVERYBODY, settings_of, transaction
from agentgit.store.sql.process import LEASE_SECONDS, Leases
from agentgit.store.sql.sqlite import DURABLE, READING, WRITING, SQLiteConnections
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import parse_url, shown

if TYPE_CHECKING:
    from agentgit.store.sql.async_driver import LoopPools

LOG = logging.getLogger("agentgit")

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 6
"""The greatest number of times that a conflicting transaction runs. On a server, four times as many."""

_SHRINK = {
    "sqlite": ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "postgresql": ("VACUUM blob", "VACUUM graph_checkpoint", "VACUUM graph_write", "VACUUM checkpoint"),
}

_WIPE = {
    "sqlite": _SHRINK["sqlite"],
    # The planner's statistics contain values of deleted rows until the table is analyzed again.
    "postgresql": ("VACUUM (ANALYZE) " + ", ".join(f'"{name}"' for name in METADATA.tables),),
}

_USER = "agentgit.user_id"
"""The PostgreSQL setting with the user whose sessions a transaction sees."""

_NOT_YOURS = "01000"
"""The SQLSTATE of PostgreSQL's warning that it skipped a table because another role owns it."""

_SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT pg_database_size(current_database())",
}

NOTHING_MORE: Mapping[str, str] = {}
"""No settings for a transaction besides those of its database."""

_writers: dict[str, TimedLock] = {}
"""The write lock of each SQLite file, shared by every `Database` of this process that opens the file."""


class Database:
    """An open database. It is thread-safe.

    Args:
        where: A path, `:memory:` or a URL.
        pool_size: The greatest number of connections to a server.
        lease_seconds: The time for which a run on a server counts as alive after it last renewed its lease.
        keyring: The keys that encrypt its values; None if they are not encrypted.
    """

    def __init__(
        self,
        where: str | Path | URL,
        *,
        pool_size: int = postgres.POOL_SIZE,
        lease_seconds: float = LEASE_SECONDS,
        keyring: Keyring | None = None,
    ) -> None:
        self.seal = Seal(keyring) if keyring is not None else None
        self.url = parse_url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.in_memory = self.is_sqlite and self.url.database in (None, "", ":memory:")
        self.name = shown(self.url)
        self.tenant_id: int | None = None
        self._bound: dict[str, str] = {}
        self._settings = self._bound
        self.bus = Bus()
        self._lite = SQLiteConnections(self.url, in_memory=self.in_memory) if self.is_sqlite else None
        self.engine: Engine = self._lite.engine if self._lite is not None else postgres.server(self.url, pool_size)
        put_seal(self.engine.dialect, self.seal)
        self._loops = None if self.is_sqlite else _async_side(self.url, pool_size, self.seal)
        self.leases = None if self.is_sqlite else Leases(self._renewing, lease_seconds)
        self._driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        # A database in memory has only one connection, so its users take turns. A file has as many as needed.
        self._turn: AbstractContextManager[Any] = TimedLock(threading.RLock()) if self.in_memory else nullcontext()
        # SQLite's own lock is polled with sleeps of milliseconds, so writers of one process take turns here instead.
        self._writing = self._one_writer()
        # Shared with the copies that `bound` returns, like everything that `close` closes.
        self._closed, self._pool = threading.Event(), self.engine.pool
        self._place = f"memory {id(self.engine)}" if self.in_memory else str(self.url)
        process.register_for_fork(self)

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def bound(
        self, tenant_id: int | None = None, user_id: int | str | None = None, *, tenant_name: str | None = None
    ) -> Self:
        """Return a copy that is limited, on PostgreSQL, to the rows that row-level security makes visible.

        The copy shares connections, bus and locks with this object, and closing it closes them. SQLite has no
        row-level security.

        Args:
            tenant_id: The tenant; None for no tenant.
            user_id: The user whose sessions are visible; `EVERYBODY` for those of all users, None for those of no user.
            tenant_name: The name of a tenant whose id is not known yet.
        """
        settings = {"tenant_id": tenant_id, "user_id": user_id, "tenant_name": tenant_name}
        made = self.detached_copy()
        made.tenant_id = tenant_id
        made._bound = {f"agentgit.{name}": str(value) for name, value in settings.items() if value is not None}
        made._settings = made._bound
        return made

    def detached_copy(self) -> Self:
        """Return a copy of this object that `seeing` affects separately. It shares the connections."""
        made = copy.copy(self)
        process.register_for_fork(made)
        return made

    @contextmanager
    def seeing(self, user_id: int) -> Iterator[None]:
        """Show the transactions of this object the sessions of another user, until the block ends.

        Args:
            user_id: The user whose sessions become visible. No effect if the sessions of all users are visible.
        """
        bound = self._bound
        if bound.get(_USER, EVERYBODY) != EVERYBODY:
            self._settings = {**bound, _USER: str(user_id)}
        try:
            yield
        finally:
            self._settings = bound

    def _renewing(self, tenant_id: int, work: Callable[[Connection], None]) -> None:
        self.bound(tenant_id, EVERYBODY).write(work)

    def _one_writer(self) -> AbstractContextManager[Any]:
        one_file = self.is_sqlite and not self.in_memory
        return _writers.setdefault(str(self.url), TimedLock()) if one_file else nullcontext()

    @property
    def files(self) -> list[str]:
        """The paths of the SQLite files of this database; empty on a server or in memory."""
        if not self.is_sqlite or self.in_memory:
            return []
        path = os.path.realpath(str(self.url.database))
        return [path + end for end in ("", "-wal", "-shm", "-journal")]

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a sync function that uses this database, without blocking the event loop.

        On PostgreSQL the function runs on the loop itself, through the async driver. On SQLite, whose driver is sync,
        or if greenlet is not installed, it runs in a thread.
        """
        self.require_open()
        with on_loop():
            if self._loops is None:
                return await asyncio.to_thread(call, *args, **kwargs)
            return await self._loops.run(call, *args, **kwargs)

    def _transaction(
        self, mode: str, more: Mapping[str, str] = NOTHING_MORE, **kind: bool
    ) -> AbstractContextManager[Connection]:
        if self._lite is not None:
            return self._lite.transaction(mode)
        engine = (self._loops and self._loops.engine()) or self.engine
        return transaction(engine, settings_of({**self._settings, **more}), **kind)

    @property
    def is_closed(self) -> bool:
        """True after `close` was called."""
        return self._closed.is_set()

    def require_open(self) -> None:
        """Check that the database is not closed. Otherwise a connection would be opened that nobody closes.

        Raises:
            Unavailable: The database was closed.
        """
        if self.is_closed:
            raise Unavailable(
                f"{self.name} was closed, and everything opened through that repository or saver was closed with it. "
                "Open it again: agentgit.open(...)."
            )

    @contextmanager
    def _entered(self, stage: Stage) -> Iterator[None]:
        """Enter a transaction. Refuse it after `close`, or inside another transaction that it would wait for."""
        self.require_open()
        try:
            with self._translated(stage), nested(stage, self.name, has_one_connection=self.in_memory), self._turn:
                yield
        finally:
            if self.is_closed:  # closed meanwhile: nobody else would empty the pool that now has the connection
                self._pool.dispose()

    def _sleep(self, seconds: float) -> None:
        if self._loops is not None and self._loops.engine() is not None:
            self._loops.sleep(seconds)
        else:
            time.sleep(seconds)

    @contextmanager
    def reading(self, *, repeatable_read: bool = False) -> Iterator[Connection]:
        """Yield a read-only connection.

        Args:
            repeatable_read: True if all statements must see the database at the same moment. On SQLite they always
                do. On PostgreSQL, without it, each statement sees what is committed when that statement begins.
        """
        seen = self._transaction(READING, only_reads=True, one_moment=repeatable_read)
        with self._entered(Stage(self._place)), seen as connection:
            yield connection

    def write(self, work: Callable[[Connection], T], *, durable: bool = False, carried: bool = False) -> T:
        """Run `work` in one transaction and commit it; retry if another transaction conflicts.

        Args:
            work: The function that runs the statements. It may run several times, so it must create its ids inside.
            durable: True if the commit must survive a power failure, as intents and pointers must.
            carried: True if a later durable commit of the same work also brings this one to the disk. A server then
                does not wait for its disk now.

        Raises:
            Unavailable: The database stayed locked, is read-only, is full or cannot be reached.
        """
        # On SQLite each attempt waits for the lock. On a server only one of several conflicting transactions succeeds.
        attempts = ATTEMPTS if self.is_sqlite else 4 * ATTEMPTS
        mode, has_broken, before = DURABLE if durable else WRITING, False, None
        for attempt in range(1, attempts + 1):
            try:
                return self._once(work, mode, CARRIED if carried else NOTHING_MORE)
            except TransactionConflict as error:
                # The retry sees what the other transaction committed. If the same row is refused again, it was no race.
                if isinstance(error, ConstraintRace) and before == error.words:
                    raise error.refused from error.__cause__
                # One connection may break by chance. If the next one breaks too, a retry does not help.
                if attempt == attempts or (has_broken and isinstance(error, ConnectionBroken)):
                    raise Unavailable(str(error)) from error
                has_broken |= isinstance(error, ConnectionBroken)
                before = error.words if isinstance(error, ConstraintRace) else None
                self._sleep(random.uniform(0, min(0.2, 0.01 * 2**attempt)))  # noqa: S311  # only spreads the writers
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, work: Callable[[Connection], T], mode: str, more: Mapping[str, str]) -> T:
        """Run `work` in one transaction, write its notes to the trail, commit, and notify subscribers."""
        places: Sequence[Any] = ()
        committed, stage = False, Stage(self._place, writes=True, committing=False)
        try:
            with self._entered(stage), self._writing, self._transaction(mode, more) as connection:
                begin_notes(connection)
                answer = work(connection)
                written = end_notes(connection)
                if written.has_hooks:
                    outbox.put(connection, written.tenant_id, written.events)
                if written.rows and self.bus.has_subscriptions:
                    places = self.bus.enqueue(written.events)
                stage.committing = True
            committed = True
            return answer
        finally:
            if places:
                self.bus.finish_transaction(places, committed=committed)

    def shrink(self, *, wipe: bool = False) -> None:
        """Return the free space of the database to the file system. Writers wait until it is done.

        Args:
            wipe: True to process every table, so that no table holds deleted data any more.

        Raises:
            Unavailable: `wipe` is True, and a reader still needs deleted data or the role does not own the tables.
        """
        statements = (_WIPE if wipe else _SHRINK)["sqlite" if self.is_sqlite else "postgresql"]
        warned: list[str] = []
        with self._entered(Stage(self._place, writes=True)), self._writing, self.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            if not self.is_sqlite:
                raw.autocommit = True  # VACUUM cannot run inside a transaction
                raw.add_notice_handler(lambda told: warned.append(told.sqlstate))
            cursor = raw.cursor()
            for statement in statements:
                cursor.execute(statement)
                if wipe and statement.startswith("PRAGMA wal") and cursor.fetchone()[0]:
                    raise Unavailable(
                        f"{self.name} is being read, so its log still holds deleted data. Run agentgit gc later."
                    )
            cursor.close()
            if not self.in_memory:  # closing its only connection would delete the database
                connection.invalidate()  # no other user may get a connection in autocommit mode
        if wipe and _NOT_YOURS in warned:
            raise Unavailable(
                "The role of this connection does not own the tables. Ask their owner to run: VACUUM (ANALYZE)"
            )

    def size(self) -> int:
        """Return the size of the database in bytes: of its files, or as the server reports it."""
        if self.is_sqlite and not self.in_memory:
            return sum(os.path.getsize(path) for path in self.files if os.path.exists(path))
        with self.reading() as connection:
            return int(connection.exec_driver_sql(_SIZE["sqlite" if self.is_sqlite else "postgresql"]).scalar_one())

    def use_wal(self) -> None:
        """Switch a SQLite file to WAL mode, so that readers and a writer work at once. The file stores the setting."""
        with self._entered(Stage(self._place)), self.engine.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            raw.execute("PRAGMA journal_mode=WAL")  # SQLite refuses it inside a transaction

    @contextmanager
    def _translated(self, stage: Stage) -> Iterator[None]:
        """Translate driver errors into errors that say what to do next. Record refusals after the rollback."""
        try:
            yield
        except NotAllowed as error:
            self._record_refusal(error)
            raise
        except NoneFree as error:
            raise Unavailable(
                f"All connections to {self.name} were in use for {postgres.POOL_SECONDS} s. Open it with a larger "
                "pool_size, or let fewer threads or tasks use it at once."
            ) from error
        except DBAPIError as error:
            raise self._meaning(error.orig if isinstance(error.orig, Exception) else error, stage) from error
        except self._driver_error as error:  # from a statement that bypassed SQLAlchemy
            raise self._meaning(error, stage) from error

    def _meaning(self, error: Exception, stage: Stage) -> Exception:
        if not self.is_sqlite and is_broken(error):
            # The server may have restarted, so the other connections in the pool may be broken, too.
            ((self._loops and self._loops.engine()) or self.engine).dispose()
        return translate_error(error, self.name, committing=stage.committing)

    def before_fork(self) -> None:
        """Close idle connections, so that a child process inherits no open file of this database."""
        if self._lite is not None and not self.in_memory:
            self._lite.close_idle()

    def after_fork(self) -> None:
        """Set up a child process with its own connections. The connections of the parent are left alone."""
        _writers.clear()
        self._writing = self._one_writer()
        self.bus.after_fork()
        if not self.is_sqlite:
            self.engine.dispose(close=False)
        if self._loops is not None:
            self._loops.after_fork()
        if self.leases is not None:
            self.leases.after_fork()

    def _record_refusal(self, refused: NotAllowed) -> None:
        """Write a refusal to the audit trail, in its own transaction. If that fails, log it; the refusal stands."""
        told, refused.write_audit = refused.write_audit, None
        if told is None:
            return
        try:
            self.write(told)
        except AgentGitError as error:
            LOG.warning("A refusal could not be written to the audit trail: %s", error)

    def close(self) -> None:
        """Close all connections. Any later use of the object raises `Unavailable`."""
        self.bus.close()  # first, because callbacks that still have events may read this database
        self._closed.set()
        if self.leases is not None:
            self.leases.close()
        if self._loops is not None:
            self._loops.close()
        if self._lite is not None:
            self._lite.close()
        self.engine.dispose()


def _async_side(url: URL, pool_size: int, seal: Seal | None) -> LoopPools | None:
    if find_spec("greenlet") is None:  # SQLAlchemy needs it for asyncio; without it `run` uses a thread
        return None
    from agentgit.store.sql.async_driver import LoopPools  # takes 30 ms to import, and SQLite does not need it

    return LoopPools(url, pool_size, seal)
