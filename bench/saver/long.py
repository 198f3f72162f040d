"""One long conversation with every saver: the time of its turns, and the size of its growing database."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from langchain_core.messages import messages_to_dict

from bench.contenders import BARE, SQLITE, Bare, Talk
from bench.graphs import CHAT, MESSAGES
from bench.measure import Line, Subject, lines
from bench.saver.contenders import (
    POSTGRES,
    AsyncSqlite,
    Memory,
    Ours,
    OursAsync,
    OursFull,
    OursPlain,
    OursPostgres,
    Postgres,
    SqliteFull,
    SqliteNormal,
    beside_counterparts,
    present,
)
from bench.size import RAW
from bench.stage import SaverScale, Stage
from bench.turn import fresh

KINDS = (
    Bare, Memory, SqliteFull, SqliteNormal, AsyncSqlite, Ours, OursFull, OursAsync, OursPlain,
    Postgres, OursPostgres,
)  # fmt: skip

SIZED = (Memory, SqliteFull, Ours, OursPlain, Postgres, OursPostgres)
"""The contenders that differ in what they store."""

LENGTH = 1024
"""The number of characters in a message, which makes two kilobytes per turn."""

NEAR, LEAST = 0.05, 10
"""The largest deviation from a length: a twentieth of it, or ten messages if that is more."""

TURN_NOTE = (
    "Milliseconds of one graph.invoke, or graph.ainvoke; a user's and an assistant's message of 1 KB each. Every\n"
    "contender runs the same turn in each round, in one conversation that grows by real turns."
)
SIZE_NOTE = (
    "Megabytes of the database file, its write-ahead log brought in; on PostgreSQL of all tables and indexes; in\n"
    "memory of what is serialized. Turns of a user's and an assistant's message of 1 KB each, in one conversation."
)

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Long:
    """The long conversation: its times by number of messages, and its sizes in bytes by number of turns."""

    times: dict[int, Times]
    sizes: dict[int, dict[str, int]]


def turn(stage: Stage) -> Subject:
    """Return the times of turns."""
    found: list[Line] = []
    for messages, times in _long(stage).times.items():
        found += beside_counterparts(lines(f"{messages:,} messages", times, [SQLITE, BARE]), times)
    return Subject("Savers: time of a turn", TURN_NOTE, found)


def size(stage: Stage) -> Subject:
    """Return the sizes of the databases."""
    found: list[Line] = []
    for turns, sizes in _long(stage).sizes.items():
        measured = {name: [float(size)] for name, size in sizes.items()}
        found += lines(f"{turns:,} turns", measured, [SQLITE, POSTGRES, RAW], unit="MB", scale=1e-6)
    return Subject("Savers: size of the database", SIZE_NOTE, found)


def _long(stage: Stage) -> Long:
    return stage.shared("saver-long", lambda: _hold(stage))


def _hold(stage: Stage) -> Long:
    scale = stage.scale.saver
    with stage.briefly(present(*KINDS), name="saver-long", length=LENGTH) as contenders:
        times = {MESSAGES[CHAT]: fresh(contenders, CHAT, scale.fresh, LENGTH)}
    with stage.briefly(present(*KINDS), name="saver-long", length=LENGTH) as contenders:
        talk = Talk(contenders, CHAT, LENGTH)
        sizes: dict[int, dict[str, int]] = {}
        for turns in scale.turns:
            raw = len(orjson.dumps(messages_to_dict(talk.grow(MESSAGES[CHAT] * turns).messages)))
            sizes[turns] = {RAW: raw, **{each.name: each.size() for each in contenders if type(each) in SIZED}}
        return Long(times | _later(talk, scale), sizes)


def _later(talk: Talk, scale: SaverScale) -> dict[int, Times]:
    """Return the times of the turns around each length, after turns beyond the last length as well."""
    spread = {messages: max(NEAR, LEAST / messages) for messages in scale.messages}
    talk.grow(max(round(messages * (1 + spread[messages])) for messages in scale.messages))
    return {messages: talk.around(messages, spread[messages]) for messages in scale.messages}
