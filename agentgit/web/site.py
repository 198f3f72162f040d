"""The state that all requests of one application share: authentication, host names, limits and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from agentgit.web.authentication import Accounts, OwnerLink
from agentgit.web.event_stream import FeedCounter
from agentgit.web.metrics import USER_KEY, Metrics
from agentgit.web.proxies import Address, Proxies

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The host names of this machine's loopback interface."""

SITE_KEY = "agentgit.site"
"""The key of the site in the scope of a request."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for requests and connections."""

    body: int = 1_000_000
    head: int = 16_384
    seconds: float = 20.0
    feeds: int = 8
    connections: int = 500
    connections_each: int = 100


@dataclass(kw_only=True)
class Site:
    """The state of one application."""

    authenticator: Accounts | OwnerLink
    hosts: frozenset[str] | None = None
    insecure: bool = False
    proxies: Proxies = field(default_factory=Proxies)
    public: Address | None = None
    limits: Limits = field(default_factory=Limits)
    metrics_token: str | None = None
    metrics: Metrics = field(default_factory=Metrics)
    connections: Callable[[], int] | None = None
    is_closing: bool = False
    """True once the server is shutting down, so that live feeds end."""

    def __post_init__(self) -> None:
        self.feed_counter = FeedCounter(self.limits.feeds)

    @property
    def repo(self) -> Repository:
        """The repository of the operator. Requests use the repositories of their users instead."""
        return self.authenticator.repo


def site_of(connection: HTTPConnection) -> Site:
    """Return the site of a request."""
    site: Site = connection.scope[SITE_KEY]
    return site


def record_user(connection: HTTPConnection, user_id: int) -> None:
    """Store the id of the user of a request, for the access log."""
    connection.scope[USER_KEY] = user_id


def name_of(host: str) -> str:
    """Return the host name of a `Host` header in lower case, without its port.

    Example:
        >>> name_of("Example.com:8000"), name_of("[::1]:8000")
        ('example.com', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
