"""Sync code on an async driver: the same functions run on the event loop of the caller, without a thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import URL, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only, greenlet_spawn

from agentgit.store.sql import postgres
from agentgit.store.sql.encryption import Seal, put_seal

P = ParamSpec("P")
T = TypeVar("T")

_now: ContextVar[tuple[int, Engine] | None] = ContextVar("agentgit_engine", default=None)


class LoopPools:
    """A pool of async connections for each event loop that uses a database. A connection cannot change its loop.

    Args:
        url: A database whose driver also has an async mode.
        pool_size: The maximum number of connections on each loop.
        seal: The seal of the database, if it has keys.
    """

    def __init__(self, url: URL, pool_size: int, seal: Seal | None = None) -> None:
        self._url, self._size, self._seal = url, pool_size, seal
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    def engine(self) -> Engine | None:
        """Return the engine of the current `run` call; None outside of `run`."""
        found = _now.get()
        return found[1] if found is not None and found[0] == id(self) else None

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a sync function in a greenlet. While it waits for the database, the event loop runs other tasks."""
        engine = self._pool().engine.sync_engine

        def work() -> T:
            token = _now.set((id(self), engine))
            try:
                return call(*args, **kwargs)
            finally:
                _now.reset(token)

        return await greenlet_spawn(work)

    def sleep(self, seconds: float) -> None:
        """Sleep inside of `run` without blocking the event loop."""
        await_only(asyncio.sleep(seconds))

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        for ended in [other for other in self._pools if other.is_closed()]:
            self._pools.pop(ended).close()
        if loop not in self._pools:
            self._pools.setdefault(loop, _Pool(self._url, self._size, self._seal))
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
        self.engine: AsyncEngine = create_async_engine(postgres.without_own_parameters(url), **postgres.settings(size))
        put_seal(self.engine.dialect, seal)
        postgres.watch(self.engine.sync_engine, url)
        self._raw: weakref.WeakSet[Any] = weakref.WeakSet()
        event.listen(self.engine.sync_engine, "connect", lambda raw, _: self._raw.add(raw.driver_connection))

    def close(self) -> None:
        # Not `dispose`, which would await each connection on a loop that may have ended.
        for connection in list(self._raw):
            connection.pgconn.finish()
