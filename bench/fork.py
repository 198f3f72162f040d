"""The time of a fork and of a rollback, by the length of the conversation, and the payments after going back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench import payments, postgres
from bench.contenders import FILE, POSTGRES, SERVER, SQLITE, WRAPPED, Kind, Opened
from bench.graphs import CHAT, EFFECTS, MESSAGES, TOOL, build, said, text
from bench.measure import Table, compared, rotated, rows, timed
from bench.stage import Stage

LENGTH = 200

HELD = 40
"""The messages at the end of a conversation that are held turn by turn."""

NOTE = (
    f"Milliseconds; messages of {LENGTH} characters, the last {HELD} of them in turns with one tool call. A rollback\n"
    "takes one turn back and reverses its tool call. It waits for the disk three times, a fork once. LangGraph's own\n"
    'way to branch off is graph.update_state(config, None, as_node="__copy__"): a copy of the checkpoint in the same\n'
    "thread, neither a named branch nor able to take an effect back."
)


def measure(stage: Stage) -> list[Table]:
    """Time forks and rollbacks at all lengths, and count payments."""
    found = [_table("SQLite", stage, {name: FILE[name] for name in (SQLITE, WRAPPED)}, SQLITE)]
    if postgres.about():
        chosen = {name: SERVER[name] for name in (POSTGRES, WRAPPED)}
        found.append(_table("PostgreSQL", stage, chosen, POSTGRES))
    return [*found, payments.measure(stage)]


def _table(database: str, stage: Stage, kinds: dict[str, Kind], base: str) -> Table:
    copy, made = f"{base}, copy in the thread", list[list[str]]()
    with stage.open(kinds, LENGTH) as contenders:
        talks = [_Branches(contenders[WRAPPED], contenders[base], n, copy) for n in stage.scale.forked]
        for number in range(stage.scale.rounds + 1):
            for talk in rotated(talks, number):
                talk.measure(number)
        for talk in talks:
            made += rows(f"{talk.messages:,} messages", compared(talk.times, copy))
    return Table(f"Time of a fork and of a rollback: {database}", NOTE, ("time", f"x {copy}"), made)


class _Branches:
    """A conversation with the wrapped graph, the same one with LangGraph's saver, and the times of both."""

    def __init__(self, wrapped: Opened, theirs: Opened, messages: int, copy: str) -> None:
        self.messages = messages
        self.agent = wrapped.repo.wrap(build(LENGTH), session=f"fork-{messages}", effects=EFFECTS)
        thread: Any = {"configurable": {"thread_id": f"fork-{messages}"}}
        self._graph = theirs.graph
        _grow(lambda new: self.agent.invoke({"messages": new}), messages)
        _grow(lambda new: self._graph.invoke({"messages": new}, thread), messages)
        self._config = self._graph.get_state(thread).config
        self.times: dict[str, list[float]] = {"agent.fork": [], "agent.rollback": [], copy: []}

    def measure(self, number: int) -> None:
        """Fork, roll back and copy once; the first round only warms up."""
        forked, fork = timed(self.agent.fork)
        start = fork.head
        fork.invoke({"messages": [("user", said(TOOL, number, LENGTH))]})
        rolled, retry = timed(partial(fork.rollback, start))
        if len(retry.report.reversed) != 1:
            raise RuntimeError(f"one tool call was to be reversed:\n{retry.report}")
        copied, _ = timed(partial(self._graph.update_state, self._config, None, as_node="__copy__"))
        if number > 0:
            for times, took in zip(self.times.values(), (forked, rolled, copied), strict=True):
                times.append(took)


def _grow(say: Callable[[list[Any]], object], messages: int) -> None:
    """Begin with one input that has all but the last messages, and hold the rest: a few turns with a tool call."""
    held = min(messages - messages % 2, HELD)
    said_before = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(messages - held)]
    for number in range(0, held, MESSAGES[TOOL]):
        kind = TOOL if held - number >= MESSAGES[TOOL] else CHAT
        say([*said_before, ("user", said(kind, number, LENGTH))])
        said_before = []
