"""The time of a fork and of a rollback, by the length of the conversation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from bench.contenders import SQLITE, Say, Sqlite, Wrapped
from bench.graphs import CHAT, MESSAGES, TOOL, said
from bench.measure import Line, Subject, lines, ratio, rotated, sync_ms, timed
from bench.stage import Stage

LENGTH = 200

COPY = f"{SQLITE}, copy in the thread"

FORK, ROLLBACK, SYNC = "agent.fork", "agent.rollback", "4 KB and fsync"
FORK_ALONE, ROLLBACK_ALONE = f"{FORK}, less 1 x fsync", f"{ROLLBACK}, less 3 x fsync"

NOTE = (
    f"Milliseconds. The conversations are turns with one tool call, messages of {LENGTH} characters. The rollback\n"
    "goes back behind one turn, and reverses its tool call. A fork waits for the disk once and a rollback three\n"
    "times; the lines `less …` are what remains without that. LangGraph's own way to branch off, with SqliteSaver, is\n"
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
        _grow(self._say, messages)
        _grow(sqlite.conversation(), messages)
        self._graph, self._config = sqlite.graph, sqlite.graph.get_state(sqlite.last).config
        self.times: Times = {FORK: [], ROLLBACK: [], COPY: [], SYNC: []}

    def _say(self, text: str) -> list[Any]:
        return self.agent.invoke({"messages": [("user", text)]})["messages"]

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


def _grow(say: Say, messages: int) -> None:
    """Hold a conversation of turns with a tool call, and fill up the rest with chat."""
    left, number = messages, 0
    while left > 0:
        kind = TOOL if left >= MESSAGES[TOOL] else CHAT
        say(said(kind, number, LENGTH))
        left, number = left - MESSAGES[kind], number + 1
