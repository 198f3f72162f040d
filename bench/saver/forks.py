"""The time to fork a graph checkpoint in the middle of a thread, and by the length of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from agentgit import SQLModelSaver
from bench.contenders import OURS, SQLITE, Contender, Talk
from bench.graphs import CHAT, MESSAGES, text
from bench.measure import Line, Subject, lines, ratio, rotated, timed
from bench.saver.contenders import (
    POSTGRES,
    Memory,
    Opened,
    Ours,
    OursFull,
    OursPostgres,
    Postgres,
    SqliteFull,
    SqliteNormal,
    present,
)
from bench.stage import Stage

KINDS = (Memory, SqliteFull, SqliteNormal, Ours, OursFull, Postgres, OursPostgres)
FORKING = (Ours, OursFull, OursPostgres)

LENGTH = 200
"""The number of characters in a message."""

BATCHES = 10
"""The number of checkpoints of each conversation in the comparison of lengths, whatever its length."""

COPY = "__copy__"

NOTE = (
    "Milliseconds. `fork` is saver.store.fork: one graph checkpoint, with all it needs, in a thread of its own.\n"
    'LangGraph\'s own way is graph.update_state(config, None, as_node="__copy__"), which stays in the same thread.\n'
    "`copy_thread` copies all checkpoints; LangGraph's savers have none. Messages of 200 characters."
)

Times = dict[str, list[float]]
Check = Callable[[], None]
Ran = tuple[float, Check]
Run = Callable[[int], Ran]
"""A function that makes a copy, and returns its time in seconds and a function that checks the copy."""


@dataclass(frozen=True)
class _Point:
    """A checkpoint of a contender, and its number of messages."""

    contender: Opened
    config: Any
    messages: int

    def check(self, config: Any) -> None:
        """Check that a copy has as many messages."""
        found = len(self.contender.graph.get_state(config).values["messages"])
        if found != self.messages:
            raise RuntimeError(f"{self.contender.name} made a copy with {found} messages instead of {self.messages}")


def measure(stage: Stage) -> Subject:
    """Time forks in the middle of a conversation, then at several lengths."""
    return Subject("Savers: fork", NOTE, _middle(stage) + _flat(stage))


def _middle(stage: Stage) -> list[Line]:
    turns = stage.scale.saver.forked
    with stage.briefly(present(*KINDS), name="saver-forks", length=LENGTH) as made:
        talk = Talk(made, CHAT, LENGTH).grow(turns // 2 * MESSAGES[CHAT])
        points = [_point(contender, turns // 2 * MESSAGES[CHAT]) for contender in made]
        talk.grow(turns * MESSAGES[CHAT])
        runs = dict(run for point in points for run in _runs(point))
        times = _interleaved(runs, stage.scale.saver.forks)
    return lines(f"in the middle of {turns} turns", times, [f"{SQLITE}, {COPY}", f"{POSTGRES}, {COPY}"])


def _runs(point: _Point) -> Iterator[tuple[str, Run]]:
    """Yield the ways in which a contender can copy a checkpoint."""
    name = point.contender.name
    if isinstance(point.contender, FORKING):
        yield f"{name}, fork", partial(_fork, point)
    else:
        yield f"{name}, {COPY}", partial(_copy, point)
    if name == OURS:
        yield f"{name}, copy_thread", partial(_copy_thread, point)


def _flat(stage: Stage) -> list[Line]:
    """Time forks of conversations of several lengths, all in the same rounds."""
    lengths = stage.scale.saver.flat
    with stage.briefly(present(Ours, OursPostgres), name="saver-flat", length=LENGTH) as made:
        points = {f"{each.name} {n}": _grown(cast(Opened, each), n) for each in made for n in lengths}
        times = _interleaved({key: partial(_fork, point) for key, point in points.items()}, stage.scale.saver.forks)
    found: list[Line] = []
    for n in lengths:
        here = {f"{each.name}, fork": times[f"{each.name} {n}"] for each in made}
        first = {f"{each.name}, fork": times[f"{each.name} {lengths[0]}"] for each in made}
        for line in lines(f"at {n:,} messages", here, []):
            growth = {f"{lengths[0]} messages": ratio(here[line.what], first[line.what])}
            found.append(replace(line, ratios=growth if n != lengths[0] else {}))
    return found


def _grown(contender: Opened, messages: int) -> _Point:
    """Write a conversation of that many messages in a fixed number of steps, and return its end."""
    contender.conversation()
    for batch in range(BATCHES):
        size = messages // BATCHES
        said = [(("user", "ai")[n % 2], text(batch * size + n, LENGTH)) for n in range(size)]
        contender.graph.update_state(contender.last, {"messages": said}, as_node="model")
    return _point(contender, messages)


def _point(contender: Contender, messages: int) -> _Point:
    opened = cast(Opened, contender)
    point = _Point(opened, opened.graph.get_state(opened.last).config, messages)
    point.check(point.config)
    return point


def _interleaved(runs: dict[str, Run], rounds: int) -> Times:
    """Run each function once per round, and check the copies at its end, because reading them disturbs other runs."""
    times: Times = {name: [] for name in runs}
    for number in range(rounds + 1):
        checks: list[Check] = []
        for name in rotated(list(runs), number):
            took, check = runs[name](number)
            checks.append(check)
            if number > 0:  # the first round only warms up
                times[name].append(took)
        for check in checks:
            check()
    return times


def _fork(point: _Point, number: int) -> Ran:
    saver: SQLModelSaver = point.contender.saver
    where = point.config["configurable"]
    target = f"fork-{number}-of-{where['checkpoint_id']}"
    took, _ = timed(partial(_store_fork, saver, where["thread_id"], where["checkpoint_id"], target))
    return took, partial(point.check, {"configurable": {"thread_id": target}})


def _store_fork(saver: SQLModelSaver, source: str, checkpoint_id: str, target: str) -> None:
    saver.database.write(lambda connection: saver.store.fork(connection, source, checkpoint_id, target))


def _copy(point: _Point, _: int) -> Ran:
    took, config = timed(partial(point.contender.graph.update_state, point.config, None, as_node="__copy__"))
    return took, partial(point.check, config)


def _copy_thread(point: _Point, number: int) -> Ran:
    saver: SQLModelSaver = point.contender.saver
    target = f"whole-{number}"
    took, _ = timed(partial(saver.copy_thread, point.config["configurable"]["thread_id"], target))
    return took, partial(point.check, {"configurable": {**point.config["configurable"], "thread_id": target}})
