"""Layout of a tree: its rows, and the pixel positions of lanes, dots and text in its picture.

The rows are shared by the text and the picture. A row is a turn, a checkpoint with a name or a tag, or a checkpoint
where a branch leaves. Long runs of turns are folded.

`svg.py` draws the picture. The conversation runs downwards, as in the text. Each branch has its own lane to the right
of the one it left. A lane that has ended is reused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

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


LayoutItem = LayoutRow | Branch
"""A line of a branch, or a branch that leaves after it."""


def folded_items(folded: FoldedTree, branch: Branch, *, every: bool = False) -> Iterator[LayoutItem]:
    """Return the lines of a branch of a folded tree, each followed by the shown branches that leave there.

    A collapsed branch has one line. The last line of another one counts the hidden branches that leave from it. A line
    counts the checkpoints that nobody read.
    """
    hidden = folded.hidden.get(branch.id, 0)
    items = list(layout_items(branch, every=every))
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


def layout_items(branch: Branch, *, every: bool = False, max_rows: int | None = None) -> Iterator[LayoutItem]:
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
    run: list[LayoutRow] = []
    for i, row in enumerate(rows):
        if max_rows // 3 <= i < len(rows) - max_rows * 2 // 3 and (
            row.folded or row.points[-1].id not in branch_point_ids
        ):
            run.append(row)
            continue
        yield from _fold_rows(run)
        yield row
        run = []


def _fold_rows(run: list[LayoutRow]) -> Iterator[LayoutRow]:
    if run:
        yield LayoutRow(
            run[0].branch, [point for row in run for point in row.points], sum(row.folded or 1 for row in run)
        )


def prune(tree: Tree, max_branches: int) -> tuple[Tree, int]:
    """Drop branches if there are too many; the current branch, its ancestors and the newest ones stay."""
    branches = {branch.id: branch for branch in tree.walk()}
    if len(branches) <= max_branches:
        return tree, 0
    kept_ids: set[int] = set()
    for branch in sorted(branches.values(), key=lambda one: (not one.is_current, -one.id)):
        path_ids: list[int] = []
        ancestor: Branch | None = branch
        while ancestor is not None and ancestor.id not in kept_ids and len(path_ids) < max_branches:
            path_ids.append(ancestor.id)
            ancestor = branches.get(ancestor.parent_id) if ancestor.parent_id is not None else None
        if len(kept_ids) + len(path_ids) <= max_branches:
            kept_ids.update(path_ids)
    kept_branches = [replace(branch, children=[]) for branch in branches.values() if branch.id in kept_ids]
    return Tree.grow(tree.session_name, kept_branches), len(branches) - len(kept_ids)


def references(tree: Tree) -> dict[int, str]:
    """Return the references of all checkpoints, like `main#7`, by id."""
    return {point.id: f"{branch_name(branch)}#{point.number}" for branch in tree.walk() for point in branch.points}


def title_of(row: LayoutRow, references: Mapping[int, str]) -> str:
    """Return the title of a line: what the branch asks at its end, and what happened there."""
    title = _title_of(row, references)
    waits = clean(waiting_text(row.branch.questions)) if row.points[-1] is row.branch.points[-1] else ""
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


LANE, LINE, STEP, LEFT, TOP = 18, 26, 9, 14, 44
"""The width of a lane, the height of a line, the distance between a turn's dots, and the first dot's x and y."""

_MIN_CURVE_HEIGHT = 17
"""The minimum height of the curve to a new lane."""

_MOST_LINES, _MOST_BRANCHES, _MOST_DOTS, _MOST_LANES = 60, 60, 6, 12
"""The maximum numbers of lines of a branch, branches, dots of a turn, and lanes side by side."""


@dataclass(frozen=True)
class Dot:
    """A checkpoint in the picture."""

    point: Point
    y: int


@dataclass(frozen=True, kw_only=True)
class PlacedRow:
    """A line of text, with the dots that belong to it."""

    row: LayoutRow
    lane: Lane
    y: int
    dots: tuple[Dot, ...] = ()
    is_after_newest: bool = False


@dataclass(eq=False)
class Lane:
    """A branch in the picture."""

    branch: Branch
    column: int
    number: int
    start: int | None = None
    bottom: int = 0
    segments: list[tuple[int, int, bool]] = field(default_factory=list)
    joint: tuple[int, int] | None = None

    @property
    def x(self) -> int:
        """The distance from the left edge."""
        return column_x(self.column)

    def extend_to(self, y: int, *, broken: bool = False) -> None:
        """Extend the lane down to `y`."""
        if self.start is None:
            self.start = y
        elif y > self.bottom:
            self.segments.append((self.bottom, y, broken))
        self.bottom = y


def column_x(column: int) -> int:
    """Return the x of a column."""
    return LEFT + column * LANE


@dataclass(frozen=True)
class Picture:
    """The layout of a tree as a picture."""

    tree: Tree
    lanes: list[Lane]
    lines: list[PlacedRow]
    references: Mapping[int, str]
    hidden: int

    @property
    def columns(self) -> int:
        """The number of columns of lanes."""
        return 1 + max((lane.column for lane in self.lanes), default=0)

    @property
    def bottom(self) -> int:
        """The vertical position of the last line."""
        return self.lines[-1].y if self.lines else TOP - LINE

    @property
    def summary(self) -> str:
        """A sentence that describes the picture."""
        branches = list(self.tree.walk())
        parts = [count(len(branches), "branch"), count(sum(len(one.points) for one in branches), "checkpoint")]
        current = next((branch for branch in branches if branch.is_current), None)
        if current is not None:
            parts.append(f"on {branch_name(current)}" + (f" at #{current.points[-1].number}" if current.points else ""))
        return ", ".join(parts)


def picture(tree: Tree) -> Picture:
    """Lay out the picture of a tree."""
    pruned_tree, hidden = prune(tree, _MOST_BRANCHES)
    builder = _PictureBuilder()
    for root in pruned_tree.roots:
        builder.draw(root)
    return Picture(tree, builder.lanes, builder.lines, references(pruned_tree), hidden)


class _PictureBuilder:
    """Places lanes and lines from top to bottom."""

    def __init__(self) -> None:
        self.y = TOP - LINE
        self.lanes: list[Lane] = []
        self.lines: list[PlacedRow] = []

    def draw(self, root: Branch) -> None:
        # An explicit stack, because branches may be nested deeper than Python's recursion limit.
        stack = [(self._add_lane(root, 0), deque(_items_with_calls(root)))]
        while stack:
            lane, items = stack[-1]
            if not items:
                stack.pop()
                continue
            item = items.popleft()
            if isinstance(item, LayoutRow):
                self._add_line(lane, item)
            else:
                used_columns = {other.column for other, rest in stack if rest} | {lane.column}
                lane.extend_to(self.y)
                child = self._add_lane(item, _free_column(used_columns, lane.column))
                child.joint = (lane.column, self.y)
                stack.append((child, deque(_items_with_calls(item))))

    def _add_lane(self, branch: Branch, column: int) -> Lane:
        self.lanes.append(Lane(branch, column, len(self.lanes)))
        return self.lanes[-1]

    def _add_line(self, lane: Lane, row: LayoutRow) -> None:
        """Place a line, with the height that its dots need."""
        points = [] if row.folded else row.points[-_MOST_DOTS:]
        first_step = _MIN_CURVE_HEIGHT if lane.start is None else STEP
        self.y += max(LINE, first_step + STEP * (len(points) - 1))
        dots = tuple(Dot(point, self.y - STEP * i) for i, point in enumerate(reversed(points)))[::-1]
        lane.extend_to(dots[0].y if dots else self.y, broken=not dots)
        lane.extend_to(self.y)
        is_after_newest = not row.points and bool(lane.branch.points)
        self.lines.append(PlacedRow(row=row, lane=lane, y=self.y, dots=dots, is_after_newest=is_after_newest))


def _items_with_calls(branch: Branch) -> Iterator[LayoutItem]:
    """Yield the lines of a branch, and one for the calls after its newest checkpoint."""
    items = list(layout_items(branch, max_rows=_MOST_LINES))
    if branch.effects and branch.points:
        # Before the branches that leave at its end, so that its own lane ends first.
        last_row = max(i for i, item in enumerate(items) if isinstance(item, LayoutRow))
        items.insert(last_row + 1, LayoutRow(branch, []))
    yield from items


def _free_column(used_columns: set[int], column: int) -> int:
    """Return a free column for a branch that leaves from `column`."""
    to_the_right = next(c for c in range(column + 1, column + 2 + len(used_columns)) if c not in used_columns)
    if to_the_right < _MOST_LANES:
        return to_the_right
    return next((c for c in range(_MOST_LANES) if c not in used_columns), to_the_right)
