"""HTML for notebooks and pages, limited to what an untrusted notebook keeps: tables, `<details>` and inline colours.

It has no `<style>`, `<script>` or `<svg>`. All text from a database is escaped. The colours have a contrast of at least
4:1 on white and on the dark grey of JupyterLab.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from agentgit.render.text import cells, clean, visible
from agentgit.render.view import Fold, Line, Medium, Span, Table, View, cut_line

COLOURS = {
    "reference": "#9a7400",
    "name": "#b04fc8",
    "head": "#0f86a3",
    "added": "#238b3a",
    "removed": "#d9484b",
    "changed": "#b36b00",
    "bad": "#d9484b",
}
"""The CSS colour of each text style."""

_BOLD_STYLES = ("name", "head", "bad")

_NARROW, _SHORT, _LONGEST = 24, 100, 20_000
"""The cells from which a text may wrap, the cells of the short form of a text, and the characters of a text."""

_CELL_STYLE = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def escape(text: str) -> str:
    """Put a text on one line, and escape it for HTML."""
    return html.escape(clean(text))


def page(view: View, medium: Medium = Medium()) -> str:  # noqa: B008  # it is immutable
    """Return a view as HTML."""
    parts = []
    for part in view:
        if isinstance(part, Fold):
            parts.append(fold(part.title, page(part.content, medium)))
        elif not isinstance(part, Table):
            parts.append(f"<p>{_line(medium.spans(part))}</p>")
        elif part.rows:
            rows = ([_cell(medium.spans(cell)) for cell in row] for row in part.rows)
            parts.append(table(part.headings, rows))
        elif part.empty:
            parts.append(f"<p>{_line(medium.spans(Span(part.empty)))}</p>")
    return f"<div>{''.join(parts)}</div>"


def _cell(spans: Line) -> str:
    content, length = _line(spans), sum(cells(span.text) for span in spans)
    full = visible(spans[0].full()[:_LONGEST]) if spans and spans[0].full else ""
    if full and (length > _SHORT or full != spans[0].text):
        lines = ((Span(line),) for line in full.split("\n"))
        content = fold(_line(cut_line(spans, _SHORT)), pre(lines, wrapped=True))
    # A long text may wrap anywhere, but other cells cannot squeeze it.
    style = f"min-width:{min(length, _NARROW) * 0.6:.0f}em;overflow-wrap:anywhere"
    return f'<div style="{style}">{content}</div>' if length > _NARROW else content


def _line(spans: Iterable[Span]) -> str:
    return "".join(map(_styled, spans))


def _styled(span: Span) -> str:
    rules = [f"color:{COLOURS[span.style]}"] if span.style in COLOURS else []
    rules += ["font-weight:bold"] if span.style in _BOLD_STYLES else ["opacity:0.75"] if span.style == "dim" else []
    text = html.escape(span.text)
    if span.style == "heading":
        return f"<b>{text}</b>"
    return f'<span style="{";".join(rules)}">{text}</span>' if rules and text else text


def fold(title: str, content: str) -> str:
    """Return a section that is collapsed until the reader opens it."""
    return f"<details><summary>{title}</summary>{content}</details>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table."""
    body = "".join(_row("td", row) for row in rows)
    head = f"<thead>{_row('th', headings)}</thead>" if any(headings) else ""
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    content = "".join(f'<{kind} style="{_CELL_STYLE}">{cell}</{kind}>' for cell in cells)
    return f"<tr>{content}</tr>"


def pre(lines: Iterable[Line], *, wrapped: bool = False) -> str:
    """Return lines of text as a preformatted block, in their colours."""
    wrap_style = ";white-space:pre-wrap;overflow-wrap:anywhere" if wrapped else ""
    text = "\n".join(_line(line) for line in lines)
    # The font is explicit because pages made from notebooks restyle <pre>, which would break the alignment.
    return f'<pre style="font-family:monospace{wrap_style}">{text}</pre>'
