"""The time and memory of `list` over the checkpoints of a long conversation."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from bench.contenders import SQLITE, Talk
from bench.graphs import CHAT, MESSAGES
from bench.measure import Line, Subject, interleaved, lines, ratio
from bench.saver.contenders import (
    POSTGRES,
    Memory,
    Opened,
    Ours,
    OursPostgres,
    Postgres,
    SqliteFull,
    present,
)
from bench.stage import Stage

KINDS = (Memory, SqliteFull, Ours, Postgres, OursPostgres)

LENGTH = 200
"""The number of characters in a message."""

PER_TURN = 3
"""The number of checkpoints of a turn: of the input, before the model, and after it."""

PART = 5
"""The divisor of the smaller list: the memory for all checkpoints is compared with that for the newest fifth."""

NOTE = (
    "Milliseconds of saver.list over one thread, and the peak of what Python allocates while a new saver's list is\n"
    "consumed as an iterator; what drivers hold in C is not seen. Three checkpoints a turn, messages of 200 characters."
)

Listed = list[tuple[int, int]]
"""The step and the number of messages of each listed checkpoint."""


def measure(stage: Stage) -> Subject:
    """Time the lists, then measure their memory."""
    turns, rounds = stage.scale.saver.listed, stage.scale.saver.lists
    with stage.briefly(present(*KINDS), name="saver-lists", length=LENGTH) as made:
        Talk(made, CHAT, LENGTH).grow(MESSAGES[CHAT] * turns)
        contenders = [cast(Opened, contender) for contender in made]
        return Subject("Savers: list", NOTE, _times(contenders, turns, rounds) + _memory(contenders, turns))


def _times(contenders: Sequence[Opened], turns: int, rounds: int) -> list[Line]:
    whole = _expected(turns)
    one = {"source": "loop", "step": turns // 2 * PER_TURN}
    cases: dict[str, tuple[Listed, dict[str, Any]]] = {
        "the one of a source and step": ([at for at in whole if at[0] == one["step"]], {"filter": one, "limit": 1}),
        "all of a source": (whole[PER_TURN - 1 :: PER_TURN], {"filter": {"source": "input"}}),
        "all": (whole, {}),
    }
    found: list[Line] = []
    for name, (expected, options) in cases.items():
        runs = {each.name: _checked(each, options, expected) for each in contenders}
        case = f"{name}: {len(expected):,} of {len(whole):,}"
        found += lines(case, interleaved(runs, rounds), [SQLITE, POSTGRES])
    return found


def _expected(turns: int) -> Listed:
    """Return the step and the number of messages of each checkpoint in a thread with that many turns, newest first."""
    return [
        (step, 2 * ((step + 1) // PER_TURN) + (step + 1) % PER_TURN) for step in range(PER_TURN * turns - 2, -2, -1)
    ]


def _checked(contender: Opened, options: dict[str, Any], expected: Listed) -> Callable[[], None]:
    def run() -> None:
        found = [
            (at.metadata["step"], len(at.checkpoint["channel_values"].get("messages", ())))
            for at in contender.saver.list(contender.last, **options)
        ]
        if found != expected:
            raise RuntimeError(f"{contender.name} does not list the {len(expected)} checkpoints that it should")

    return run


def _memory(contenders: Sequence[Opened], turns: int) -> list[Line]:
    """Measure the peaks of memory, once each, because they are counts."""
    few, many = turns * PER_TURN // PART, turns * PER_TURN
    peaks = {count: {each.name: [float(_peak(each, count))] for each in contenders} for count in (few, many)}
    found: list[Line] = []
    for count, measured in peaks.items():
        for line in lines(f"memory, newest {count:,}", measured, [SQLITE, POSTGRES], unit="MB", scale=1e-6):
            growth = {f"{few:,} checkpoints": ratio(measured[line.what], peaks[few][line.what])}
            found.append(replace(line, ratios=line.ratios if count == few else {**line.ratios, **growth}))
    return found


def _peak(contender: Opened, count: int) -> int:
    """Return the most bytes that Python held while a list was consumed."""
    with contender.opened() as saver:
        saver.get_tuple({"configurable": {"thread_id": "none"}})  # connects
        gc.collect()
        tracemalloc.start()
        try:
            consumed = sum(1 for _ in saver.list(contender.last, limit=count))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    if consumed != count:
        raise RuntimeError(f"{contender.name} lists {consumed} checkpoints and should list {count}")
    return peak
