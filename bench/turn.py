"""The time and the CPU time of one turn, by the length of the conversation before it."""

from __future__ import annotations

from bench import postgres
from bench.contenders import FILE, OURS, POSTGRES, SERVER, SQLITE, WRAPPED, Kind, Opened, Talk
from bench.graphs import CHAT, MESSAGES, TOOL, slow
from bench.measure import Table, Values, compared, rows
from bench.stage import Stage

LENGTH = 200
"""The number of characters in a message; short messages show a fixed cost per turn best."""

SPREAD = 0.1
"""The largest deviation from a length, as a fraction of it."""

WARM_UP = 3

NAMES = {CHAT: "user and assistant", TOOL: "with one tool call"}

NOTE = (
    f"Milliseconds of one invoke, and of CPU time here and on the server. Messages of {LENGTH} characters; the\n"
    "tool is declared reversible. Model and tool do no work, except in the last rows: two model steps of 1 s each."
)


def measure(stage: Stage) -> list[Table]:
    """Measure turns of both kinds at all lengths, on a file and on a server."""
    found = [_table("SQLite", stage, FILE, SQLITE)]
    if postgres.about():
        found.append(_table("PostgreSQL", stage, SERVER, POSTGRES))
    return found


def _table(database: str, stage: Stage, kinds: dict[str, Kind], base: str) -> Table:
    made: list[list[str]] = []
    for kind in (CHAT, TOOL):
        with stage.open(kinds, LENGTH) as contenders:
            small, *larger = stage.scale.messages
            made += _rows(kind, small, fresh(contenders, kind, stage.scale.rounds), base)
            talk = Talk(contenders, kind, LENGTH)
            for messages in larger:
                talk.grow(round(messages * (1 + SPREAD)))
                made += _rows(kind, messages, talk.around(messages, SPREAD), base)
    chosen = {name: kinds[name] for name in (base, OURS, WRAPPED)}
    with stage.open(chosen, LENGTH) as contenders, slow(1.0):
        talk = Talk(contenders, TOOL, LENGTH).grow(MESSAGES[TOOL] * stage.scale.waits)
        made += rows("with a slow model", compared(talk.times, base), compared(talk.used, base))
    columns = ("time", f"x {base}", "CPU", f"x {base}")
    return Table(f"Time of a turn: {database}", NOTE, columns, made)


def _rows(kind: str, messages: int, found: tuple[Values, Values], base: str) -> list[list[str]]:
    times, used = found
    return rows(f"{NAMES[kind]}, {messages:,} messages", compared(times, base), compared(used, base))


def fresh(contenders: dict[str, Opened], kind: str, rounds: int) -> tuple[Values, Values]:
    """Measure the second turn of new conversations, the only way to measure many turns at two messages."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    used: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + rounds):
        talk = Talk(contenders, CHAT, LENGTH).grow(MESSAGES[CHAT])
        talk.turn(kind, MESSAGES[CHAT] + MESSAGES[kind])
        for name in contenders if number >= WARM_UP else ():
            times[name].append(talk.times[name][-1])
            used[name].append(talk.used[name][-1])
    return times, used
