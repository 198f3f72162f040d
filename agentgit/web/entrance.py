"""How people and programs come in: with an account or an API key, or by a link that is shown where it was started."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from agentgit.errors import InvalidInput, NotAllowed

if TYPE_CHECKING:
    from agentgit.repository import Repository

HOURS = 12
"""How long a browser stays in."""

BROWSER = "browser"
"""What the key of a browser is called."""


class Accounts:
    """Comes in who has an account or an API key.

    Args:
        repo: of whom there are accounts.
    """

    by_password = True

    def __init__(self, repo: Repository) -> None:
        self.repo = repo

    def repository(self, credential: str) -> Repository:
        """Give the repository of whom a credential is.

        Raises:
            NotAllowed: it is nobody's, or not any more.
        """
        return self.repo.authenticate(credential)

    def login(self, name: str, password: str, source: str) -> str:
        """Let somebody in who has an account; give the key that their browser keeps.

        Raises:
            NotAllowed: there is no such account, or the password is wrong.
            TooManyAttempts: it was wrong too often.
        """
        user = self.repo.login(name, password, source=source)
        made = user.keys.create(BROWSER, scopes=("admin",), expires_in=timedelta(hours=HOURS))
        return made.secret

    def leave(self, credential: str) -> None:
        """Let a credential be nobody's from now on.

        Raises:
            NotAllowed: it is nobody's already.
            InvalidInput: it is a JWT, which cannot be ended alone.
        """
        _end(self.repo, credential)

    def has_left(self, repo: Repository, credential: str) -> bool:
        """Tell whether somebody who came in is out; the database itself tells it of keys, whenever it is asked."""
        return False


class Link:
    """Comes in, as the owner of the repository, who has the link that is shown where the server was started.

    The link works once: whoever finds it later in a log or in the history of a browser is too late. Programs come in
    with API keys, as everywhere.

    Args:
        repo: what they see.

    Example:
        >>> import agentgit
        >>> link = Link(agentgit.open(":memory:"))
        >>> credential = link.enter(link.token)
        >>> link.repository(credential) is link.repo
        True
        >>> link.enter(link.token)
        Traceback (most recent call last):
            ...
        agentgit.errors.NotAllowed: This link was used, or it is of another start. Start agentgit serve again.
    """

    by_password = False

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.token = secrets.token_urlsafe(32)
        self._is_used = False
        self._until: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def enter(self, token: str) -> str:
        """Let in who has the link; give the credential that their browser keeps.

        Raises:
            NotAllowed: the token is another one, or was used.
        """
        with self._lock:
            if self._is_used or not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
                raise NotAllowed("This link was used, or it is of another start. Start agentgit serve again.")
            self._is_used = True
            credential = secrets.token_urlsafe(32)
            self._until[_hash(credential)] = time.monotonic() + HOURS * 3600
        return credential

    def repository(self, credential: str) -> Repository:
        """Give the repository of whom a credential is.

        Raises:
            NotAllowed: it is nobody's, or not any more.
        """
        return self.repo if self._is_in(credential) else self.repo.authenticate(credential)

    def leave(self, credential: str) -> None:
        """Let a credential be nobody's from now on: a browser's here, an API key in the database."""
        if self._until.pop(_hash(credential), None) is None:
            _end(self.repo, credential)

    def has_left(self, repo: Repository, credential: str) -> bool:
        """Tell whether a browser that came in by the link is out."""
        return repo is self.repo and not self._is_in(credential)

    def _is_in(self, credential: str) -> bool:
        return self._until.get(_hash(credential), 0.0) > time.monotonic()


def _end(repo: Repository, credential: str) -> None:
    """Revoke the API key that a credential is."""
    user = repo.authenticate(credential)
    if user.principal.key_id is None:
        raise InvalidInput("A token holds until it ends. To end all of yours: POST /users/ID/revoke-tokens.")
    user.keys.revoke(user.principal.key_id)


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "replace")).digest()
