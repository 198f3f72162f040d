"""What the tests of moving in share: databases of LangGraph's own savers, filled by real graphs."""

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from scripted import World, call, calls, tool_node_graph

from agentgit.demo import ScriptedModel

Build = Callable[[Any], Any]


def rule(messages: list[BaseMessage]) -> AIMessage:
    """Order what the user asks for, then say so; greet without any tool; fail where that is asked for."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"It is ordered ({len(messages)} messages).")
    words = str(last.content).split()
    if words[0] == "hello":
        return AIMessage("Hello.")
    tool = {"fail": "fail", "ask": "add_if_approved"}.get(words[0], "add")
    args = {"why": words[-1]} if tool == "fail" else {"item": words[-1]}
    return calls(call(tool, f"call-{len(messages)}", **args))


def shop(world: World, **options: Any) -> Build:
    """Build a graph that orders things in a world."""
    return lambda saver: tool_node_graph(
        ScriptedModel(rule=rule), world.tools(), saver, handle_tool_errors=True, **options
    )


def on(thread: str, **more: Any) -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def said(text: str) -> Any:
    """What a user says."""
    return {"messages": [("user", text)]}


class Origin:
    """A SQLite file of SqliteSaver."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def saver(self) -> Iterator[Any]:
        """Open it with its own saver."""
        with closing(sqlite3.connect(self.url, check_same_thread=False)) as connection:
            yield SqliteSaver(connection)

    def talk(self, build: Build, thread: str, *inputs: Any) -> None:
        """Run a graph on a thread, once for each input."""
        with self.saver() as saver:
            graph = build(saver)
            for one in inputs:
                graph.invoke(said(one) if isinstance(one, str) else one, on(thread))

    def tuples(self, thread: str) -> list[Any]:
        """Read a thread with its own saver, newest first."""
        with self.saver() as saver:
            return list(saver.list(on(thread)))

    def execute(self, statement: str, *values: Any) -> None:
        """Change the file behind its saver's back."""
        with closing(sqlite3.connect(self.url)) as connection, connection:
            connection.execute(statement, values)


class AsyncOrigin(Origin):
    """A SQLite file of AsyncSqliteSaver."""

    def talk(self, build: Build, thread: str, *inputs: Any) -> None:
        """Run a graph on a thread, once for each input, from an event loop."""

        async def run() -> None:
            async with AsyncSqliteSaver.from_conn_string(self.url) as saver:
                graph = build(saver)
                for one in inputs:
                    await graph.ainvoke(said(one) if isinstance(one, str) else one, on(thread))

        asyncio.run(run())


class PostgresOrigin(Origin):
    """A database of PostgresSaver."""

    @contextmanager
    def saver(self) -> Iterator[Any]:
        """Open it with its own saver."""
        with PostgresSaver.from_conn_string(self.url) as saver:
            saver.setup()
            yield saver


@contextmanager
def postgres_origin(server: Any) -> Iterator[PostgresOrigin]:
    """Make an empty PostgreSQL database on the server of another one, and drop it at the end."""
    name = f"langgraph_test_{uuid.uuid4().hex}"
    base = server.set(drivername="postgresql")
    with psycopg.connect(base.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield PostgresOrigin(base.set(database=name).render_as_string(hide_password=False))
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def sqlite_origin(folder: Path) -> Origin:
    """Name a SQLite file that is not there yet."""
    return Origin(str(folder / "langgraph.db"))
