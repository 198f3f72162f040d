"""The aims, compared with the measured numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench import first, fork, rerun
from bench.contenders import OURS, SQLITE, WRAPPED
from bench.graphs import CHAT, TOOL
from bench.measure import Counts, Subject, drawn
from bench.multiuser.turns import POSTGRES, SERVED
from bench.saver.contenders import COUNTERPART, OURS_FULL, OURS_PLAIN
from bench.served import MESSAGE_COUNTS
from bench.turn import NAMES

TITLE = "Aims"

MILLISECONDS = ""
"""The `of` of an aim for the median itself, in place of the name of a ratio."""


class Aim(NamedTuple):
    """One aim: a line of a subject, one of its numbers, and the limit of the number.

    Args:
        text: The description.
        subject: The name of the subject.
        case: The case of the line.
        what: The contender of the line.
        of: The name of the ratio or the column.
        limit: The limit.
        is_minimum: True if the number must not be less than the limit, False if not more.
    """

    text: str
    subject: str
    case: str
    what: str
    of: str
    limit: float
    is_minimum: bool = False


def _turns() -> Iterator[Aim]:
    limits = {
        (WRAPPED, CHAT): (1, 0.8, 0.5),
        (WRAPPED, TOOL): (1.1, 0.9, 0.5),
        (OURS, CHAT): (0.8, 0.7, 0.4),
    }
    for (name, kind), most in limits.items():
        for messages, limit in zip(("2", "100", "1,000"), most, strict=True):
            case = f"{NAMES[kind]}, {messages} messages"
            yield Aim(f"turn of {case}: {name}, of SqliteSaver's", "turn", case, name, SQLITE, limit)


def _clients() -> Iterator[Aim]:
    for name, limit in ((WRAPPED, 1.0), (OURS, 1.5)):
        for messages in (2, 100):
            for clients in ("1 client", "4 clients", "16 clients", "64 clients"):
                case = f"{messages} messages, {clients}"
                text = f"turns/s with {case}: {name}, of PostgresSaver's"
                yield Aim(text, "multiuser-turns", case, name, f"x {POSTGRES}", limit, is_minimum=True)


def _served() -> Iterator[Aim]:
    for database in ("SQLite", "PostgreSQL"):
        for kind in (CHAT, TOOL):
            for messages in MESSAGE_COUNTS:
                case = f"{NAMES[kind]}, {messages} messages, {database}"
                yield Aim(f"turn of {case}: served, of wrapped", "graph", case, SERVED, WRAPPED, 1.1)
    for messages in MESSAGE_COUNTS:
        case = f"{messages} messages, 64 threads"
        text = f"turns/s with {case} in one process: served, of PostgresSaver's"
        yield Aim(text, "multiuser-process", case, SERVED, f"x {POSTGRES}", 0.9, is_minimum=True)


SIZE, TURN, PUT, FORK, LIST = "saver-size", "saver-turn", "saver-put", "saver-fork", "saver-list"
MIDDLE, FORKED = "in the middle of 300 turns", f"{OURS}, fork"
FASTER = "times as fast"
WHOLE, FEW = "memory, newest 1,002", "200 checkpoints"

AIMS = (
    *_turns(),
    *_clients(),
    *_served(),
    Aim("fork at 10 messages, less an fsync, ms", "fork", "10 messages", fork.FORK_ALONE, MILLISECONDS, 2),
    Aim("fork at 10,000 messages, of that at 10", "fork", "10,000 messages", fork.FORK, "10 messages", 1.2),
    Aim("rollback of one call, less 3 fsync, ms", "fork", "10 messages", fork.ROLLBACK_ALONE, MILLISECONDS, 5),
    Aim(f"{first.EARLY} of a process, of later ones", "first", WRAPPED, first.EARLY, first.LATE, 1.2),
    Aim("20 MB in the first turn, of SqliteSaver's", "large", "20 MB, first", WRAPPED, SQLITE, 1.2),
    Aim("20 MB in later turns, of SqliteSaver's", "large", "20 MB, later", WRAPPED, SQLITE, 1.2),
    Aim("rerun of 1,000 turns, of the plain graph", "rerun", "1,000 turns", rerun.RERUN, rerun.IN_MEMORY, 1.3),
    Aim("memory of a rerun per turn, of that of 200", "rerun", "1,000 turns, memory", rerun.RERUN, "shortest", 1.2),
    Aim("reruns by two processes, of one", "rerun-workers", "24 sessions", "2 processes", FASTER, 1.7, is_minimum=True),
    Aim("turn beside a slow model, of SqliteSaver's", "model", "2 steps of 1 s", WRAPPED, SQLITE, 1.01),
    Aim("size at 1,000 turns, not compressed, of SqliteSaver's", SIZE, "1,000 turns", OURS_PLAIN, SQLITE, 1 / 190),
    Aim("turn at 2 messages, of SqliteSaver's", TURN, "2 messages", OURS, SQLITE, 1),
    Aim("turn at 2,000 messages, of SqliteSaver's", TURN, "2,000 messages", OURS, SQLITE, 1 / 4),
    Aim("put of 10 KB, both FULL, of SqliteSaver's", PUT, "put, 10 KB", OURS_FULL, COUNTERPART, 0.5),
    Aim("put of 10 KB, both NORMAL, of SqliteSaver's", PUT, "put, 10 KB", OURS, COUNTERPART, 0.5),
    Aim("fork in the middle of 300 turns, ms", FORK, MIDDLE, FORKED, MILLISECONDS, 1),
    Aim("fork at 10,000 messages, of that at 10", FORK, "at 10,000 messages", FORKED, "10 messages", 1.5),
    Aim("memory of list, 1,002 checkpoints, of that of 200", LIST, WHOLE, OURS, FEW, 1.5),
)  # fmt: skip


def table(subjects: Mapping[str, Subject | Counts]) -> str | None:
    """Format the aims whose numbers were measured as text, or return None if there are none.

    Args:
        subjects: The measured subjects, by name.
    """
    rows = [_row(aim, number) for aim in AIMS if (number := _find(subjects, aim)) is not None]
    return drawn([("", "", "aim", "measured"), *rows]) if rows else None


def _find(subjects: Mapping[str, Subject | Counts], aim: Aim) -> float | None:
    """Return the number of an aim, or None if it was not measured."""
    subject = subjects.get(aim.subject)
    if isinstance(subject, Counts):
        rows = [row for row in subject.rows if (row[0], row[1]) == (aim.case, aim.what)]
        return float(rows[0][2 + subject.columns.index(aim.of)]) if rows else None
    lines = subject.lines if subject is not None else []
    found = [line for line in lines if (line.case, line.what) == (aim.case, aim.what)]
    return (found[0].ratios.get(aim.of) if aim.of else found[0].median) if found else None


def _row(aim: Aim, number: float) -> tuple[str, ...]:
    is_reached = number >= aim.limit if aim.is_minimum else number <= aim.limit
    bound = "at least" if aim.is_minimum else "at most"
    return aim.text, "reached" if is_reached else "missed", f"{bound} {aim.limit:.2g}", f"{number:.2g}"
