"""Sync code on an async driver: the same functions run on the event loop of the caller, without a thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import URL, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only, greenlet_spawn

from agentgit.store.sql import postgres
from agentgit.store.sql.encryption import Seal, set_seal

P = ParamSpec("P")
T = TypeVar("T")

_current_engine: ContextVar[tuple[int, Engine] | None] = ContextVar("agentgit_engine", default=None)


class LoopPools:
    """A pool of async connections for each event loop that uses a database. A connection cannot change its loop."""

    def __init__(self, url: URL, pool_size: int, seal: Seal | None = None) -> None:
        self._url, self._pool_size, self._seal = url, pool_size, seal
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    def engine(self) -> Engine | None:
        """Return the engine of the current `run` call; None outside of `run`."""
        current = _current_engine.get()
        return current[1] if current is not None and current[0] == id(self) else None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Use the sync engine in the block, also inside of `run`.

        A block that holds a lock must not switch to another task of its loop, which may wait for that lock.
        """
        token = _current_engine.set(None)
        try:
            yield
        finally:
            _current_engine.reset(token)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a sync function in a greenlet. While it waits for the database, the event loop runs other tasks."""
        engine = self._pool_of_loop().engine.sync_engine

        def call_with_engine() -> T:
            token = _current_engine.set((id(self), engine))
            try:
                return function(*args, **kwargs)
            finally:
                _current_engine.reset(token)

        return await greenlet_spawn(call_with_engine)

    def sleep(self, seconds: float) -> None:
        """Sleep inside of `run` without blocking the event loop."""
        await_only(asyncio.sleep(seconds))

    def _pool_of_loop(self) -> _Pool:
        loop = asyncio.get_running_loop()
        for closed_loop in [other for other in self._pools if other.is_closed()]:
            self._pools.pop(closed_loop).close()
        if loop not in self._pools:
            self._pools.setdefault(loop, _Pool(self._url, self._pool_size, self._seal))
        return self._pools[loop]

    def after_fork(self) -> None:
        """Forget the connections of the parent process."""
        self._pools = {}

    def close(self) -> None:
        """Close all connections, including those of loops that have ended."""
        while self._pools:
            self._pools.popitem()[1].close()


class _Pool:
    def __init__(self, url: URL, size: int, seal: Seal | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine: AsyncEngine = create_async_engine(postgres.driver_url(url), **postgres.engine_options(size))
        set_seal(self.engine.dialect, seal)
        postgres.add_listeners(self.engine.sync_engine, url, self._close_idle)
        self._driver_connections: weakref.WeakSet[Any] = weakref.WeakSet()
        event.listen(
            self.engine.sync_engine, "connect", lambda raw, _: self._driver_connections.add(raw.driver_connection)
        )

    def _close_idle(self) -> None:
        def dispose() -> None:
            self._disposing = self._loop.create_task(self.engine.dispose())

        try:
            self._loop.call_soon_threadsafe(dispose)
        except RuntimeError:  # the loop has ended
            self.close()

    def close(self) -> None:
        # Not `dispose`, which would await each connection on a loop that may have ended.
        for connection in list(self._driver_connections):
            connection.pgconn.finish()
