"""The database behind a repository, for tests that read or change rows without the library."""

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
    """Return the URL of the database, to open it again."""
    return database(repo).url


def address(repo) -> str:
    """Return the URL of the database as text, with its password."""
    return url(repo).render_as_string(hide_password=False)


def is_sqlite(repo) -> bool:
    """Return True for SQLite, False for PostgreSQL."""
    return database(repo).is_sqlite


def reading(repo):
    """Open a read transaction."""
    return database(repo).reading()


def write(repo, do):
    """Run a function in a write transaction; the function receives the connection."""
    return database(repo).write(do)


# -- rows


def table(name: str) -> Table:
    """Return a table by its name in the database."""
    return METADATA.tables[name]


def tables() -> list[str]:
    """Name all tables."""
    return list(METADATA.tables)


def change(repo, name: str, row: int | None = None, **values: Any) -> None:
    """Change one row or all rows of a table directly in the database.

    Args:
        repo: The repository.
        name: The table.
        row: The id of the row; None for all rows.
        values: The new values, by column.
    """
    update = table(name).update().values(**values)
    write(repo, lambda connection: connection.execute(update if row is None else update.where(table(name).c.id == row)))


def threads(repo) -> set[str]:
    """Return the LangGraph threads in the database."""
    with reading(repo) as connection:
        return set(connection.execute(select(table("graph_checkpoint").c.thread_id)).scalars())


def saver(repo) -> agentgit.SQLModelSaver:
    """Return a saver that reads and writes the sessions of a repository."""
    store = repo.context.store
    return agentgit.SQLModelSaver(store.database, tenant_id=store.tenant_id, graphs=store.graphs, sessions=True)


# -- calls


def journal(repo) -> list[ToolInvocation]:
    """Return every recorded call of all sessions and branches, oldest first."""
    calls, branches = table("tool_invocation"), table("internal_session")
    query = select(calls, branches.c.inherited).select_from(WITH_BRANCH).order_by(calls.c.id)
    with reading(repo) as connection:
        return repo.context.store.journal.invocations_from_rows(connection, connection.execute(query).all())


def runner(session: agentgit.Session, tool_name: str) -> Callable[[Any], Any]:
    """Return a function that takes arguments and calls a session's tool, as a rollback does when it redoes a call."""
    found = ToolInvocation(id=1, internal_session_id=1, position=0, tool_name=tool_name)
    run = session.context.registry.runner(session.id, found)
    return lambda args: run(args, "thread")


def begin_call(repo, branch, **known: Any) -> int:
    """Record the start of a call of another process, and return its id.

    Args:
        repo: The repository.
        branch: The branch of the call.
        known: Fields of the call that replace the defaults.
    """
    intent = _intent(branch, **known)
    return write(repo, lambda connection: repo.context.store.journal.intend(connection, intent))


def record_call(repo, branch, **known: Any) -> None:
    """Record a completed call of another process; the arguments are those of `begin_call`."""
    intent, journal = _intent(branch, **known), repo.context.store.journal
    done = CallOutcome(status="done", result={}, ended_at=datetime.now(UTC))
    write(repo, lambda connection: journal.end(connection, journal.intend(connection, intent), done))


def leave_running(repo, branch, **known: Any) -> int:
    """Leave a call running, as a process killed inside a tool does, and return the id of the call.

    The arguments are those of `begin_call`.
    """
    with at_work(repo) as owner:
        take(repo, branch, owner)
        return begin_call(repo, branch, owner=owner, **known)


def take(repo, branch, owner: str) -> None:
    """Acquire a branch for a turn of another process."""
    write(repo, lambda connection: repo.context.store.sessions.acquire(connection, branch.id, owner))


def at_work(repo) -> AbstractContextManager[str]:
    """Create an owner of turns that is alive until the end of the block."""
    return repo.context.store.register_owner()


def _intent(branch, item: str, **known: Any) -> Intent:
    given = {
        "batch": 9, "batch_index": 0, "tool_name": "add", "tool_call_id": "x", "effect": "reversible", "undo": None,
        "args": {"item": item}, "idempotency_key": "x", "owner": "x", "started_at": datetime.now(UTC),
    }  # fmt: skip
    return Intent(session_id=branch.external_session_id, branch_id=branch.id, **given | known)


# -- the work of operators


def upgrade(place, revision: str | None = None) -> None:
    """Upgrade the tables of a database to a schema, as `agentgit db upgrade` does; None is the newest schema."""
    with closing(Database(place)) as database:
        schema.upgrade(database, *([] if revision is None else [revision]))


def grant(place, role: str) -> int:
    """Grant a PostgreSQL role its rights, as `agentgit db grant` does, and return the number of tables."""
    with closing(Database(place)) as database:
        return roles.grant(database, role)


def run_sql(place, statement: str) -> None:
    """Run a statement on a database."""
    with closing(Database(place)) as database:
        database.write(lambda connection: connection.exec_driver_sql(statement))


# -- locks


def lock(repo, name: str) -> Any:
    """Return a lock shared by the threads of this process: that of `ids`, of the event `bus`, or of `values`."""
    locks = {
        "ids": lambda: ids._lock,
        "bus": lambda: database(repo).bus._lock,
        "values": lambda: repo.context.store.graphs.content.blobs._leaves._lock,
    }
    return locks[name]()


def remember_no_values(repo) -> None:
    """Acquire the lock of the remembered values by adding no values."""
    repo.context.store.graphs.content.blobs._leaves.add([])
