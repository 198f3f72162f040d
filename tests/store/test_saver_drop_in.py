"""SQLModelSaver takes what LangGraph's own savers take, and behaves like them at its borders."""

import asyncio
import sqlite3
from datetime import UTC, datetime

import aiosqlite
import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from saver_checkpoints import on, put, values
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

import agentgit
from agentgit import InvalidInput, SQLModelSaver, Unavailable
from agentgit.store.threads.graph_rows import GraphScope

LANGGRAPH = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""The arguments with which LangGraph's documentation opens connections for PostgresSaver."""


def address(url):
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def keywords(url):
    return f"host={url.host} port={url.port} user={url.username} dbname={url.database}"


class OwnConnection(psycopg.Connection):
    """A connection as a program defines it for itself."""


def hosts(url):
    return f"postgres://{url.username}@{url.host}:{url.port},{url.host}:1/{url.database}?prepare_threshold=none"


TAKEN = {
    "connection": lambda url: psycopg.connect(address(url), **LANGGRAPH),
    "pool": lambda url: ConnectionPool(address(url), kwargs=LANGGRAPH, min_size=1, max_size=2, open=True),
    "engine": lambda url: create_engine(url),
    "URL": address,
    "SQLAlchemy URL": lambda url: url,
    "libpq": keywords,
    "libpq options": lambda url: f"{keywords(url)} options='-c work_mem=5MB'",
    "hosts and threshold": hosts,
    "subclass": lambda url: OwnConnection.connect(address(url), **LANGGRAPH),
}


@pytest.mark.parametrize("name", TAKEN)
def test_everything_that_names_a_postgres_database_is_taken(postgres_url, name):
    given = TAKEN[name](postgres_url)
    with SQLModelSaver(given) as saver:
        saver.setup()
        put(saver, "t", {"a": 1})
        assert asyncio.run(saver.aget_tuple(on("t"))).checkpoint["channel_values"] == {"a": 1}
    with SQLModelSaver(postgres_url) as saver:
        assert values(saver, on("t")) == {"a": 1}
    if isinstance(given, psycopg.Connection):
        assert given.execute("SELECT 1 AS one").fetchone() == {"one": 1}
        given.close()
    if isinstance(given, ConnectionPool):
        with given.connection() as connection:
            assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
        given.close()


async def test_async_connections_and_pools_are_taken(postgres_url):
    async with (
        await psycopg.AsyncConnection.connect(address(postgres_url), **LANGGRAPH) as connection,
        SQLModelSaver(connection) as saver,
    ):
        await saver.setup()
        new = empty_checkpoint() | {"channel_values": {"a": 1}, "channel_versions": {"a": 1}}
        await saver.aput(on("t", checkpoint_ns=""), new, {}, {"a": 1})
    async with (
        AsyncConnectionPool(address(postgres_url), kwargs=LANGGRAPH, min_size=1, max_size=2, open=False) as pool,
        SQLModelSaver(pool) as saver,
    ):
        assert (await saver.aget_tuple(on("t"))).checkpoint["channel_values"] == {"a": 1}
        assert saver.database.engine.pool.size() == 2


def test_an_engine_connects_with_its_own_arguments_and_listeners(postgres_url):
    engine, connections = create_engine("postgresql+psycopg://"), []

    @event.listens_for(engine, "do_connect")
    def give_address(_dialect, _record, _args, arguments):
        arguments |= {"host": postgres_url.host, "user": postgres_url.username, "dbname": postgres_url.database}
        connections.append(arguments)

    with SQLModelSaver(engine) as saver:
        put(saver, "t", {"a": 1})
        assert values(saver, on("t")) == {"a": 1}
    assert connections
    assert engine.pool.checkedout() == 0


@pytest.mark.parametrize("settings", [{}, {"row_factory": sqlite3.Row}, {"text_factory": bytes}], ids=str)
def test_a_sqlite_connection_and_engine_are_taken(tmp_path, settings):
    def connected(path):
        connection = sqlite3.connect(path, check_same_thread=False)
        for name, value in settings.items():
            setattr(connection, name, value)
        return connection

    path = tmp_path / "threads.db"
    with SQLModelSaver(connected(path)) as saver:
        put(saver, "t", {"a": 1})
    with SQLModelSaver(create_engine(f"sqlite:///{path}")) as saver:
        assert values(saver, on("t")) == {"a": 1}
    with SQLModelSaver(connected(":memory:")) as saver:
        put(saver, "t", {"a": 2})
        assert values(saver, on("t")) == {"a": 2}


def test_no_error_shows_a_secret_of_a_connection_string(postgres_url):
    hidden = f"host={postgres_url.host} port=1 dbname=x password=hidden-1 sslpassword=hidden-2"
    with SQLModelSaver(hidden) as saver:
        with pytest.raises(Unavailable) as raised:
            saver.get_tuple(on("t"))
        with agentgit.open(":memory:") as repo, pytest.raises(Unavailable) as imported:
            repo.import_langgraph(hidden)
        assert "hidden" not in f"{raised.value} {imported.value} {saver.database}"


def memory_with_tables():
    connection = sqlite3.connect(":memory:")
    SqliteSaver(connection).setup()
    return connection


def closed(connection):
    connection.close()
    return connection


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda url: memory_with_tables(), "in memory with tables"),
        (lambda url: create_engine("sqlite://"), "Only this engine"),
        (lambda url: create_async_engine(url), "async engine"),
        (lambda url: closed(sqlite3.connect(":memory:")), "cannot be used"),
        (lambda url: aiosqlite.connect("threads.db"), "Give its path"),
        (lambda url: closed(psycopg.connect(address(url))), "closed"),
        (lambda url: ConnectionPool(lambda: address(url), open=False), "for each connection"),
        (lambda url: "postgresql+asyncpg://me@host/db", r"asyncpg.*postgresql\+psycopg://"),
        (lambda url: "sqlite+aiosqlite:///threads.db", "aiosqlite.*sqlite:///"),
        (lambda url: "postgresql+psycopg2://me@host/db", "psycopg2"),
        (lambda url: "mysql://me@host/db", "SQLite and PostgreSQL"),
        (lambda url: "://", "://"),
        (lambda url: "sqlite:/x://", "sqlite:/x://"),
        (lambda url: "host='secret", "not a valid connection string"),
        (lambda url: "postgresql://me:secret@a:1,b:x:y/db?nonsense=1", "not a valid"),
        (lambda url: "", "empty string"),
        (lambda url: 3, "int is not a database"),
        (lambda url: PostgresSaver, "is not a database"),
    ],
)
def test_what_does_not_name_a_database_is_refused(postgres_url, tmp_path, monkeypatch, build, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=words) as raised:
        SQLModelSaver(build(postgres_url))
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_libpq_string_never_names_a_file(postgres_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with agentgit.open(keywords(postgres_url)) as repo:
        assert repo.sessions() == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lr=0.1").mkdir()
    for path in ("lr=0.1/notes.db", "./host=1.db", tmp_path / "host=2.db"):
        SQLModelSaver.from_conn_string(path, pipeline=True).close()
    assert sorted(one.name for one in tmp_path.rglob("*.db")) == ["host=1.db", "host=2.db", "notes.db"]


NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
METADATA = [
    {"source": "loop", "step": 1, "who": "Ada"},
    {"source": "input", "step": 2, "who": "Ada", "inner": {"source": "loop"}},
    {"source": "loop", "step": 3, "who": 'Eve","source":"x'},
    {"source": "loop", "step": 4, "who": 'Zoë \\ "', "odd": "\ud800"},
    {"source": "loop", "step": 5.0, "flag": True, "zero": -0.0, "none": None, "list": ["a", "b"], "at": NOON},
]


FOUND = [
    ({}, [5, 4, 3, 2, 1]),
    ({"source": "loop"}, [5, 4, 3, 1]),
    ({"source": "loop", "who": "Ada"}, [1]),
    ({"who": 'Eve","source":"x'}, [3]),
    ({"source": "x"}, []),
    ({"who": 'Zoë \\ "'}, [4]),
    ({"odd": "\ud800"}, [4]),
    ({"step": 5}, [5]),
    ({"step": 2.0}, [2]),
    ({"step": 1}, [1]),
    ({"step": "1"}, []),
    ({"step": True}, [1]),
    ({"flag": 1}, [5]),
    ({"none": None}, [5, 4, 3, 2, 1]),
    ({"step": 2**70}, []),
    ({"step": 0.5}, []),
    ({"zero": 0}, [5]),
    ({"flag": True}, [5]),
    ({"list": ("a", "b")}, [5]),
    ({"nothing": 1}, []),
    ({"at": NOON}, [5]),
    ({"at": NOON.replace(hour=13)}, []),
    ({"inner": {"source": "loop"}}, [2]),
    ({"who": "' OR 1=1 --"}, []),
    ({"' OR 1=1 --": "x"}, []),
]
"""Filters, each with the steps of the checkpoints that it finds."""


def test_a_filter_finds_the_same_as_a_comparison_of_the_metadata(database):
    saver = SQLModelSaver(database)
    for metadata in METADATA:
        put(saver, "t", {"a": metadata["step"]}, meta=metadata)
    for wanted, steps in FOUND:
        assert [one.metadata["step"] for one in saver.list(on("t"), filter=wanted)] == steps, wanted


def test_a_filter_reads_only_the_matching_rows(database):
    """The database compares texts and numbers, so that the other checkpoints are not sent to the program."""
    saver = SQLModelSaver(database)
    for step in range(40):
        put(saver, "t", {"a": step}, meta={"source": "input" if step == 7 else "loop", "step": step})
    with database.reading() as transaction:
        for entries in ({"source": "input"}, {"step": 7}):
            rows = saver.store.page(transaction, GraphScope("t", "", None), entries=entries)
            assert [row.meta["step"] for row in rows] == [7]
