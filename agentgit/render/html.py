"""HTML for notebooks and pages: tables, `<details>` and colours in place, which are what an untrusted notebook keeps.

No `<style>`, `<script>` or `<svg>`. Whatever text comes out of a database goes through `escape`. The colours have a
contrast of at least 4:1 on white and on the dark grey of JupyterLab.
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
"""The look of the styles of the render room on a page."""

_BOLD = ("heading", "name", "head", "bad")

_LEAST = 24
"""The number of letters of a long text that have a line of their own in any case."""

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def escape(text: str) -> str:
    """Write any text on one line so that a page shows it and does nothing else with it.

    Example:
        >>> escape('<b onclick="x">')
        '&lt;b onclick=&quot;x&quot;&gt;'
    """
    return html.escape(clean(text))


def styled(span: Span) -> str:
    """Write a span in its colour."""
    rules = [f"color:{COLOURS[span.style]}"] if span.style in COLOURS else []
    rules += ["font-weight:bold"] if span.style in _BOLD else ["opacity:0.75"] if span.style == "dim" else []
    text = html.escape(span.text)
    return f'<span style="{";".join(rules)}">{text}</span>' if rules and text else text


def code(text: str) -> str:
    """Write any text as code, on one line that may be broken anywhere."""
    return f'<code style="white-space:pre-wrap;overflow-wrap:anywhere">{escape(text)}</code>'


def room(content: str, letters: int) -> str:
    """Let long words in a cell be broken, and keep the other cells from squeezing it down to a few letters.

    Args:
        content: The HTML inside.
        letters: The number of letters.
    """
    return f'<div style="min-width:{min(letters, _LEAST) * 0.6:.0f}em;overflow-wrap:anywhere">{content}</div>'


def fold(title: str, content: str) -> str:
    """Hide something until a person asks for it.

    Args:
        title: The HTML of the title.
        content: The HTML inside.
    """
    return f"<details><summary>{title}</summary>{content}</details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table.

    Args:
        heads: The names of the columns, HTML.
        rows: The cells, HTML.
    """
    body = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', heads)}</thead><tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    inside = "".join(f'<{kind} style="{_CELL}">{cell}</{kind}>' for cell in cells)
    return f"<tr>{inside}</tr>"


def pre(lines: Iterable[Line], *, wrapped: bool = False) -> str:
    """Write lines of text as they are, in their colours.

    Args:
        lines: The lines to write.
        wrapped: True to go on below where one is too long, as what somebody has written needs it; a drawing does not.
    """
    more = ";white-space:pre-wrap;overflow-wrap:anywhere" if wrapped else ""
    text = "\n".join("".join(map(styled, line)) for line in lines)
    # Said, because pages made of notebooks give their own letters to a <pre>, and then no column is aligned.
    return f'<pre style="font-family:monospace{more}">{text}</pre>'
