"""The tree of a session: its rows, the lanes before them, and the page that shows the tree alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from agentgit.errors import NotFound
from agentgit.handles.session import Session
from agentgit.render.layout import LayoutItem, LayoutRow, branch_name, folded_items, is_named, references, title_of
from agentgit.sessions.folded_tree import FoldedTree
from agentgit.sessions.tree import Branch, Point
from agentgit.values import count
from agentgit.web.api.dependencies import CheckpointId, Id
from agentgit.web.pages.actions import has_graph
from agentgit.web.pages.dependencies import Visit
from agentgit.web.pages.rendering import query

router = APIRouter(prefix="/sessions/{session_id}")

LIMIT = 15
"""The number of branches that a page shows at first."""

MORE = 50
"""The number of branches that "Show more" adds."""

MAX_LIMIT = 1_000
"""The maximum number of branches on a page."""

POINTS = 60
"""The number of checkpoints at the end of a branch that a page shows at first."""

MAX_POINTS = 3_000
"""The maximum number of checkpoints at the end of a branch on a page."""

MAX_LANES = 8
"""The maximum number of lanes before a row. Deeper rows show the last ones."""

_MAX_REST = 6
"""The number of rows up to which the rest of a branch is shown, after the current one has left it."""

_MAX_MATCHES = 20
"""The maximum number of branches that a filter offers."""

COLOURS = 6
"""The number of colours of the lanes."""

MAX_TOGGLED = 200
"""The maximum number of branches that are expanded, and that are collapsed, on a page."""

Ids = Annotated[list[int], Query(max_length=MAX_TOGGLED)]


@dataclass(frozen=True, kw_only=True)
class TreeState:
    """The parts of a tree that a reader has asked to see, from the query of a page."""

    opened: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    limit: int = LIMIT
    points: int = POINTS
    only: str = ""

    def query(self, **others: Any) -> str:
        """Return the query of a page with this state, and with other parameters."""
        default = TreeState()
        parameters = {
            **others,
            "open": sorted(self.opened),
            "closed": sorted(self.closed),
            "limit": self.limit if self.limit != default.limit else None,
            "points": self.points if self.points != default.points else None,
            "only": self.only or None,
        }
        return query(**{name: value for name, value in parameters.items() if value != []})

    def toggle(self, branch_id: int, *, is_open: bool) -> TreeState:
        """Return the state after a branch was collapsed, if it is open, or expanded.

        It forgets the oldest branch if there are too many for the query of a page.
        """
        opened, closed = self.opened - {branch_id}, self.closed - {branch_id}
        if is_open:
            return replace(self, opened=opened, closed=_newest(closed) | {branch_id})
        return replace(self, opened=_newest(opened) | {branch_id}, closed=closed)


def _newest(ids: frozenset[int]) -> frozenset[int]:
    """Return the largest ids, so that one more may be added."""
    return frozenset(sorted(ids)[-(MAX_TOGGLED - 1) :])


def tree_state(
    opened: Annotated[list[int], Query(alias="open", max_length=MAX_TOGGLED)] = [],  # noqa: B006  # FastAPI copies it
    closed: Ids = [],  # noqa: B006  # as above
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = LIMIT,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = POINTS,
    only: Annotated[str, Query(max_length=300)] = "",
) -> TreeState:
    """Read the state of a tree from the query of a page."""
    return TreeState(opened=frozenset(opened), closed=frozenset(closed), limit=limit, points=points, only=only.strip())


State = Annotated[TreeState, Depends(tree_state)]


# -- rows


_KEPT = ("at", "branch", "before", "until", "a", "b")
"""The parameters of the pages with a tree that its links keep."""


@dataclass(eq=False)
class _Line:
    """A vertical line of the drawing: a branch, or the rest of one after the current branch has left it."""

    parent: _Line | None
    number: int
    last: int = 0

    @property
    def ancestors(self) -> list[_Line]:
        """The lines to the left, the first one first."""
        found: list[_Line] = []
        line = self.parent
        while line is not None:
            found.append(line)
            line = line.parent
        return found[::-1]

    @property
    def colour(self) -> int:
        """The number of the line's colour."""
        return self.number % COLOURS


@dataclass(frozen=True, kw_only=True)
class TreeRow:
    """A row of the tree."""

    kind: str
    level: int
    branch: Branch
    points: list[Point]
    title: str = ""
    number: int = 0
    is_open: bool | None = None
    is_end: bool = False
    lanes: tuple[str, ...] = ()
    toggle: int | None = None

    @property
    def point(self) -> Point | None:
        """The checkpoint that the row opens; None for a row that only counts, or heads the rows of a branch."""
        is_line = self.kind == "point" or (self.kind == "branch" and not self.is_open)
        return self.points[-1] if self.points and is_line else None

    @property
    def is_named(self) -> bool:
        """Whether a person gave the checkpoint its name."""
        return self.point is not None and is_named(self.point)

    @property
    def marks(self) -> dict[str, int]:
        """The numbers of calls of the row's checkpoints, by their mark."""
        counts: dict[str, int] = {}
        sources: list[Point | Branch] = [*self.points, *([self.branch] if self.is_end else [])]
        for source in () if self.is_open else sources:
            for mark, number in source.effects.items():
                counts[mark] = counts.get(mark, 0) + number
        return counts


def tree_rows(folded: FoldedTree, state: TreeState) -> list[TreeRow]:
    """Return the rows of a tree: the path to the current branch is one line, and what leaves from it is beside it."""
    builder = _RowBuilder(folded, state)
    builder.build()
    return builder.with_lanes()


class _RowBuilder:
    """Builds the rows from top to bottom, each with its line; then the lanes before them."""

    def __init__(self, folded: FoldedTree, state: TreeState) -> None:
        self.folded = folded
        self.state = state
        self.references: Mapping[int, str] = references(folded.tree)
        self.path = _path_ids(folded, state)
        self.rows: list[tuple[_Line, TreeRow, bool]] = []
        self.lines = 0

    def build(self) -> None:
        for root in self.folded.tree.roots:
            line = self._line(None)
            if self.folded.above and root is self.folded.tree.roots[0]:
                self._add(line, TreeRow(kind="above", level=1, branch=root, points=[], number=self.folded.above))
            branch: Branch | None = root
            while branch is not None:
                branch = self._add_trunk(branch, line)

    def _add_trunk(self, branch: Branch, line: _Line) -> Branch | None:
        """Add the rows of a branch up to the one that the path follows, and return that one."""
        items = list(folded_items(self.folded, branch))
        following = [i for i, item in enumerate(items) if isinstance(item, Branch) and item.id in self.path]
        if not following:
            self._add_items(items, line, 1)
            return None
        after = items[following[0] + 1 :]
        self._add_items(items[: following[0]], line, 1)
        beside = list(takewhile(lambda item: isinstance(item, Branch), after))  # they leave at the same point
        rest = after[len(beside) :]
        self._add_items([*beside, *(item for item in rest if _counts_branches(item))], line, 1)
        rest = [item for item in rest if not _counts_branches(item)]
        if rest:
            self._add_rest(branch, rest, line)
        following_branch = items[following[0]]
        return following_branch if isinstance(following_branch, Branch) else None

    def _add_rest(self, branch: Branch, items: list[LayoutItem], line: _Line) -> None:
        """Add what a branch has after the point at which the path has left it, on a line of its own."""
        rows = [item for item in items if isinstance(item, LayoutRow)]
        if len(items) == 1:
            row = replace(self._point_row(rows[0], 2), kind="branch", number=len(rows[0].points))
            self._add(self._line(line), row, joins=True)
            return
        is_open = branch.id not in self.state.closed and (len(rows) <= _MAX_REST or branch.id in self.state.opened)
        beside = self._line(line)
        header = self._point_row(rows[-1], 2)
        number = sum(len(row.points) for row in rows)
        header = replace(header, kind="branch", number=number, is_open=is_open, toggle=branch.id, is_end=True)
        self._add(beside, header, joins=True)
        if is_open:
            self._add_items(items, beside, 3)

    def _add_items(self, items: list[LayoutItem], line: _Line, level: int) -> None:
        """Add the items of a branch, and with them the branches that leave from it."""
        # An explicit stack, because branches may be nested deeper than Python's recursion limit.
        stack: list[tuple[_Line, int, Iterator[LayoutItem]]] = [(line, level, iter(items))]
        while stack:
            line, level, rest = stack[-1]
            item = next(rest, None)
            if item is None:
                stack.pop()
            elif isinstance(item, LayoutRow):
                self._add(line, self._point_row(item, level))
            else:
                beside, inner = self._line(line), list(folded_items(self.folded, item))
                header = self._branch_row(item, inner, level + 1)
                self._add(beside, header, joins=True)
                if header.is_open:
                    stack.append((beside, level + 2, iter(inner)))

    def _line(self, parent: _Line | None) -> _Line:
        self.lines += 1
        return _Line(parent, self.lines - 1)

    def _add(self, line: _Line, row: TreeRow, *, joins: bool = False) -> None:
        self.rows.append((line, row, joins))

    def _point_row(self, row: LayoutRow, level: int) -> TreeRow:
        branch, points = row.branch, row.points
        common: dict[str, Any] = {"level": level, "branch": branch, "points": points}
        if row.folded:
            return TreeRow(kind="fold", number=row.folded, **common)
        if row.unread or (row.hidden and not points):
            return TreeRow(kind="unread" if row.unread else "more", number=row.unread or row.hidden, **common)
        title = title_of(row, self.references) if points else "no checkpoints yet"
        is_end = not points or points[-1] is branch.points[-1]
        return TreeRow(kind="point", title=title, is_end=is_end, **common)

    def _branch_row(self, branch: Branch, items: list[LayoutItem], level: int) -> TreeRow:
        """Return the row of a branch beside the path: its newest checkpoint, and what it hides."""
        rows = [item for item in items if isinstance(item, LayoutRow) and not _counts_branches(item)]
        is_open = branch.id not in self.folded.collapsed
        hidden = self.folded.hidden.get(branch.id, 0)
        checkpoints = self.folded.counts.get(branch.id, 0)
        can_open = len(items) > 1 or checkpoints > len(rows[-1].points) or hidden > 0
        row = self._point_row(rows[-1], level)
        return replace(
            row,
            kind="branch",
            number=checkpoints,
            is_open=is_open if can_open else None,
            toggle=branch.id if can_open else None,
            is_end=True,
        )

    def with_lanes(self) -> list[TreeRow]:
        """Return the rows with their lanes."""
        first: dict[_Line, int] = {}
        for i, (line, _, joins) in enumerate(self.rows):
            first.setdefault(line, i)
            line.last = i
            if joins and line.parent is not None:
                line.parent.last = max(line.parent.last, i)
        return [
            replace(row, lanes=tuple(self._lanes(i, line, joins, first[line])[-MAX_LANES:]))
            for i, (line, row, joins) in enumerate(self.rows)
        ]

    def _lanes(self, index: int, line: _Line, joins: bool, first: int) -> list[str]:
        lanes = []
        for other in line.ancestors:
            goes_on = other.last > index
            is_joint = joins and other is line.parent
            shape = ("tee" if goes_on else "elbow") if is_joint else "line" if goes_on else "none"
            lanes.append(f"{shape} lane-{other.colour}")
        ends = ["up"] if index > first else []
        ends += ["down"] if line.last > index else []
        return [*lanes, " ".join(["node", *ends, *(["joined"] if joins else []), f"lane-{line.colour}"])]


def _path_ids(folded: FoldedTree, state: TreeState) -> set[int]:
    """Return the ids of the branches from the root to the current branch, or to the one that the filter names."""
    branches = {branch.id: branch for branch in folded.tree.walk()}
    found = [branch for branch in branches.values() if branch.name == state.only] if state.only else []
    found = found or [branch for branch in branches.values() if branch.is_current]
    ids: set[int] = set()
    branch: Branch | None = found[0] if found else None
    while branch is not None and branch.id not in ids:
        ids.add(branch.id)
        branch = branches.get(branch.parent_id) if branch.parent_id is not None else None
    return ids


def _counts_branches(item: LayoutItem) -> bool:
    return isinstance(item, LayoutRow) and item.hidden > 0 and not item.points


# -- pages


def tree_context(request: Request, session: Session, state: TreeState, at: int | None = None) -> dict[str, Any]:
    """Return the variables of the template `_tree.html`."""
    matches: list[str] = []
    try:
        folded = _read(session, state, state.only or None)
    except NotFound:
        folded = _read(session, state, None)
        matches = [branch.name for branch in folded.whole.walk() if state.only.lower() in branch.name.lower()]
    kept = {name: value for name, value in request.query_params.items() if name in _KEPT}
    return {
        "rows": tree_rows(folded, state),
        "tree_summary": f"{count(len(folded.counts), 'branch')}, {count(sum(folded.counts.values()), 'checkpoint')}",
        "tree_references": references(folded.tree),
        "tree_state": state,
        "tree_more": replace(state, limit=min(state.limit + MORE, MAX_LIMIT)),
        "tree_earlier": replace(state, points=min(state.points * 5, MAX_POINTS)),
        "tree_matches": sorted(matches)[:_MAX_MATCHES],
        "tree_found": len(matches),
        "tree_kept": kept,
        "tree_at": at,
        "tree_hidden": folded.hidden,
        "tree_is_folded": len(folded.counts) > LIMIT or bool(state.only),
        "can_run": has_graph(session),
        "branch_label": branch_name,
    }


def _read(session: Session, state: TreeState, branch: str | None) -> FoldedTree:
    return session.folded_tree(
        limit=state.limit, branch=branch, expand=state.opened, collapse=state.closed, points=state.points
    )


@router.get("/tree")
def tree(visit: Visit, session_id: Id, state: State, at: CheckpointId = None) -> Response:
    """Show the tree of a session alone. The script of a session's page loads its tree from here."""
    session = visit.repo.session(session_id)
    return visit.page("tree", session=session.info, **tree_context(visit.request, session, state, at))
