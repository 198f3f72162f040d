"""The database behind a repository, for tests that look at rows or change them past the library."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import URL, Table, select

import agentgit
from agentgit import ToolInvocation
from agentgit.store.database import Database
from agentgit.store.records.journal import WITH_BRANCH, CallOutcome, Intent
from agentgit.store.schema import roles, schema
from agentgit.store.sql import ids
from agentgit.store.sql.tables import METADATA

NEWEST_SCHEMA = schema.REVISION
"""The schema that the library needs."""


def database(repo):
    """Return the database of a repository, a session or an agent."""
    return repo.context.store.database


def url(repo) -> URL:
    """Return the place of the database, to open it once more."""
    return database(repo).url


def address(repo) -> str:
    """Return the same as text, with its password."""
    return url(repo).render_as_string(hide_password=False)


def is_sqlite(repo) -> bool:
    """Return True for SQLite, False for PostgreSQL."""
    return database(repo).is_sqlite


def reading(repo):
    """Open a transaction that reads."""
    return database(repo).reading()


def write(repo, do):
    """Run a function in a transaction that writes; it gets the connection."""
    return database(repo).write(do)


# -- rows


def table(name: str) -> Table:
    """Return a table by its name in the database."""
    return METADATA.tables[name]


def tables() -> list[str]:
    """Name all tables."""
    return list(METADATA.tables)


def change(repo, name: str, row: int | None = None, **values: Any) -> None:
    """Change a row of a table, or all rows, as somebody does who can write to the database.

    Args:
        repo: The repository.
        name: The table.
        row: The id of the row; None for all.
        values: What is changed.
    """
    update = table(name).update().values(**values)
    write(repo, lambda connection: connection.execute(update if row is None else update.where(table(name).c.id == row)))


def threads(repo) -> set[str]:
    """Return the LangGraph threads in the database."""
    with reading(repo) as connection:
        return set(connection.execute(select(table("graph_checkpoint").c.thread_id)).scalars())


def saver(repo) -> agentgit.SQLModelSaver:
    """Return a saver on the rows of a repository's sessions."""
    store = repo.context.store
    return agentgit.SQLModelSaver(store.database, tenant_id=store.tenant_id, graphs=store.graphs, sessions=True)


# -- calls


def journal(repo) -> list[ToolInvocation]:
    """Return every call that was ever recorded, oldest first, of whatever session and branch."""
    calls, branches = table("tool_invocation"), table("internal_session")
    query = select(calls, branches.c.inherited).select_from(WITH_BRANCH).order_by(calls.c.id)
    with reading(repo) as connection:
        return repo.context.store.journal.own_values(connection, connection.execute(query).all())


def runner(session: agentgit.Session, tool_name: str) -> Callable[[Any], Any]:
    """Return what calls a tool of a session again, as a rollback does that redoes a call; it gets the arguments."""
    found = ToolInvocation(id=1, internal_session_id=1, position=0, tool_name=tool_name)
    run = session.context.registry.runner(session.id, found)
    return lambda args: run(args, "thread")


def begin_call(repo, branch, **known: Any) -> int:
    """Record that a call of another process begins; give its id.

    Args:
        repo: The repository.
        branch: Whose call it is.
        known: What is known of the call, besides what any call has.
    """
    intent = _intent(branch, **known)
    return write(repo, lambda connection: repo.context.store.journal.intend(connection, intent))


def record_call(repo, branch, **known: Any) -> None:
    """Record a call that another process has made; the arguments are those of `begin_call`."""
    intent, journal = _intent(branch, **known), repo.context.store.journal
    done = CallOutcome(status="done", result={}, ended_at=datetime.now(UTC))
    write(repo, lambda connection: journal.end(connection, journal.intend(connection, intent), done))


def leave_running(repo, branch, **known: Any) -> int:
    """Leave a call as a process does that is killed inside of a tool; give its id.

    The arguments are those of `begin_call`.
    """
    with at_work(repo) as owner:
        take(repo, branch, owner)
        return begin_call(repo, branch, owner=owner, **known)


def take(repo, branch, owner: str) -> None:
    """Let a turn of another process take a branch."""
    write(repo, lambda connection: repo.context.store.sessions.acquire(connection, branch.id, owner))


def at_work(repo) -> AbstractContextManager[str]:
    """Make an owner of turns, which lives until the end of the block."""
    return repo.context.store.at_work()


def _intent(branch, item: str, **known: Any) -> Intent:
    given = {
        "batch": 9, "batch_index": 0, "tool_name": "add", "tool_call_id": "x", "effect": "reversible", "undo": None,
        "args": {"item": item}, "idempotency_key": "x", "owner": "x", "started_at": datetime.now(UTC),
    }  # fmt: skip
    return Intent(session_id=branch.external_session_id, branch_id=branch.id, **given | known)


# -- what operators do


def upgrade(place, revision: str | None = None) -> None:
    """Bring the tables of a database to a schema, as `agentgit db upgrade` does; None is the newest."""
    with closing(Database(place)) as database:
        schema.upgrade(database, *([] if revision is None else [revision]))


def grant(place, role: str) -> int:
    """Give a role of PostgreSQL what it needs, as `agentgit db grant` does; tell on how many tables."""
    with closing(Database(place)) as database:
        return roles.grant(database, role)


def run_sql(place, statement: str) -> None:
    """Run a statement on a database."""
    with closing(Database(place)) as database:
        database.write(lambda connection: connection.exec_driver_sql(statement))


# -- locks


def lock(repo, name: str) -> Any:
    """Return a lock that threads of this process share: of `ids`, of the `bus` of events, or of `values`."""
    locks = {
        "ids": lambda: ids._lock,
        "bus": lambda: database(repo).bus._lock,
        "values": lambda: repo.context.store.graphs.content.blobs._leaves._lock,
    }
    return locks[name]()


def remember_no_values(repo) -> None:
    """Add nothing to the values that this process remembers, which takes their lock."""
    repo.context.store.graphs.content.blobs._leaves.add([])
