"""A graph that writes to its store what the user's message says, and the stores that tests give it.

`+food=pizza` puts, `-food` deletes, in the namespace of the user Ann; `tool:+food=pizza` does it in a tool.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from sqlalchemy import make_url

NAMESPACE = ("users", "ann")
STORES = ("memory", "index", "sqlite", "postgresql")


def embed(texts: list[str]) -> list[list[float]]:
    """Embed each text by its length and its number of vowels."""
    return [[float(len(text)), float(sum(map(text.count, "aeiou"))), 1.0] for text in texts]


def write(store: BaseStore, word: str) -> None:
    """Do what one word says."""
    if word.startswith("+"):
        key, _, value = word[1:].partition("=")
        store.put(NAMESPACE, key, {"is": value})
    elif word.startswith("-"):
        store.delete(NAMESPACE, word[1:])


async def awrite(store: BaseStore, word: str) -> None:
    """Do what one word says."""
    if word.startswith("+"):
        key, _, value = word[1:].partition("=")
        await store.aput(NAMESPACE, key, {"is": value})
    elif word.startswith("-"):
        await store.adelete(NAMESPACE, word[1:])


@tool
def remember(word: str) -> str:
    """Write to memory."""
    write(get_store(), word)
    return word


@tool
async def aremember(word: str) -> str:
    """Write to memory."""
    await awrite(get_store(), word)
    return word


def words_of(state: Any) -> list[str]:
    """Return the words of the user's message."""
    return str(state["messages"][-1].content).split()


def act(state: Any) -> Any:
    """Write each word, in the node itself or in a tool."""
    for word in words_of(state):
        if word.startswith("tool:"):
            remember.invoke({"word": word.removeprefix("tool:")})
        else:
            write(get_store(), word)
    return {"messages": [("ai", "noted")]}


async def aact(state: Any) -> Any:
    """Write each word, in the node itself or in a tool."""
    for word in words_of(state):
        if word.startswith("tool:"):
            await aremember.ainvoke({"word": word.removeprefix("tool:")})
        else:
            await awrite(get_store(), word)
    return {"messages": [("ai", "noted")]}


def noting(store: Any = None, node: Any = act, **compiled: Any) -> Any:
    """Build the graph."""
    return StateGraph(MessagesState).add_node("act", node).add_edge(START, "act").compile(store=store, **compiled)


def said(text: str) -> Any:
    """Return the input of a turn."""
    return {"messages": [("user", text)]}


def contents(store: BaseStore) -> dict[str, str]:
    """Return Ann's items."""
    return {item.key: item.value["is"] for item in store.search(NAMESPACE, limit=100)}


def begun(repo: Any, store: Any = None, node: Any = act, session: str = "ours", **options: Any) -> Any:
    """Wrap the graph, and return the agent with a checkpoint `before`."""
    agent = repo.wrap(noting(store, node), session, **options)
    agent.checkpoint("before")
    return agent


def reasons(items: list[Any]) -> dict[str, str]:
    """Return the reason of each item of a report by the key in memory."""
    return {item.invocation.args["key"]: item.reason for item in items}


def assert_chain(writes: list[dict[str, Any]], last: str) -> None:
    """Check that each write of one item was made upon the value of another one, so that none was lost."""
    befores = [write["before"]["is"] if write["before"] else "nothing" for write in writes]
    assert sorted([*befores, last]) == sorted(["nothing", *(write["value"]["is"] for write in writes)])


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    """Open the store of `STORES` that a test names; if it names none, the first one."""
    kind = getattr(request, "param", "memory")
    if kind in ("memory", "index"):
        yield InMemoryStore(index={"dims": 3, "embed": embed} if kind == "index" else None)
    elif kind == "sqlite":
        with sqlite_store(tmp_path / "memory.db") as store:
            yield store
    else:
        with (
            store_schema(request.getfixturevalue("postgres_url")) as url,
            PostgresStore.from_conn_string(url) as store,
        ):
            store.setup()
            yield store


@pytest.fixture
def agent(repo: Any, store: Any) -> Any:
    """Wrap the graph with the store."""
    return begun(repo, store)


@pytest.fixture
def theirs(repo: Any, store: Any) -> Any:
    """Wrap it in another session."""
    return begun(repo, store, session="theirs")


@contextmanager
def store_schema(url: Any) -> Iterator[str]:
    """Create a schema of its own for the tables of a store, yield its connection string, and drop it at the end."""
    plain = make_url(url).set(drivername="postgresql")
    with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA memory")
        try:
            yield plain.update_query_dict({"options": "-csearch_path=memory"}).render_as_string(hide_password=False)
        finally:
            connection.execute("DROP SCHEMA memory CASCADE")


@contextmanager
def sqlite_store(path: Path, **options: Any) -> Iterator[SqliteStore]:
    """Open a store in a SQLite file that many threads use."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        store = SqliteStore(connection, **options)
        store.setup()
        yield store
    finally:
        connection.close()
