"""The time of a turn of a served graph, beside the same turn of a wrapped agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL

import agentgit
from bench import postgres
from bench.contenders import WRAPPED
from bench.graphs import CHAT, EFFECTS, MESSAGES, TOOL, build, check, said, text
from bench.measure import Line, Subject, lines, rotated, timed
from bench.multiuser.turns import SERVED
from bench.stage import Stage
from bench.turn import LENGTH, NAMES, WARM_UP

MESSAGE_COUNTS = (2, 100)
"""The messages of the conversations before the turn."""

ROUNDS_PER_FRESH = 2
"""A difference of a tenth needs more rounds than the factors of other tables."""

NOTE = (
    f"Milliseconds of an invoke of repo.graph and of repo.wrap on the same database; messages of {LENGTH} characters.\n"
    "The model and the tool do no work of their own; the tool is declared reversible. Each turn is the second one of\n"
    "a new conversation."
)

Say = Callable[[list[Any]], list[Any]]
"""A function that runs one turn with new messages, and returns the messages after it."""


def measure(stage: Stage) -> Subject:
    """Time turns of both kinds, in short and in long conversations, on each database."""
    found: list[Line] = []
    for name, database in databases(stage.where / "served.db").items():
        with database as url, agentgit.open(url) as repo:
            for kind in (CHAT, TOOL):
                for messages in MESSAGE_COUNTS:
                    times = _times(repo, kind, messages, stage.scale.fresh * ROUNDS_PER_FRESH)
                    found += lines(f"{NAMES[kind]}, {messages} messages, {name}", times, [WRAPPED])
    return Subject("Time of a turn of a served graph", NOTE, found)


def databases(path: Path) -> dict[str, Any]:
    """Return a new database on SQLite, and one on PostgreSQL if a server answers, each as a context manager."""
    return {"SQLite": _file(path), **({"PostgreSQL": _scratch()} if postgres.about() else {})}


@contextmanager
def _file(path: Path) -> Iterator[Path]:
    yield path


@contextmanager
def _scratch() -> Iterator[URL]:
    with ExitStack() as held:
        url = held.enter_context(postgres.scratch())
        agentgit.SQLModelSaver.from_conn_string(url).setup()
        yield url


def _times(repo: agentgit.Repository, kind: str, messages: int, rounds: int) -> dict[str, list[float]]:
    """Time a turn of new conversations that have so many messages before it."""
    graph = build(LENGTH)
    app = repo.graph(graph, effects=EFFECTS)

    def wrapped(name: str) -> Say:
        agent = repo.wrap(graph, session=name, effects=EFFECTS)
        return lambda new: list(agent.invoke({"messages": new})["messages"])

    def served(name: str) -> Say:
        thread: Any = {"configurable": {"thread_id": name}}
        return lambda new: list(app.invoke({"messages": new}, thread)["messages"])

    begin = {WRAPPED: wrapped, SERVED: served}
    times: dict[str, list[float]] = {name: [] for name in begin}
    earlier = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(messages - 1)]
    for number in range(WARM_UP + rounds):
        for name in rotated(list(begin), number):
            say = begin[name](f"{name}, {kind}, {messages}, {number}")
            say(earlier)
            took, after = timed(partial(say, [("user", said(kind, number, LENGTH))]))
            check(after, messages + MESSAGES[kind])
            times[name].append(took)
    return {name: found[WARM_UP:] for name, found in times.items()}
