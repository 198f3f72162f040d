"""The results of reruns of many sessions: one row for each session, and a summary. Pure values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, mean
from typing import Any, ClassVar

from agentgit.sessions.rerun import DONE, RerunReport
from agentgit.values import COUNT, FLAG, NUMBER, OBJECT, PrintableDrawing, Tabular

REFUSED = "refused"
"""The status of a session that could not be run again, for example because it is damaged."""

Verdict = bool | float | str
"""What a judge returns: whether the rerun passes, a score, or a word."""


@dataclass(frozen=True, kw_only=True)
class SessionRerun:
    """The rerun of one session.

    Args:
        session: The name of the session.
        branch: The name of the branch of the rerun; None if there is none.
        status: `done`, `diverged`, `failed`, `refused` (nothing ran), or when read again, `running` (it has not ended
            and been judged yet, or its process was stopped).
        verdict: What the judge returned; None without a judge, or if it raised.
        error: Why the rerun did not end, why the judge has no verdict, or which recorded tools the graph lacks.
        report: The report of the rerun; None if nothing ran.
    """

    session: str
    branch: str | None = None
    status: str = REFUSED
    verdict: Verdict | None = None
    error: str | None = None
    report: RerunReport | None = None

    @property
    def source(self) -> str | None:
        """The name of the branch that was run again."""
        return self.report.source if self.report is not None else None

    @property
    def tokens(self) -> int | None:
        """The tokens that the models reported; None if they report none."""
        used = self.report.tokens.values() if self.report is not None else ()
        return sum(one.total for one in used) if used else None

    @property
    def cost(self) -> float | None:
        """The cost of the tokens; None without prices, or if the price of a model is missing."""
        return self.report.cost if self.report is not None else None

    @property
    def match_rate(self) -> float:
        """The share of calls, made and recorded, that are in both; 0 if the rerun did not run to its end."""
        return self.report.match_rate if self.report is not None and self.status == DONE else 0.0

    @property
    def is_same(self) -> bool:
        """True if the rerun did exactly what was recorded."""
        return self.report is not None and self.report.is_same

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        report = self.report.to_dict() if self.report is not None else None
        figures = {"match_rate": self.match_rate, "is_same": self.is_same, "tokens": self.tokens, "cost": self.cost}
        return {**vars(self), **figures, "report": report}


@dataclass(frozen=True, kw_only=True)
class Reruns(PrintableDrawing, Tabular):
    """The results of reruns of many sessions. `str` returns a table, and so does `to_frame`.

    Args:
        name: The name of all their branches, with which `repo.reruns` reads them again.
        rows: The sessions, in the order in which they were given.
        is_judged: True if there was a judge.

    Example:
        >>> passed = SessionRerun(session="a", status="done", verdict=True)
        >>> results = Reruns(name="prompt-2", rows=[passed, SessionRerun(session="b", error="Corrupt")], is_judged=True)
        >>> results.judge, results.matched, results.is_passed(0.9)
        (0.5, 0.0, False)
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "session": OBJECT,
        "branch": OBJECT,
        "source": OBJECT,
        "status": OBJECT,
        "match_rate": NUMBER,
        "is_same": FLAG,
        "verdict": OBJECT,
        "tokens": COUNT,
        "cost": NUMBER,
        "error": OBJECT,
    }

    name: str
    rows: list[SessionRerun] = field(default_factory=list)
    is_judged: bool = False

    def _records(self) -> Iterable[Any]:
        return self.rows

    @property
    def names(self) -> list[str]:
        """The name of the session of each row; with the branch that was run again, if several have that name."""
        counts = Counter(row.session for row in self.rows)
        return [
            f"{row.session}@{row.source}" if counts[row.session] > 1 and row.source is not None else row.session
            for row in self.rows
        ]

    @property
    def matched(self) -> float:
        """The mean of the match rates; 0 if there is no session, which must not pass."""
        return fmean(row.match_rate for row in self.rows) if self.rows else 0.0

    @cached_property
    def judge(self) -> float | None:
        """The mean of the verdicts, where True is 1 and none is 0; None without a judge that gives numbers."""
        if not self.is_judged or any(isinstance(row.verdict, str) for row in self.rows):
            return None
        return mean(float(row.verdict or 0) for row in self.rows) if self.rows else 0.0  # `fmean` overflows

    @property
    def tokens(self) -> int | None:
        """The tokens of all reruns; None if the models report none."""
        reported = [row.tokens for row in self.rows if row.tokens is not None]
        return sum(reported) if reported else None

    @property
    def cost(self) -> float | None:
        """The cost of all reruns; None if that of one is not known."""
        costs = [row.cost for row in self.rows if row.report is not None]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def score(self, row: SessionRerun) -> float:
        """Return the number by which a session passes: the verdict if the judge gives numbers, else the match rate."""
        return row.match_rate if self.judge is None else float(row.verdict or 0)

    def is_passed(self, bar: float) -> bool:
        """Return whether the mean of the verdicts, or without a judge that of the match rates, reaches a bar."""
        return (self.matched if self.judge is None else self.judge) >= bar

    def to_dict(self) -> dict[str, Any]:
        """Return the summary and all rows as JSON-like data."""
        summary = {"name": self.name, "matched": self.matched, "judge": self.judge, "tokens": self.tokens}
        summary["cost"] = self.cost
        return {**summary, "sessions": [row.to_dict() for row in self.rows]}
