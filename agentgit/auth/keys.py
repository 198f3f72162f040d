"""API keys: what a program shows instead of a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from agentgit.auth.sharing import base36, number_of

PREFIX = "agit"
"""The beginning of the text of a key, by which people and scanners of secrets recognise it."""

BROWSER = "browser"
"""The name of the key of a login, in a browser or over HTTP: it ends with the other logins."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key, without its secret.

    Args:
        id: The identity in the database.
        user_id: The id of the user for whom it acts.
        name: The purpose of the key.
        scopes: The part of its user's rights that it has.
        created_at: The time at which it was made, aware UTC.
        expires_at: The time at which it ends, aware UTC; None is never.
        last_used_at: The time at which it was last used, to the minute, aware UTC; None is never.
        revoked_at: The time at which it was revoked, aware UTC; None if it was not.
    """

    id: int
    user_id: int
    name: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class NewKey:
    """An API key that was just made.

    Args:
        key: The key.
        secret: Its text, which is what a program shows; it is only here, and the database has only its hash.
    """

    key: ApiKey
    secret: str = field(repr=False)


def key_text(tenant_id: int, key_id: int, secret: str) -> str:
    """Write the text of a key."""
    return f"{PREFIX}_{base36(tenant_id)}_{base36(key_id)}_{secret}"


def key_parts(text: str) -> tuple[int, int, str] | None:
    """Read the tenant, the id and the secret of a key's text; None if it is none.

    Example:
        >>> key_parts(key_text(7, 46, "a_secret"))
        (7, 46, 'a_secret')
        >>> key_parts("agit_7") is None
        True
    """
    parts = text.split("_", 3)
    if len(parts) != 4 or parts[0] != PREFIX or len(text) > 200:
        return None
    return number_of(parts[1]), number_of(parts[2]), parts[3]
