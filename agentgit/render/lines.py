"""Lines: spans of text, each with the name of a style. A face gives the styles their colours, plain text drops them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentgit.render.text import cells, cut, pad

STYLES = ("", "heading", "reference", "name", "head", "dim", "added", "removed", "changed", "bad")
"""The names of the styles; `head` marks where branches end, `bad` what needs a person."""

ASCII = str.maketrans({
    "●": "o", "○": ".", "◆": "*", "│": "|", "├": "|", "╰": "`", "─": "-", "┆": ":", "…": "...",
})  # fmt: skip
"""Stands in for the characters that we draw with, where an output cannot take them."""

_COLUMN_CELLS = 40
"""How many cells a column may take that is not the last."""


class Span(NamedTuple):
    """A piece of clean text in one style.

    Args:
        text: without control characters.
        style: one of `STYLES`.
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


def table(rows: Sequence[Sequence[Span]], *, width: int, indent: str = "") -> list[Line]:
    """Align rows in columns, two spaces apart; the last column is cut at the edge.

    Args:
        rows: all of the same length.
        width: the cells of a line.
        indent: what each line begins with.

    Example:
        >>> print(plain(table([[Span("main"), Span("7 checkpoints")], [Span("retry"), Span("4")]], width=16)))
        main   7 checkpo…
        retry  4
    """
    if not rows:
        return []
    shorter = [[span._replace(text=cut(span.text, _COLUMN_CELLS)) for span in row[:-1]] for row in rows]
    widths = [max(cells(span.text) for span in column) for column in zip(*shorter, strict=True)]
    # A column without anything takes no place.
    left = max(10, width - cells(indent) - sum(column + 2 for column in widths if column))
    result: list[Line] = []
    for row, (*_, last) in zip(shorter, rows, strict=True):
        shown = [s._replace(text=pad(s.text, w) + "  ") for s, w in zip(row, widths, strict=True) if w]
        result.append((Span(indent), *shown, last._replace(text=cut(last.text, left))))
    return result
