"""The aims of the saver, compared with the measured numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bench.contenders import OURS, SQLITE
from bench.measure import Line, Subject, drawn
from bench.saver.contenders import COUNTERPART, OURS_FULL, OURS_PLAIN

TITLE = "Savers: aims"

MILLISECONDS = ""
"""The `of` of an aim for the median itself, in place of the name of a ratio."""


class Aim(NamedTuple):
    """One aim: a line of a subject, one of its numbers, and the upper limit of the number."""

    text: str
    subject: str
    case: str
    what: str
    of: str
    most: float


SIZE, TURN, PUT, FORK, LIST = "saver-size", "saver-turn", "saver-put", "saver-fork", "saver-list"
MIDDLE, FORKED = "in the middle of 300 turns", f"{OURS}, fork"
WHOLE, FEW = "memory, newest 1,002", "200 checkpoints"

AIMS = (
    Aim("size at 1,000 turns, not compressed, of SqliteSaver's", SIZE, "1,000 turns", OURS_PLAIN, SQLITE, 1 / 190),
    Aim("turn at 2 messages, of SqliteSaver's", TURN, "2 messages", OURS, SQLITE, 1),
    Aim("turn at 2,000 messages, of SqliteSaver's", TURN, "2,000 messages", OURS, SQLITE, 1 / 4),
    Aim("put of 10 KB, both FULL, of SqliteSaver's", PUT, "put, 10 KB", OURS_FULL, COUNTERPART, 0.5),
    Aim("put of 10 KB, both NORMAL, of SqliteSaver's", PUT, "put, 10 KB", OURS, COUNTERPART, 0.5),
    Aim("fork in the middle of 300 turns, ms", FORK, MIDDLE, FORKED, MILLISECONDS, 1),
    Aim("fork at 10,000 messages, of that at 10", FORK, "at 10,000 messages", FORKED, "10 messages", 1.5),
    Aim("memory of list, 1,002 checkpoints, of that of 200", LIST, WHOLE, OURS, FEW, 1.5),
)  # fmt: skip


def table(subjects: Mapping[str, Subject]) -> str | None:
    """Format the aims whose numbers were measured as text, or return None if there are none.

    Args:
        subjects: The measured subjects, by name.
    """
    rows = [_row(aim, line) for aim in AIMS for line in _lines(subjects, aim)]
    return drawn([("", "", "at most", "measured"), *rows]) if rows else None


def _lines(subjects: Mapping[str, Subject], aim: Aim) -> list[Line]:
    lines = subjects[aim.subject].lines if aim.subject in subjects else []
    return [line for line in lines if (line.case, line.what) == (aim.case, aim.what)]


def _row(aim: Aim, line: Line) -> tuple[str, ...]:
    found = line.ratios[aim.of] if aim.of else line.median
    return aim.text, "reached" if found <= aim.most else "missed", f"{aim.most:.2g}", f"{found:.2g}"
