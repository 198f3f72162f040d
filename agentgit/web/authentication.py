"""Access for people and programs: an account, an API key, or a link that is shown where the server was started."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from agentgit.auth.credentials import BROWSER
from agentgit.errors import InvalidInput, NotAllowed

if TYPE_CHECKING:
    from agentgit.repository import Repository

HOURS = 12
"""The hours that a browser stays logged in."""


class Entered(NamedTuple):
    """The data of a login that a browser keeps.

    Args:
        key: The key that lets it in.
        device: Identifies the browser, so that its later attempts are counted apart.
        user_id: The user.
    """

    key: str
    device: str
    user_id: int


class Accounts:
    """Comes in who has an account or an API key.

    Args:
        repo: Of whom there are accounts.
    """

    by_password = True

    def __init__(self, repo: Repository) -> None:
        self.repo = repo

    def repository(self, credential: str) -> Repository:
        """Return the repository of whom a credential is.

        Raises:
            NotAllowed: It is nobody's, or not any more.
        """
        return self.repo.authenticate(credential)

    def login(self, name: str, password: str, source: str, device: str | None = None) -> Entered:
        """Let somebody in who has an account; give what their browser keeps.

        Args:
            name: The name of the account.
            password: The password of the account.
            source: The address of whoever asks.
            device: The device token that their browser kept from an earlier login of that name.

        Raises:
            NotAllowed: There is no such account, or the password is wrong.
            TooManyAttempts: It was wrong too often.
        """
        user = self.repo.login(name, password, source=source, device=device)
        made = user.keys.create(BROWSER, scopes=("admin",), expires_in=timedelta(hours=HOURS))
        return Entered(made.secret, user.keys.device(), user.user.id)

    def leave(self, credential: str) -> None:
        """Let a credential be nobody's from now on.

        Raises:
            NotAllowed: It is nobody's already.
            InvalidInput: It is a JWT, which cannot be ended alone.
        """
        _end(self.repo, credential)

    def has_left(self, repo: Repository, credential: str) -> bool:
        """Return whether somebody who came in is out; the database itself tells it of keys, whenever it is asked."""
        return False


class OwnerLink:
    """Comes in, as the owner of the repository, who has the link that is shown where the server was started.

    The link works for 12 hours, as often as it is opened: a preview that fetches it spends nothing, and a second
    browser, or the same one after its cookies are gone, needs no restart. Programs come in with API keys.

    Args:
        repo: The repository as the user sees it.

    Example:
        >>> import agentgit
        >>> link = OwnerLink(agentgit.open(":memory:"))
        >>> credential = link.enter(link.token)
        >>> link.repository(credential) is link.repo
        True
        >>> link.enter("another")
        Traceback (most recent call last):
            ...
        agentgit.errors.NotAllowed: This link has expired or is from an earlier start. Restart agentgit serve.
    """

    by_password = False

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.token = secrets.token_urlsafe(32)
        self._ends = time.monotonic() + HOURS * 3600
        self._until: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def enter(self, token: str) -> str:
        """Let in who has the link; give the credential that their browser keeps.

        Raises:
            NotAllowed: The token is another one, or has ended.
        """
        now, credential = time.monotonic(), secrets.token_urlsafe(32)
        is_right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        if not is_right or now >= self._ends:
            raise NotAllowed("This link has expired or is from an earlier start. Restart agentgit serve.")
        with self._lock:
            live = {key: until for key, until in self._until.items() if until > now}
            self._until = {**live, _hash(credential): now + HOURS * 3600}
        return credential

    def repository(self, credential: str) -> Repository:
        """Return the repository of whom a credential is.

        Raises:
            NotAllowed: It is nobody's, or not any more.
        """
        return self.repo if self._is_in(credential) else self.repo.authenticate(credential)

    def leave(self, credential: str) -> None:
        """Let a credential be nobody's from now on: a browser's here, an API key in the database."""
        with self._lock:
            was_in = self._until.pop(_hash(credential), None) is not None
        if not was_in:
            _end(self.repo, credential)

    def has_left(self, repo: Repository, credential: str) -> bool:
        """Return whether a browser that came in by the link is out."""
        return repo is self.repo and not self._is_in(credential)

    def _is_in(self, credential: str) -> bool:
        return self._until.get(_hash(credential), 0.0) > time.monotonic()


def _end(repo: Repository, credential: str) -> None:
    """Revoke the API key that a credential is."""
    user = repo.authenticate(credential)
    if user.context.principal.key_id is None:
        raise InvalidInput("A token is valid until it expires. To revoke all of yours: POST /users/ID/revoke-tokens.")
    user.keys.revoke(user.context.principal.key_id)


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "replace")).digest()
