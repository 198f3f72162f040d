"""Layout of a tree, independent of what draws it: which checkpoints are one line, and which branches leave after it.

A line is a turn, a checkpoint with a name or a tag, or a place where a branch left; long runs of turns are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from agentgit.render.text import clean, cut
from agentgit.sessions.tree import Branch, Point, Tree

KINDS = {"before": "before a turn", "after": "after a turn", "tools": "after tools", "branch": "where it begins"}
"""The wording for an automatic checkpoint without a title."""

_FOLD_FROM = 5
"""The number of turns in a row that are too many to show."""

NAME_CELLS = 24
"""The most cells of a branch's name."""


@dataclass(frozen=True)
class LayoutRow:
    """One line of the layout: adjacent checkpoints of one branch.

    Args:
        branch: The branch.
        points: The checkpoints, oldest first; the last one gives the line its number.
        folded: The number of turns, if they are folded.
    """

    branch: Branch
    points: list[Point]
    folded: int = 0


Event = LayoutRow | Branch
"""A line of a branch, or a branch that leaves after it."""


def events_of(branch: Branch, *, every: bool = False, most: int | None = None) -> Iterator[Event]:
    """Return the lines of a branch, each followed by the branches that leave there.

    Args:
        branch: The branch.
        every: True to give each checkpoint its own line.
        most: So many lines may be shown beside those where branches leave; None for all.
    """
    points = {point.id for point in branch.points}
    leaving: dict[int | None, list[Branch]] = {}
    for child in branch.children:
        # A branch that left before the first checkpoint of its parent hangs at the first.
        first = branch.points[0].id if branch.points else None
        leaving.setdefault(child.branch_point_id if child.branch_point_id in points else first, []).append(child)
    if not branch.points:
        yield LayoutRow(branch, [])
        yield from leaving.get(None, ())
    rows = _rows(branch, leaving.keys(), every)
    for row in rows if most is None else _squeezed(rows, leaving.keys(), most):
        yield row
        if not row.folded:
            yield from leaving.get(row.points[-1].id, ())


def _rows(branch: Branch, joints: Set[int | None], every: bool) -> list[LayoutRow]:
    """Put the checkpoints of a branch into lines: turns, names, joints; then fold long runs of turns."""
    groups: list[list[Point]] = []
    ended = True
    for point in branch.points:
        begins_turn = point.kind == "before" and bool(groups) and groups[-1][-1].kind != "branch"
        if every or ended or begins_turn or _stands_out(point):
            groups.append([point])
        else:
            groups[-1].append(point)
        ended = _stands_out(point) or point.id in joints
    rows: list[LayoutRow] = []
    run: list[list[Point]] = []
    for group in groups:
        last = group[-1]
        if every or _stands_out(last) or last.id in joints or last is branch.points[-1]:
            rows += [*_fold(branch, run), LayoutRow(branch, group)]
            run = []
        else:
            run.append(group)
    return rows


def is_named(point: Point) -> bool:
    """Return whether a person made it."""
    return point.name is not None or point.kind == "named"


def _stands_out(point: Point) -> bool:
    return is_named(point) or bool(point.tags)


def _fold(branch: Branch, run: list[list[Point]]) -> list[LayoutRow]:
    if len(run) < _FOLD_FROM:
        return [LayoutRow(branch, row) for row in run]
    middle = [point for row in run[1:-1] for point in row]
    return [LayoutRow(branch, run[0]), LayoutRow(branch, middle, folded=len(run) - 2), LayoutRow(branch, run[-1])]


def _squeezed(rows: list[LayoutRow], joints: Set[int | None], most: int) -> Iterator[LayoutRow]:
    """Fold what is in the middle of too many lines, whatever its names."""
    run: list[LayoutRow] = []
    for i, row in enumerate(rows):
        if most // 3 <= i < len(rows) - most * 2 // 3 and (row.folded or row.points[-1].id not in joints):
            run.append(row)
            continue
        yield from _together(run)
        yield row
        run = []


def _together(run: list[LayoutRow]) -> Iterator[LayoutRow]:
    if run:
        yield LayoutRow(
            run[0].branch, [point for row in run for point in row.points], sum(row.folded or 1 for row in run)
        )


def pruned(tree: Tree, most: int) -> tuple[Tree, int]:
    """Leave out branches where there are too many: the current one stays, with those it came from, and the newest.

    Args:
        tree: The tree with all branches.
        most: So many stay, at least 1.

    Returns:
        What is left, and how many branches are not in it.
    """
    known = {branch.id: branch for branch in tree.walk()}
    if len(known) <= most:
        return tree, 0
    kept: set[int] = set()
    for branch in sorted(known.values(), key=lambda one: (not one.is_current, -one.id)):
        path: list[int] = []
        at: Branch | None = branch
        while at is not None and at.id not in kept and len(path) < most:
            path.append(at.id)
            at = known.get(at.parent_id) if at.parent_id is not None else None
        if len(kept) + len(path) <= most:
            kept.update(path)
    shown = [replace(branch, children=[]) for branch in known.values() if branch.id in kept]
    return Tree.grow(tree.session_name, shown), len(known) - len(kept)


def references(tree: Tree) -> dict[int, str]:
    """Return the short names of all checkpoints, like `main#7`, by their ids."""
    return {point.id: f"{branch_name(branch)}#{point.number}" for branch in tree.walk() for point in branch.points}


def title_of(row: LayoutRow, references: Mapping[int, str]) -> str:
    """Return the title of a line: what happened there.

    Args:
        row: The line; not a folded one.
        references: The short names of the checkpoints.
    """
    last = row.points[-1]
    if last.name is not None:
        return clean(last.name) + (f" - {clean(last.title)}" if last.title else "")
    left = references.get(row.branch.branch_point_id or 0)
    if last.kind == "branch" and left is not None:
        return f"from {left}"
    asked = next((point.title for point in row.points if point.kind == "before" and point.title), "")
    if last.kind == "before" and asked:
        return f"before: {clean(asked)}"
    return clean(asked or last.title) or KINDS.get(last.kind, "")


def branch_name(branch: Branch) -> str:
    """Return the name of a branch as it is shown, cut where it is long."""
    return cut(clean(branch.name), NAME_CELLS)
