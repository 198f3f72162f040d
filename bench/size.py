"""The size of the database by the number of turns, and the time to list its checkpoints and to read it whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from langchain_core.messages import messages_to_dict
from langgraph.checkpoint.sqlite import SqliteSaver

import agentgit
from bench import postgres
from bench.contenders import FILE, OURS, POSTGRES, SERVER, SQLITE, WRAPPED, Kind, Opened, Talk
from bench.graphs import CHAT, build, text
from bench.measure import Table, compared, interleaved, rows
from bench.stage import Stage

LENGTH = 1024
"""The number of characters in a message, which makes two kilobytes per turn."""

SHORT = 200
"""The number of characters in a message of the conversation that is read."""

RAW = "the messages as JSON"

NOTE = "Megabytes of the database, its indexes included, after turns of two messages of 1 KB each."

LISTED = (
    "Milliseconds. session.checkpoints and session.tree read columns, and load a state when it is looked at;\n"
    "get_state_history(limit=the same number) builds every state. Turns of 2 KB."
)

READ = f"Milliseconds, with nothing cached; messages of {SHORT} characters. SqliteSaver stores the state as one value."


def measure(stage: Stage) -> list[Table]:
    """Measure the sizes, then the lists of the longest conversation, then the reading of an even longer one."""
    found = _sizes("SQLite", stage, {name: FILE[name] for name in (SQLITE, OURS, WRAPPED)}, SQLITE)
    if postgres.about():
        found += _sizes("PostgreSQL", stage, {name: SERVER[name] for name in (POSTGRES, OURS, WRAPPED)}, POSTGRES)
    return [*found, _read(stage)]


def _sizes(database: str, stage: Stage, kinds: dict[str, Kind], base: str) -> list[Table]:
    made: list[list[str]] = []
    with stage.open(kinds, LENGTH) as contenders:
        talk = Talk(contenders, CHAT, LENGTH)
        for turns in stage.scale.turns:
            raw = len(orjson.dumps(messages_to_dict(talk.grow(2 * turns).messages)))
            sizes = {RAW: [float(raw)], **{name: [float(stored(one))] for name, one in contenders.items()}}
            beside_raw = {name: cells[1:] for name, cells in compared(sizes, RAW).items()}
            made += rows(f"{turns} turns", compared(sizes, base, "MB", 1e-6), beside_raw)
        listed = _listed(database, stage, contenders, base, talk.name)
    return [Table(f"Size of the database: {database}", NOTE, ("size", f"x {base}", f"x {RAW}"), made), listed]


def stored(opened: Opened) -> int:
    """Return the bytes of a database, with its write-ahead log brought in."""
    if not isinstance(opened.address, Path):
        return postgres.size(opened.address)
    with closing(sqlite3.connect(opened.address)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise RuntimeError("a database is in use, so its size cannot be told")
    return opened.address.stat().st_size


def _listed(database: str, stage: Stage, contenders: dict[str, Opened], base: str, thread: str) -> Table:
    session, graph = contenders[WRAPPED].repo.session(), contenders[base].graph
    count, peer = len(session.checkpoints()), f"get_state_history, {base}"

    def history() -> None:
        config = {"configurable": {"thread_id": thread}}
        if (listed := sum(1 for _ in graph.get_state_history(config, limit=count))) != count:
            raise RuntimeError(f"{listed} checkpoints are listed and should be {count}")

    runs = {peer: history, "session.checkpoints": session.checkpoints, "str(session.tree)": lambda: str(session.tree())}
    times = interleaved(runs, 2)
    made = rows(f"{count:,} checkpoints", compared(times, peer))
    return Table(f"Time to list the checkpoints: {database}", LISTED, ("time", f"x {peer}"), made)


def _read(stage: Stage) -> Table:
    """Time the readers of a conversation, each with a database that was just opened."""
    turns, thread = stage.scale.read, {"configurable": {"thread_id": "t"}}
    messages = [("ai" if n % 2 else "user", text(n, SHORT)) for n in range(2 * turns - 2)]
    said: Any = {"messages": [*messages, ("user", text(2 * turns, SHORT))]}
    peer = f"get_state, {SQLITE}"
    with stage.folder() as folder:
        ours, theirs = folder / "ours.db", str(folder / "theirs.db")
        with SqliteSaver.from_conn_string(theirs) as saver, agentgit.open(ours) as repo:
            build(SHORT, saver).invoke(said, thread)
            repo.wrap(build(SHORT), session="s").invoke(said)

        def state() -> int:
            with SqliteSaver.from_conn_string(theirs) as saver:
                return len(build(SHORT, saver).get_state(thread).values["messages"])

        def read(verb: str) -> int:
            with agentgit.open(ours) as repo:
                return len(getattr(repo.wrap(build(SHORT), session="s"), verb)())

        runs = {peer: state, "agent.history()": partial(read, "history"), "agent.messages()": partial(read, "messages")}
        if any(run() != 2 * turns for run in runs.values()):
            raise RuntimeError(f"a conversation of {2 * turns} messages was read with another number")
        times = interleaved(runs, stage.scale.waits)
    return Table(
        "Time to read a conversation", READ, ("time", f"x {peer}"), rows(f"{turns:,} turns", compared(times, peer))
    )
