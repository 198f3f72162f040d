"""Lists of sessions and of branches, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo

from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean, clock, count
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.session import OPEN


def session_lines(sessions: Sequence[ExternalSession], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of sessions.

    Args:
        sessions: in the order to show them.
        width: the longest line, in terminal cells.
        zone: the zone of the times; None is this machine's.
    """
    rows = [
        [
            Span(clean(session.session_name), "reference"),
            Span(clock(session.updated_at, zone), "dim"),
            Span(count(session.branch_count, "branch")),
            Span("" if session.is_active else "put away", "dim"),
        ]
        for session in sessions
    ]
    return table(rows, width=width)


def branch_lines(
    branches: Sequence[InternalSession], tree: Tree, *, width: int = 100, zone: tzinfo | None = UTC
) -> list[Line]:
    """Draw a list of branches, a `*` before the current one.

    Args:
        branches: in the order to show them.
        tree: the tree that they form, which knows where each left.
        width: the longest line, in terminal cells.
        zone: the zone of the times; None is this machine's.
    """
    known = {point.id: f"from {clean(b.name)}#{point.number}" for b in tree.walk() for point in b.points}
    return table([_branch(branch, known, zone) for branch in branches], width=width)


def _branch(branch: InternalSession, known: dict[int, str], zone: tzinfo | None) -> list[Span]:
    left = known.get(branch.branch_point_checkpoint_id or 0, "")
    status = [] if branch.status == OPEN else [clean(branch.status)]
    return [
        Span(f"{'*' if branch.is_current else ' '} {clean(branch.name)}", "head" if branch.is_current else "reference"),
        Span(clock(branch.created_at, zone), "dim"),
        Span(count(branch.checkpoint_count, "checkpoint")),
        Span(count(branch.tool_invocation_count, "call")),
        Span(", ".join([*status, *([left] if left else [])]), "bad" if status else "dim"),
    ]
