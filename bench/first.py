"""The first turns of a new process, compared with its later ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

import orjson

from bench.contenders import SQLITE, WRAPPED, Contender, Sqlite, Wrapped
from bench.graphs import CHAT, said
from bench.measure import Subject, lines, timed
from bench.stage import Stage

FIRST, LATER = 20, 100
"""The turns that are compared: the first ones, and those that follow them."""

EARLY, LATE = f"first {FIRST} turns", f"next {LATER} turns"

LENGTH = 200

KINDS: dict[str, type[Contender]] = {SQLITE: Sqlite, WRAPPED: Wrapped}

NOTE = (
    f"Milliseconds a turn of user and assistant: the mean of the first {FIRST} turns of a new process, whose database\n"
    f"and graph are open, and the mean of the next {LATER}. Each turn is the first one of a conversation."
)


def measure(stage: Stage) -> Subject:
    """Time turns in new processes."""
    found = []
    for name in KINDS:
        times: dict[str, list[float]] = {EARLY: [], LATE: []}
        for _ in range(stage.scale.starts):
            with TemporaryDirectory(dir=stage.where) as folder:
                command = [sys.executable, "-m", __name__, name, folder]
                done = run(command, capture_output=True, check=True)  # noqa: S603  # written in this file
            for key, took in zip(times, orjson.loads(done.stdout), strict=True):
                times[key].append(took)
        found += lines(name, times, [LATE])
    return Subject("The first turns of a process", NOTE, found)


def _work(name: str, folder: Path) -> tuple[float, float]:
    contender = KINDS[name](folder, LENGTH)
    conversations = [contender.conversation() for _ in range(FIRST + LATER)]
    turns: list[Callable[[], object]] = [
        lambda say=say, number=number: say(said(CHAT, number, LENGTH)) for number, say in enumerate(conversations)
    ]
    times = [timed(turn)[0] for turn in turns]
    contender.close()
    return sum(times[:FIRST]) / FIRST, sum(times[FIRST:]) / LATER


if __name__ == "__main__":
    print(orjson.dumps(_work(sys.argv[1], Path(sys.argv[2]))).decode())
