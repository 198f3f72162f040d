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
from agentgit.sessions.events import match_kinds
from agentgit.sessions.webhooks import Delivered, Webhook, new_secret, require_url, signing_key


class Webhooks:
    """The webhooks of a user, available as `Repository.webhooks`.

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
        """Add a webhook for future events. They wait in the outbox until `deliver` sends them.

        Args:
            url: An http or https URL. Its host must have public addresses or be allowed by the operator
                (`agentgit.open(webhook_hosts=...)`). The host is resolved and checked at each delivery.
            kinds: A kind of event like `checkpoint.created`, a pattern like `rollback.*` or `*`, or several of them.
            secret: The secret that signs the messages: at least 24 bytes, as text, or as base64 after `whsec_`. None
                generates one.
            session: The session whose events are sent; None for all events of the user's own and shared sessions.

        Returns:
            The webhook. Its `secret` is available only here, and is not part of the repr.

        Raises:
            InvalidInput: The URL, a kind or the secret is not valid, or the URL contains an address that is not public.
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
        if not match_kinds(patterns):
            raise InvalidInput("Give at least one kind of event; '*' stands for all of them.")
        chosen_session_id, signing_secret = (
            session_id(self.context, session),
            secret if secret is not None else new_secret(),
        )
        signing_key(signing_secret)
        self.store.webhook_hosts.require_allowed_literal(urlsplit(require_url(url)).hostname or "")

        def create(connection: Connection) -> int:
            self.store.users.require_exists(connection, self.user.id)
            if chosen_session_id is not None:
                self.store.sessions.lock(
                    connection, chosen_session_id
                )  # so that erasing the session does not miss the webhook
            return self.store.outbox.add(connection, self.user.id, url, patterns, signing_secret, chosen_session_id)

        webhook = self._find(self.context.change(create, scope=WRITE))
        object.__setattr__(webhook, "secret", signing_secret)
        return webhook

    def list(self) -> list[Webhook]:
        """List the webhooks, oldest first, each with its number of pending events."""
        return self.context.read(lambda c: self.store.outbox.all(c, self.user.id))

    def remove(self, webhook: Webhook | int) -> Webhook:
        """Remove a webhook with its pending events, and return it.

        Raises:
            NotFound: There is no such webhook.
        """
        existing = self._find(webhook)
        self.context.change(lambda c: self.store.outbox.remove(c, self.user.id, existing.id), scope=WRITE)
        return existing

    def retry(self, webhook: Webhook | int) -> int:
        """Make failed and pending events of a webhook due now, and return how many there are.

        Raises:
            NotFound: There is no such webhook.
        """
        existing = self._find(webhook)
        return self.context.change(lambda c: self.store.outbox.retry(c, existing.id), scope=WRITE)

    def deliver(self) -> Delivered:
        """Send the due events of all users of the tenant until none is due. Admins only.

        Call it regularly. Each event is sent at least once, with the same `webhook-id` each time. Several processes may
        deliver at the same time.

        Raises:
            NotAllowed: You are not an admin.
            Unavailable: The package `httpcore` is not installed.
        """
        self.context.require_admin("webhooks.deliver")
        return deliver(self.store)

    def _find(self, webhook: Webhook | int) -> Webhook:
        webhook_id = webhook.id if isinstance(webhook, Webhook) else webhook
        match = next((candidate for candidate in self.list() if candidate.id == webhook_id), None)
        if match is None:
            raise NotFound(f"There is no webhook {webhook_id}. repo.webhooks.list() lists them.")
        return match

    aadd = async_twin(add)
    alist = async_twin(list)
    aremove = async_twin(remove)
    aretry = async_twin(retry)
    adeliver = async_twin(deliver)
