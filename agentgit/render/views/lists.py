"""Lists of sessions, branches, users, members, links and keys, one line each; and the status of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from agentgit.auth import ApiKey, Member, ShareLink, User
from agentgit.auth.principal import widest
from agentgit.checkpoints import Checkpoint
from agentgit.errors import AgentGitError
from agentgit.render import html
from agentgit.render.text import Line, Span, Zone, clean, format_time, table, waiting_text
from agentgit.render.views import conversation
from agentgit.render.views.log import reference, title
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.reports import Operation
from agentgit.sessions.session import OPEN, RUNNING
from agentgit.values import count


def session_lines(sessions: Sequence[ExternalSession], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of sessions."""
    rows = [
        [
            Span(clean(session.reference), "reference"),
            Span(format_time(session.updated_at, zone), "dim"),
            Span(count(session.branch_count, "branch")),
            Span(", ".join(_session_flags(session)), "dim"),
        ]
        for session in sessions
    ]
    return table(rows, width=width)


def _session_flags(session: ExternalSession) -> list[str]:
    role = [] if session.is_own else [f"you are {session.role}"]
    return role if session.is_active else [*role, "inactive"]


def branch_lines(
    branches: Sequence[InternalSession], tree: Tree | None = None, *, width: int = 100, zone: Zone = UTC
) -> list[Line]:
    """Draw a list of branches, with a `*` before the current one."""
    tree_branches = tree.walk() if tree is not None else ()
    origins = {point.id: f"from {clean(b.name)}#{point.number}" for b in tree_branches for point in b.points}
    return table([_branch_row(branch, origins, zone) for branch in branches], width=width, wrap_last=True)


def _branch_row(branch: InternalSession, origins: dict[int, str], zone: Zone) -> list[Span]:
    origin = origins.get(branch.branch_point_checkpoint_id or 0, "")
    status = [] if branch.status == OPEN else [clean(branch.status)]
    status += [clean(waiting_text(branch.questions))] if branch.questions else []
    return [
        Span(f"{'*' if branch.is_current else ' '} {clean(branch.name)}", "head" if branch.is_current else "reference"),
        Span(format_time(branch.created_at, zone), "dim"),
        Span(count(branch.checkpoint_count, "checkpoint")),
        Span(count(branch.tool_invocation_count, "call")),
        Span(", ".join([*status, *([origin] if origin else [])]), "bad" if status else "dim"),
    ]


# -- HTML


def branch_page(branch: InternalSession) -> str:
    """Draw one branch as HTML: its line in the list, and its conversation, collapsed."""
    try:
        history = branch.conversation_history
        content = html.fold(count(len(history), "message"), conversation.message_page(history))
    except AgentGitError as error:
        content = f"<p>{html.styled(Span(clean(str(error)), 'bad'))}</p>"
    return f"<div>{html.pre(branch_lines([branch]))}{content}</div>"


def user_lines(users: Sequence[User], *, width: int = 100) -> list[Line]:
    """Draw a list of users."""
    return table(
        [
            [
                Span(clean(user.name), "reference"),
                Span("admin" if user.is_admin else ""),
                Span("disabled" if user.disabled_at is not None else "", "bad"),
            ]
            for user in users
        ],
        width=width,
    )


def member_lines(members: Sequence[Member], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of members."""
    return table(
        [
            [
                Span(clean(member.user_name), "reference"),
                Span(member.role),
                Span(_expiry_text(member.expires_at, zone), "dim"),
                Span(f"by link {member.link_id}" if member.link_id is not None else "", "dim"),
            ]
            for member in members
        ],
        width=width,
    )


def link_lines(links: Sequence[ShareLink], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of links."""
    return table(
        [
            [Span(str(link.id), "reference"), Span(link.role), _expiry(link.expires_at, link.revoked_at, zone)]
            for link in links
        ],
        width=width,
    )


def key_lines(keys: Sequence[ApiKey], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of API keys."""
    return table(
        [
            [
                Span(str(key.id), "reference"),
                Span(clean(key.name)),
                Span(widest(key.scopes)),
                Span(
                    f"used {format_time(key.last_used_at, zone)}" if key.last_used_at is not None else "never used",
                    "dim",
                ),
                _expiry(key.expires_at, key.revoked_at, zone),
            ]
            for key in keys
        ],
        width=width,
    )


def _expiry(expires_at: datetime | None, revoked_at: datetime | None, zone: Zone) -> Span:
    if revoked_at is not None:
        return Span("revoked", "bad")
    return Span(_expiry_text(expires_at, zone), "dim")


def _expiry_text(moment: datetime | None, zone: Zone) -> str:
    if moment is None:
        return ""
    return f"{'until' if moment > datetime.now(UTC) else 'ended'} {format_time(moment, zone)}"


def status_lines(session: ExternalSession, branch: InternalSession, head: Checkpoint | None) -> list[Line]:
    """Return the status of an agent as lines: its session, branch and head."""
    status = "" if branch.status == OPEN else f" ({clean(branch.status)})"
    head_spans = [Span("no checkpoints yet")]
    if head is not None:
        head_spans = [Span(f"{reference(head)} "), Span(title(head), "" if head.is_auto else "name")]
    calls = Span(f"  {count(branch.tool_invocation_count, 'tool call')}", "dim")
    waits = clean(waiting_text(branch.questions))
    return [
        (Span("session  ", "dim"), Span(clean(session.session_name), "heading")),
        (Span("branch   ", "dim"), Span(clean(branch.name), "head"), Span(status, "bad"), calls),
        (Span("head     ", "dim"), *head_spans),
        *([(Span("         "), Span(waits, "bad"))] if waits else []),
    ]


def unfinished_line(operation: Operation) -> Line:
    """Return a line for an unfinished operation, with the command that finishes it if it has stopped."""
    if operation.status == RUNNING:
        return (Span("running  ", "dim"), Span(f"{clean(operation.kind)} {operation.id}", "bad"))
    label = f"{clean(operation.kind)} {operation.id}"
    return (Span("stopped  ", "dim"), Span(label, "bad"), Span(f"; to finish it: agentgit resume {operation.id}"))
