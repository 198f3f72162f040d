"""Webhooks of a user."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.auth.principal import WRITE
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.handles.session_reader import SessionReader, SessionRef, session_id
from agentgit.repository.webhook_sender import deliver
from agentgit.sessions.events import chosen
from agentgit.sessions.webhooks import Delivered, Webhook, key_of, new_secret, require_url


class Webhooks:
    """The webhooks of a user. `Repository.webhooks` is it.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.store = context.store
        self.user = context.user

    def __repr__(self) -> str:
        return f"Webhooks(user={self.user.name!r})"

    def add(
        self,
        url: str,
        kinds: str | Sequence[str] = "*",
        secret: str | None = None,
        *,
        session: SessionReader | SessionRef = None,
    ) -> Webhook:
        """Send events to a URL from now on; they wait in the outbox until `deliver` sends them.

        Args:
            url: Http or https, of a host with public addresses, or of one that the operator allows
                (`agentgit.open(webhook_hosts=...)`). Its addresses are resolved and checked at each delivery.
            kinds: The kinds of events, as `Events.on` takes them.
            secret: Signs the messages: at least 24 bytes, as text or as base64 after `whsec_`. None makes one.
            session: Only its events; None for all of the user's.

        Returns:
            The webhook; its `secret` is only here, and is not in its repr.

        Raises:
            InvalidInput: The URL, a kind or the secret cannot be meant, or the URL has an address that is not public.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> hook = repo.webhooks.add("https://example.com/hooks", "rollback.*")
            >>> session = repo.session("support-42", create=True)
            >>> [(one.url, one.pending) for one in repo.webhooks.list()]
            [('https://example.com/hooks', 0)]
        """
        patterns = [kinds] if isinstance(kinds, str) else list(kinds)
        if not chosen(patterns):
            raise InvalidInput("Give at least one kind of event; '*' stands for all of them.")
        of, given = session_id(self.context, session), secret if secret is not None else new_secret()
        key_of(given)
        self.store.webhook_hosts.require_written(urlsplit(require_url(url)).hostname or "")

        def make(connection: Connection) -> int:
            self.store.users.expect(connection, self.user.id)
            if of is not None:
                self.store.sessions.lock(connection, of)  # who erases it comes before this, or takes it along
            return self.store.outbox.add(connection, self.user.id, url, patterns, given, of)

        found = self._find(self.context.change(make, scope=WRITE))
        object.__setattr__(found, "secret", given)
        return found

    def list(self) -> list[Webhook]:
        """List them, the oldest first, each with what is still to be sent."""
        return self.context.read(lambda c: self.store.outbox.all(c, self.user.id))

    def remove(self, webhook: Webhook | int) -> Webhook:
        """Send nothing more to a webhook, also not what waits; give what it was.

        Raises:
            NotFound: There is none.
        """
        found = self._find(webhook)
        self.context.change(lambda c: self.store.outbox.remove(c, self.user.id, found.id), scope=WRITE)
        return found

    def retry(self, webhook: Webhook | int) -> int:
        """Let what was given up be sent again, and what waits at once; tell how many events that are.

        Raises:
            NotFound: There is none.
        """
        found = self._find(webhook)
        return self.context.change(lambda c: self.store.outbox.retry(c, found.id), scope=WRITE)

    def deliver(self) -> Delivered:
        """Send what is due, of all users of this database, until nothing is; call it again and again.

        Each event is sent at least once, with the same `webhook-id` each time. Several processes may deliver at once.

        Raises:
            Unavailable: Httpcore is not installed.
        """
        self.context.require_admin("webhooks.deliver")
        return deliver(self.store)

    def _find(self, webhook: Webhook | int) -> Webhook:
        wanted = webhook.id if isinstance(webhook, Webhook) else webhook
        found = next((one for one in self.list() if one.id == wanted), None)
        if found is None:
            raise NotFound(f"There is no webhook {wanted}. List them: repo.webhooks.list(), or agentgit webhooks list.")
        return found

    aadd = async_twin(add)
    alist = async_twin(list)
    aremove = async_twin(remove)
    aretry = async_twin(retry)
    adeliver = async_twin(deliver)
