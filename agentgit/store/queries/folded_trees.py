"""Folded trees: the branches of a session are read, then only the checkpoints of those that are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sqlalchemy import and_, func, or_, select

from agentgit.sessions import ExternalSession, Tree
from agentgit.sessions.folded_tree import FoldedTree, fold
from agentgit.sessions.session import RUNNING, SIMULATED
from agentgit.sessions.tree import Branch, Point
from agentgit.store.queries.graph_points import read_questions
from agentgit.store.records.recorded_calls import add_marks, call_marks
from agentgit.store.records.sessions import StoredRow, is_simulated
from agentgit.store.sql.batch import slices
from agentgit.store.sql.rows import value_of
from agentgit.store.sql.tables import BRANCH, CHECKPOINT
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store

_LINE_POINTS = 4
"""The number of checkpoints that are read of a branch that takes one line: those of a turn."""

_BRANCHES_AT_ONCE = 100
"""The number of branches whose checkpoints one statement reads."""


@dataclass(frozen=True, kw_only=True)
class FoldChoice:
    """The parts of a tree that a reader wants to see; see `fold`."""

    limit: int | None = None
    branch: int | None = None
    expand: Collection[int] = ()
    collapse: Collection[int] = ()
    points: int | None = 100
    """The newest checkpoints to read of each branch; None for all."""


def read_folded_tree(
    store: Store, transaction: Reading, session: ExternalSession, rows: Sequence[StoredRow], choice: FoldChoice
) -> FoldedTree:
    skeleton = Tree.grow(session.reference, [tree_branch(row, session) for row in rows])
    folded = fold(skeleton, limit=choice.limit, branch=choice.branch, expand=choice.expand, collapse=choice.collapse)
    counts, newest = _counts(transaction, session.id)
    shown = list(folded.tree.walk())
    tags = store.tags.names_by_checkpoint(transaction, session.id)
    points: dict[int, list[Point]] = {branch.id: [] for branch in shown}
    for part in slices(shown, _BRANCHES_AT_ONCE):
        for row in store.checkpoints.find(transaction, or_(*_wanted(folded, part, newest, choice.points))):
            point = value_of(Point, row, title=row.description or "", tags=tuple(tags.get(row.id, ())))
            points[row.internal_session_id].append(point)
    marks = call_marks(transaction, session.id, [branch.id for branch in shown])
    inherited = {row.id: row.inherited for row in rows}
    asked = read_questions(store, transaction, [row for row in rows if row.id in points])
    for branch in shown:
        branch.questions = asked.get(branch.id, [])
        branch.points = points[branch.id]
        marked = add_marks(branch, marks.get(branch.id, ()), inherited[branch.id])
        points_of_branch = marked.points if choice.points is None else list(_known_marks(marked.points))
        branch.points, branch.effects = points_of_branch, marked.effects
    return replace(folded, counts={row.id: counts.get(row.id, 0) for row in rows})


def _counts(transaction: Reading, session_id: int) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return the number of checkpoints of each branch, and the highest number among them."""
    query = (
        select(CHECKPOINT.c.internal_session_id, func.count().label("n"), func.max(CHECKPOINT.c.number).label("newest"))
        .join_from(
            CHECKPOINT,
            BRANCH,
            BRANCH.c.id == CHECKPOINT.c.internal_session_id,
        )
        .where(BRANCH.c.external_session_id == session_id)
        .group_by(CHECKPOINT.c.internal_session_id)
    )
    rows = transaction.execute(query).all()
    return {row.internal_session_id: row.n for row in rows}, {row.internal_session_id: row.newest for row in rows}


def _wanted(
    folded: FoldedTree, branches: Sequence[Branch], newest: Mapping[int, int], most: int | None
) -> Iterator[Any]:
    """Yield the conditions for the checkpoints to read: the newest of each branch, and those where branches leave."""
    for branch in branches:
        of_branch = CHECKPOINT.c.internal_session_id == branch.id
        if most is None:
            yield of_branch
            continue
        window = _LINE_POINTS if branch.id in folded.collapsed else most
        yield and_(of_branch, CHECKPOINT.c.number > newest.get(branch.id, 0) - window)
        if branch.children:
            leaving = [child.branch_point_id for child in branch.children if child.branch_point_id is not None]
            yield and_(of_branch, CHECKPOINT.c.id.in_(leaving))


def _known_marks(points: Sequence[Point]) -> Iterator[Point]:
    """Yield points without the marks of calls that may belong to a checkpoint before them that was not read."""
    for before, point in pairwise([None, *points]):
        if point is not None:
            is_known = point.number == 1 if before is None else point.number == before.number + 1
            yield point if is_known or not point.effects else replace(point, effects={})


def tree_branch(row: StoredRow, session: ExternalSession) -> Branch:
    is_running_rerun = row.status == RUNNING and is_simulated(row)
    status, is_current = SIMULATED if is_running_rerun else row.status, row.id == session.current_internal_session_id
    return value_of(Branch, row, status=status, is_current=is_current)
