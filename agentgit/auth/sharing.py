"""Sharing: the roles of members in other users' sessions, and the links that grant such a role."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from agentgit.auth.principal import Role
from agentgit.errors import InvalidInput

LINK_PREFIX = "agitlink"
"""The prefix of the token of a link."""

SECRET_BYTES = 32
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


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
    """A link that lets any user of the tenant who has its token join a session.

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
    """Hash a random secret for the database; only secrets that people choose need a slow hash."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def is_secret_of(secret: str, stored: bytes) -> bool:
    """Return whether a secret matches a stored hash; the comparison takes constant time."""
    return secrets.compare_digest(hash_of(secret), stored)


def base36(number: int) -> str:
    """Format a number in base 36.

    Example:
        >>> base36(35), int(base36(2**52), 36) == 2**52
        ('z', True)
    """
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return text or "0"


def parse_base36(text: str) -> int:
    """Parse a number that `base36` formatted; return 0, which is not an id, for any other text."""
    is_number = 0 < len(text) <= 11 and all(c in DIGITS for c in text)
    return int(text, 36) if is_number and int(text, 36) < 2**53 else 0


def link_token(link_id: int, secret: str) -> str:
    """Format the token of a link."""
    return f"{LINK_PREFIX}_{base36(link_id)}_{secret}"


def link_parts(token: object) -> tuple[int, str]:
    """Parse the token of a link into id and secret; return (0, "") if it is not one.

    Example:
        >>> link_parts(link_token(46, "secret"))
        (46, 'secret')
        >>> link_parts("something else")
        (0, '')
    """
    parts = token.split("_", 2) if isinstance(token, str) and len(token) < 200 else []
    if len(parts) != 3 or parts[0] != LINK_PREFIX:
        return 0, ""
    return parse_base36(parts[1]), parts[2]


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
