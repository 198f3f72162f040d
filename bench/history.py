"""The time to read a whole conversation in a new process."""

from __future__ import annotations

from functools import partial
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

import agentgit
from bench.contenders import SQLITE
from bench.graphs import build, text
from bench.measure import Subject, lines, rotated, timed
from bench.stage import Stage

LENGTH = 200

NOTE = (
    "Milliseconds, with nothing cached. Each turn has a user's and an assistant's message of 200 characters.\n"
    "SqliteSaver stores the state as one value, which `get_state` decodes."
)


def measure(stage: Stage) -> Subject:
    """Time the readers of a long conversation."""
    turns = stage.scale.read
    ours, theirs = stage.where / "history.db", str(stage.where / "history-sqlite.db")
    messages = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(2 * turns - 2)]
    said: Any = {"messages": [*messages, ("user", text(2 * turns, LENGTH))]}
    thread: Any = {"configurable": {"thread_id": "t"}}
    with SqliteSaver.from_conn_string(theirs) as saver, agentgit.open(ours) as repo:
        build(LENGTH, saver).invoke(said, thread)
        repo.wrap(build(LENGTH), session="s").invoke(said)

    def read(name: str) -> int:
        if name == SQLITE:
            with SqliteSaver.from_conn_string(theirs) as saver:
                return len(build(LENGTH, saver).get_state(thread).values["messages"])
        with agentgit.open(ours) as repo:
            return len(getattr(repo.wrap(build(LENGTH), session="s"), name)())

    times: dict[str, list[float]] = {SQLITE: [], "history": [], "messages": []}
    for number in range(stage.scale.looks * 3):
        for name in rotated(list(times), number):
            took, count = timed(partial(read, name))
            if count != 2 * turns:
                raise RuntimeError(f"{name} read {count} messages and should read {2 * turns}")
            times[name].append(took)
    named = {SQLITE: f"get_state, {SQLITE}", "history": "agent.history()", "messages": "agent.messages()"}
    return Subject(
        "Time to read a conversation",
        NOTE,
        lines(f"{turns:,} turns", {named[name]: took for name, took in times.items()}, [named[SQLITE]]),
    )
