"""Authentication of people and programs: accounts, API keys, or the link that `agentgit serve` prints."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from agentgit.auth.credentials import BROWSER_KEY_NAME
from agentgit.errors import InvalidInput, NotAllowed

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOGIN_HOURS = 12
"""The number of hours that a browser stays logged in."""


class LoginResult(NamedTuple):
    """The result of a login with a password."""

    key: str
    device: str
    user_id: int


class Accounts:
    """Authentication with accounts and API keys."""

    by_password = True

    def __init__(self, repo: Repository) -> None:
        self.repo = repo

    def repository(self, credential: str) -> Repository:
        """Return the repository, bound to the user of a credential."""
        return self.repo.authenticate(credential)

    def login(self, name: str, password: str, source: str, device: str | None = None) -> LoginResult:
        """Log a user in with a password."""
        user_repo = self.repo.login(name, password, source=source, device=device)
        new_key = user_repo.keys.create(BROWSER_KEY_NAME, scopes=("admin",), expires_in=timedelta(hours=LOGIN_HOURS))
        return LoginResult(new_key.secret, user_repo.keys.device(), user_repo.user.id)

    def revoke(self, credential: str) -> None:
        """Revoke a credential."""
        _revoke_key(self.repo, credential)

    def has_ended(self, repo: Repository, credential: str) -> bool:
        """Return whether a login has ended: always False, because the database checks the key on each use."""
        return False


class OwnerLink:
    """Authentication with a link that `agentgit serve` prints. It logs a browser in as the owner of the repository.

    The link works for 12 hours, any number of times. So a preview that fetches it does not use it up, and a second
    browser, or one that lost its cookies, needs no restart. Programs authenticate with API keys.

    Example:
        >>> import agentgit
        >>> link = OwnerLink(agentgit.open(":memory:"))
        >>> credential = link.log_in(link.token)
        >>> link.repository(credential) is link.repo
        True
        >>> link.log_in("another")
        Traceback (most recent call last):
            ...
        agentgit.errors.NotAllowed: This link has expired or is from an earlier start. Restart agentgit serve.
    """

    by_password = False

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.token = secrets.token_urlsafe(32)
        self._expires_at = time.monotonic() + LOGIN_HOURS * 3600
        self._login_expiries: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def log_in(self, token: str) -> str:
        """Log a browser in with the token of the link; return the credential for its cookie."""
        now, credential = time.monotonic(), secrets.token_urlsafe(32)
        is_valid = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        if not is_valid or now >= self._expires_at:
            raise NotAllowed("This link has expired or is from an earlier start. Restart agentgit serve.")
        with self._lock:
            valid_logins = {key: expiry for key, expiry in self._login_expiries.items() if expiry > now}
            self._login_expiries = {**valid_logins, _hash(credential): now + LOGIN_HOURS * 3600}
        return credential

    def repository(self, credential: str) -> Repository:
        """Return the repository, bound to the user of a credential."""
        return self.repo if self._is_logged_in(credential) else self.repo.authenticate(credential)

    def revoke(self, credential: str) -> None:
        """Revoke a credential: that of a browser in memory, an API key in the database."""
        with self._lock:
            was_logged_in = self._login_expiries.pop(_hash(credential), None) is not None
        if not was_logged_in:
            _revoke_key(self.repo, credential)

    def has_ended(self, repo: Repository, credential: str) -> bool:
        """Return whether the login of a browser that used the link has ended."""
        return repo is self.repo and not self._is_logged_in(credential)

    def _is_logged_in(self, credential: str) -> bool:
        return self._login_expiries.get(_hash(credential), 0.0) > time.monotonic()


def _revoke_key(repo: Repository, credential: str) -> None:
    """Revoke an API key."""
    user_repo = repo.authenticate(credential)
    if user_repo.context.principal.key_id is None:
        raise InvalidInput("A token is valid until it expires. To revoke all of yours: POST /users/ID/revoke-tokens.")
    user_repo.keys.revoke(user_repo.context.principal.key_id)


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "replace")).digest()
