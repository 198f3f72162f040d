"""API keys, sign-in links and share links: a text with an id and a random secret, of which only a hash is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from agentgit.auth.principal import Role
from agentgit.errors import InvalidInput

LINK_PREFIX = "agitlink"
"""The prefix of the token of a link."""

SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Member:
    """A user who has a role in another user's session.

    Args:
        user_id: The id of the user.
        user_name: The name of the user.
        role: The role of the user.
        created_at: The time when the role was granted, aware UTC.
        expires_at: The time when the role ends, aware UTC; None if it does not end.
        link_id: The link that the user joined by; None if the session was shared with the user by name.
    """

    user_id: int
    user_name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    link_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShareLink:
    """A link that lets any user who has its token join a session.

    Args:
        id: The id in the database.
        session_id: The id of the session.
        role: The role of those who join.
        created_at: The time of creation, aware UTC.
        expires_at: The time when the link and the roles of all who joined by it end, aware UTC; None if they do not
            end.
        revoked_at: The time of revocation, aware UTC; None if it is not revoked.
        token: The token to pass on. Only `Sharing.create_link` returns it; the database stores only a hash.
    """

    id: int
    session_id: int
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    token: str | None = field(default=None, repr=False)


def new_secret() -> str:
    """Generate a secret of 256 random bits as 43 URL-safe characters."""
    return secrets.token_urlsafe(SECRET_BYTES)


def hash_of(secret: str) -> bytes:
    """Hash a random secret for the database. It has 256 random bits, so a fast hash is enough."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def is_secret_of(secret: str, stored: bytes) -> bool:
    """Return whether a secret matches a stored hash; the comparison takes constant time."""
    return secrets.compare_digest(hash_of(secret), stored)


def format_token(prefix: str, id: int, secret: str) -> str:
    """Format the text that a person or a program presents: a prefix, which secret scanners know, an id and a secret."""
    return f"{prefix}_{id}_{secret}"


def parse_token(prefix: str, text: object) -> tuple[int, str]:
    """Parse a token with this prefix into id and secret; return (0, ""), which is of nothing, if it is not one.

    Example:
        >>> parse_token("agit", format_token("agit", 46, "a_secret")), parse_token("agit", "agitlink_46_secret")
        ((46, 'a_secret'), (0, ''))
    """
    match = re.fullmatch(f"{prefix}_([0-9]{{1,16}})_(.{{1,100}})", text) if isinstance(text, str) else None
    return (int(match[1]), match[2]) if match else (0, "")


def expiry_time(expires_in: timedelta | None) -> datetime | None:
    """Return the time when something that is valid for `expires_in` from now expires; None if it does not expire."""
    if expires_in is None:
        return None
    if not isinstance(expires_in, timedelta) or expires_in <= timedelta(0):
        raise InvalidInput(f"expires_in must be a positive timedelta, or None for no expiry, not {expires_in!r}.")
    try:
        return datetime.now(UTC) + expires_in
    except OverflowError as error:
        raise InvalidInput("expires_in is too long. Give a shorter timedelta, or None for no expiry.") from error


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
