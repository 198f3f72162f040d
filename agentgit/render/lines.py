"""Lines: spans of text, each with the name of a style. A face gives the styles their colours, plain text drops them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentgit.render.text import cells, cut, pad, wrap

STYLES = ("", "heading", "reference", "name", "head", "dim", "added", "removed", "changed", "bad")
"""The names of the styles; `head` marks where branches end, `bad` what needs a person."""

ASCII = str.maketrans(
    {
        "●": "o",
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
"""Stands in for the characters that we draw with, where an output cannot take them."""

_COLUMN_CELLS = 40
"""The most cells of a column that is not the last."""


class Span(NamedTuple):
    """A piece of clean text in one style.

    Args:
        text: Without control characters.
        style: One of `STYLES`.
    """

    text: str
    style: str = ""


Line = tuple[Span, ...]


def plain(lines: Iterable[Line]) -> str:
    """Write lines without their styles.

    Example:
        >>> plain([(Span("main#1", "reference"), Span("  start"))])
        'main#1  start'
    """
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def table(rows: Sequence[Sequence[Span]], *, width: int, indent: str = "", whole: bool = False) -> list[Line]:
    """Align rows in columns, two spaces apart; the last column is cut at the edge.

    Args:
        rows: All of the same length.
        width: The cells of a line.
        indent: The beginning of each line.
        whole: True to go on in further lines instead of cutting the last column.

    Example:
        >>> print(plain(table([[Span("main"), Span("7 checkpoints")], [Span("retry"), Span("4")]], width=16)))
        main   7 checkpo…
        retry  4
    """
    if not rows:
        return []
    widths = _widths(rows, cells(indent), width, whole)
    # A column without anything takes no place.
    left = max(10, width - cells(indent) - sum(column + 2 for column in widths if column))
    result: list[Line] = []
    for *others, last in rows:
        shown = [s._replace(text=pad(cut(s.text, w), w) + "  ") for s, w in zip(others, widths, strict=True) if w]
        first, *more = wrap(last.text, left) if whole else [cut(last.text, left)]
        result.append((Span(indent), *shown, last._replace(text=first)))
        below = Span(" " * (cells(indent) + sum(cells(span.text) for span in shown)))
        result += [(below, last._replace(text=text)) for text in more]
    return result


def _widths(rows: Sequence[Sequence[Span]], indent: int, width: int, whole: bool) -> list[int]:
    """Return how wide the columns but the last one are."""
    columns = zip(*(row[:-1] for row in rows), strict=True)
    widths = [min(_COLUMN_CELLS, max(cells(span.text) for span in column)) for column in columns]
    if whole:  # the widest one leaves to the last what that needs, up to a third of the line
        needed = min(width // 3, max(cells(row[-1].text) for row in rows))
        taken = indent + sum(column + 2 for column in widths if column)
        widest = widths.index(max(widths))
        widths[widest] = max(8, widths[widest] - max(0, taken + needed - width))
    return widths
