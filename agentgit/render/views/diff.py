"""Diffs and comparisons of branches: text with a style for each sign, and HTML for notebooks and pages."""

from __future__ import annotations

from collections.abc import Iterable

from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff
from agentgit.render import html
from agentgit.render.lines import Line, Span
from agentgit.render.text import cut, visible

STYLES = {"": "heading", "+": "added", "-": "removed", "~": "changed"}
"""The style of each sign."""

_FILE_STYLES = {"+": "added", "-": "removed", "@": "changed"}
_HEADINGS = ("diff ", "--- ", "+++ ")

_MOST, _LONGEST = 1_000, 100_000
"""The most lines, and the most characters of the files' difference, that a page shows."""


def lines(value: Diff | Comparison, *, width: int = 100) -> list[Line]:
    """Draw a diff, or a comparison.

    Args:
        value: The difference of two checkpoints, or two branches since they parted.
        width: The longest line, in terminal cells.
    """
    return [(Span(cut(span.text, width), span.style),) for (span,) in _lines(value.lines())]


def page(value: Diff) -> str:
    """Draw a diff as HTML.

    Args:
        value: The difference of two checkpoints.

    Example:
        >>> page(Diff(from_id=1, to_id=2))
        '<div><p>no difference</p></div>'
    """
    named = value.from_reference or value.to_reference
    heading = f"<p><b>{html.escape(f'{value.from_reference} → {value.to_reference}')}</b></p>" if named else ""
    return f"<div>{heading}{_content(value)}</div>"


def side_by_side(value: Comparison) -> str:
    """Draw two branches beside each other as HTML, and what differs between them below, folded away.

    Args:
        value: The two branches.
    """
    sides = (value.left, value.right)
    heads = [html.escape(side.to_reference) for side in sides]
    return "".join(
        [
            f"<div><p><b>{html.escape(value.heading)}</b></p>",
            html.table(heads, [[_content(side, empty="unchanged") for side in sides]]),
            html.fold("one compared with the other", _content(value.between)),
            "</div>",
        ]
    )


def _content(value: Diff, empty: str = "no difference") -> str:
    if value.is_empty:
        return f"<p>{empty}</p>"
    parts = list(value.parts())
    rest = len(parts) - _MOST
    more = [(Span(f"… and {rest:,} more lines", "dim"),)] if rest > 0 else []
    content = html.pre([*_lines(parts[:_MOST]), *more], wrapped=True)
    if not value.diff_content:
        return content
    return content + html.fold("the files' difference", html.pre(_files(value)))


def _lines(signed: Iterable[tuple[str, str]]) -> list[tuple[Span]]:
    return [(Span(f"{sign} {text}" if sign else text, STYLES[sign]),) for sign, text in signed]


def _files(value: Diff) -> list[Line]:
    """Return the files' difference line by line, and a last one that says so where it is cut."""
    rest = len(value.diff_content) - _LONGEST
    more = [(Span(f"… and {rest:,} more characters", "dim"),)] if rest > 0 else []
    return [*patch(value.diff_content[:_LONGEST]), *more]


def patch(content: str) -> list[Line]:
    """Draw a unified diff: each line as it is, with a style for its sign.

    Args:
        content: The unified diff.

    Example:
        >>> [span.text for (span,) in patch("@@ -1 +1 @@\\n-\\told\\n+    new\\n")]
        ['@@ -1 +1 @@', '-\\told', '+    new']
    """
    lines = visible(content).split("\n")
    return [(Span(line, _style(line)),) for line in (lines if lines[-1] else lines[:-1])]


def _style(line: str) -> str:
    return "heading" if line.startswith(_HEADINGS) else _FILE_STYLES.get(line[:1], "")
