"""Lists of users, members, links and keys, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from agentgit.auth import ApiKey, Member, ShareLink, User
from agentgit.auth.scopes import widest
from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean, clock


def user_lines(users: Sequence[User], *, width: int = 100) -> list[Line]:
    """Draw a list of users."""
    return table(
        [
            [
                Span(clean(user.name), "reference"),
                Span("admin" if user.is_admin else ""),
                Span("shut out" if user.disabled_at is not None else "", "bad"),
            ]
            for user in users
        ],
        width=width,
    )


def member_lines(members: Sequence[Member], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of members."""
    return table(
        [
            [
                Span(clean(one.user_name), "reference"),
                Span(one.role),
                Span(_until(one.expires_at, zone), "dim"),
                Span(f"by link {one.link_id}" if one.link_id is not None else "", "dim"),
            ]
            for one in members
        ],
        width=width,
    )


def link_lines(links: Sequence[ShareLink], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of links."""
    return table(
        [[Span(str(one.id), "reference"), Span(one.role), _end(one.expires_at, one.revoked_at, zone)] for one in links],
        width=width,
    )


def key_lines(keys: Sequence[ApiKey], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of API keys."""
    return table(
        [
            [
                Span(str(one.id), "reference"),
                Span(clean(one.name)),
                Span(widest(one.scopes)),
                Span(f"used {clock(one.last_used_at, zone)}" if one.last_used_at is not None else "never used", "dim"),
                _end(one.expires_at, one.revoked_at, zone),
            ]
            for one in keys
        ],
        width=width,
    )


def _end(expires_at: datetime | None, revoked_at: datetime | None, zone: tzinfo | None) -> Span:
    if revoked_at is not None:
        return Span("revoked", "bad")
    return Span(_until(expires_at, zone), "dim")


def _until(at: datetime | None, zone: tzinfo | None) -> str:
    if at is None:
        return ""
    return f"{'until' if at > datetime.now(UTC) else 'ended'} {clock(at, zone)}"
