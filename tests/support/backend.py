"""The database behind a repository, for tests that read or change rows without the library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from alembic import command
from sqlalchemy import URL, Connection, NullPool, Table, create_engine, event, select

import agentgit
from agentgit import ToolInvocation
from agentgit.store.database import Database
from agentgit.store.records.encryption_keys import raw_table
from agentgit.store.records.journal import WITH_BRANCH, CallOutcome, Intent
from agentgit.store.schema import migrations, schema
from agentgit.store.sql import ids
from agentgit.store.sql.tables import METADATA

T = TypeVar("T")

NEWEST_SCHEMA = schema.REVISION
"""The schema that the library needs."""


def database(repo):
    """Return the database of a repository, a session or an agent; a database is its own."""
    return repo if isinstance(repo, Database) else repo.context.store.database


def url(repo) -> URL:
    return database(repo).url


def address(repo) -> str:
    """Return the URL of the database as text, with its password."""
    return url(repo).render_as_string(hide_password=False)


def is_sqlite(repo) -> bool:
    return database(repo).is_sqlite


@contextmanager
def statements(repo) -> Iterator[list[tuple[str, Any]]]:
    """Yield a list that gets the statements of the block, with their parameters."""
    said: list[tuple[str, Any]] = []

    def tell(_connection, _cursor, statement, parameters, *_):
        said.append((statement, parameters))

    event.listen(database(repo).engine, "before_cursor_execute", tell)
    yield said
    event.remove(database(repo).engine, "before_cursor_execute", tell)


def reading(repo):
    return database(repo).reading()


def write(repo, do):
    """Run a function in a write transaction; the function receives the connection."""
    return database(repo).write(do)


def wait_for_the_feed(repo) -> None:
    """Wait until the feed has reached the newest event, which transactions of other tests delay."""
    deadline = time.monotonic() + 60
    while repo.events.newest(limit=1)[0].cursor.endswith(".0") and time.monotonic() < deadline:
        time.sleep(0.01)


# -- rows


def table(name: str) -> Table:
    return METADATA.tables[name]


def tables() -> list[str]:
    return list(METADATA.tables)


def change(repo, name: str, row: int | None = None, **values: Any) -> None:
    """Change one row, or all rows, of a table directly in the database."""
    update = table(name).update().values(**values)
    write(
        repo, lambda transaction: transaction.execute(update if row is None else update.where(table(name).c.id == row))
    )


def threads(repo) -> set[str]:
    with reading(repo) as connection:
        return set(connection.execute(select(table("graph_checkpoint").c.thread_id)).scalars())


def saver(repo) -> agentgit.SQLModelSaver:
    """Return a saver that reads and writes the sessions of a repository."""
    store = repo.context.store
    return agentgit.SQLModelSaver(store.database, graphs=store.graphs, sessions=True)


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
    """Record the start of a call of another process, and return its id; `known` replaces default fields."""
    intent = _intent(branch, **known)
    return write(repo, lambda transaction: repo.context.store.journal.intend(transaction, intent))


def record_call(repo, branch, **known: Any) -> None:
    """Record a completed call of another process."""
    intent, journal = _intent(branch, **known), repo.context.store.journal
    done = CallOutcome(status="done", result={}, ended_at=datetime.now(UTC))
    write(repo, lambda transaction: journal.end(transaction, journal.intend(transaction, intent), done))


def leave_running(repo, branch, **known: Any) -> int:
    """Leave a call running, as a process killed inside a tool does, and return the id of the call."""
    with at_work(repo) as owner:
        take(repo, branch, owner)
        return begin_call(repo, branch, owner=owner, **known)


def take(repo, branch, owner: str) -> None:
    write(repo, lambda transaction: repo.context.store.sessions.acquire(transaction, branch.id, owner)())


def from_outside(look: Callable[[], T]) -> T:
    """Call a function in another thread, where no turn is under way, and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result()


def at_work(repo) -> AbstractContextManager[str]:
    """Create an owner of turns that is alive until the end of the block."""
    return repo.context.store.register_owner()


def _intent(branch, item: str, **known: Any) -> Intent:
    given = {
        "batch": 9, "batch_index": 0, "tool_name": "add", "tool_call_id": "x", "effect": "reversible", "undo": None,
        "args": {"item": item}, "idempotency_key": "x", "owner": "x", "started_at": datetime.now(UTC),
    }  # fmt: skip
    return Intent(session_id=branch.external_session_id, branch_id=branch.id, **given | known)


# -- other connections

QUIET_SECONDS = 60
"""The time to wait for other connections that are active in a database."""

ACTIVE_CONNECTIONS = """
SELECT pg_stat_clear_snapshot(), pid, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'
"""


def wait_until_quiet(connection: Connection) -> None:
    """Wait until no other connection to a PostgreSQL database is in a transaction.

    The server may still be running the last commit of a killed process, whose rows would appear later.
    """
    until = time.monotonic() + QUIET_SECONDS
    while found := connection.exec_driver_sql(ACTIVE_CONNECTIONS).all():
        assert time.monotonic() < until, f"another connection is still at work: {found}"
        time.sleep(0.01)


def wait_until_blocked(repo) -> None:
    """Wait until another connection to a PostgreSQL database waits for a lock."""
    until = time.monotonic() + QUIET_SECONDS
    while not _pids(address(repo), "SELECT pid", " AND wait_event_type = 'Lock'"):
        assert time.monotonic() < until, "no connection waits for a lock"
        time.sleep(0.01)


def connections(address: str) -> list[int]:
    """Return the process ids of the connections to a PostgreSQL database; none on SQLite."""
    return _pids(address, "SELECT pid") if address.startswith("postgresql") else []


def disconnect(address: str, others: Sequence[int]) -> None:
    """Make a PostgreSQL server end the connections to a database, except some other ones."""
    _pids(address, "SELECT pg_terminate_backend(pid, 10000)", f" AND pid <> ALL (ARRAY{list(others)}::integer[])")


def _pids(address: str, query: str, condition: str = "") -> list[Any]:
    engine = create_engine(address, poolclass=NullPool)
    with engine.connect() as connection:
        return list(
            connection.exec_driver_sql(
                f"{query} FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                f"AND backend_type = 'client backend'{condition}"
            ).scalars()
        )


TURN_ROWS = {
    "graph_checkpoint": ("thread_id", "ns", "checkpoint_id"),
    "graph_write": ("thread_id", "ns", "checkpoint_id", "task_id", "idx"),
    "tool_invocation": ("id", "status"),
    "checkpoint": ("id",),
    "internal_session": ("id", "head_id"),
}
"""The tables that a turn writes, each with the columns that identify a row or change."""


def rows_of_turns(address: str) -> dict[str, list[list[Any]]]:
    engine = create_engine(address, poolclass=NullPool)
    with engine.connect() as connection:
        return {
            name: sorted([*map(str, row)] for row in connection.execute(select(*map(table(name).c.get, columns))))
            for name, columns in TURN_ROWS.items()
        }


# -- the work of operators


def upgrade(place, revision: str | None = None) -> None:
    """Upgrade the tables of a database to a schema; None is the newest, as `agentgit db upgrade` does."""
    with closing(Database(place)) as database:
        if revision is None:
            schema.upgrade(database)
        else:
            migrate(database, command.upgrade, revision)


def migrate(database: Database, move: Callable[[Any, str], None], revision: str) -> None:
    """Run `upgrade` or `downgrade` of Alembic in a transaction."""

    def run(transaction):
        with migrations.configured(transaction.connection) as config:
            move(config, revision)

    database.write(run, durable=True)


def grant(place, role: str) -> int:
    """Grant a PostgreSQL role its rights, as `agentgit db grant` does, and return the number of tables."""
    with closing(Database(place)) as database:
        return schema.grant(database, "public", role)


def run_sql(place, statement: str) -> None:
    with closing(Database(place)) as database:
        database.write(lambda transaction: transaction.connection.exec_driver_sql(statement))


# -- locks


def lock(repo, name: str) -> Any:
    """Return a lock shared by the threads of this process: of `ids`, `values` or served `sessions`."""
    locks = {
        "ids": lambda: ids._lock,
        "values": lambda: repo.context.store.graphs.blobs.leaves._lock,
        "sessions": lambda: repo.context.registry.lock,
    }
    return locks[name]()


def remember_no_values(repo) -> None:
    """Acquire the lock of the remembered values by adding no values."""
    repo.context.store.graphs.blobs.leaves.add([])


def as_stored(repo: Any) -> str:
    found: list[str] = []
    with reading(repo) as connection:
        for table in METADATA.sorted_tables:
            for row in connection.execute(select(raw_table(table.name))).all():
                found += [value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in row]
    return "\n".join(found)
