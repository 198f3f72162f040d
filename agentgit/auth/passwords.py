"""Passwords: what can be one, and what is kept of it (argon2id)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from agentgit.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from pwdlib import PasswordHash

SHORTEST, LONGEST = 10, 1000
"""Characters of a password; who hashes longer ones for strangers can be kept busy by them."""


def require_password(password: object) -> str:
    """Refuse what no password can be.

    Raises:
        InvalidInput: It is too short or too long; the text does not have it.
    """
    if not isinstance(password, str) or not SHORTEST <= len(password) <= LONGEST or not _can_be_hashed(password):
        raise InvalidInput(f"A password has {SHORTEST} to {LONGEST} characters.")
    return password


def _can_be_hashed(password: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in password)


def hash_password(password: str) -> str:
    """Return what the database keeps of a password.

    Raises:
        Unavailable: Pwdlib is not installed.
    """
    return _hasher().hash(password)


def is_password_of(password: object, stored: str | None) -> bool:
    """Return whether a password is the one that was hashed; None, of nobody, takes as long and is never.

    Raises:
        Unavailable: Pwdlib is not installed.
    """
    given = isinstance(password, str) and len(password) <= LONGEST and _can_be_hashed(password)
    matches = _hasher().verify(str(password) if given else "", stored or _of_nobody())
    return matches and given and stored is not None


def renewed(password: str, stored: str) -> str | None:
    """Hash a password anew that was hashed with less work than is usual now; None if it was not."""
    hasher = _hasher()
    return hasher.hash(password) if hasher.current_hasher.check_needs_rehash(stored) else None


@functools.cache
def _hasher() -> PasswordHash:
    try:
        from pwdlib import PasswordHash
    except ModuleNotFoundError as error:
        raise Unavailable('Passwords need argon2. Run: pip install "agentgit[auth]"') from error
    return PasswordHash.recommended()


@functools.cache
def _of_nobody() -> str:
    return _hasher().hash("of nobody")
