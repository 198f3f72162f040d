"""Tokens of devices: where somebody has logged in before, the wrong passwords of others do not keep them out.

Nothing is stored: a token is signed with the hash of the password, so a new password ends all of them (OWASP calls them
device cookies). It lets nobody in; it only has attempts counted apart.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta

LASTS = timedelta(days=365)
"""The time for which a device is known after a login."""


def device_token(stored: str, user_id: int, now: datetime) -> str:
    """Make a token for the device of somebody who has shown their password.

    Args:
        stored: The hash of the password.
        user_id: The id of the user.
        now: The time at which they did.
    """
    said = f"{secrets.token_urlsafe(16)}.{int((now + LASTS).timestamp())}"
    return f"{said}.{_signature(stored, user_id, said)}"


def device_of(token: str, stored: str, user_id: int, now: datetime) -> str | None:
    """Return the device that a token is of; None if it does not hold for this user, this password and this time.

    Example:
        >>> from datetime import UTC
        >>> now = datetime.now(UTC)
        >>> token = device_token("hash", 7, now)
        >>> device_of(token, "hash", 7, now) == token.split(".")[0]
        True
        >>> device_of(token, "hash of another", 7, now), device_of(token, "hash", 8, now)
        (None, None)
    """
    said, _, signature = token.rpartition(".")
    expected = _signature(stored, user_id, said)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
        return None
    device, _, ends = said.partition(".")
    return device if now.timestamp() < int(ends) else None


def _signature(stored: str, user_id: int, said: str) -> str:
    text = f"agentgit device\0{user_id}\0{said}"
    return hmac.new(stored.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()
