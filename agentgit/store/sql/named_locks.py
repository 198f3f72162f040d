"""Locks by name, for work outside of the database that two processes must not do at the same time; nested transactions.

No transaction with data is open while such a lock is held. Processes that use one SQLite file exclude each other with
a lock on a file beside it, those that use one server with its advisory locks. The locks of a killed process are free.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from agentgit.errors import Conflict, Unavailable

TIMEOUT_SECONDS = 30.0
"""The time to wait for a lock."""

POLL_SECONDS = 0.003

SHARE_SECONDS, MAX_SHARE_SECONDS = 1.0, 10.0
"""After the first time that a process has the file, its new holders wait for it to become free, so that another process
gets it; after the second they do not, because a holder that takes so long may need them."""

YIELD_SECONDS = 10 * POLL_SECONDS
"""The time for which such a process then leaves the file to others."""

_of_parent: list[PoolProxiedConnection] = []
"""Connections of the parent process, kept so that nothing is sent on them when they are collected as garbage."""

LOCK_FILE_SUFFIX = "-memory-lock"


class NamedLocks:
    def __init__(self, engine: Engine | None = None, path: str | None = None) -> None:
        self._engine, self._path = engine, path
        self._mutex = threading.Lock()
        self._held: dict[int, asyncio.AbstractEventLoop | None] = {}
        """The event loop on which each lock is held; None if a thread holds it."""
        self._lock_file: int | None = None
        self._locked_at = self._free_at = 0.0
        """When this process got the file, and when it may take it again, by `time.monotonic`."""
        self._connection: PoolProxiedConnection | None = None

    def after_fork(self) -> None:
        """Hold no lock in a child process. The locks of the parent stay as they are."""
        self._mutex, self._held = threading.Lock(), {}
        if self._lock_file is not None:
            os.close(self._lock_file)
        if self._connection is not None:
            _of_parent.append(self._connection)
        self._lock_file = self._connection = None

    @contextmanager
    def hold(self, names: Collection[str]) -> Iterator[None]:
        """Hold the locks with these names until the block ends.

        A lock that a task of the event loop of this thread holds is left out: the task cannot go on while this waits.
        """
        all_keys, deadline, loop = _keys(names), time.monotonic() + TIMEOUT_SECONDS, _running_loop()
        while not self.try_acquire(
            keys := frozenset(key for key in all_keys if loop is None or self._held.get(key) is not loop)
        ):
            _require_time(deadline)
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            try:
                self.release(keys)
            except KeyboardInterrupt:
                self.release(keys)
                raise

    async def acquire(self, names: Collection[str]) -> frozenset[int]:
        """Acquire the locks with these names without blocking the event loop; return what `release` takes."""
        keys, deadline = _keys(names), time.monotonic() + TIMEOUT_SECONDS
        while not await self._try_in_thread(keys):
            _require_time(deadline)
            await asyncio.sleep(POLL_SECONDS)
        return keys

    async def _try_in_thread(self, keys: frozenset[int]) -> bool:
        if self._held.keys() & keys:
            return False
        loop = asyncio.get_running_loop()
        attempt = asyncio.ensure_future(asyncio.to_thread(self.try_acquire, keys, loop))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:  # the thread goes on
            attempt.add_done_callback(lambda done: self._release_unwanted(done, keys))
            raise

    def _release_unwanted(self, attempt: asyncio.Future[bool], keys: frozenset[int]) -> None:
        if not attempt.cancelled() and attempt.exception() is None and attempt.result():
            self.release(keys)

    def try_acquire(self, keys: frozenset[int], loop: asyncio.AbstractEventLoop | None = None) -> bool:
        """Acquire all these locks if none of them is held; return whether they were acquired."""
        is_ours = False
        try:
            with self._mutex:
                if self._held.keys() & keys:
                    return False
                is_ours = True
                if self._path is not None:
                    is_ours = self._try_lock_file(self._path)
                elif self._engine is not None:
                    is_ours = self._try_advisory_locks(self._engine, keys)
                if is_ours:
                    self._held |= dict.fromkeys(keys, loop)
                return is_ours
        except BaseException:
            if is_ours:
                self.release(keys)
            raise

    def release(self, keys: frozenset[int]) -> None:
        """Release locks that `acquire` acquired."""
        with self._mutex:
            for key in keys:
                self._held.pop(key, None)
            self._unlock(keys)

    # -- against other processes; called with the mutex held

    def _try_lock_file(self, path: str) -> bool:
        """Lock the file. The holders of different names in one process share this lock."""
        if self._lock_file is not None:
            return not self._is_long_held()
        if time.monotonic() < self._free_at:
            return False
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock_file = os.open(path + LOCK_FILE_SUFFIX, flags, 0o600)
        except OSError as error:
            raise Unavailable(f"{path}{LOCK_FILE_SUFFIX} cannot be opened: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_file)
            self._lock_file = None
            return False
        self._locked_at = time.monotonic()
        return True

    def _is_long_held(self) -> bool:
        return SHARE_SECONDS < time.monotonic() - self._locked_at < MAX_SHARE_SECONDS

    def _try_advisory_locks(self, engine: Engine, keys: frozenset[int]) -> bool:
        """Lock the keys on one connection, which is kept for as long as any lock is held."""
        try:
            self._connection = self._connection or _connect(engine)
            taken: set[int] = set()
            for key in sorted(keys):
                if not _call(self._connection, "pg_try_advisory_lock", key):
                    self._unlock(taken)
                    return False
                taken.add(key)
        except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
            self._drop_connection()
            raise Unavailable(f"The database does not respond: {error}.") from error
        return True

    def _unlock(self, keys: Collection[int]) -> None:
        if self._connection is not None and self._engine is not None:
            try:
                for key in keys:
                    _call(self._connection, "pg_advisory_unlock", key)
            except self._engine.dialect.loaded_dbapi.Error:  # the server releases the locks of a broken connection
                self._drop_connection()
        if self._held:
            return
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
        if self._lock_file is not None:
            lock_file, self._lock_file = self._lock_file, None
            fcntl.flock(lock_file, fcntl.LOCK_UN)  # a process that was forked meanwhile may have the file open
            os.close(lock_file)
            if self._is_long_held():
                self._free_at = time.monotonic() + YIELD_SECONDS

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection = None


def _connect(engine: Engine) -> PoolProxiedConnection:
    connection = engine.raw_connection()
    if getattr(engine.pool, "size", lambda: 0)() == 1:
        connection.detach()  # else the holder of the lock would wait for the pool's only connection
    return connection


def _call(connection: PoolProxiedConnection, function: str, key: int) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {function}(%s)", (key,))
        row = cursor.fetchone()
        return row[0] if row is not None else None


def _keys(names: Collection[str]) -> frozenset[int]:
    """Return the key of each name, as PostgreSQL takes it: an integer of 64 bits."""
    digests = (hashlib.sha256(name.encode(errors="surrogatepass")).digest() for name in names)
    return frozenset(int.from_bytes(digest[:8], signed=True) for digest in digests)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _require_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Unavailable(f"Another write to the same memory has not ended within {TIMEOUT_SECONDS:.0f} s. Try again.")


@dataclass
class TransactionState:
    database_key: str
    writes: bool = False
    committing: bool | None = None
    is_open: bool = True


# Not thread-local: the tasks of an event loop share one thread, and a task or a thread that a callback starts and waits
# for would wait for ever too.
_transactions: ContextVar[tuple[TransactionState, ...]] = ContextVar("agentgit_transactions", default=())


def is_in_transaction() -> bool:
    return any(one.is_open for one in _transactions.get())


@contextmanager
def enter_transaction(state: TransactionState, name: str, *, has_one_connection: bool) -> Iterator[None]:
    """Enter a transaction, and refuse one that would wait for a transaction of its caller."""
    outer_states = [one for one in _transactions.get() if one.is_open]
    for outer in outer_states:
        if outer.database_key == state.database_key and (has_one_connection or (state.writes and outer.writes)):
            raise Conflict(
                f"This was called inside a transaction of {name}, for example in the progress callback of gc or "
                f"import_. It cannot {'write' if state.writes else 'read'} there, because it would wait for its "
                "own caller. Call it after that call has returned."
            )
    _transactions.set((*outer_states, state))
    try:
        yield
    finally:
        state.is_open = False  # also in copies of the context
        _transactions.set(tuple(one for one in _transactions.get() if one.is_open))
