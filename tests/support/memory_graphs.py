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


@contextmanager
def opened(kind: str, path: Path, postgres_url: Any) -> Iterator[BaseStore]:
    """Open a store.

    Args:
        kind: One of `STORES`.
        path: The folder of its file.
        postgres_url: Returns the URL of a server's database.
    """
    if kind in ("memory", "index"):
        yield InMemoryStore(index={"dims": 3, "embed": embed} if kind == "index" else None)
    elif kind == "sqlite":
        with sqlite_store(path / "memory.db") as store:
            yield store
    else:
        with store_schema(postgres_url()) as url, PostgresStore.from_conn_string(url) as store:
            store.setup()
            yield store


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
