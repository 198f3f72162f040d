"""Roles: what somebody may do with one session."""

from __future__ import annotations

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
