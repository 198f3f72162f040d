"""Effects of a session's calls on its world, read from columns alone: the marks that a tree shows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, func, select

from agentgit.effects.call_marks import mark
from agentgit.effects.effects import READ_ONLY
from agentgit.effects.invocation import FAILED, REDO, REPLAY
from agentgit.sessions.tree import Branch, Point
from agentgit.store.records.journal import HAS_PLACE, IN_ORDER
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import TOOL_INVOCATION


def marks(connection: Connection, tenant_id: int, session_id: int) -> dict[int, list[tuple[int, str]]]:
    """Read the marks of the calls that each branch of a session made, with their places among its own calls.

    What was answered from a record, and what was made in another world, has none. A call that ran again has the mark
    of the newest run.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        session_id: The external session.
    """
    key = {"tenant": tenant_id, "session": session_id}
    again = {row.replay_of: row.status for row in _AGAIN.all(connection, key)}
    found: dict[int, list[tuple[int, str]]] = {}
    for row in _CALLS.all(connection, key):
        said = mark(row.effect, again.get(row.id, row.status))
        if said is not None:
            found.setdefault(row.internal_session_id, []).append((row.place, said))
    return found


def marked(branch: Branch, calls: Sequence[tuple[int, str]], inherited: int) -> Branch:
    """Assign each call to the next checkpoint of its branch, and the calls after the last checkpoint to the branch.

    Args:
        branch: The branch with its points.
        calls: The calls of the branch, as `marks` returned them.
        inherited: The number of calls before the first one of the branch.
    """
    ends = [point.position for point in branch.points]
    counts = [Counter[str]() for _ in range(len(ends) + 1)]
    for place, said in calls:
        counts[bisect_right(ends, inherited + place)][said] += 1
    points = list(_with(branch.points, counts))
    return replace(branch, points=points, effects=dict(counts[-1]))


def _with(points: Sequence[Point], counts: Sequence[Counter[str]]) -> Iterator[Point]:
    for point, count in zip(points, counts, strict=False):
        yield replace(point, effects=dict(count)) if count else point


_of_session = (
    TOOL_INVOCATION.c.tenant_id == bindparam("tenant"),
    TOOL_INVOCATION.c.external_session_id == bindparam("session"),
)
_place = func.row_number().over(partition_by=TOOL_INVOCATION.c.internal_session_id, order_by=IN_ORDER) - 1
_placed = (
    select(
        *(TOOL_INVOCATION.c[name] for name in ("id", "internal_session_id", "kind", "effect", "status", "made_on")),
        _place.label("place"),
    )
    .where(*_of_session, HAS_PLACE)
    .subquery()
)
_CALLS = CompiledStatement(
    select(_placed).where(_placed.c.effect != READ_ONLY, _placed.c.kind != REPLAY, _placed.c.made_on.is_(None))
)
_AGAIN = CompiledStatement(
    select(TOOL_INVOCATION.c.replay_of, TOOL_INVOCATION.c.status)
    .where(
        *_of_session,
        TOOL_INVOCATION.c.replay_of.is_not(None),
        TOOL_INVOCATION.c.kind == REDO,
        TOOL_INVOCATION.c.status != FAILED,
    )
    .order_by(TOOL_INVOCATION.c.id)
)
