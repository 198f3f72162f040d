"""The PostgreSQL server for benchmarks, if one answers; each contender has a separate database on it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, make_url

SERVER = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))
"""The URL of the server, which is that of the tests."""

SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
"""
"""The query for the size of all tables with their indexes and TOAST data."""

VACUUM_SECONDS = 10
"""The time between two runs of VACUUM and ANALYZE in each database of a benchmark.

A database that has been in use has statistics of its tables, because autovacuum runs once in a minute. A new one has
none, so PostgreSQL plans each statement as for empty tables, and reads whole sessions to find one row.
"""


@cache
def about() -> str | None:
    """Return the version and the commit setting of the server, or None if no server answers."""
    try:
        with _connect(SERVER, connect_timeout=2) as connection:
            told = [connection.execute(f"SHOW {name}").fetchone() for name in ("server_version", "synchronous_commit")]
    except psycopg.OperationalError:
        return None
    version, commit = (str(row[0]) for row in told if row)
    return f"{version.split()[0]}, synchronous_commit={commit}"


@contextmanager
def scratch() -> Iterator[URL]:
    """Create an empty database, yield its URL, and drop it at the end."""
    name = f"agentgit_bench_{uuid.uuid4().hex}"
    with _connect(SERVER) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            url = SERVER.set(database=name)
            with vacuumed(url):
                yield url
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def vacuumed(url: URL) -> Iterator[None]:
    """Run VACUUM and ANALYZE from time to time, as autovacuum does."""
    has_ended = threading.Event()

    def vacuum() -> None:
        while not has_ended.wait(VACUUM_SECONDS):
            with _connect(url) as connection:
                connection.execute("VACUUM (ANALYZE)")

    with ThreadPoolExecutor(1) as pool:
        vacuuming = pool.submit(vacuum)
        try:
            yield
        finally:
            has_ended.set()
            vacuuming.result()


def cpu(url: URL) -> float:
    """Return the CPU seconds of the server's processes that work on a database; 0 if it runs on another machine."""
    with _connect(SERVER) as server:
        pids = server.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", (url.database,)).fetchall()
    found = 0.0
    for (pid,) in pids:
        with suppress(OSError):
            found += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return found


def size(url: URL) -> int:
    """Return the size of all tables of a database in bytes."""
    with _connect(url) as connection:
        return sum(int(row[0]) for row in connection.execute(SIZE))


def analyze(url: URL) -> None:
    """Update the statistics of a database, as autovacuum does in its first minute."""
    with _connect(url) as connection:
        connection.execute("ANALYZE")


def plain(url: Any) -> str:
    """Return a URL in the form that psycopg and LangGraph accept."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _connect(url: URL, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(plain(url), autocommit=True, **options)
