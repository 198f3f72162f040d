"""Taking times side by side, and telling them as medians and ratios: an absolute time alone says nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from bench import postgres

T = TypeVar("T")

PACKAGES = (
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langchain-core",
    "sqlalchemy",
    "sqlmodel",
    "psycopg",
    "orjson",
)

Times = Mapping[str, Sequence[float]]
"""What was measured of each, in seconds, bytes or another unit; the n-th of all belong to the same round."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table.

    Args:
        case: under which conditions.
        what: what was measured.
        median: the median of all rounds, in `unit`.
        least: the smallest of all rounds, which other programs on the machine disturb least.
        unit: `ms`, `MB`, …
        rounds: how many.
        ratios: how many times as much as each baseline this is: the median over the rounds of the ratio in a round.
    """

    case: str
    what: str
    median: float
    least: float
    unit: str
    rounds: int
    ratios: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One table: a title, what the numbers mean, and its lines."""

    title: str
    note: str
    lines: list[Line]

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-like data."""
        return {"title": self.title, "note": self.note, "lines": [asdict(line) for line in self.lines]}


@dataclass(frozen=True)
class Counts:
    """One table of counts: a title, what they mean, the heads of the columns, and rows of case, name, numbers."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-like data."""
        return asdict(self)


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Run once; give the seconds it took, and what it gave."""
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each of these once per round, so that what else the machine does hits all of them alike.

    Args:
        runs: what to run, by name; each round begins with another one.
        rounds: how many.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in rotated(names, number):
            times[name].append(timed(runs[name])[0])
    return times


def rotated(names: Sequence[T], number: int) -> list[T]:
    """Give the order of a round."""
    start = number % len(names)
    return [*names[start:], *names[:start]]


def lines(case: str, times: Times, baselines: Sequence[str], *, unit: str = "ms", scale: float = 1000.0) -> list[Line]:
    """Make a line of each thing that was measured under one condition.

    Args:
        case: the condition.
        times: what was measured.
        baselines: what the others are compared with; those that were not measured are left out.
        unit: how the numbers are called once they are multiplied with `scale`.
        scale: the factor.
    """
    return [
        Line(
            case=case,
            what=what,
            median=median(found) * scale,
            least=min(found) * scale,
            unit=unit,
            rounds=len(found),
            ratios={base: ratio(found, times[base]) for base in baselines if base in times and base != what},
        )
        for what, found in times.items()
    ]


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """Give the median over all rounds of this divided by that."""
    return median(a / b for a, b in zip(these, those, strict=True))


def machine(where: Path) -> dict[str, str]:
    """Tell on what the numbers were measured, without any name or path of it."""
    return {
        "cores": str(os.cpu_count()),
        "load when it began": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.machine()}",
        "disk": f"{sync_ms(where):.2f} ms for 4 KB and fsync",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": postgres.about() or "no server answers: left out",
        **{name: version(name) for name in PACKAGES},
    }


def sync_ms(where: Path, rounds: int = 50) -> float:
    """Measure what it takes to bring a page to the disk, in milliseconds."""
    path = where / "sync"
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(bytes(4096))
            os.fsync(file.fileno())

        found = median(timed(write)[0] for _ in range(rounds))
    path.unlink()
    return found * 1000


def table(subject: Subject | Counts) -> str:
    """Draw the lines of a subject as text."""
    if isinstance(subject, Counts):
        cases = [row[0] for row in subject.rows]
        shown = [case if cases.index(case) == n else "" for n, case in enumerate(cases)]
        rows = [[case, *row[1:]] for case, row in zip(shown, subject.rows, strict=True)]
        return drawn([["", "", *subject.columns], *rows])
    bases = list(dict.fromkeys(base for line in subject.lines for base in line.ratios))
    head = ["", "", "median", "least", *(f"x {base}" for base in bases)]
    rows = [head]
    case = None
    for line in subject.lines:
        shown = line.case if line.case != case else ""
        case = line.case
        numbers = [
            f"{_number(line.median)} {line.unit}",
            f"{_number(line.least)} {line.unit}" if line.rounds > 1 else "",
        ]
        ratios = [_ratio(line.ratios[base]) if base in line.ratios else "" for base in bases]
        rows.append([shown, line.what, *numbers, *ratios])
    return drawn(rows)


def facts(found: Mapping[str, str]) -> str:
    """Draw the facts about the machine as text."""
    return drawn(list(found.items()))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def drawn(rows: Sequence[Sequence[str]]) -> str:
    """Draw columns: the first two to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(f"{cell:<{w}}" if n < 2 else f"{cell:>{w}}" for n, (cell, w) in enumerate(cells)).rstrip()
