"""Lists of sessions, branches, operations, events, users, members, links and keys; and the status of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentgit.auth import ApiKey, Member, ShareLink, User
from agentgit.auth.principal import widest
from agentgit.checkpoints import Checkpoint
from agentgit.effects.report import GROUPS
from agentgit.errors import AgentGitError
from agentgit.next_steps import Next, Reason
from agentgit.render.text import clean, waiting_text
from agentgit.render.view import Fold, Line, Span, Table, Time, View
from agentgit.render.views.checkpoints import reference, title
from agentgit.render.views.conversation import conversation
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.events import Event
from agentgit.sessions.reports import Operation
from agentgit.sessions.session import DONE, OPEN, RUNNING
from agentgit.values import count


def sessions(values: Sequence[ExternalSession]) -> View:
    """Show a list of sessions."""
    rows = [
        [
            Span(clean(session.reference), "reference"),
            Time(session.updated_at),
            Span(count(session.branch_count, "branch")),
            Span(", ".join(_session_flags(session)), "dim"),
        ]
        for session in values
    ]
    return [Table(rows, empty=Reason("no sessions yet", Next("create_session")))]


def _session_flags(session: ExternalSession) -> list[str]:
    role = [] if session.is_own else [f"you are {session.role}"]
    return role if session.is_active else [*role, "inactive"]


def branches(values: Sequence[InternalSession], tree: Tree | None = None) -> View:
    """Show a list of branches, with a `*` before the current one."""
    tree_branches = tree.walk() if tree is not None else ()
    origins = {point.id: f"from {clean(b.name)}#{point.number}" for b in tree_branches for point in b.points}
    return [Table([_branch_row(branch, origins) for branch in values], wraps=True)]


def _branch_row(branch: InternalSession, origins: Mapping[int, str]) -> list[Span | Time]:
    origin = origins.get(branch.branch_point_checkpoint_id or 0, "")
    status = [] if branch.status == OPEN else [clean(branch.status)]
    status += [waiting_text(branch.questions)] if branch.questions else []
    return [
        Span(f"{'*' if branch.is_current else ' '} {clean(branch.name)}", "head" if branch.is_current else "reference"),
        Time(branch.created_at),
        Span(count(branch.checkpoint_count, "checkpoint")),
        Span(count(branch.tool_invocation_count, "call")),
        Span(", ".join([*status, *([origin] if origin else [])]), "bad" if status else "dim"),
    ]


def branch(value: InternalSession) -> View:
    """Show one branch: its line in the list, and its conversation."""
    try:
        history = value.conversation_history
    except AgentGitError as error:
        return [*branches([value]), (Span(error.reason, "bad"),)]
    return [*branches([value]), Fold(count(len(history), "message"), conversation(history))]


def status(session: ExternalSession, branch: InternalSession, head: Checkpoint | None) -> View:
    """Show the status of an agent: its session, branch and head."""
    branch_status = "" if branch.status == OPEN else f" ({clean(branch.status)})"
    calls = Span(f"  {count(branch.tool_invocation_count, 'tool call')}", "dim")
    head_line: Line = (Span("no checkpoints yet"),)
    if head is not None:
        head_line = (Span(f"{reference(head)} "), Span(title(head), "" if head.is_auto else "name"))
    waits = waiting_text(branch.questions)
    return [
        (Span("session  ", "dim"), Span(clean(session.session_name), "heading")),
        (Span("branch   ", "dim"), Span(clean(branch.name), "head"), Span(branch_status, "bad"), calls),
        (Span("head     ", "dim"), *head_line),
        *([(Span("         "), Span(waits, "bad"))] if waits else []),
    ]


def unfinished(operation: Operation) -> Line:
    """Show an unfinished operation, and what finishes it if it has stopped."""
    label = f"{clean(operation.kind)} {operation.id}"
    if operation.status == RUNNING:
        return Span("running  ", "dim"), Span(label, "bad")
    return Span("stopped  ", "dim"), Span(Reason(label, Next("resume", operation=operation.id)), "bad")


def operations(values: Sequence[Operation], branches: Mapping[int, str]) -> View:
    """Show a list of operations."""
    rows = []
    for operation in values:
        ids = (operation.source_session_id, operation.internal_session_id)
        source, target = (clean(branches.get(branch, "?")) for branch in ids)
        groups = ((group, operation.report.get(group)) for group in GROUPS)  # a rerun has none
        rows.append(
            [
                Span(str(operation.id), "reference"),
                Time(operation.created_at),
                Span(clean(operation.kind)),
                Span(source if source == target else f"{source} -> {target}", "name"),
                Span(clean(operation.status), "" if operation.status == DONE else "bad"),
                Span(", ".join(f"{len(items)} {group}" for group, items in groups if items), "dim"),
            ]
        )
    return [Table(rows, empty="no operations yet")]


# -- events

_BAD_ENDINGS = ("failed", "incomplete", "unknown", "abandoned")
"""The endings of the kinds of events that need attention."""

_INTERNAL_KEYS = ("checkpoint", "operation", "source", "invocation", "made", "ran", "checkpoints")
"""The keys of the details that are for programs only."""

_USER_KEYS = ("user", "of", "member")
"""The keys of the details whose value is the id of a user."""


def events(values: Sequence[Event], user_names: Mapping[int, str] | None = None) -> View:
    """Show a list of events; with the names of users, also who did it."""
    rows = []
    for event in values:
        user = "" if user_names is None or event.user_id is None else user_names.get(event.user_id, event.user_id)
        place = "@".join(clean(name) for name in (event.session_name, event.branch_name) if name is not None)
        rows.append(
            [
                Time(event.created_at),
                Span(event.kind, "bad" if event.kind.endswith(_BAD_ENDINGS) else "heading"),
                Span(clean(str(user)), "name"),
                Span(place, "reference"),
                Span(_summarize(event, user_names or {})),
            ]
        )
    return [Table(rows, empty="no events found")]


def _summarize(event: Event, user_names: Mapping[int, str]) -> str:
    detail: dict[str, Any] = {
        key: user_names.get(value, value) if key in _USER_KEYS else value for key, value in event.detail.items()
    }
    words = [clean(str(detail.pop(key))) for key in ("tool", "effect", "name") if detail.get(key) is not None]
    if event.kind in ("checkpoint.created", "checkpoint.annotated"):
        words.insert(0, f"{clean(event.branch_name or '')}#{detail.pop('number')}")
    words += [f"{clean(key)} {_format_value(value)}" for key, value in detail.items() if key not in _INTERNAL_KEYS]
    return " ".join(words)


def _format_value(value: Any) -> str:
    return clean(", ".join(map(str, value)) if isinstance(value, list) else str(value))


# -- users


def users(values: Sequence[User]) -> View:
    """Show a list of users."""
    rows = [
        [
            Span(clean(user.name), "reference"),
            Span("admin" if user.is_admin else ""),
            Span("disabled" if user.disabled_at is not None else "", "bad"),
        ]
        for user in values
    ]
    return [Table(rows, empty="no users")]


def members(values: Sequence[Member]) -> View:
    """Show a list of members."""
    rows = [
        [
            Span(clean(member.user_name), "reference"),
            Span(member.role),
            _expiry(member.expires_at),
            Span(f"by link {member.link_id}" if member.link_id is not None else "", "dim"),
        ]
        for member in values
    ]
    return [Table(rows, empty="not shared")]


def links(values: Sequence[ShareLink]) -> View:
    """Show a list of links."""
    rows = [
        [Span(str(link.id), "reference"), Span(link.role), _expiry(link.expires_at, link.revoked_at)] for link in values
    ]
    return [Table(rows, empty="no links")]


def keys(values: Sequence[ApiKey]) -> View:
    """Show a list of API keys."""
    rows = [
        [
            Span(str(key.id), "reference"),
            Span(clean(key.name)),
            Span(widest(key.scopes)),
            (Span("used ", "dim"), Time(key.last_used_at)) if key.last_used_at else Span("never used", "dim"),
            _expiry(key.expires_at, key.revoked_at),
        ]
        for key in values
    ]
    return [Table(rows, empty="no keys")]


def _expiry(moment: datetime | None, revoked_at: datetime | None = None) -> Span | Line:
    if revoked_at is not None:
        return Span("revoked", "bad")
    if moment is None:
        return Span("")
    return Span("until " if moment > datetime.now(UTC) else "ended ", "dim"), Time(moment)
