"""Databases of LangGraph's own savers, filled by real graphs, for the tests of importing threads."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import postgres_databases
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from scripted import World, call, calls, tool_node_graph

from agentgit.demo import ScriptedModel

Build = Callable[[Any], Any]


def rule(messages: list[BaseMessage]) -> AIMessage:
    """Reply to the user: order an item and confirm it, greet without a tool, or call the tool that fails."""
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
    """Return a function that builds a graph with the tools of a world for a saver."""
    return lambda saver: tool_node_graph(
        ScriptedModel(rule=rule), world.tools(), saver, handle_tool_errors=True, **options
    )


def on(thread: str, **more: Any) -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def said(text: str) -> Any:
    """Build the input of a user message."""
    return {"messages": [("user", text)]}


class Origin:
    """A SQLite file of SqliteSaver."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def saver(self) -> Iterator[Any]:
        """Open the database with its own saver."""
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
        """Run a statement on the file without its saver."""
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
        """Open the database with its own saver."""
        with PostgresSaver.from_conn_string(self.url) as saver:
            saver.setup()
            yield saver


@contextmanager
def postgres_origin(server: Any) -> Iterator[PostgresOrigin]:
    """Create an empty PostgreSQL database on the server of a URL, and drop it at the end."""
    with postgres_databases.created(server) as url:
        yield PostgresOrigin(url.set(drivername="postgresql").render_as_string(hide_password=False))


def sqlite_origin(folder: Path) -> Origin:
    """Return an origin for a SQLite file that does not exist yet."""
    return Origin(str(folder / "langgraph.db"))


ORIGINS = ("SqliteSaver", "AsyncSqliteSaver", "PostgresSaver")
"""The savers whose databases `open_origin` makes."""


@contextmanager
def open_origin(saver: str, folder: Path, server: Callable[[], Any]) -> Iterator[Origin]:
    """Yield an empty source database of one of LangGraph's savers, in a folder or on a server of PostgreSQL."""
    if saver == "PostgresSaver":
        with postgres_origin(server()) as made:
            yield made
    else:
        kind = AsyncOrigin if saver == "AsyncSqliteSaver" else Origin
        yield kind(str(folder / "langgraph.db"))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    """Create a SQLite source database of SqliteSaver."""
    return sqlite_origin(tmp_path)


@pytest.fixture(params=ORIGINS)
def any_origin(request: Any, tmp_path: Path) -> Iterator[Origin]:
    """Yield a source database of one of LangGraph's savers."""
    with open_origin(request.param, tmp_path, lambda: request.getfixturevalue("postgres_url")) as made:
        yield made


def parts(found: Any) -> tuple[Any, ...]:
    """Return the parts of a checkpoint that must be equal in the source and here."""
    where, above = found.config["configurable"], (found.parent_config or {}).get("configurable", {})
    head = (where["checkpoint_ns"], where["checkpoint_id"], above.get("checkpoint_id"))
    writes = sorted((task, channel, repr(value)) for task, channel, value in found.pending_writes)
    checkpoint = {k: v for k, v in found.checkpoint.items() if k not in ("pending_sends", "updated_channels")}
    return head, checkpoint, found.metadata, writes


def same(ours: Any, theirs: Any) -> bool:
    """Return whether both sides have the same checkpoints, in any order."""
    return sorted(map(parts, ours), key=lambda one: one[0]) == sorted(map(parts, theirs), key=lambda one: one[0])


def interrupt_import(repo: Any, origin: Origin, *, at: int | None, **how: Any) -> None:
    """Import threads, and interrupt it after so many checkpoints, or after the last one."""

    def stop(now: Any) -> None:
        if now.done == (at or now.total) > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repo.import_langgraph(origin.url, progress=stop, **how)
