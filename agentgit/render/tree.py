"""The picture of a session's tree: the conversation runs down, and each branch hangs where it left.

    support-42: 2 branches, 11 checkpoints
    ● main#3      order two chairs
    ◆ main#4      before payment
    ├─● retry#4   (HEAD -> retry *) rather a sofa
    ● main#7      (main) and a table

A line is a turn, a checkpoint with a name, or a place where a branch left; long runs of turns are folded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, tzinfo

from agentgit.render.lines import Line, Span, plain
from agentgit.render.text import cells, clean, clock, count, cut, pad
from agentgit.sessions.session import OPEN
from agentgit.sessions.tree import Branch, Point, Tree

TURN, NAMED, BEGIN, FOLDED = "●", "◆", "○", "┆"

KINDS = {"before": "before a turn", "after": "after a turn", "tools": "after tools", "branch": "where it begins"}
"""What is said about an automatic checkpoint without a title."""

_FOLD_FROM = 5
"""How many turns in a row are too many to show."""

_NAME_CELLS = 24
"""How many cells a branch's name may take."""

_LANE_CELLS = 24
"""How many cells the lanes may take; deeper ones are drawn at that depth."""


@dataclass(frozen=True)
class _Row:
    """What becomes one line: checkpoints of one branch next to each other.

    Args:
        branch: theirs.
        points: oldest first; the last one gives the line its number.
        folded: how many turns they are, if they are folded.
    """

    branch: Branch
    points: list[Point]
    folded: int = 0


_Event = _Row | Branch
"""A line of a branch, or a branch that leaves after it."""


def draw(tree: Tree, *, width: int = 100) -> str:
    """Draw a tree as plain text.

    Args:
        tree: the branches of a session.
        width: the longest line, in terminal cells.

    Example:
        >>> main = Branch(id=1, name="main", is_current=True, points=[Point(id=5, number=1, name="start")])
        >>> print(draw(Tree(session_name="s", roots=[main])))
        s: 1 branch, 1 checkpoint
        ◆ main#1  (HEAD -> main *) start
    """
    return plain(lines(tree, width=width))


def lines(
    tree: Tree, *, width: int = 100, every: bool = False, times: bool = False, zone: tzinfo | None = UTC
) -> list[Line]:
    """Draw a tree.

    Args:
        tree: the branches of a session.
        width: the longest line, in terminal cells.
        every: True to give each checkpoint its own line.
        times: True to show when each was made.
        zone: the zone of the times; None is this machine's.
    """
    branches = list(tree.walk())
    references = {p.id: f"{_name(b)}#{p.number}" for b in branches for p in b.points}
    drawn = [
        (cut(lane, _LANE_CELLS), *_row(row, references, clock(row.points[-1].created_at, zone) if row.points else ""))
        for lane, row in _lay_out(tree, every)
    ]
    heading = f": {count(len(branches), 'branch')}, {count(len(references), 'checkpoint')}"
    column = min(50, max((cells(lane) + cells(glyph.text + where.text) for lane, glyph, where, *_ in drawn), default=0))
    result: list[Line] = [(Span(cut(clean(tree.session_name), width - 30), "heading"), Span(heading, "dim"))]
    for lane, glyph, where, when, head, title in drawn:
        used = pad(where.text, column - cells(lane + glyph.text)) + "  "
        shown = (Span(pad(when.text, 18), when.style),) if times else ()
        left = width - cells(lane + glyph.text + used + head.text) - sum(cells(span.text) for span in shown)
        short = title._replace(text=cut(title.text, max(8, left)))
        result.append((Span(lane, "dim"), glyph, Span(used, where.style), *shown, head, short))
    return result


# -- layout: what hangs where


def _lay_out(tree: Tree, every: bool) -> Iterator[tuple[str, _Row]]:
    """Give every line with its lanes, top down."""
    for root in tree.roots:
        # A stack of our own: branches may be nested deeper than Python lets functions call each other.
        stack: list[tuple[str, str, deque[_Event]]] = [("", "", deque(_events(root, every)))]
        while stack:
            lane, first, events = stack.pop()
            if not events:
                continue
            event = events.popleft()
            if isinstance(event, _Row):
                yield first or lane, event
                stack.append((lane, "", events))
            else:
                stack.append((lane, "", events))
                inner, joint = ("│ ", "├─") if events else ("  ", "╰─")
                stack.append((lane + inner, lane + joint, deque(_events(event, every))))


def _events(branch: Branch, every: bool) -> Iterator[_Event]:
    """Give the lines of a branch, each followed by the branches that leave there."""
    points = {point.id for point in branch.points}
    leaving: dict[int | None, list[Branch]] = {}
    for child in branch.children:
        # A branch that left before the first checkpoint of its parent hangs at the first.
        first = branch.points[0].id if branch.points else None
        leaving.setdefault(child.branch_point_id if child.branch_point_id in points else first, []).append(child)
    if not branch.points:
        yield _Row(branch, [])
        yield from leaving.get(None, ())
    for row in _rows(branch, leaving.keys(), every):
        yield row
        if not row.folded:
            yield from leaving.get(row.points[-1].id, ())


def _rows(branch: Branch, joints: Set[int | None], every: bool) -> list[_Row]:
    """Put the checkpoints of a branch into lines: turns, names, joints; then fold long runs of turns."""
    groups: list[list[Point]] = []
    ended = True
    for point in branch.points:
        begins_turn = point.kind == "before" and bool(groups) and groups[-1][-1].kind != "branch"
        if every or ended or begins_turn or _is_named(point):
            groups.append([point])
        else:
            groups[-1].append(point)
        ended = _is_named(point) or point.id in joints
    rows: list[_Row] = []
    run: list[list[Point]] = []
    for group in groups:
        last = group[-1]
        if every or _is_named(last) or last.id in joints or last is branch.points[-1]:
            rows += [*_fold(branch, run), _Row(branch, group)]
            run = []
        else:
            run.append(group)
    return rows


def _is_named(point: Point) -> bool:
    return point.name is not None or point.kind == "named"


def _fold(branch: Branch, run: list[list[Point]]) -> list[_Row]:
    if len(run) < _FOLD_FROM:
        return [_Row(branch, row) for row in run]
    middle = [point for row in run[1:-1] for point in row]
    return [_Row(branch, run[0]), _Row(branch, middle, folded=len(run) - 2), _Row(branch, run[-1])]


# -- text: what a line says


def _row(row: _Row, references: dict[int, str], when: str) -> tuple[Span, Span, Span, Span, Span]:
    """Give a line's glyph, reference, time, head and title."""
    branch, points = row.branch, row.points
    if row.folded:
        numbers = f"#{points[0].number}..#{points[-1].number}"
        return Span(FOLDED + " ", "dim"), Span(numbers, "dim"), Span(""), Span(""), Span(f"{row.folded} turns", "dim")
    if not points:
        nothing = Span("no checkpoints yet", "dim")
        return Span(BEGIN + " "), Span(_name(branch), "reference"), Span(""), _head(branch), nothing
    last = points[-1]
    style = "name" if _is_named(last) else ""
    glyph = NAMED if style else BEGIN if last.kind in ("before", "branch") else TURN
    head = _head(branch) if last is branch.points[-1] else Span("")
    where, title = Span(references[last.id], "reference"), Span(_title(row, references), style)
    return Span(f"{glyph} ", style), where, Span(when, "dim"), head, title


def _title(row: _Row, references: dict[int, str]) -> str:
    last = row.points[-1]
    if last.name is not None:
        return clean(last.name) + (f" - {clean(last.title)}" if last.title else "")
    if last.kind == "branch" and row.branch.branch_point_id in references:
        return f"from {references[row.branch.branch_point_id]}"
    asked = next((point.title for point in row.points if point.kind == "before" and point.title), "")
    if last.kind == "before" and asked:
        return f"before: {clean(asked)}"
    return clean(asked or last.title) or KINDS.get(last.kind, "")


def _head(branch: Branch) -> Span:
    words = [f"HEAD -> {_name(branch)} *" if branch.is_current else _name(branch)]
    if branch.status != OPEN:
        words.append(cut(clean(branch.status), _NAME_CELLS))
    return Span(f"({', '.join(words)}) ", "head")


def _name(branch: Branch) -> str:
    return cut(clean(branch.name), _NAME_CELLS)
