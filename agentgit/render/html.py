"""HTML for notebooks and pages, limited to what an untrusted notebook keeps: tables, `<details>` and inline colours.

It has no `<style>`, `<script>` or `<svg>`. All text from a database goes through `escape`. The colours have a contrast
of at least 4:1 on white and on the dark grey of JupyterLab.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from agentgit.render.text import Line, Span, clean

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

_BOLD_STYLES = ("heading", "name", "head", "bad")

_MIN_CELL_WIDTH = 24
"""The minimum width of a cell with long text, in characters."""

_CELL_STYLE = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def escape(text: str) -> str:
    """Put a text on one line, and escape it for HTML.

    Example:
        >>> escape('<b onclick="x">')
        '&lt;b onclick=&quot;x&quot;&gt;'
    """
    return html.escape(clean(text))


def styled(span: Span) -> str:
    """Return a span as HTML in its colour."""
    rules = [f"color:{COLOURS[span.style]}"] if span.style in COLOURS else []
    rules += ["font-weight:bold"] if span.style in _BOLD_STYLES else ["opacity:0.75"] if span.style == "dim" else []
    text = html.escape(span.text)
    return f'<span style="{";".join(rules)}">{text}</span>' if rules and text else text


def code(text: str) -> str:
    """Return a text as HTML code on one line, which can wrap anywhere."""
    return f'<code style="white-space:pre-wrap;overflow-wrap:anywhere">{escape(text)}</code>'


def wrapping_cell(content: str, length: int) -> str:
    """Let long words in a table cell wrap, with a minimum width so that other cells cannot squeeze it."""
    return f'<div style="min-width:{min(length, _MIN_CELL_WIDTH) * 0.6:.0f}em;overflow-wrap:anywhere">{content}</div>'


def fold(title: str, content: str) -> str:
    """Return a section that is collapsed until the reader opens it."""
    return f"<details><summary>{title}</summary>{content}</details>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', headings)}</thead><tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    content = "".join(f'<{kind} style="{_CELL_STYLE}">{cell}</{kind}>' for cell in cells)
    return f"<tr>{content}</tr>"


def pre(lines: Iterable[Line], *, wrapped: bool = False) -> str:
    """Return lines of text as a preformatted block, in their colours."""
    wrap_style = ";white-space:pre-wrap;overflow-wrap:anywhere" if wrapped else ""
    text = "\n".join("".join(map(styled, line)) for line in lines)
    # The font is explicit because pages made from notebooks restyle <pre>, which would break the alignment.
    return f'<pre style="font-family:monospace{wrap_style}">{text}</pre>'
