"""Users and principals: the user and scopes that a handle on the database acts with, and the roles in a session."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from agentgit.errors import InvalidInput

Role = str

VIEWER = "viewer"
"""May read everything in the session, plan, search, export, and start their own session from a checkpoint."""
EDITOR = "editor"
"""May also run turns, make checkpoints and tags, roll back, switch and merge."""
OWNER = "owner"
"""May also share the session, set its retention and delete it."""

ROLES = (VIEWER, EDITOR, OWNER)
"""All roles in ascending order; each includes the rights of those before it."""


def allows(role: Role | None, needed: Role) -> bool:
    """Return whether a role includes the rights of another; None means no role.

    Example:
        >>> allows(EDITOR, VIEWER), allows(VIEWER, EDITOR), allows(None, VIEWER)
        (True, False, False)
    """
    return role is not None and ROLES.index(role) >= ROLES.index(needed)


def require_role(role: object) -> Role:
    if role not in ROLES:
        *others, last = map(repr, ROLES)
        raise InvalidInput(f"role must be {', '.join(others)} or {last}, not {role!r}.")
    return str(role)


READ, WRITE, ADMIN = "read", "write", "admin"

SCOPES = (READ, WRITE, ADMIN)
"""All scopes in ascending order; each includes those before it."""

ALL_SCOPES = frozenset(SCOPES)

SCOPE_OF_ROLE: dict[Role, str] = {VIEWER: READ, EDITOR: WRITE, OWNER: ADMIN}
"""The scope that a credential needs to use the rights of a role."""


def with_included_scopes(scopes: str | Collection[str]) -> frozenset[str]:
    """Return scopes together with the scopes that they include.

    Example:
        >>> sorted(with_included_scopes("write"))
        ['read', 'write']
    """
    scope_list = [scopes] if isinstance(scopes, str) else list(scopes)
    if not scope_list or any(scope not in SCOPES for scope in scope_list):
        raise InvalidInput(f"{scopes!r} are not valid scopes; give one or more of {', '.join(SCOPES)}.")
    return frozenset(SCOPES[: 1 + max(map(SCOPES.index, scope_list))])


SIGN_IN = "sign-in"
"""What is stored and shown as the scope of a sign-in link, which has none."""


def widest(scopes: Collection[str]) -> str:
    """Return the scope that includes the others, as it is stored and shown."""
    return max(scopes, key=SCOPES.index, default=SIGN_IN)


LOCAL = "local"
"""The name of the local owner, an admin without credentials; nobody can sign in as this user."""

NAME_LIMIT = 200
"""The maximum length of a user's name in characters."""


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, who can own sessions.

    Args:
        id: The id in the database.
        name: The unique name.
        created_at: The time of creation, aware UTC.
        is_admin: True if the user may do everything, and in others' sessions with `Repository.as_user`.
        disabled_at: The time when the user was disabled, aware UTC; None if the user is enabled.
    """

    id: int
    name: str
    created_at: datetime
    is_admin: bool = False
    disabled_at: datetime | None = None


def require_name(name: object, kind: str) -> str:
    """Check the name of a user and return it.

    A name cannot contain `/`, which separates the user from the session in `alice/support-42`.

    Example:
        >>> require_name("alice", "user")
        'alice'
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or name != name.strip():
        raise InvalidInput(f"A {kind} name must have 1 to {NAME_LIMIT} characters and no outer spaces, not {name!r}.")
    if "/" in name or any(ord(c) < 32 or ord(c) == 127 or "\ud800" <= c <= "\udfff" for c in name):
        raise InvalidInput(f"A {kind} name must not contain / or control characters: {name!r}.")
    return name


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The user whom a handle acts for, with the scopes of that access and where it comes from.

    Args:
        user: The user.
        scopes: The part of the user's rights that the handle has.
        key_id: The API key that the access comes from; None if it comes from none.
        by: The admin who acts as the user; when the admin's access ends, so does this one. None if there is none.
    """

    user: User
    scopes: frozenset[str] = ALL_SCOPES
    key_id: int | None = None
    by: Principal | None = None

    @property
    def is_operator(self) -> bool:
        """True if the user opened the database itself. That access cannot be revoked; any other is checked on use."""
        return self.key_id is None and self.by is None
