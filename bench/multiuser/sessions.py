"""The time to list and to open a user's sessions on PostgreSQL, among more and more sessions of other users."""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, text

import agentgit
from agentgit.store.database import Database
from bench import postgres
from bench.graphs import build
from bench.measure import Line, Subject, interleaved, lines
from bench.stage import Stage

TITLE = "Sessions among many"

NOTE = (
    "Milliseconds. One user has 100 sessions; the other rows belong to other users with 100 sessions each. Listed\n"
    "are all 100, newest first, with their counts of branches; one is found by its name; one is opened by repo.wrap."
)

EACH = 100
"""The number of sessions of a user."""

ROUNDS = 20

_SESSIONS = text(
    "INSERT INTO external_session (tenant_id, id, user_id, session_name, created_at, updated_at, is_active,"
    " current_branch_id, meta) SELECT :tenant, n, CASE WHEN n <= :each THEN :user ELSE n / :each END, 'session-' || n,"
    " now(), now() - n * interval '1 second', true, n, '{}'"
    " FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n"
)
_BRANCHES = text(
    "INSERT INTO internal_session (tenant_id, id, external_session_id, thread_id, name, status, inherited, created_at,"
    " meta) SELECT :tenant, n, n, 'agentgit-' || n, 'main', 'open', 0, now(), '{}'"
    " FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n"
)


def measure(stage: Stage) -> Subject:
    """Time lists and openings among more and more sessions."""
    found: list[Line] = []
    if postgres.about():
        with postgres.scratch() as url:
            agentgit.SQLModelSaver.from_conn_string(url).setup()
            with agentgit.open(url) as repo:
                found = _measured(repo, stage.scale.multiuser.sessions)
    return Subject(TITLE, NOTE, found)


def _measured(repo: agentgit.Repository, counts: tuple[int, ...]) -> list[Line]:
    graph, found, there = build(10), [], 0
    for count in counts:
        fill(repo, there + 1, count)
        there = count
        runs = {
            "list": repo.sessions,
            "find by name": partial(repo.session, "session-7"),
            "open to run": partial(repo.wrap, graph, "session-7", check_effects=False),
        }
        interleaved(runs, 2)
        times = interleaved(runs, ROUNDS)
        if len(repo.sessions()) != EACH:
            raise RuntimeError(f"{len(repo.sessions())} sessions were listed instead of {EACH}")
        found += lines(f"{count:,} sessions", times, [])
    return found


def fill(repo: agentgit.Repository, first: int, last: int) -> None:
    """Create sessions: the first 100 belong to the user, the others to other users."""
    store = repo.context.store
    given = {"tenant": store.tenant_id, "user": repo.user.id, "each": EACH, "first": first, "last": last}

    def fill(connection: Connection) -> None:
        connection.execute(_SESSIONS, given)
        connection.execute(_BRANCHES, given)

    store.database.write(fill)
    _analyse(store.database)


def _analyse(database: Database) -> None:
    """Update the statistics of the server, as autovacuum does after a while."""
    database.write(lambda c: c.exec_driver_sql("ANALYZE external_session; ANALYZE internal_session"))
