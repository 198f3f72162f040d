"""Positions in the picture of a tree: lanes, dots and lines of text, in pixels. `svg.py` draws it.

The conversation runs down, as in the text. A branch has a lane of its own to the right of the one it left; a lane that
has ended is free again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentgit.render.layout import Event, LayoutRow, branch_name, events_of, pruned, references
from agentgit.render.text import count
from agentgit.sessions.tree import Branch, Point, Tree

LANE, LINE, STEP, LEFT, TOP = 18, 26, 9, 14, 44
"""The width of a lane, the height of a line of text, the distance of a turn's dots, and the place of the first dot."""

_LEAD = 17
"""The height that the curve to a new lane needs."""

_MOST_LINES, _MOST_BRANCHES, _MOST_DOTS, _MOST_LANES = 60, 60, 6, 12
"""The most lines of a branch, branches, dots of a turn, and lanes to the right of each other that are shown."""


@dataclass(frozen=True)
class Dot:
    """A checkpoint in the picture.

    Args:
        point: The checkpoint.
        y: The distance from the top.
    """

    point: Point
    y: int


@dataclass(frozen=True, kw_only=True)
class PlacedPoint:
    """A line of text, with the dots that belong to it.

    Args:
        row: The text of the line.
        lane: The lane that it is on.
        y: The distance from the top.
        dots: The last one is at `y`; none if the line is folded, or says that there are none.
        after: True for the line that tells of calls after the newest checkpoint.
    """

    row: LayoutRow
    lane: Lane
    y: int
    dots: tuple[Dot, ...] = ()
    after: bool = False


@dataclass(eq=False)
class Lane:
    """A branch in the picture.

    Args:
        branch: The branch.
        column: The place of the lane from the left.
        number: The number of the lane; it determines the colour.
        start: The height at which it begins; None before its first line.
        down: The height that it has come to.
        runs: The pieces of its line, each from where to where, and whether it is broken.
        left: The column and the height of the joint that it comes from.
    """

    branch: Branch
    column: int
    number: int
    start: int | None = None
    down: int = 0
    runs: list[tuple[int, int, bool]] = field(default_factory=list)
    left: tuple[int, int] | None = None

    @property
    def x(self) -> int:
        """The distance from the left edge."""
        return across(self.column)

    def reach(self, y: int, *, broken: bool = False) -> None:
        """Draw it on to a height."""
        if self.start is None:
            self.start = y
        elif y > self.down:
            self.runs.append((self.down, y, broken))
        self.down = y


def across(column: int) -> int:
    """Return where a column is from the left."""
    return LEFT + column * LANE


@dataclass(frozen=True)
class Picture:
    """The layout of a tree as a picture.

    Args:
        tree: The whole tree that it shows.
        lanes: One for each branch.
        lines: The lines from top to bottom.
        references: The short names of the checkpoints.
        hidden: The number of branches that are not in it.
    """

    tree: Tree
    lanes: list[Lane]
    lines: list[PlacedPoint]
    references: Mapping[int, str]
    hidden: int

    @property
    def columns(self) -> int:
        """The number of lanes beside each other."""
        return 1 + max((lane.column for lane in self.lanes), default=0)

    @property
    def bottom(self) -> int:
        """The vertical position of the last line."""
        return self.lines[-1].y if self.lines else TOP - LINE

    @property
    def summary(self) -> str:
        """A sentence that describes the picture."""
        branches = list(self.tree.walk())
        said = [count(len(branches), "branch"), count(sum(len(one.points) for one in branches), "checkpoint")]
        now = next((branch for branch in branches if branch.is_current), None)
        if now is not None:
            said.append(f"on {branch_name(now)}" + (f" at #{now.points[-1].number}" if now.points else ""))
        return ", ".join(said)


def picture(tree: Tree) -> Picture:
    """Return where everything is in the picture of a tree.

    Args:
        tree: The branches of a session.
    """
    shown, hidden = pruned(tree, _MOST_BRANCHES)
    pen = _Pen()
    for root in shown.roots:
        pen.draw(root)
    return Picture(tree, pen.lanes, pen.lines, references(shown), hidden)


class _Pen:
    """Goes down the page, line by line."""

    def __init__(self) -> None:
        self.y = TOP - LINE
        self.lanes: list[Lane] = []
        self.lines: list[PlacedPoint] = []

    def draw(self, root: Branch) -> None:
        # A stack of our own: branches may be nested deeper than Python lets functions call each other.
        stack = [(self._lane(root, 0), deque(_events(root)))]
        while stack:
            lane, events = stack[-1]
            if not events:
                stack.pop()
                continue
            event = events.popleft()
            if isinstance(event, LayoutRow):
                self._line(lane, event)
            else:
                taken = {other.column for other, rest in stack if rest} | {lane.column}
                lane.reach(self.y)
                child = self._lane(event, _free(taken, lane.column))
                child.left = (lane.column, self.y)
                stack.append((child, deque(_events(event))))

    def _lane(self, branch: Branch, column: int) -> Lane:
        self.lanes.append(Lane(branch, column, len(self.lanes)))
        return self.lanes[-1]

    def _line(self, lane: Lane, row: LayoutRow) -> None:
        """Put down a line, as high as its dots need."""
        points = [] if row.folded else row.points[-_MOST_DOTS:]
        first = _LEAD if lane.start is None else STEP
        self.y += max(LINE, first + STEP * (len(points) - 1))
        dots = tuple(Dot(point, self.y - STEP * i) for i, point in enumerate(reversed(points)))[::-1]
        lane.reach(dots[0].y if dots else self.y, broken=not dots)
        lane.reach(self.y)
        after = not row.points and bool(lane.branch.points)
        self.lines.append(PlacedPoint(row=row, lane=lane, y=self.y, dots=dots, after=after))


def _events(branch: Branch) -> Iterator[Event]:
    """Return the lines of a branch, and one for what was called after its newest checkpoint."""
    events = list(events_of(branch, most=_MOST_LINES))
    if branch.effects and branch.points:
        # Before the branches that left at its end, so that its own line ends first.
        last = max(i for i, event in enumerate(events) if isinstance(event, LayoutRow))
        events.insert(last + 1, LayoutRow(branch, []))
    yield from events


def _free(taken: set[int], column: int) -> int:
    """Find a lane for a branch that leaves from a column."""
    to_the_right = next(c for c in range(column + 1, column + 2 + len(taken)) if c not in taken)
    if to_the_right < _MOST_LANES:
        return to_the_right
    return next((c for c in range(_MOST_LANES) if c not in taken), to_the_right)
