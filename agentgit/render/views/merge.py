"""Plans of merges and cherry-picks: a heading, what comes, what stands against it, and a line that counts them."""

from __future__ import annotations

from collections.abc import Iterable

from agentgit.checkpoints.diff import say
from agentgit.checkpoints.merge import OURS, MergePlan
from agentgit.render import html
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import clean

STYLES = {"conflict": "bad", "message": "added", "left out": "dim", OURS: "dim"}
"""The styles of the kinds of rows that are not values which come."""

_MOST, _LONGEST = 50, 400
"""The number of rows that are shown, from the first, and the most characters of one value."""

Row = tuple[str, str, str]
"""The kind of a row, its name, and its text."""


def draw(value: MergePlan, *, width: int = 100) -> str:
    """Draw a plan as plain text.

    Args:
        value: The value to draw.
        width: The longest line, in terminal cells.

    Example:
        >>> print(draw(MergePlan(kind="merge", source="retry#2", into="main", base="main#1")))
        Merge of retry#2 into main, since main#1: history comes, no tool runs.
        Nothing comes: it is all here already.
    """
    return plain(lines(value, width=width))


def lines(value: MergePlan, *, width: int = 100) -> list[Line]:
    """Draw a plan.

    Args:
        value: The value to draw.
        width: The longest line, in terminal cells.
    """
    cells = [
        [Span(kind, STYLES.get(kind, "changed")), Span(clean(name)), Span(clean(what))]
        for kind, name, what in _cut(value)
    ]
    return [
        (Span(clean(value.heading), "heading"),),
        *table(cells, width=width, indent="  ", whole=True),
        (Span(value.summary, "dim" if value.is_admissible else "bad"),),
    ]


def page(value: MergePlan) -> str:
    """Draw a plan as HTML, for a notebook or a page.

    Args:
        value: The value to draw.
    """
    rows = [
        [html.styled(Span(kind, STYLES.get(kind, "changed"))), html.escape(name), html.escape(what)]
        for kind, name, what in _cut(value)
    ]
    return "".join(
        [
            f"<div><p><b>{html.escape(value.heading)}</b></p>",
            html.table(["", "of", "what"], rows) if rows else "",
            f"<p>{html.styled(Span(value.summary, '' if value.is_admissible else 'bad'))}</p></div>",
        ]
    )


def _cut(value: MergePlan) -> list[Row]:
    rows = [
        (kind, name, what if len(what) <= _LONGEST else what[: _LONGEST - 1] + "…") for kind, name, what in _rows(value)
    ]
    rest = len(rows) - _MOST
    return [*rows[:_MOST], ("", "", f"… and {rest} more")] if rest > 0 else rows


def _rows(value: MergePlan) -> Iterable[Row]:
    for clash in value.conflicts:
        yield (
            "conflict",
            clash.key,
            f"here {_short(clash.ours)}, there {_short(clash.theirs)}, before {_short(clash.base)}",
        )
    for taken in value.values:
        yield taken.how, taken.key, "" if taken.how == OURS else _short(taken.value)
    for message in value.messages:
        role, _, text = say(message).partition(": ")
        yield "message", role, text
    for left in value.left_out:
        yield "left out", left.what, left.why


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST // 4 else text[: _LONGEST // 4 - 1] + "…"
