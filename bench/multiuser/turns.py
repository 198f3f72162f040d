"""The turns per second of many concurrent clients on PostgreSQL, with agentgit and with LangGraph's own savers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import psycopg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from sqlalchemy import URL, make_url

import agentgit
from bench import postgres
from bench.graphs import CHAT, build, said, text
from bench.measure import Counts
from bench.stage import Stage

TITLE = "Many clients at once"

NOTE = (
    "Turns of user and assistant, 200 characters each, as a server with two processes runs them, a thread for each\n"
    "client and up to 16 connections a process; each client has conversations of its own. PostgresSaver has a\n"
    "ConnectionPool of psycopg. InMemorySaver has no database: nobody can reach many more turns per second than it.\n"
    "The server has statistics of the tables, as autovacuum makes them in the first minute. Times of a turn are in\n"
    "milliseconds, with the wait for the other clients."
)

PROCESSES, CONNECTIONS, LENGTH = 2, 16, 200

EACH = 8
"""The turns of a conversation; then its client begins another one, so that the length stays about the same."""

POSTGRES, OURS, WRAPPED, SERVED = "PostgresSaver", "SQLModelSaver", "wrapped by agentgit", "served by agentgit"
MEMORY = "InMemorySaver"

Say = Callable[[list[Any]], Any]
Talk = Callable[[str], Say]
"""A function that begins a conversation of a client."""


@contextmanager
def in_memory(_: URL) -> Iterator[Talk]:
    """Yield a `Talk` without a database, which costs only the turn itself."""
    yield _with(build(LENGTH, InMemorySaver()))


@contextmanager
def theirs(url: URL) -> Iterator[Talk]:
    """Yield a `Talk` with LangGraph's saver."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(postgres.plain(url), kwargs=options, min_size=1, max_size=CONNECTIONS) as pool:
        saver: Any = PostgresSaver(pool)  # type: ignore[arg-type]  # the pool's rows are dicts, which its type does not say
        yield _with(build(LENGTH, saver))


@contextmanager
def alone(url: URL) -> Iterator[Talk]:
    """Yield a `Talk` with our saver."""
    with agentgit.SQLModelSaver.from_conn_string(url) as saver:
        yield _with(build(LENGTH, saver))


@contextmanager
def wrapped(url: URL) -> Iterator[Talk]:
    """Yield a `Talk` with the wrapped graph."""
    graph = build(LENGTH)
    with agentgit.open(url, pool_size=CONNECTIONS) as repo:

        def talk(client: str) -> Say:
            agent = repo.wrap(graph, session=client, check_effects=False)
            return lambda messages: agent.invoke({"messages": messages})

        yield talk


@contextmanager
def served(url: URL) -> Iterator[Talk]:
    """Yield a `Talk` with the graph that hosts take."""
    with agentgit.open(url, pool_size=CONNECTIONS) as repo:
        yield _with(repo.graph(build(LENGTH), check_effects=False))


def _with(graph: Any) -> Talk:
    return lambda client: lambda m: graph.invoke({"messages": m}, {"configurable": {"thread_id": client}})


CONTENDERS = {POSTGRES: theirs, OURS: alone, WRAPPED: wrapped, SERVED: served, MEMORY: in_memory}


def measure(stage: Stage) -> Counts:
    """Measure more and more clients, in short and in long conversations."""
    rows: list[list[str]] = []
    if postgres.about():
        scale = stage.scale.multiuser
        for messages in scale.messages:
            for clients in scale.clients:
                rows += _rows(messages, clients, max(3, scale.turns // clients))
    return Counts(TITLE, NOTE, ("turns/s", f"x {POSTGRES}", "p50", "p99"), rows)


def _rows(messages: int, clients: int, turns: int) -> list[list[str]]:
    found = {name: run(name, messages, clients, turns) for name in CONTENDERS}
    base = found[POSTGRES][0]
    case = f"{messages} messages, {clients} client{'s' if clients > 1 else ''}"
    return [
        [case, name, f"{rate:.0f}", f"{rate / base:.2f}", f"{median(times) * 1000:.1f}", f"{_p99(times) * 1000:.1f}"]
        for name, (rate, times) in found.items()
    ]


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98]


def run(name: str, messages: int, clients: int, turns: int, processes: int = PROCESSES) -> tuple[float, list[float]]:
    """Return the turns per second of all clients together, and the time of each turn.

    Args:
        name: The contender.
        messages: The messages of each conversation.
        clients: The number of clients.
        turns: The turns of each client.
        processes: The number of processes of the server.
    """
    with postgres.scratch() as url:
        if name == POSTGRES:
            with PostgresSaver.from_conn_string(postgres.plain(url)) as saver:
                saver.setup()
        else:
            agentgit.SQLModelSaver.from_conn_string(url).setup()
        forking = multiprocessing.get_context("forkserver")
        forking.set_forkserver_preload([__name__])
        start, results = forking.Barrier(min(processes, clients)), forking.SimpleQueue()
        shares = [range(clients)[n::processes] for n in range(min(processes, clients))]
        given = [(name, postgres.plain(url), list(share), messages, turns, start, results) for share in shares]
        workers = [forking.Process(target=_work, args=one) for one in given]
        for worker in workers:
            worker.start()
        found = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
    spans = [span for spans in found for span in spans]
    wall = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return len(spans) / wall, [end - begin for begin, end in spans]


def _work(name: str, url: str, clients: list[int], messages: int, turns: int, start: Any, results: Any) -> None:
    """Run one process of the server."""
    address = make_url(url).set(drivername="postgresql+psycopg")
    with CONTENDERS[name](address) as talk, ThreadPoolExecutor(len(clients)) as pool:
        parts = range(-(-turns // EACH))
        begun = list(pool.map(lambda n: [_begun(talk(f"client-{n}-{part}"), messages) for part in parts], clients))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ANALYZE")
        start.wait()
        spans = pool.map(lambda says: [_timed(says[turn // EACH], turn) for turn in range(turns)], begun)
        results.put([span for each in spans for span in each])


def _begun(say: Say, messages: int) -> Say:
    """Extend a conversation to its length, with one input that has everything but the last answer."""
    before = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(messages - 2)]
    say([*before, ("user", text(messages, LENGTH))])
    return say


def _timed(say: Say, turn: int) -> tuple[float, float]:
    began = time.monotonic()
    say([("user", said(CHAT, turn, LENGTH))])
    return began, time.monotonic()
