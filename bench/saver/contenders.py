"""LangGraph's savers and ours, each with a separate database, and the pairs that are comparable."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from sqlalchemy import URL, Connection

from agentgit import SQLModelSaver
from agentgit.store.database import Database
from bench import postgres
from bench.contenders import OURS, SQLITE, Contender, Saved, Say
from bench.graphs import build
from bench.measure import Line, Times, ratio

T = TypeVar("T")
Saver = BaseCheckpointSaver[Any]

MEMORY = "InMemorySaver"
SQLITE_NORMAL = f"{SQLITE}, NORMAL"
ASYNC = "AsyncSqliteSaver, NORMAL"
POSTGRES = "PostgresSaver"
OURS_FULL = f"{OURS}, FULL"
OURS_ASYNC = f"{OURS}, async"
OURS_POSTGRES = f"{OURS}, PostgreSQL"
OURS_PLAIN = f"{OURS}, not compressed"

COUNTERPART = "its counterpart"
COUNTERPARTS = {
    OURS: SQLITE_NORMAL,
    OURS_PLAIN: SQLITE_NORMAL,
    OURS_FULL: SQLITE,
    OURS_ASYNC: ASYNC,
    OURS_POSTGRES: POSTGRES,
}
"""LangGraph's saver for each of ours, with the same database and the same waits for the disk."""


class Opened(Saved):
    """The graph with a saver; a second saver can open the same database."""

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        with ExitStack() as held:
            self._prepare(held)
            self.saver: Any = held.enter_context(self.opened())
            self.graph = build(length, self.saver)
            self._held = held.pop_all()

    def _prepare(self, held: ExitStack) -> None:
        """Create the resources that the saver needs; `held` releases them."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Saver]:
        """Open the database with a new saver, which has read nothing yet."""

    def close(self) -> None:
        """Close the database."""
        self._held.close()


class Memory(Opened):
    """LangGraph's saver that keeps everything serialized in memory."""

    name = MEMORY

    @cached_property
    def _only(self) -> InMemorySaver:
        return InMemorySaver()

    def opened(self) -> AbstractContextManager[Saver]:
        """Return the only saver."""
        return nullcontext(self._only)

    def size(self) -> int:
        """Return the serialized bytes, without Python's own objects around them."""
        return sum(map(_bytes, (self._only.storage, self._only.blobs, self._only.writes)))


class SqliteFull(Opened):
    """LangGraph's saver for SQLite with its default settings: each commit waits for the disk."""

    name, file = SQLITE, "sqlite-full.db"
    synchronous: ClassVar[str] = "FULL"

    @contextmanager
    def opened(self) -> Iterator[Saver]:
        """Open the database with a new saver."""
        with SqliteSaver.from_conn_string(str(self.path)) as saver:
            saver.conn.execute(f"PRAGMA synchronous={self.synchronous}")
            yield saver


class SqliteNormal(SqliteFull):
    """LangGraph's saver for SQLite, whose commits do not wait for the disk, like those of ours."""

    name, file = SQLITE_NORMAL, "sqlite-normal.db"
    synchronous = "NORMAL"


class Ours(Opened):
    """Our saver with its default settings: values compressed with zstd, commits that do not wait for the disk."""

    name, file = OURS, "ours.db"
    compression: ClassVar[str] = "zstd"

    def opened(self) -> AbstractContextManager[SQLModelSaver]:
        """Open the database with a new saver."""
        return SQLModelSaver.from_conn_string(self.path, compression=self.compression)


class OursPlain(Ours):
    """Our saver without compression."""

    name, file, compression = OURS_PLAIN, "ours-plain.db", "none"


class OursFull(Opened):
    """Our saver with commits that wait for the disk, as agentgit does for intents and pointers."""

    name, file = OURS_FULL, "ours-full.db"

    @contextmanager
    def opened(self) -> Iterator[Saver]:
        """Open the database with a new saver."""
        with closing(_Durable(self.path)) as database:
            saver = SQLModelSaver(database)
            saver.setup()
            yield saver


class _Durable(Database):
    """A database whose every commit survives a loss of power."""

    def write(self, work: Callable[[Connection], T], *, durable: bool = True, async_commit: bool = False) -> T:
        """Run `work` in one transaction, and wait for the disk."""
        return super().write(work, durable=True)


class OnServer(Opened):
    """A saver on a PostgreSQL server, in a database that is dropped afterwards."""

    url: URL

    def _prepare(self, held: ExitStack) -> None:
        self.url = held.enter_context(postgres.scratch())

    def size(self) -> int:
        """Return the bytes of its tables and indexes."""
        return postgres.size(self.url)


class Postgres(OnServer):
    """LangGraph's saver for PostgreSQL, with its default settings."""

    name = POSTGRES

    @contextmanager
    def opened(self) -> Iterator[Saver]:
        """Open the database with a new saver."""
        with PostgresSaver.from_conn_string(postgres.plain(self.url)) as saver:
            saver.setup()
            yield saver


class OursPostgres(OnServer):
    """Our saver on PostgreSQL."""

    name = OURS_POSTGRES

    @contextmanager
    def opened(self) -> Iterator[Saver]:
        """Open the database with a new saver."""
        with SQLModelSaver.from_conn_string(self.url) as saver:
            saver.setup()
            yield saver


class OnLoop(Saved):
    """A saver that `graph.ainvoke` uses on a separate event loop."""

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        self._loop = asyncio.Runner()
        self._held = AsyncExitStack()
        self.graph = build(length, self._loop.run(self._open(self._held)))

    @abstractmethod
    async def _open(self, held: AsyncExitStack) -> Saver:
        """Open the saver; `held` closes it."""

    def conversation(self) -> Say:
        """Begin a conversation, and return a function that runs its turns."""
        super().conversation()
        config = self.last
        return lambda text: self._loop.run(self.graph.ainvoke({"messages": [("user", text)]}, config))["messages"]

    def close(self) -> None:
        """Close the database and the loop."""
        self._loop.run(self._held.aclose())
        self._loop.close()


class AsyncSqlite(OnLoop):
    """LangGraph's asynchronous saver for SQLite, whose commits do not wait for the disk, like those of ours."""

    name, file = ASYNC, "async-sqlite.db"

    async def _open(self, held: AsyncExitStack) -> Saver:
        saver = await held.enter_async_context(AsyncSqliteSaver.from_conn_string(str(self.path)))
        await saver.conn.execute("PRAGMA synchronous=NORMAL")
        return saver


class OursAsync(OnLoop):
    """Our saver's asynchronous methods, on SQLite."""

    name, file = OURS_ASYNC, "ours-async.db"

    async def _open(self, held: AsyncExitStack) -> Saver:
        return await held.enter_async_context(SQLModelSaver.from_conn_string(self.path))


def present(*kinds: type[Contender]) -> list[type[Contender]]:
    """Return the kinds, without those that need a server if none answers."""
    return [kind for kind in kinds if postgres.about() or not issubclass(kind, OnServer)]


def beside_counterparts(made: list[Line], times: Times) -> list[Line]:
    """Return the lines, with the ratio to its counterpart added to each line of our savers."""
    found: list[Line] = []
    for line in made:
        other = COUNTERPARTS.get(line.what)
        if other is not None and other in times:
            line = replace(line, ratios={**line.ratios, COUNTERPART: ratio(times[line.what], times[other])})
        found.append(line)
    return found


def _bytes(held: Any) -> int:
    """Count the bytes in nested mappings and tuples."""
    if isinstance(held, bytes):
        return len(held)
    inner = held.values() if isinstance(held, Mapping) else held if isinstance(held, tuple) else ()
    return sum(map(_bytes, inner))
