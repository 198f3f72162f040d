"""The contenders: the same graph without a checkpointer, with LangGraph's savers, and with agentgit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from sqlalchemy import URL

import agentgit
from bench import postgres
from bench.graphs import EFFECTS, MESSAGES, Graph, build, check, said
from bench.measure import rotated

T = TypeVar("T")

BARE, SQLITE, POSTGRES = "no checkpointer", "SqliteSaver", "PostgresSaver"
OURS, WRAPPED, SERVED, SEALED = "SQLModelSaver", "wrapped by agentgit", "served by agentgit", "wrapped, encrypted"

CONNECTIONS = 16
"""The most connections of a process to a server."""

Address = Path | URL
Say = Callable[[list[Any]], list[Any]]
"""A function that runs one turn with new messages, and returns the messages after it."""


@dataclass(frozen=True)
class Opened:
    """A contender with an open database."""

    begin: Callable[[str], Say]
    address: Address
    graph: Any = None
    repo: Any = None

    def measured(self, run: Callable[[], T]) -> tuple[float, float, T]:
        """Run a function, and return its seconds, its CPU seconds here and on the server, and its value."""
        server = partial(postgres.cpu, self.address) if isinstance(self.address, URL) else lambda: 0.0
        there, here, start = server(), time.process_time(), time.perf_counter()
        value = run()
        took, used = time.perf_counter() - start, time.process_time() - here
        return took, used + server() - there, value


Kind = Callable[[Address, int], AbstractContextManager[Opened]]
"""A function that opens a contender on a new database, for replies of so many characters."""


@contextmanager
def bare(address: Address, length: int) -> Iterator[Opened]:
    """The graph alone; the caller keeps the conversation in memory."""
    graph = build(length)

    def begin(_: str) -> Say:
        held: list[Any] = []

        def say(new: list[Any]) -> list[Any]:
            held[:] = graph.invoke({"messages": [*held, *new]})["messages"]
            return held

        return say

    yield Opened(begin, address)


@contextmanager
def sqlite(address: Address, length: int) -> Iterator[Opened]:
    """LangGraph's saver for SQLite, with its default settings."""
    with SqliteSaver.from_conn_string(str(address)) as saver:
        yield _threads(build(length, saver), address)


@contextmanager
def langgraph_postgres(address: Address, length: int) -> Iterator[Opened]:
    """LangGraph's saver for PostgreSQL: one for each conversation, because a saver runs one operation at a time."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(postgres.plain(address), kwargs=options, min_size=1, max_size=CONNECTIONS) as pool:
        saver: Any = PostgresSaver(pool)
        saver.setup()

        def begin(name: str) -> Say:
            return _turns(build(length, PostgresSaver(pool)), name)

        yield Opened(begin, address, build(length, saver))


@contextmanager
def ours(address: Address, length: int) -> Iterator[Opened]:
    """The saver of agentgit, used alone."""
    with agentgit.SQLModelSaver.from_conn_string(address) as saver:
        saver.setup()
        yield _threads(build(length, saver), address)


@contextmanager
def wrapped(address: Address, length: int, **options: Any) -> Iterator[Opened]:
    """The graph as `repo.wrap` returns it: tools recorded, a checkpoint before and after each turn."""
    graph = build(length)
    with _repository(address, **options) as repo:

        def begin(name: str) -> Say:
            agent = repo.wrap(graph, session=name, effects=EFFECTS)
            return lambda new: list(agent.invoke({"messages": new})["messages"])

        yield Opened(begin, address, repo=repo)


@contextmanager
def sealed(address: Address, length: int) -> Iterator[Opened]:
    """The wrapped graph with an encrypted database."""
    with wrapped(address, length, keyring=agentgit.Keyring({"bench": agentgit.Keyring.new_key()})) as opened:
        yield opened


@contextmanager
def served(address: Address, length: int) -> Iterator[Opened]:
    """The graph that hosts take, whose threads are sessions."""
    with _repository(address) as repo:
        graph = repo.graph(build(length), effects=EFFECTS)
        yield Opened(partial(_turns, graph), address, graph, repo)


def _repository(address: Address, **options: Any) -> Any:
    if isinstance(address, URL):
        agentgit.SQLModelSaver.from_conn_string(address).setup()
        options |= {"pool_size": CONNECTIONS}
    return agentgit.open(address, **options)


def _threads(graph: Graph, address: Address) -> Opened:
    return Opened(partial(_turns, graph), address, graph)


def _turns(graph: Any, thread: str) -> Say:
    config: Any = {"configurable": {"thread_id": thread}}
    return lambda new: list(graph.invoke({"messages": new}, config)["messages"])


FILE: dict[str, Kind] = {
    BARE: bare, SQLITE: sqlite, OURS: ours, WRAPPED: wrapped, SERVED: served, SEALED: sealed,
}  # fmt: skip
SERVER: dict[str, Kind] = {POSTGRES: langgraph_postgres, OURS: ours, WRAPPED: wrapped, SERVED: served}


_numbers = count(1)


Measured = dict[str, list[float]]


class Talk:
    """The same conversation with several contenders, which grows in step; each turn is measured."""

    def __init__(self, contenders: Mapping[str, Opened], kind: str, length: int) -> None:
        self.name, self.turns, self.messages = f"talk {next(_numbers)}", 0, list[Any]()
        self._contenders, self._kind, self._length = contenders, kind, length
        self._says = {name: opened.begin(self.name) for name, opened in contenders.items()}
        self.times: Measured = {name: [] for name in contenders}
        self.used: Measured = {name: [] for name in contenders}

    def grow(self, messages: int) -> Talk:
        """Continue the conversation until it has that many messages."""
        while self.turns * MESSAGES[self._kind] < messages:
            self.turn(self._kind, (self.turns + 1) * MESSAGES[self._kind])
        return self

    def turn(self, kind: str, expected: int) -> None:
        """Run a turn with each contender, after which there are so many messages."""
        new = [("user", said(kind, self.turns, self._length))]
        self.turns += 1
        for name in rotated(list(self._says), self.turns):
            took, used, self.messages = self._contenders[name].measured(partial(self._says[name], new))
            self.times[name].append(took)
            self.used[name].append(used)
            check(self.messages, expected)

    def around(self, messages: int, spread: float) -> tuple[Measured, Measured]:
        """Return the times and CPU times of the turns that began at about that many messages."""
        step = MESSAGES[self._kind]
        chosen = [n for n in range(self.turns) if abs(n * step - messages) <= max(messages * spread, step / 2)]
        times, used = ({k: [v[n] for n in chosen] for k, v in found.items()} for found in (self.times, self.used))
        return times, used
