"""Times taken side by side, and shown as medians and ratios, because an absolute time alone means little."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from bench import postgres

T = TypeVar("T")

SAVERS = ("langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
PACKAGES = ("langgraph", *SAVERS, "langchain-core", "sqlalchemy", "psycopg")

Values = Mapping[str, Sequence[float]]
"""The measured values of each contender; the n-th values of all belong to the same round."""


@dataclass(frozen=True)
class Table:
    """A title, a note on the numbers, the column headings, and rows of a case, a contender and the cells."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        cases = [row[0] for row in self.rows]
        shown = [case if cases.index(case) == n else "" for n, case in enumerate(cases)]
        rows = [[case, *row[1:]] for case, row in zip(shown, self.rows, strict=True)]
        return f"{self.title}\n{self.note}\n\n{aligned([['', '', *self.columns], *rows])}"


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Run a function once, and return its duration in seconds and its value."""
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value


def interleaved(
    runs: Mapping[str, Callable[[], object]], rounds: int, measure: Callable[[Callable[[], object]], Any] = timed
) -> dict[str, list[Any]]:
    """Time each function once per round, so that the load of the machine affects all of them alike."""
    times: dict[str, list[Any]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in rotated(list(runs), number):
            times[name].append(measure(runs[name])[0])
    return times


def rotated(names: Sequence[T], number: int) -> list[T]:
    """Return the order of the names in a round: each round begins with another one."""
    start = number % len(names)
    return [*names[start:], *names[:start]]


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """Return the median of the ratios of all rounds, so that a round on a busy machine counts no more than another."""
    return median(a / b for a, b in zip(these, those, strict=True))


def compared(values: Values, base: str, unit: str = "ms", scale: float = 1000) -> dict[str, list[str]]:
    """Return two cells for each contender: the median, and the ratio to a base, if the base was measured."""
    return {
        name: [
            f"{_number(median(found) * scale)} {unit}",
            _ratio(ratio(found, values[base])) if base in values and name != base else "",
        ]
        for name, found in values.items()
    }


def rows(case: str, *cells: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return a row for each contender, with the cells of several comparisons side by side."""
    return [[case, name, *(cell for each in cells for cell in each[name])] for name in cells[0]]


def machine(where: Path) -> str:
    """Describe the machine, without its name and without paths."""
    facts = {
        "cores": str(os.cpu_count()),
        "load when it began": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.machine()}",
        "disk": f"{_sync_ms(where):.2f} ms for 4 KB and fsync",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": postgres.about() or "no server answers: left out",
        **{name: version(name) for name in PACKAGES},
    }
    return aligned(list(facts.items()))


def _sync_ms(where: Path) -> float:
    path = where / "sync"
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(bytes(4096))
            os.fsync(file.fileno())

        found = median(timed(write)[0] for _ in range(50))
    path.unlink()
    return found * 1000


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Format rows as columns: the first two to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return "\n".join(_line(row, widths) for row in table)


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(f"{cell:<{w}}" if n < 2 else f"{cell:>{w}}" for n, (cell, w) in enumerate(cells)).rstrip()
