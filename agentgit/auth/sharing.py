"""Sharing: who may do what with a session that is not theirs, and links that give such a right."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from agentgit.auth.principal import Role
from agentgit.errors import InvalidInput

LINK = "agitlink"
"""The beginning of the token of a link."""

SECRET_BYTES = 32
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class Member:
    """Somebody who has a role in another one's session.

    Args:
        user_id: The id of the user.
        user_name: The name of the user.
        role: The role of the user.
        created_at: The beginning of the role, aware UTC.
        expires_at: The end of the role, aware UTC; None for ever.
        link_id: The link that they came by; None if the session was shared with them by name.
    """

    user_id: int
    user_name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    link_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShareLink:
    """A link by which whoever has its token can join a session.

    Args:
        id: The identity in the database.
        session_id: The session.
        role: The role of those who join.
        created_at: The time at which it was made, aware UTC.
        expires_at: The time at which the link, and the right of all who joined by it, end, aware UTC; None is never.
        revoked_at: The time at which it was revoked, aware UTC; None if it was not.
        token: The token to pass on; only `Sharing.create_link` returns it, and the database has only its hash.
    """

    id: int
    session_id: int
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    token: str | None = field(default=None, repr=False)


def new_secret() -> str:
    """Make a secret of 256 random bits: 43 characters that can stand in a URL."""
    return secrets.token_urlsafe(SECRET_BYTES)


def hash_of(secret: str) -> bytes:
    """Return what the database keeps of a random secret; a slow hash is for what people think up."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def is_secret_of(secret: str, stored: bytes) -> bool:
    """Return whether a secret is the one that was hashed, in a time that tells nothing."""
    return secrets.compare_digest(hash_of(secret), stored)


def base36(number: int) -> str:
    """Write a number with digits and letters.

    Example:
        >>> base36(35), int(base36(2**52), 36) == 2**52
        ('z', True)
    """
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return text or "0"


def number_of(text: str) -> int:
    """Read what `base36` wrote; 0, which is no id, if it is anything else."""
    is_number = 0 < len(text) <= 11 and all(c in DIGITS for c in text)
    return int(text, 36) if is_number and int(text, 36) < 2**53 else 0


def link_token(link_id: int, secret: str) -> str:
    """Write the token of a link."""
    return f"{LINK}_{base36(link_id)}_{secret}"


def link_parts(token: object) -> tuple[int, str]:
    """Read the id and the secret of a link's token; (0, "") if it is none.

    Example:
        >>> link_parts(link_token(46, "secret"))
        (46, 'secret')
        >>> link_parts("something else")
        (0, '')
    """
    parts = token.split("_", 2) if isinstance(token, str) and len(token) < 200 else []
    if len(parts) != 3 or parts[0] != LINK:
        return 0, ""
    return number_of(parts[1]), parts[2]


def end_of(expires_in: timedelta | None) -> datetime | None:
    """Return the time when something ends that holds so long; None is never.

    Raises:
        InvalidInput: It is no time, or none that lies ahead.
    """
    if expires_in is None:
        return None
    if not isinstance(expires_in, timedelta) or expires_in <= timedelta(0):
        raise InvalidInput(f"expires_in must be a positive timedelta, or None for no expiry, not {expires_in!r}.")
    try:
        return datetime.now(UTC) + expires_in
    except OverflowError as error:
        raise InvalidInput("expires_in is too long. Give a shorter timedelta, or None for no expiry.") from error
