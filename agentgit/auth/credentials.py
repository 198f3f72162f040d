"""API keys and sign-in links. Both are a text with an id and a random secret, of which only a hash is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

KEY_LIFETIME = timedelta(days=90)
"""The default lifetime of an API key."""

LINK_LIFETIME = timedelta(hours=24)
"""The lifetime of a sign-in link."""

BROWSER_LIFETIME = timedelta(days=30)
"""The lifetime of the key that a browser gets for a sign-in link."""

KEY_PREFIX = "agit"
"""The prefix of the text of a key, by which people and secret scanners recognize it."""

BROWSER_KEY_NAME = "browser"
"""The name of the keys that browsers get for sign-in links; signing out revokes them."""

LINK_NAME = "sign-in link"
"""The name of sign-in links in lists of keys."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key, without its secret.

    Args:
        id: The id in the database.
        user_id: The id of the user for whom the key acts.
        name: The purpose of the key.
        scopes: The part of its user's rights that the key has; empty for a sign-in link, which only gives a browser a
            key.
        created_at: The time of creation, aware UTC.
        expires_at: The time of expiry, aware UTC; None if it does not expire.
        last_used_at: The time of the last use, to the minute, aware UTC; None if it was never used.
        revoked_at: The time of revocation, aware UTC; None if it is not revoked. A link that was used is revoked.
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
    """A newly created API key or sign-in link with its secret.

    Args:
        key: The key.
        secret: The text that a program presents. It is available only here; the database stores only a hash.
    """

    key: ApiKey
    secret: str = field(repr=False)
