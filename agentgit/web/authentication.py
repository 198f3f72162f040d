"""The user of a request: of an API key, of the link that `agentgit serve` prints, or named by a trusted proxy."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from agentgit.auth.credentials import BROWSER_KEY_NAME
from agentgit.auth.principal import LOCAL
from agentgit.errors import Conflict, NotAllowed, NotFound
from agentgit.next_steps import Next
from agentgit.web.proxies import FROM_PROXY

if TYPE_CHECKING:
    from agentgit.repository import Repository


@dataclass(frozen=True)
class OwnerLink:
    """A link that signs a browser in as the user of the repository, for as long as the server runs.

    `agentgit serve` prints one on a machine where the database has no users, as Jupyter does.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __contains__(self, credential: str) -> bool:
        return hmac.compare_digest(credential.encode("utf-8", "replace"), self.token.encode())


@dataclass(frozen=True, kw_only=True)
class Authenticator:
    repo: Repository
    link: OwnerLink | None = None
    user_header: str | None = None
    create_users: bool = False

    def by_credential(self, credential: str) -> Repository:
        if self.link is not None and credential in self.link:
            return self.repo
        return self.repo.authenticate(credential)

    def by_proxy(self, connection: HTTPConnection) -> Repository | None:
        """Return the repository, bound to the user whom a trusted proxy names; None if no such proxy has connected.

        The answer depends on the peer of the TCP connection, because the client's own headers prove nothing.
        """
        if self.user_header is None or not connection.scope.get(FROM_PROXY, False):
            return None
        wanted = self.user_header.lower().encode()
        values = [value for name, value in connection.scope["headers"] if name == wanted]
        if len(values) != 1:
            raise NotAllowed(
                f"The proxy must send the header {self.user_header} exactly once, not {len(values)} times."
            )
        try:
            return self._as_named(values[0].decode())
        except UnicodeDecodeError as error:  # replaced bytes would give different people one name
            raise NotAllowed(f"The proxy must send the header {self.user_header} in UTF-8.") from error

    def _as_named(self, name: str) -> Repository:
        users = self.repo.users
        try:
            user = users.find(name)
        except NotFound:
            user = None
        if name == LOCAL or user is None or user.name != name:  # a name with only digits could be the id of another
            if name == LOCAL or not self.create_users:
                raise NotAllowed(f"There is no user {name!r}.", Next("add_user"))
            try:
                user = users.add(name)
            except Conflict:  # another request has just added the user
                user = users.find(name)
        return self.repo.as_user(user)

    def credential_for(self, text: str) -> str:
        """Return what the cookie of a browser holds: the key that was typed, or a new one for a sign-in link."""
        if self.link is not None and text in self.link:
            return text
        try:
            return self.repo.users.sign_in(text).secret
        except NotAllowed:
            self.repo.authenticate(text)
        return text

    def sign_out(self, credential: str) -> None:
        """Revoke a browser's own key. A key that a person made stays, because programs may use it too."""
        user_repo = self.by_credential(credential)
        for key in user_repo.keys.list():
            if key.id == user_repo.context.principal.key_id and key.name == BROWSER_KEY_NAME:
                user_repo.keys.revoke(key)
