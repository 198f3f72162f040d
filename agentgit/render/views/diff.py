"""Diffs, comparisons of branches, and merge plans, as text and as HTML for notebooks and pages."""

from __future__ import annotations

from collections.abc import Iterable

from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff, format_message
from agentgit.checkpoints.merge import OURS, MergePlan
from agentgit.render import html
from agentgit.render.text import Line, Span, clean, cut, plain, table, visible

STYLES = {"": "heading", "+": "added", "-": "removed", "~": "changed"}
"""The style of each sign."""

_FILE_STYLES = {"+": "added", "-": "removed", "@": "changed"}
_HEADINGS = ("diff ", "--- ", "+++ ")

_MOST, _LONGEST = 1_000, 100_000
"""The maximum lines of a diff, and characters of its file differences, on a page."""


def lines(value: Diff | Comparison, *, width: int = 100) -> list[Line]:
    """Draw a diff or a comparison."""
    return [(Span(cut(span.text, width), span.style),) for (span,) in _sign_lines(value.lines())]


def page(value: Diff) -> str:
    """Draw a diff as HTML.

    Example:
        >>> page(Diff(from_id=1, to_id=2))
        '<div><p>no difference</p></div>'
    """
    has_references = value.from_reference or value.to_reference
    heading = f"<p><b>{html.escape(f'{value.from_reference} → {value.to_reference}')}</b></p>" if has_references else ""
    return f"<div>{heading}{_content(value)}</div>"


def side_by_side(value: Comparison) -> str:
    """Draw two branches side by side as HTML, with the differences between them collapsed below."""
    sides = (value.left, value.right)
    heads = [html.escape(side.to_reference) for side in sides]
    return "".join(
        [
            f"<div><p><b>{html.escape(value.heading)}</b></p>",
            html.table(heads, [[_content(side, empty="unchanged") for side in sides]]),
            html.fold("differences between them", _content(value.between)),
            "</div>",
        ]
    )


def _content(value: Diff, empty: str = "no difference") -> str:
    if value.is_empty:
        return f"<p>{empty}</p>"
    parts = list(value.parts())
    hidden_count = len(parts) - _MOST
    more_lines = [(Span(f"… and {hidden_count:,} more lines", "dim"),)] if hidden_count > 0 else []
    content = html.pre([*_sign_lines(parts[:_MOST]), *more_lines], wrapped=True)
    if not value.diff_content:
        return content
    return content + html.fold("file differences", html.pre(_file_lines(value)))


def _sign_lines(signed: Iterable[tuple[str, str]]) -> list[tuple[Span]]:
    return [(Span(f"{sign} {text}" if sign else text, STYLES[sign]),) for sign, text in signed]


def _file_lines(value: Diff) -> list[Line]:
    """Return the lines of the file differences, and a note if they are cut."""
    hidden_count = len(value.diff_content) - _LONGEST
    more_lines = [(Span(f"… and {hidden_count:,} more characters", "dim"),)] if hidden_count > 0 else []
    return [*patch(value.diff_content[:_LONGEST]), *more_lines]


def patch(content: str) -> list[Line]:
    """Draw a unified diff, each line in the style of its sign.

    Example:
        >>> [span.text for (span,) in patch("@@ -1 +1 @@\\n-\\told\\n+    new\\n")]
        ['@@ -1 +1 @@', '-\\told', '+    new']
    """
    lines = visible(content).split("\n")
    return [(Span(line, _style(line)),) for line in (lines if lines[-1] else lines[:-1])]


def _style(line: str) -> str:
    return "heading" if line.startswith(_HEADINGS) else _FILE_STYLES.get(line[:1], "")


MERGE_STYLES = {"conflict": "bad", "message": "added", "left out": "dim", OURS: "dim"}
"""The styles of the kinds of rows other than values that are merged."""

_MOST_ROWS, _LONGEST_VALUE = 50, 400
"""The maximum numbers of rows, and of characters of one value."""

Row = tuple[str, str, str]
"""The kind of a row, its name, and its text."""


def draw_merge(value: MergePlan, *, width: int = 100) -> str:
    """Draw a merge plan as plain text.

    Example:
        >>> print(draw_merge(MergePlan(kind="merge", source="retry#2", into="main", base="main#1")))
        Merge of retry#2 into main, since main#1: adds history, runs no tool.
        Nothing to add: everything is already here.
    """
    return plain(merge_lines(value, width=width))


def merge_lines(value: MergePlan, *, width: int = 100) -> list[Line]:
    """Draw a merge plan."""
    cells = [
        [Span(kind, MERGE_STYLES.get(kind, "changed")), Span(clean(name)), Span(clean(text))]
        for kind, name, text in _limit_rows(value)
    ]
    return [
        (Span(clean(value.heading), "heading"),),
        *table(cells, width=width, indent="  ", wrap_last=True),
        (Span(value.summary, "bad" if value.conflicts else "dim"),),
    ]


def merge_page(value: MergePlan) -> str:
    """Draw a merge plan as HTML, for a notebook or a page."""
    rows = [
        [html.styled(Span(kind, MERGE_STYLES.get(kind, "changed"))), html.escape(name), html.escape(text)]
        for kind, name, text in _limit_rows(value)
    ]
    return "".join(
        [
            f"<div><p><b>{html.escape(value.heading)}</b></p>",
            html.table(["", "of", "what"], rows) if rows else "",
            f"<p>{html.styled(Span(value.summary, 'bad' if value.conflicts else ''))}</p></div>",
        ]
    )


def _limit_rows(value: MergePlan) -> list[Row]:
    rows = [
        (kind, name, text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…")
        for kind, name, text in _rows(value)
    ]
    hidden_count = len(rows) - _MOST_ROWS
    return [*rows[:_MOST_ROWS], ("", "", f"… and {hidden_count} more")] if hidden_count > 0 else rows


def _rows(value: MergePlan) -> Iterable[Row]:
    for conflict in value.conflicts:
        yield (
            "conflict",
            conflict.key,
            f"ours {_short_repr(conflict.ours)}, theirs {_short_repr(conflict.theirs)}, base "
            f"{_short_repr(conflict.base)}",
        )
    for merged in value.values:
        yield merged.how, merged.key, "" if merged.how == OURS else _short_repr(merged.value)
    for message in value.messages:
        role, _, text = format_message(message).partition(": ")
        yield "message", role, text
    for omission in value.left_out:
        yield "left out", "", omission


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE // 4 else text[: _LONGEST_VALUE // 4 - 1] + "…"
