"""Times taken side by side, and shown as medians and ratios, because an absolute time alone means little."""

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
"""The measured values by name, in seconds, bytes or another unit; the n-th values of all belong to the same round."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table.

    Args:
        case: The conditions.
        what: The measured contender or operation.
        median: The median of all rounds, in `unit`.
        least: The smallest value of all rounds, which other programs on the machine disturb least.
        unit: The unit: `ms`, `MB`, …
        rounds: The number of rounds.
        ratios: The median of the ratios of all rounds, for each baseline.
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
    """One table: a title, a note on the numbers, and the lines."""

    title: str
    note: str
    lines: list[Line]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON-like data."""
        return {"title": self.title, "note": self.note, "lines": [asdict(line) for line in self.lines]}


@dataclass(frozen=True)
class Counts:
    """One table of counts: a title, a note, the column headings, and rows of a case, a name and the numbers."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON-like data."""
        return asdict(self)


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Run a function once, and return its duration in seconds and its value."""
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each function once per round, so that the load of the machine affects all of them alike.

    Args:
        runs: The functions, by name; each round begins with a different one.
        rounds: The number of rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in rotated(names, number):
            times[name].append(timed(runs[name])[0])
    return times


def rotated(names: Sequence[T], number: int) -> list[T]:
    """Return the order of the names in a round."""
    start = number % len(names)
    return [*names[start:], *names[:start]]


def lines(case: str, times: Times, baselines: Sequence[str], *, unit: str = "ms", scale: float = 1000.0) -> list[Line]:
    """Make a line for each name that was measured under the same conditions.

    Args:
        case: The conditions.
        times: The measured values.
        baselines: The names that the others are compared with; names that were not measured are skipped.
        unit: The unit of the numbers after they are multiplied by `scale`.
        scale: The factor.
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
    """Return the median of the ratios of all rounds."""
    return median(a / b for a, b in zip(these, those, strict=True))


def machine(where: Path) -> dict[str, str]:
    """Describe the machine, without its name and without paths."""
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
    """Measure the time to bring a page of 4 KB to the disk, in milliseconds."""
    path = where / "sync"
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(bytes(4096))
            os.fsync(file.fileno())

        found = median(timed(write)[0] for _ in range(rounds))
    path.unlink()
    return found * 1000


def table(subject: Subject | Counts) -> str:
    """Format a table as text."""
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
    """Format the facts about the machine as text."""
    return drawn(list(found.items()))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def drawn(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns: the first two to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(f"{cell:<{w}}" if n < 2 else f"{cell:>{w}}" for n, (cell, w) in enumerate(cells)).rstrip()
