"""The cost of row-level security: the same work as a superuser and as a role that the policies apply to."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL

import agentgit
from agentgit.store.database import Database
from agentgit.store.schema.roles import grant
from bench import postgres
from bench.graphs import CHAT, build, said
from bench.measure import Line, Subject, interleaved, lines
from bench.multiuser.sessions import fill
from bench.stage import Stage

TITLE = "Behind row-level security"

NOTE = (
    "Milliseconds, of one user with 100 sessions among those of others. `superuser` works past the policies; the role\n"
    "is one that `agentgit db grant` made, so that each statement is held against them. The log has 200 checkpoints."
)

ROUNDS = 30
LENGTH = 200
TURNS = 100
"""The turns of the conversation whose log is read; each one makes two checkpoints."""

PAST, BEHIND = "superuser", "granted role"


def measure(stage: Stage) -> Subject:
    """Time the same work as a superuser and as a granted role."""
    found: list[Line] = []
    if postgres.about():
        with (
            postgres.scratch() as url,
            _granted(url) as behind,
            agentgit.open(url) as past,
            agentgit.open(behind) as walled,
        ):
            fill(past, 1, stage.scale.multiuser.sessions[0])
            found = _measured({PAST: past, BEHIND: walled})
    return Subject(TITLE, NOTE, found)


@contextmanager
def _granted(url: URL) -> Iterator[URL]:
    """Create the tables and a role that owns nothing, yield the URL of the role, and drop the role at the end."""
    agentgit.SQLModelSaver.from_conn_string(url).setup()
    agentgit.open(url).close()
    role = f"agentgit_bench_{uuid.uuid4().hex[:12]}"
    database = Database(url)
    try:
        database.write(lambda c: c.exec_driver_sql(f'CREATE ROLE "{role}" LOGIN'))
        grant(database, role)
        yield url.set(username=role)
    finally:
        database.write(lambda c: c.exec_driver_sql(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'))
        database.close()


def _measured(repos: dict[str, agentgit.Repository]) -> list[Line]:
    graph = build(LENGTH)
    agents = {who: repo.wrap(graph, f"talk of {who}", check_effects=False) for who, repo in repos.items()}
    for number in range(TURNS):
        for agent in agents.values():
            agent.invoke({"messages": [("user", said(CHAT, number, LENGTH))]})

    def turn(who: str) -> Any:
        return agents[who].invoke({"messages": [("user", said(CHAT, TURNS, LENGTH))]})

    work: dict[str, Callable[[str], Any]] = {
        "a turn": turn,
        "list 50 sessions": lambda who: repos[who].sessions(limit=50),
        "find one by name": lambda who: repos[who].session("session-7"),
        "a page of the log": lambda who: repos[who].session(f"talk of {who}").log().page(50),
        "the tree": lambda who: repos[who].session(f"talk of {who}").tree(),
        "search": lambda who: repos[who].session(f"talk of {who}").search("chair"),
    }
    found = []
    for case, do in work.items():
        runs = {who: partial(do, who) for who in repos}
        interleaved(runs, 3)
        found += lines(case, interleaved(runs, ROUNDS), [PAST])
    return found
