"""The time to compare and to merge two branches, by the length of their shared conversation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import agentgit
from bench.contenders import Wrapped
from bench.graphs import CHAT, said
from bench.measure import Line, Subject, lines, ratio, rotated, timed
from bench.stage import Stage

LENGTH = 200

LOADED = "agentgit.diff of two loaded values"

NOTE = (
    "Milliseconds. Two branches that share a conversation and went on with one turn each; messages of 200 characters.\n"
    "agentgit.diff is handed two Checkpoints, which load everything; session.diff and compare load what differs.\n"
    "The merge comes to a branch that was forked for it: its plan decides; LangGraph writes the rest, in full."
)

Times = dict[str, list[float]]


def measure(stage: Stage) -> Subject:
    """Time comparisons and merges at all lengths."""
    (wrapped,) = stage.open(Wrapped, name="compare", length=LENGTH)
    pairs = [_Pair(cast(Wrapped, wrapped), messages) for messages in stage.scale.forked]
    for number in range(stage.scale.forks + 1):
        for pair in rotated(pairs, number):
            pair.measure(number)
    return Subject("Time to compare and to merge branches", NOTE, [one for p in pairs for one in p.lines(pairs[0])])


class _Pair:
    """Two branches that share a conversation, and the times of their comparisons and merges."""

    def __init__(self, wrapped: Wrapped, messages: int) -> None:
        self.messages = messages
        agent = wrapped.agent()
        for number in range(messages // 2):
            _say(agent, CHAT, number)
        self.session, self.agent = agent.session, agent
        self.ends = [agent.fork() for _ in range(2)]
        for branch in self.ends:
            _say(branch, CHAT, messages)
        self.times: Times = {LOADED: [], "session.diff": [], "session.compare": [], "plan_merge": [], "merge": []}

    def measure(self, number: int) -> None:
        """Run every comparison and a merge once; the first round only warms up."""
        a, b = (branch.head for branch in self.ends)
        took = [
            timed(lambda: agentgit.diff(self.session.get_checkpoint(a.id), self.session.get_checkpoint(b.id)))[0],
            timed(partial(self.session.diff, a, b))[0],
            timed(partial(self.session.compare, a, b))[0],
        ]
        into = self.ends[0].fork()
        took.append(timed(partial(into.plan_merge, b))[0])
        took.append(timed(partial(into.merge, b))[0])
        if number > 0:
            for times, one in zip(self.times.values(), took, strict=True):
                times.append(one)

    def lines(self, first: _Pair) -> list[Line]:
        """Return the lines, with ratios to loading everything and to the shortest conversation."""
        made = lines(f"{self.messages:,} messages", self.times, [LOADED])
        if first is self:
            return made
        base = f"{first.messages} messages"
        growth = {what: ratio(self.times[what], first.times[what]) for what in self.times}
        return [replace(line, ratios={**line.ratios, base: growth[line.what]}) for line in made]


def _say(agent: Any, kind: str, number: int) -> None:
    agent.invoke({"messages": [("user", said(kind, number, LENGTH))]})
