"""The turns per second of many threads in one server process: a served graph beside the plain one."""

from __future__ import annotations

from statistics import median

from bench import postgres
from bench.measure import Counts, ratio
from bench.multiuser.turns import POSTGRES, SERVED, WRAPPED, run
from bench.stage import Stage

TITLE = "Many threads in one process"

NOTE = (
    "Turns of user and assistant, 200 characters each, in one process with a pool of threads, one for each client and\n"
    "thread id, and up to 16 connections. PostgresSaver has the plain graph and a ConnectionPool of psycopg. The\n"
    "contenders alternate; figures are medians over the rounds."
)

CONTENDERS = (POSTGRES, WRAPPED, SERVED)


def measure(stage: Stage) -> Counts:
    """Measure the largest number of clients, in short and in long conversations."""
    scale, rows = stage.scale.multiuser, []
    if postgres.about():
        clients = max(scale.clients)
        for messages in scale.messages:
            rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for _ in range(scale.rounds):
                for name in CONTENDERS:
                    rates[name].append(run(name, messages, clients, max(3, scale.turns // clients), processes=1)[0])
            case = f"{messages} messages, {clients} threads"
            rows += [
                [case, name, f"{median(found):.0f}", f"{ratio(found, rates[POSTGRES]):.2f}"]
                for name, found in rates.items()
            ]
    return Counts(TITLE, NOTE, ("turns/s", f"x {POSTGRES}"), rows)
