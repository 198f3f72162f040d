"""Connections to PostgreSQL: the pool, and support for external poolers.

PgBouncer in transaction mode may give each transaction another server connection, which does not know the statements
that the driver prepared. A pooler is detected by the process id of the server, because a pooler reports its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import QueuePool

from agentgit.errors import InvalidInput, Unavailable
from agentgit.next_steps import Next
from agentgit.store.sql import process
from agentgit.store.sql.batch import Batch, Statement
from agentgit.store.sql.url import PREPARE_THRESHOLD, redacted_url

_BATCHED = "agentgit_batched"

MANUAL_BEGIN = {"isolation_level": "AUTOCOMMIT"}
"""The engine options without the driver's own BEGIN, which would be a separate round trip to the server."""

ASYNC_COMMIT = (Statement("SELECT set_config('synchronous_commit', 'off', true)"),)
"""The settings of a transaction that need not wait for the disk, because a later commit writes its changes too."""

SYNC_COMMIT = Statement("SELECT set_config('synchronous_commit', 'on', true)")
"""Let a transaction wait for the disk after all."""


def _execute_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_BATCHED) or options.get("isolation_level") == MANUAL_BEGIN["isolation_level"]:
        return  # its batch sends BEGIN, or the connection is in autocommit mode
    driver: Any = connection.connection.driver_connection
    # Never prepared, because an external pooler may use another server connection the next time.
    driver.execute("BEGIN", prepare=False)


@contextmanager
def transaction(engine: Engine, settings: Sequence[Statement], **kind: bool) -> Iterator[tuple[Connection, Batch]]:
    """Yield a connection in a transaction with these settings, and its batch. `kind` has the options of `Batch`."""
    connection = engine.connect()
    driver: Any = connection.connection.driver_connection
    try:
        try:
            begun = connection.execution_options(**{_BATCHED: True}).begin()
            batch = Batch(connection, settings, **kind)
            yield connection, batch
            batch.commit()
            begun.commit()
        finally:  # not `with`, whose end Ctrl-C can prevent
            connection.close()
    except BaseException as error:
        if not isinstance(error, Exception):
            driver.pgconn.finish()  # Ctrl-C may have prevented the rollback, and tracebacks keep the connection
        raise


IDLE_SECONDS = 5.0
"""The idle time after which a connection is pinged. A ping every time costs a third of a turn on PostgreSQL."""

_LAST_USED = "agentgit_used"


CLOSE_SECONDS = 60.0
"""The idle time after which the connections of a pool are closed, so that a process can have many databases open."""


class _IdlePools:
    """Closes the connections of pools that nobody uses, with one thread for all databases of the process."""

    def __init__(self) -> None:
        self.after_fork()
        process.register_for_fork(self)

    def after_fork(self) -> None:
        """Begin without pools and without the thread, which stay with the parent."""
        self._lock, self._thread = threading.Lock(), threading.Thread()
        self._used_at: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()

    def use(self, engine: Engine) -> None:
        """Note that the pool of an engine is used now."""
        with self._lock:
            self._used_at[engine] = time.monotonic()
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="agentgit-idle-connections", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (idle := self._take_idle()) is not None:
            for engine in idle:
                engine.dispose()
            time.sleep(CLOSE_SECONDS / 4)

    def _take_idle(self) -> list[Engine] | None:
        """Remove the engines whose pools nobody uses, and return them; None if there are no engines."""
        with self._lock:
            if not self._used_at:
                self._thread = threading.Thread()  # the next use starts another one
                return None
            now = time.monotonic()
            idle = [
                engine
                for engine, used_at in self._used_at.items()
                if now - used_at > CLOSE_SECONDS and isinstance(engine.pool, QueuePool) and not engine.pool.checkedout()
            ]
            for engine in idle:
                del self._used_at[engine]
            return idle


_idle_pools = _IdlePools()


def _watch_idle(engine: Engine) -> None:
    """Ping connections of a pool that have been idle, and replace those that do not answer; close a pool in the end."""

    def ping_if_idle(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        _idle_pools.use(engine)
        now = time.monotonic()
        last_used = record.info.get(_LAST_USED, now)
        record.info[_LAST_USED] = now
        if now - last_used < IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(dbapi_connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError("the server closed an idle connection") from error

    event.listen(engine, "checkout", ping_if_idle)


POOL_SIZE = 16
"""The default maximum number of connections of one open database."""

POOL_SECONDS = 30
"""The time that a transaction waits for a connection before it gives up."""


def create_server_engine(url: URL, pool_size: int, connect: Callable[[], Any] | None = None) -> Engine:
    if pool_size < 1:
        raise InvalidInput(f"pool_size must be 1 or more, not {pool_size}.")
    try:
        engine = create_engine(
            driver_url(url),
            **({} if connect is None else {"creator": connect}),
            **MANUAL_BEGIN,
            hide_parameters=True,  # errors must not contain values or secrets
            pool_size=pool_size,
            max_overflow=0,  # to open a connection takes as long as several turns
            pool_timeout=POOL_SECONDS,
            pool_use_lifo=True,
        )
    except ModuleNotFoundError as error:
        raise Unavailable("PostgreSQL needs its driver.", Next("install", package="agentgit[postgres]")) from error
    except ArgumentError as error:
        raise InvalidInput(f"{redacted_url(url)} cannot be used: {error}") from error
    _watch_idle(engine)
    event.listen(engine, "begin", _execute_begin)
    _detect_pooler(engine, _prepare_threshold(url))
    return engine


def driver_url(url: URL) -> URL:
    """Remove the parameters that are not for the driver from a URL."""
    return url.difference_update_query([PREPARE_THRESHOLD])


def _detect_pooler(engine: Engine, threshold: int | None) -> None:
    """Prepare statements after the number of runs that the URL gives; without one, none behind a pooler."""
    cached_is_pooled: list[bool] = []
    """Whether there is a pooler, which is checked once."""

    def set_prepare_threshold(connection: Any, _record: Any) -> None:
        if threshold is not None:
            connection.prepare_threshold = threshold or None
            return
        if not cached_is_pooled:
            cached_is_pooled.append(_is_pooled(connection))
        if cached_is_pooled[0]:
            connection.prepare_threshold = None

    event.listen(engine, "connect", set_prepare_threshold)


def _prepare_threshold(url: URL) -> int | None:
    """Return the prepare threshold of a URL: 0 for `none`, None if the URL has no such parameter."""
    value = url.query.get(PREPARE_THRESHOLD)
    if value is None:
        return None
    if value == "none":
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and int(value):
        return int(value)
    raise InvalidInput(f"{PREPARE_THRESHOLD}={value} is not valid: use `none` or the number of runs before preparing.")


def _is_pooled(connection: Any) -> bool:
    """Return whether the server's process id differs from the one reported when the connection was opened."""
    (server_pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.rollback()
    return bool(server_pid != connection.info.backend_pid)
