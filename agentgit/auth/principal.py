"""Users and principals: who a handle on the database acts for, with which scope, and the roles in a session."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from agentgit.errors import InvalidInput

Role = str

VIEWER = "viewer"
"""Look at everything of the session, plan, search, export."""
FORKER = "forker"
"""Also begin an own session as a checkpoint of it."""
EDITOR = "editor"
"""Also run turns, make checkpoints and tags, roll back, switch and merge."""
OWNER = "owner"
"""Also share it, say what it keeps, and delete it."""

ROLES = (VIEWER, FORKER, EDITOR, OWNER)
"""Each may do what the ones before it may."""


def allows(role: Role | None, needed: Role) -> bool:
    """Return whether a role is enough; None is no role at all.

    Example:
        >>> allows(EDITOR, VIEWER), allows(VIEWER, EDITOR), allows(None, VIEWER)
        (True, False, False)
    """
    return role is not None and ROLES.index(role) >= ROLES.index(needed)


def require_role(role: object) -> Role:
    """Refuse what is no role.

    Raises:
        InvalidInput: It is none.
    """
    if role not in ROLES:
        raise InvalidInput(f"There is no role {role!r}; give {', '.join(ROLES)}.")
    return str(role)


READ, FORK, WRITE, ADMIN = "read", "fork", "write", "admin"

SCOPES = (READ, FORK, WRITE, ADMIN)
"""Each includes the ones before it."""

EVERYTHING = frozenset(SCOPES)

FOR_ROLE: dict[Role, str] = {VIEWER: READ, FORKER: FORK, EDITOR: WRITE, OWNER: ADMIN}
"""The scope that a credential needs for what a role may do."""


def widened(scopes: str | Collection[str]) -> frozenset[str]:
    """Return scopes together with those that they include.

    Args:
        scopes: One, or several; the widest counts.

    Raises:
        InvalidInput: One of them is none, or there is none.

    Example:
        >>> sorted(widened("fork"))
        ['fork', 'read']
    """
    given = [scopes] if isinstance(scopes, str) else list(scopes)
    if not given or any(one not in SCOPES for one in given):
        raise InvalidInput(f"scopes={scopes!r} is not valid; give one or more of {', '.join(SCOPES)}.")
    return frozenset(SCOPES[: 1 + max(map(SCOPES.index, given))])


def widest(scopes: Collection[str]) -> str:
    """Return the scope that includes the others."""
    return max(scopes, key=SCOPES.index)


LOCAL = "local"
"""The local owner: an admin without credentials, whom nobody can log in as."""

NAME_LIMIT = 200
"""Characters of a user's or a tenant's name."""


@dataclass(frozen=True, kw_only=True)
class User:
    """Somebody who owns sessions.

    Args:
        id: The identity in the database.
        name: Unique in its tenant.
        created_at: The time at which it was made, aware UTC.
        is_admin: True if they may do everything in the tenant, by `Repository.as_user` also in others' sessions.
        disabled_at: The time since when they may do nothing, aware UTC; None if they may.
    """

    id: int
    name: str
    created_at: datetime
    is_admin: bool = False
    disabled_at: datetime | None = None


def is_name(name: str) -> bool:
    """Return whether a user can be called so."""
    try:
        require_name(name, "user")
    except InvalidInput:
        return False
    return True


def require_name(name: object, of: str) -> str:
    """Refuse what no user or tenant can be called; a `/` stands between a user and a session in `alice/support-42`.

    Args:
        name: The name.
        of: The thing that has the name.

    Raises:
        InvalidInput: It is empty, too long, or has a `/`, a control character or a space at an end.

    Example:
        >>> require_name("alice", "user")
        'alice'
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or name != name.strip():
        raise InvalidInput(f"A {of} name must have 1 to {NAME_LIMIT} characters and no outer spaces, not {name!r}.")
    if "/" in name or any(ord(c) < 32 or ord(c) == 127 or "\ud800" <= c <= "\udfff" for c in name):
        raise InvalidInput(f"A {of} name must not contain / or control characters: {name!r}.")
    return name


@dataclass(frozen=True, kw_only=True)
class Principal:
    """One user of one tenant, as a handle is bound to it.

    Args:
        tenant_id: The tenant; nothing of another one is ever seen.
        user: The id of the user.
        scopes: The part of that user's rights that the handle has.
        since: Since when it holds, aware UTC: whether it still does is asked each time. None for who opened the
            database itself, whom nobody can shut out of it.
        until: The time at which it ends by itself, aware UTC; None is never.
        key_id: The API key that it comes from; None if it comes from none.
        by: The admin who acts for the user; when that one's access ends, so does this. None if nobody does.
    """

    tenant_id: int
    user: User
    scopes: frozenset[str] = EVERYTHING
    since: datetime | None = None
    until: datetime | None = None
    key_id: int | None = None
    by: Principal | None = None
