"""The User: whom sessions and checkpoints belong to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agentgit.errors import InvalidInput

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
        raise InvalidInput(f"A {of} needs a name of 1 to {NAME_LIMIT} characters without spaces around, not {name!r}.")
    if "/" in name or any(ord(c) < 32 or ord(c) == 127 or "\ud800" <= c <= "\udfff" for c in name):
        raise InvalidInput(f"The name of a {of} has no / and no control characters; {name!r} cannot be one.")
    return name
