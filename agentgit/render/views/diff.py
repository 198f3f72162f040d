"""Diffs, comparisons of branches, and merge plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff, format_message
from agentgit.checkpoints.merge import OURS, MergePlan
from agentgit.render import html
from agentgit.render.text import clean, visible
from agentgit.render.view import Span, Table, View

_STYLES = {"": "heading", "+": "added", "-": "removed", "~": "changed"}
"""The style of each sign."""

_FILE_STYLES = {"+": "added", "-": "removed", "@": "changed"}
_HEADINGS = ("diff ", "--- ", "+++ ")

_MOST, _LONGEST = 1_000, 100_000
"""The maximum lines of a diff, and characters of its file differences, on a page."""


def differences(value: Diff | Comparison) -> View:
    """Show a diff or a comparison."""
    return [Table(_sign_lines(value.lines()))]


def page(value: Diff) -> str:
    """Return a diff as HTML."""
    has_references = value.from_reference or value.to_reference
    heading = f"<p><b>{html.escape(f'{value.from_reference} → {value.to_reference}')}</b></p>" if has_references else ""
    return f"<div>{heading}{_content(value)}</div>"


def side_by_side(value: Comparison) -> str:
    """Return two branches side by side as HTML, with the differences between them collapsed below."""
    sides = (value.left, value.right)
    heads = [html.escape(side.to_reference) for side in sides]
    table = html.table(heads, [[_content(side, empty="unchanged") for side in sides]])
    between = html.fold("differences between them", _content(value.between))
    return f"<div><p><b>{html.escape(value.heading)}</b></p>{table}{between}</div>"


def _content(value: Diff, empty: str = "no difference") -> str:
    if value.is_empty:
        return f"<p>{empty}</p>"
    parts = _sign_lines(value.parts())
    content = html.pre([*parts[:_MOST], *_rest(len(parts) - _MOST, "lines")], wrapped=True)
    if not value.diff_content:
        return content
    files = [*patch(value.diff_content[:_LONGEST]), *_rest(len(value.diff_content) - _LONGEST, "characters")]
    return content + html.fold("file differences", html.pre(files))


def _sign_lines(signed: Iterable[tuple[str, str]]) -> list[tuple[Span]]:
    return [(Span(f"{sign} {text}" if sign else text, _STYLES[sign]),) for sign, text in signed]


def _rest(hidden_count: int, noun: str) -> list[tuple[Span]]:
    return [(Span(f"… and {hidden_count:,} more {noun}", "dim"),)] if hidden_count > 0 else []


def patch(content: str) -> list[tuple[Span]]:
    """Show a unified diff, each line in the style of its sign."""
    lines = visible(content).split("\n")
    return [
        (Span(line, "heading" if line.startswith(_HEADINGS) else _FILE_STYLES.get(line[:1], "")),)
        for line in (lines if lines[-1] else lines[:-1])
    ]


_MERGE_STYLES = {"conflict": "bad", "message": "added", "left out": "dim", OURS: "dim"}
"""The styles of the kinds of rows other than values that are merged."""

_MOST_ROWS, _LONGEST_VALUE = 50, 100
"""The maximum numbers of rows of a merge plan, and of characters of one value."""


def merge(value: MergePlan) -> View:
    """Show a merge plan."""
    rows = list(_merge_rows(value))
    hidden_count = len(rows) - _MOST_ROWS
    rest = [("", "", f"… and {hidden_count} more")] if hidden_count > 0 else []
    cells = [
        [
            Span(kind, _MERGE_STYLES.get(kind, "changed")),
            Span(clean(name)),
            Span(clean(_short(text, 4 * _LONGEST_VALUE))),
        ]
        for kind, name, text in [*rows[:_MOST_ROWS], *rest]
    ]
    return [
        (Span(clean(value.heading), "heading"),),
        Table(cells, ("", "of", "what"), indent="  ", wraps=True),
        (Span(value.summary, "bad" if value.conflicts else "dim"),),
    ]


def _merge_rows(value: MergePlan) -> Iterator[tuple[str, str, str]]:
    """Yield the rows: the kind of each, its name, and its text."""
    for conflict in value.conflicts:
        ours, theirs, base = map(_short_repr, (conflict.ours, conflict.theirs, conflict.base))
        yield "conflict", conflict.key, f"ours {ours}, theirs {theirs}, base {base}"
    for merged in value.values:
        yield merged.how, merged.key, "" if merged.how == OURS else _short_repr(merged.value)
    for message in value.messages:
        role, _, text = format_message(message).partition(": ")
        yield "message", role, text
    for omission in value.left_out:
        yield "left out", "", omission


def _short_repr(value: object) -> str:
    return _short(repr(value), _LONGEST_VALUE)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
