"""Text for terminals: escaped, measured, cut and wrapped; and lines of styled spans."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple, TypeAlias

from agentgit.values import JOINERS, UNSAFE_CATEGORIES, portable, quote_name

_MAX_LENGTH = 4_000
"""The number of characters that `clean` keeps of a text."""

_ZERO_WIDTH_CATEGORIES = ("Mn", "Me", "Cf")
"""The Unicode categories whose characters take no cell."""


def clean(text: str) -> str:
    r"""Put a text on one line, and escape control and direction characters that a terminal would obey.

    Example:
        >>> print(clean("two\nlines and \x1b[31mred"))
        two lines and \x1b[31mred
    """
    return visible(" ".join(text[:_MAX_LENGTH].split()))


def waiting_text(questions: Sequence[Any]) -> str:
    """Return that a branch waits for an answer, and to what; an empty text if it asks nothing.

    Example:
        >>> waiting_text(["Send it?", {"pay": 5}])
        'waits for an answer: Send it?, {"pay": 5}'
    """
    texts = [one if isinstance(one, str) else json.dumps(portable(one), ensure_ascii=False) for one in questions]
    return f"waits for an answer: {', '.join(texts)}" if texts else ""


def visible(text: str) -> str:
    """Escape control and direction characters that a terminal would obey, but keep spaces and line ends."""
    return text if text.isprintable() else "".join(map(_visible_character, text))


def _visible_character(c: str) -> str:
    if c in " \t\n" or c in JOINERS or unicodedata.category(c) not in UNSAFE_CATEGORIES:
        return c
    return repr(c)[1:-1]


def place(session_name: str, branch: str | None = None) -> str:
    """Return the words that name a session and one of its branches.

    Example:
        >>> print(place("support-42", "main"))
        session support-42, branch main
    """
    session = f"session {clean(quote_name(session_name))}"
    return session if branch is None else f"{session}, branch {clean(quote_name(branch))}"


def cells(text: str) -> int:
    """Return the width of a clean text in terminal cells; wide characters (UAX #11) take two, combining ones none.

    Example:
        >>> cells("abc"), cells("日本")
        (3, 4)
    """
    return len(text) if text.isascii() else sum(map(_cells_of_character, text))


def _cells_of_character(c: str) -> int:
    if unicodedata.category(c) in _ZERO_WIDTH_CATEGORIES:
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Shorten a clean text to a number of cells, ending with `…` if something was cut.

    Example:
        >>> cut("order two chairs", 9), cut("日本語", 4)
        ('order tw…', '日…')
    """
    # The length is limited too, because one letter can carry any number of marks that take no cell.
    if len(text) <= 4 * width and cells(text) <= width:
        return text
    used = 0
    for i, c in enumerate(text):
        used += _cells_of_character(c)
        if used > width - 1 or i >= 4 * width:
            return text[:i].rstrip() + "…"
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break a clean text into lines of at most `width` cells, between words where possible.

    Example:
        >>> wrap("its undo reverses it", 12)
        ['its undo', 'reverses it']
    """
    lines = [""]
    for word in text.split():
        for piece in _split_word(word, width):
            joined = f"{lines[-1]} {piece}".lstrip()
            if cells(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _split_word(word: str, width: int) -> list[str]:
    """Break a word into pieces that fit on a line."""
    pieces, used = [""], 0
    for c in word:
        used += _cells_of_character(c)
        if used > width:
            pieces.append("")
            used = _cells_of_character(c)
        pieces[-1] += c
    return pieces


def pad(text: str, width: int) -> str:
    """Pad a clean text with spaces to a number of cells."""
    return text + " " * (width - cells(text))


Zone: TypeAlias = tzinfo | datetime | None
"""How to show times: in a time zone, in the local one (None), or as the distance from a time, which is now."""


def format_time(moment: datetime | None, zone: Zone = UTC, *, seconds: bool = False) -> str:
    """Format a time for people.

    Example:
        >>> format_time(datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
        '2026-01-02 03:04'
        >>> format_time(datetime(2026, 1, 2, 3, 4, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC))
        '1 day ago'
    """
    if moment is None:
        return ""
    if isinstance(zone, datetime):
        if not seconds and moment <= zone:
            return distance((zone - moment).total_seconds())
        zone = None
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def distance(seconds: float) -> str:
    """Return how long ago something was, in the largest whole unit.

    Example:
        >>> distance(5), distance(130), distance(90_000), distance(-3)
        ('just now', '2 min ago', '1 day ago', 'just now')
    """
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "min")):
        number = int(seconds // size)
        if number >= 1:
            return f"{number} {unit}{'s' if number > 1 and unit != 'min' else ''} ago"
    return "just now"


STYLES = ("", "heading", "reference", "name", "head", "dim", "added", "removed", "changed", "bad")
"""The names of the styles; `head` marks the ends of branches, `bad` marks what needs attention."""

ASCII = str.maketrans(
    {
        "●": "o",
        "◌": ".",
        "○": ".",
        "◆": "*",
        "│": "|",
        "├": "|",
        "╰": "`",
        "─": "-",
        "┆": ":",
        "…": "...",
    }
)
"""Replacements for the drawing characters, for outputs that cannot encode them."""

_MAX_COLUMN_CELLS = 40
"""The maximum width of a column other than the last, in cells."""


class Span(NamedTuple):
    """A piece of clean text in one style."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def plain(lines: Iterable[Line]) -> str:
    """Return lines as plain text, without their styles.

    Example:
        >>> plain([(Span("main#1", "reference"), Span("  start"))])
        'main#1  start'
    """
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def table(rows: Sequence[Sequence[Span]], *, width: int, indent: str = "", wrap_last: bool = False) -> list[Line]:
    """Align rows in columns, two spaces apart; the last column is cut at the edge.

    Example:
        >>> print(plain(table([[Span("main"), Span("7 checkpoints")], [Span("retry"), Span("4")]], width=16)))
        main   7 checkpo…
        retry  4
    """
    if not rows:
        return []
    widths = _widths(rows, cells(indent), width, wrap_last)
    # An empty column takes no space.
    last_width = max(10, width - cells(indent) - sum(column + 2 for column in widths if column))
    result: list[Line] = []
    for *others, last in rows:
        padded = [s._replace(text=pad(cut(s.text, w), w) + "  ") for s, w in zip(others, widths, strict=True) if w]
        first, *rest = wrap(last.text, last_width) if wrap_last else [cut(last.text, last_width)]
        result.append((Span(indent), *padded, last._replace(text=first)))
        margin = Span(" " * (cells(indent) + sum(cells(span.text) for span in padded)))
        result += [(margin, last._replace(text=text)) for text in rest]
    return result


def _widths(rows: Sequence[Sequence[Span]], indent: int, width: int, wrap_last: bool) -> list[int]:
    """Return the widths of all columns but the last."""
    columns = zip(*(row[:-1] for row in rows), strict=True)
    widths = [min(_MAX_COLUMN_CELLS, max(cells(span.text) for span in column)) for column in columns]
    if wrap_last:  # the widest column yields what the last one needs, up to a third of the line
        needed = min(width // 3, max(cells(row[-1].text) for row in rows))
        total = indent + sum(column + 2 for column in widths if column)
        widest = widths.index(max(widths))
        widths[widest] = max(8, widths[widest] - max(0, total + needed - width))
    return widths
