"""Lists of sessions and of branches, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo

from agentgit.errors import AgentGitError
from agentgit.render import html
from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean, clock, count
from agentgit.render.views import messages
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.session import OPEN


def session_lines(sessions: Sequence[ExternalSession], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of sessions.

    Args:
        sessions: The sessions, in the order to show them.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    rows = [
        [
            Span(clean(session.reference), "reference"),
            Span(clock(session.updated_at, zone), "dim"),
            Span(count(session.branch_count, "branch")),
            Span(", ".join(_facts(session)), "dim"),
        ]
        for session in sessions
    ]
    return table(rows, width=width)


def _facts(session: ExternalSession) -> list[str]:
    role = [] if session.is_own else [f"you are {session.role}"]
    return role if session.is_active else [*role, "put away"]


def branch_lines(
    branches: Sequence[InternalSession], tree: Tree | None = None, *, width: int = 100, zone: tzinfo | None = UTC
) -> list[Line]:
    """Draw a list of branches, a `*` before the current one.

    Args:
        branches: The branches, in the order to show them.
        tree: The tree that they form, which knows where each left; None to leave that out.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    all_of_them = tree.walk() if tree is not None else ()
    known = {point.id: f"from {clean(b.name)}#{point.number}" for b in all_of_them for point in b.points}
    return table([_branch(branch, known, zone) for branch in branches], width=width, whole=True)


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


# -- HTML


def branch_page(branch: InternalSession) -> str:
    """Draw one branch as HTML: its line in the list, and its conversation, folded away.

    Args:
        branch: The branch; its conversation is read, and if that fails, the reason is shown in its place.
    """
    try:
        history = branch.conversation_history
        content = html.fold(count(len(history), "message"), messages.page(history))
    except AgentGitError as error:
        content = f"<p>{html.styled(Span(clean(str(error)), 'bad'))}</p>"
    return f"<div>{html.pre(branch_lines([branch]))}{content}</div>"
