"""A PostgreSQL server to measure on, where one answers; each contender gets a database of its own there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from sqlalchemy import URL, make_url

SERVER = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))
"""Where the tests look for one, too."""

SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
"""
"""All tables with their indexes and what PostgreSQL keeps beside them (TOAST)."""


@cache
def about() -> str | None:
    """Tell the version of the server and how it commits; None if no server answers."""
    try:
        with _connect(SERVER, connect_timeout=2) as connection:
            told = [connection.execute(f"SHOW {name}").fetchone() for name in ("server_version", "synchronous_commit")]
    except psycopg.OperationalError:
        return None
    version, commit = (str(row[0]) for row in told if row)
    return f"{version.split()[0]}, synchronous_commit={commit}"


@contextmanager
def scratch() -> Iterator[URL]:
    """Make an empty database, and drop it at the end."""
    name = f"agentgit_bench_{uuid.uuid4().hex}"
    with _connect(SERVER) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield SERVER.set(database=name)
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def size(url: URL) -> int:
    """Tell the bytes of all tables of a database."""
    with _connect(url) as connection:
        return sum(int(row[0]) for row in connection.execute(SIZE))


def plain(url: URL) -> str:
    """Write an address as psycopg and LangGraph take it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _connect(url: URL, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(plain(url), autocommit=True, **options)
