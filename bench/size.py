"""The size of the database, by the number of turns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
from langchain_core.messages import messages_to_dict

from bench.contenders import SQLITE, Contender, Ours, Sqlite, Talk, Wrapped
from bench.graphs import CHAT
from bench.measure import Line, Subject, lines
from bench.stage import Stage

LENGTH = 1024
"""The number of characters in a message, which makes two kilobytes per turn."""

NOTE = (
    "Megabytes of the database file, its write-ahead log brought in, after turns of a user's and an assistant's\n"
    "message of 1 KB each. `x linear` is what was added, divided by what it would be if every turn added what the\n"
    "first ones did."
)

RAW = "the messages as JSON"


@dataclass(frozen=True)
class Long:
    """A long conversation with each contender that has a database, and the sizes in bytes by turns, from 0."""

    contenders: dict[str, Contender]
    sizes: dict[int, dict[str, int]]


def measure(stage: Stage) -> Subject:
    """Measure the sizes."""
    sizes = long(stage).sizes
    empty, first = sizes[0], min(stage.scale.turns)
    found: list[Line] = []
    for turns in stage.scale.turns:
        measured = sizes[turns]
        made = lines(
            f"{turns} turns", {name: [size] for name, size in measured.items()}, [SQLITE, RAW], unit="MB", scale=1e-6
        )
        linear = {
            what: (measured[what] - empty[what]) / (sizes[first][what] - empty[what]) * first / turns
            for what in measured
        }
        found += [replace(line, ratios={**line.ratios, "linear": linear[line.what]}) for line in made]
    return Subject("Size of the database", NOTE, found)


def long(stage: Stage) -> Long:
    """Return the long conversation, and hold it at the first call."""
    return stage.shared("long", lambda: _hold(stage))


def _hold(stage: Stage) -> Long:
    contenders = stage.open(Sqlite, Ours, Wrapped, name="long", length=LENGTH)
    talk = Talk(contenders, CHAT, LENGTH)
    sizes: dict[int, dict[str, int]] = {}
    for turns in (0, *stage.scale.turns):
        raw = len(orjson.dumps(messages_to_dict(talk.grow(2 * turns).messages)))
        sizes[turns] = {RAW: raw, **{contender.name: contender.size() for contender in contenders}}
    return Long({contender.name: contender for contender in contenders}, sizes)
