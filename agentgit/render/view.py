"""Views: what is shown of a value, as lines of styled text, tables and sections that a page collapses.

A terminal, a page or a notebook decides how wide a view is, in which zone its times are, whose words its next steps
have, and what a style looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, TypeAlias

from agentgit.next_steps import Face, Reason
from agentgit.render.text import Zone, cells, clean, cut, format_time, wrap

STYLES = ("", "heading", "reference", "name", "head", "dim", "added", "removed", "changed", "bad")
"""The names of the styles; `head` marks the ends of branches, `bad` marks what needs attention."""

ASCII = str.maketrans("●◌○◆│├╰─┆", "o..*||`-:") | {ord("…"): "..."}
"""Replacements for the drawing characters, for outputs that cannot encode them."""


class Span(NamedTuple):
    """A piece of clean text in one style; or a reason, which each face words."""

    text: str
    style: str = ""
    full: Callable[[], str] | None = None
    """Returns the whole text, of which `text` is the short form; a page shows it to a reader who asks for it."""


class Time(Span):
    """A point in time, which each medium formats."""

    moment: datetime | None
    seconds: bool

    def __new__(cls, moment: datetime | None, *, seconds: bool = False) -> Self:
        """Create a span for a time; None is empty."""
        span = super().__new__(cls, "", "dim")
        span.moment, span.seconds = moment, seconds
        return span


Line: TypeAlias = tuple[Span, ...]
Cell: TypeAlias = Span | Line


@dataclass(frozen=True)
class Table:
    """Rows in columns, two spaces apart. The last column is cut at the edge, or wraps."""

    rows: Sequence[Sequence[Cell]]
    headings: Sequence[str] = ()
    """The headings of the columns, on a page."""
    empty: str = ""
    """What stands in place of no rows."""
    indent: str = ""
    wraps: bool = False
    longest: int = 40
    """The maximum width of a column other than the last, in cells."""


@dataclass(frozen=True)
class Fold:
    """A section below a title, which a page collapses."""

    title: str
    content: View


View: TypeAlias = "Sequence[Line | Table | Fold]"


def facts(values: Mapping[str, Any], *, indent: str = "") -> Table:
    """Return a table with a name and a value in each row, without those that are empty."""
    rows = [
        [Span(name, "dim"), fact if isinstance(fact, tuple) else Span(clean(str(fact)))]
        for name, fact in values.items()
        if fact
    ]
    return Table(rows, indent=indent)


@dataclass(frozen=True)
class Medium:
    """The place where a view is shown: its width in cells, how it shows times, and whose words its next steps have."""

    width: int = 100
    zone: Zone = UTC
    face: Face = "python"

    def spans(self, cell: Cell) -> Line:
        """Return the text of a cell or a line."""
        if isinstance(cell, Time):
            return (Span(format_time(cell.moment, self.zone, seconds=cell.seconds), "dim"),)
        if isinstance(cell, Span):
            return (cell._replace(text=clean(cell.text.worded(self.face))) if isinstance(cell.text, Reason) else cell,)
        return tuple(span for one in cell for span in self.spans(one))

    def lines(self, view: View) -> list[Line]:
        """Return a view as lines of text."""
        lines: list[Line] = []
        for part in view:
            if isinstance(part, Table):
                lines += self._table(part)
            elif isinstance(part, Fold):
                lines += [(), (Span(part.title, "heading"),), *self.lines(part.content)]
            else:
                lines.append(self.spans(part))
        return lines

    def text(self, view: View) -> str:
        """Return a view as plain text, without its styles."""
        return "\n".join("".join(span.text for span in line).rstrip() for line in self.lines(view))

    def _table(self, table: Table) -> list[Line]:
        if not table.rows:
            return [self.spans(Span(table.empty, "dim"))] if table.empty else []
        rows = [[self.spans(cell) for cell in row] for row in table.rows]
        widths = self._widths(rows, table)
        # An empty column takes no space.
        last_width = max(10, self.width - cells(table.indent) - sum(column + 2 for column in widths if column))
        lines: list[Line] = []
        for *others, last in rows:
            start = [Span(table.indent)] if table.indent else []
            for cell, width in zip(others, widths, strict=True):
                if width:
                    short = cut_line(cell, width)
                    start += [*short, Span(" " * (width + 2 - _width(short)))]
            if not table.wraps:
                lines.append((*start, *cut_line(last, last_width)))
                continue
            first, *rest = wrap("".join(span.text for span in last), last_width)
            lines.append((*start, last[0]._replace(text=first)))
            margin = Span(" " * _width(start))
            lines += [(margin, last[0]._replace(text=text)) for text in rest]
        return lines

    def _widths(self, rows: list[list[Line]], table: Table) -> list[int]:
        """Return the widths of all columns but the last."""
        columns = zip(*(row[:-1] for row in rows), strict=True)
        widths = [min(table.longest, max(map(_width, column))) for column in columns]
        if table.wraps:  # the widest column yields what the last one needs, up to a third of the line
            needed = min(self.width // 3, max(_width(row[-1]) for row in rows))
            total = cells(table.indent) + sum(column + 2 for column in widths if column)
            widest = widths.index(max(widths))
            widths[widest] = max(8, widths[widest] - max(0, total + needed - self.width))
        return widths


def plain(view: View) -> str:
    """Return a view as plain text of 100 columns, with times in UTC, in the words of Python."""
    return Medium().text(view)


def cut_line(line: Iterable[Span], width: int) -> list[Span]:
    """Shorten a line to a number of cells."""
    spans: list[Span] = []
    for span in line:
        if width > 0:
            spans.append(span._replace(text=cut(span.text, width)))
            width -= cells(spans[-1].text)
    return spans


def _width(line: Iterable[Span]) -> int:
    return sum(cells(span.text) for span in line)
