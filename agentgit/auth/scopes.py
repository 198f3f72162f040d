"""Scopes: how much of what its user may do a credential may do."""

from __future__ import annotations

from collections.abc import Collection

from agentgit.auth.roles import EDITOR, FORKER, OWNER, VIEWER, Role
from agentgit.errors import InvalidInput

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
        raise InvalidInput(f"{scopes!r} are no scopes; give one or more of {', '.join(SCOPES)}.")
    return frozenset(SCOPES[: 1 + max(map(SCOPES.index, given))])


def widest(scopes: Collection[str]) -> str:
    """Return the scope that includes the others."""
    return max(scopes, key=SCOPES.index)
