"""The turns per second of many concurrent clients on PostgreSQL, with agentgit and with LangGraph's own saver."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

from sqlalchemy import make_url

from bench import postgres
from bench.contenders import POSTGRES, SERVER, Say
from bench.graphs import CHAT, said, text
from bench.measure import Table
from bench.stage import Stage

NOTE = (
    "Turns of user and assistant, 200 characters each, a thread for each client and up to 16 connections a process.\n"
    "Each client has conversations of its own, and with PostgresSaver a saver of its own over its process's pool.\n"
    "Milliseconds of the processes' CPU time for a turn, and the median time of a turn with its waits."
)

LENGTH = 200

EACH = 8
"""The turns of a conversation; then its client begins another one, so that the length stays about the same."""


class Run(NamedTuple):
    """The turns per second of all clients together, and the seconds and CPU seconds of a turn."""

    rate: float
    time: float
    cpu: float


def measure(stage: Stage) -> list[Table]:
    """Measure more and more clients in two processes, the largest number in one, and eight in a process each."""
    scale, found = stage.scale, []
    if postgres.about():
        for processes, clients in ((2, scale.clients), (1, scale.clients[-1:]), (8, (8,))):
            made: list[list[str]] = []
            for messages in scale.messages[:2]:
                for count in clients:
                    # Each process prepares its statements first, so that more of them need more turns.
                    made += _rows(messages, count, max(3, scale.shared * max(processes, 2) // (2 * count)), processes)
            columns = ("turns/s", f"x {POSTGRES}", "CPU", "time")
            title = f"Many clients at once: {processes} process{'es' if processes > 1 else ''}"
            found.append(Table(title, NOTE, columns, made))
    return found


def _rows(messages: int, clients: int, turns: int, processes: int) -> list[list[str]]:
    found = {name: run(name, messages, clients, turns, processes) for name in SERVER}
    base = found[POSTGRES].rate
    case = f"{messages} messages, {clients} client{'s' if clients > 1 else ''}"
    return [
        [case, name, f"{one.rate:.0f}", f"{one.rate / base:.2f}", f"{one.cpu * 1000:.1f}", f"{one.time * 1000:.1f}"]
        for name, one in found.items()
    ]


def run(name: str, messages: int, clients: int, turns: int, processes: int) -> Run:
    """Run the turns of each client, spread over the processes of a server."""
    with postgres.scratch() as url:
        forking = multiprocessing.get_context("forkserver")
        forking.set_forkserver_preload([__name__])
        shares = [range(clients)[n::processes] for n in range(min(processes, clients))]
        start, results = forking.Barrier(len(shares)), forking.SimpleQueue()
        with SERVER[name](url, LENGTH):  # makes the tables, before several processes would
            pass
        given = [(name, postgres.plain(url), list(share), messages, turns, start, results) for share in shares]
        workers = [forking.Process(target=_work, args=one) for one in given]
        for worker in workers:
            worker.start()
        found: list[Mapping[str, Any]] = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
    spans = [span for one in found for span in one["spans"]]
    wall = max(end for _, end in spans) - min(begin for begin, _ in spans)
    used = sum(one["cpu"] for one in found) / len(spans)
    return Run(len(spans) / wall, median(end - begin for begin, end in spans), used)


def _work(name: str, url: str, clients: list[int], messages: int, turns: int, start: Any, results: Any) -> None:
    """Run one process of the server."""
    address = make_url(url).set(drivername="postgresql+psycopg")
    with SERVER[name](address, LENGTH) as opened, ThreadPoolExecutor(len(clients)) as pool:
        parts = range(-(-turns // EACH))
        begun = list(
            pool.map(lambda n: [_begun(opened.begin(f"client-{n}-{part}"), messages) for part in parts], clients)
        )
        postgres.analyze(address)
        start.wait()
        used = time.process_time()
        spans = list(pool.map(lambda says: [_timed(says[turn // EACH], turn) for turn in range(turns)], begun))
        used = time.process_time() - used
        results.put({"spans": [span for each in spans for span in each], "cpu": used})


def _begun(say: Say, messages: int) -> Say:
    """Extend a conversation to its length, with one input that has everything but the last answer."""
    before = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(messages - 2)]
    say([*before, ("user", text(messages, LENGTH))])
    return say


def _timed(say: Say, turn: int) -> tuple[float, float]:
    began = time.monotonic()
    say([("user", said(CHAT, turn, LENGTH))])
    return began, time.monotonic()
