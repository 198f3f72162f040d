"""The time of a fork and of a rollback, by the length of the conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from bench.contenders import SQLITE, Sqlite, Wrapped
from bench.graphs import CHAT, MESSAGES, TOOL, said, text
from bench.measure import Line, Subject, lines, ratio, rotated, sync_ms, timed
from bench.stage import Stage

LENGTH = 200

HELD = 40
"""The messages at the end of a conversation that are held turn by turn."""

COPY = f"{SQLITE}, copy in the thread"

FORK, ROLLBACK, SYNC = "agent.fork", "agent.rollback", "4 KB and fsync"
FORK_ALONE, ROLLBACK_ALONE = f"{FORK}, less 1 x fsync", f"{ROLLBACK}, less 3 x fsync"

NOTE = (
    f"Milliseconds; messages of {LENGTH} characters, the last {HELD} of them in turns with one tool call. A rollback\n"
    "takes one turn back and reverses its tool call. It waits for the disk three times, a fork once; the lines with\n"
    "`less` are what remains without that. LangGraph's own way to branch off, with SqliteSaver, is\n"
    'graph.update_state(config, None, as_node="__copy__"): a copy of the checkpoint in the same thread, neither a\n'
    "named branch nor able to take an effect back."
)

Times = dict[str, list[float]]


def measure(stage: Stage) -> Subject:
    """Time forks and rollbacks at all lengths."""
    wrapped, sqlite = stage.open(Wrapped, Sqlite, name="fork", length=LENGTH)
    talks = [
        _Branches(cast(Wrapped, wrapped), cast(Sqlite, sqlite), messages, stage.where)
        for messages in stage.scale.forked
    ]
    for number in range(stage.scale.forks + 1):
        for talk in rotated(talks, number):
            talk.measure(number)
    found = [line for talk in talks for line in talk.lines(first=talks[0])]
    return Subject("Time of a fork and of a rollback", NOTE, found)


class _Branches:
    """A conversation with the wrapped graph, the same one with SqliteSaver, and the times of forks and rollbacks."""

    def __init__(self, wrapped: Wrapped, sqlite: Sqlite, messages: int, where: Path) -> None:
        self.messages, self._where = messages, where
        self.agent = wrapped.agent()
        sqlite.conversation()
        self._graph = sqlite.graph
        _grow(lambda new: self.agent.invoke({"messages": new}), messages)
        _grow(lambda new: self._graph.invoke({"messages": new}, sqlite.last), messages)
        self._config = self._graph.get_state(sqlite.last).config
        self.times: Times = {FORK: [], ROLLBACK: [], COPY: [], SYNC: []}

    def measure(self, number: int) -> None:
        """Fork, roll back and copy once; the first round only warms up."""
        forked, fork = timed(self.agent.fork)
        start = fork.head
        fork.invoke({"messages": [("user", said(TOOL, number, LENGTH))]})
        rolled, retry = timed(partial(fork.rollback, start))
        if len(retry.report.reversed) != 1:
            raise RuntimeError(f"one tool call was to be reversed:\n{retry.report}")
        copied, _ = timed(partial(self._graph.update_state, self._config, None, as_node="__copy__"))
        synced = sync_ms(self._where, rounds=3) / 1000
        if number > 0:
            for times, took in zip(self.times.values(), (forked, rolled, copied, synced), strict=True):
                times.append(took)

    def lines(self, first: _Branches) -> list[Line]:
        """Return the lines, with ratios to SqliteSaver and to the shortest conversation."""
        case = f"{self.messages:,} messages"
        made = lines(case, self.times, [COPY])
        for what, alone, waits in ((FORK, FORK_ALONE, 1), (ROLLBACK, ROLLBACK_ALONE, 3)):
            rest = [took - waits * sync for took, sync in zip(self.times[what], self.times[SYNC], strict=True)]
            made += lines(case, {alone: rest}, [])
        if first is self:
            return made
        base = f"{first.messages} messages"
        growth = {what: ratio(self.times[what], first.times[what]) for what in self.times}
        return [
            replace(line, ratios={**line.ratios, base: growth[line.what]}) if line.what in growth else line
            for line in made
        ]


def _grow(say: Callable[[list[Any]], object], messages: int) -> None:
    """Begin with one input that has all but the last messages, and hold the rest: a few turns with a tool call."""
    held = min(messages - messages % 2, HELD)
    said_before = [("ai" if n % 2 else "user", text(n, LENGTH)) for n in range(messages - held)]
    for number in range(0, held, MESSAGES[TOOL]):
        kind = TOOL if held - number >= MESSAGES[TOOL] else CHAT
        say([*said_before, ("user", said(kind, number, LENGTH))])
        said_before = []
