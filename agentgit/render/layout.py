"""Layout of a tree: its lines, which its text, its picture and its page share.

A line is a turn, a checkpoint with a name or a tag, or a checkpoint where a branch leaves. Long runs of turns are
folded. The conversation runs downwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import groupby

from agentgit.render.text import clean, cut, waiting_text
from agentgit.sessions.folded_tree import FoldedTree
from agentgit.sessions.tree import Branch, Point, Tree
from agentgit.values import count

KINDS = {"before": "before a turn", "after": "after a turn", "tools": "after tools", "branch": "start of the branch"}
"""The title of an automatic checkpoint that has none, by its kind."""

_MIN_FOLDED_TURNS = 5
"""The number of consecutive turns from which they are folded."""

NAME_CELLS = 24
"""The maximum width of a branch name, in cells."""


@dataclass(frozen=True)
class LayoutRow:
    """One line of the layout: adjacent checkpoints of one branch."""

    branch: Branch
    points: list[Point]
    folded: int = 0
    hidden: int = 0
    unread: int = 0

    @property
    def note(self) -> str:
        """The text of a line that stands for several; empty for a line of its own."""
        if self.folded:
            return count(self.folded, "turn")
        if self.hidden and not self.points:
            return count(self.hidden, "more branch")
        return count(self.unread, "earlier checkpoint") if self.unread else ""

    @property
    def more(self) -> str:
        """The number of branches that a line of its own hides."""
        return f"(+{count(self.hidden, 'branch')}) " if self.hidden else ""


LayoutItem = LayoutRow | Branch
"""A line of a branch, or a branch that leaves after it."""


def walk(
    folded: FoldedTree, *, every: bool = False, max_rows: int | None = None
) -> Iterator[tuple[LayoutRow, list[tuple[Branch, bool]], bool]]:
    """Yield every line from top to bottom, the branches above it, and whether it is the first line of its branch.

    With each branch above stands whether it goes on below the line.
    """
    for root in folded.tree.roots:
        # An explicit stack, because branches may be nested deeper than Python's recursion limit.
        stack = [(root, deque(folded_items(folded, root, every=every, max_rows=max_rows)))]
        is_first = True
        while stack:
            item = stack[-1][1].popleft()
            if isinstance(item, LayoutRow):
                yield item, [(branch, bool(items)) for branch, items in stack[:-1]], is_first
            else:
                stack.append((item, deque(folded_items(folded, item, every=every, max_rows=max_rows))))
            is_first = isinstance(item, Branch)
            while stack and not stack[-1][1]:
                stack.pop()


def folded_items(
    folded: FoldedTree, branch: Branch, *, every: bool = False, max_rows: int | None = None
) -> Iterator[LayoutItem]:
    """Return the lines of a branch of a folded tree, each followed by the shown branches that leave there.

    A collapsed branch has one line. The last line of another one counts the hidden branches that leave from it. A line
    counts the checkpoints that nobody read.
    """
    hidden = folded.hidden.get(branch.id, 0)
    items = list(_items(branch, every, max_rows))
    if branch.id in folded.collapsed and branch.points:
        last_row = [item for item in items if isinstance(item, LayoutRow)][-1]
        yield replace(last_row, hidden=hidden)
        return
    yield from _with_unread(items, branch, folded.unread(branch))
    if hidden:
        yield LayoutRow(branch, [], hidden=hidden)


def _with_unread(items: list[LayoutItem], branch: Branch, unread: int) -> Iterator[LayoutItem]:
    """Yield the lines of a branch, and one for its unread checkpoints where the first of them is missing."""
    number = 0
    for item in items:
        if isinstance(item, LayoutRow) and item.points:
            if unread and item.points[0].number > number + 1:
                yield LayoutRow(branch, [], unread=unread)
                unread = 0
            number = item.points[-1].number
        yield item


def _items(branch: Branch, every: bool, max_rows: int | None) -> Iterator[LayoutItem]:
    """Return the lines of a branch, each followed by the branches that leave there."""
    point_ids = {point.id for point in branch.points}
    children_by_point: dict[int | None, list[Branch]] = {}
    for child in branch.children:
        # A branch that left before its parent's first checkpoint is attached to that checkpoint.
        first_id = branch.points[0].id if branch.points else None
        children_by_point.setdefault(
            child.branch_point_id if child.branch_point_id in point_ids else first_id, []
        ).append(child)
    if not branch.points:
        yield LayoutRow(branch, [])
        yield from children_by_point.get(None, ())
    rows = _rows(branch, children_by_point.keys(), every)
    for row in rows if max_rows is None else _fold_middle(rows, children_by_point.keys(), max_rows):
        yield row
        if not row.folded:
            yield from children_by_point.get(row.points[-1].id, ())


def _rows(branch: Branch, branch_point_ids: Set[int | None], every: bool) -> list[LayoutRow]:
    """Group the checkpoints of a branch into lines, and fold long runs of turns."""
    groups: list[list[Point]] = []
    group_ended = True
    for point in branch.points:
        begins_turn = point.kind == "before" and bool(groups) and groups[-1][-1].kind != "branch"
        if every or group_ended or begins_turn or _is_marked(point):
            groups.append([point])
        else:
            groups[-1].append(point)
        group_ended = _is_marked(point) or point.id in branch_point_ids
    rows: list[LayoutRow] = []
    run: list[list[Point]] = []
    for group in groups:
        last = group[-1]
        if every or _is_marked(last) or last.id in branch_point_ids or last is branch.points[-1]:
            rows += [*_fold(branch, run), LayoutRow(branch, group)]
            run = []
        else:
            run.append(group)
    return rows


def is_named(point: Point) -> bool:
    """Return whether a checkpoint is named, not automatic."""
    return point.name is not None or point.kind == "named"


def _is_marked(point: Point) -> bool:
    return is_named(point) or bool(point.tags)


def _fold(branch: Branch, run: list[list[Point]]) -> list[LayoutRow]:
    if len(run) < _MIN_FOLDED_TURNS:
        return [LayoutRow(branch, row) for row in run]
    middle = [point for row in run[1:-1] for point in row]
    return [LayoutRow(branch, run[0]), LayoutRow(branch, middle, folded=len(run) - 2), LayoutRow(branch, run[-1])]


def _fold_middle(rows: list[LayoutRow], branch_point_ids: Set[int | None], max_rows: int) -> Iterator[LayoutRow]:
    """Fold the lines in the middle if there are too many, even named ones."""
    middle = range(max_rows // 3, len(rows) - max_rows * 2 // 3)

    def is_folded(place: tuple[int, LayoutRow]) -> bool:
        return place[0] in middle and (place[1].folded > 0 or place[1].points[-1].id not in branch_point_ids)

    for folds, run in groupby(enumerate(rows), is_folded):
        found = [row for _, row in run]
        if folds:
            points = [point for row in found for point in row.points]
            found = [LayoutRow(found[0].branch, points, sum(row.folded or 1 for row in found))]
        yield from found


def references(tree: Tree) -> dict[int, str]:
    """Return the references of all checkpoints, like `main#7`, by id."""
    return {point.id: f"{branch_name(branch)}#{point.number}" for branch in tree.walk() for point in branch.points}


def title_of(row: LayoutRow, references: Mapping[int, str]) -> str:
    """Return the title of a line: what the branch asks at its end, and what happened there."""
    title = _title_of(row, references)
    waits = waiting_text(row.branch.questions) if row.points[-1] is row.branch.points[-1] else ""
    return f"{waits} ({title})" if waits else title


def _title_of(row: LayoutRow, references: Mapping[int, str]) -> str:
    last = row.points[-1]
    if last.name is not None:
        return clean(last.name) + (f" - {clean(last.title)}" if last.title else "")
    origin = references.get(row.branch.branch_point_id or 0)
    if last.kind == "branch" and origin is not None:
        return f"from {origin}"
    request = next((point.title for point in row.points if point.kind == "before" and point.title), "")
    if last.kind == "before" and request:
        return f"before: {clean(request)}"
    return clean(request or last.title) or KINDS.get(last.kind, "")


RERUN_LEGEND = "rerun: its calls were simulated"


def branch_name(branch: Branch) -> str:
    """Return the name of a branch to show, cut if it is long."""
    return cut(clean(branch.name), NAME_CELLS)
