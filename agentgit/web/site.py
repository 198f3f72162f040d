"""The state that all requests of one application share: authentication, host names and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from agentgit.web.authentication import Authenticator
from agentgit.web.event_stream import FeedCounter
from agentgit.web.proxies import Address

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The host names of this machine's loopback interface."""

SITE_KEY = "agentgit.site"
"""The key of the site in the scope of a request."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for the bytes of a request's body, and for the live feeds of a user."""

    body: int = 1_000_000
    feeds: int = 8


@dataclass(kw_only=True)
class Site:
    authenticator: Authenticator
    hosts: frozenset[str] | None = None
    insecure: bool = False
    public: Address | None = None
    limits: Limits = field(default_factory=Limits)
    is_closing: bool = False
    """True once the server is shutting down, so that live feeds end."""

    def __post_init__(self) -> None:
        self.feed_counter = FeedCounter(self.limits.feeds)

    @property
    def repo(self) -> Repository:
        """The repository of the operator. Requests use the repositories of their users instead."""
        return self.authenticator.repo


def site_of(connection: HTTPConnection) -> Site:
    site: Site = connection.scope[SITE_KEY]
    return site


def name_of(host: str) -> str:
    """Return the host name of a `Host` header in lower case, without its port.

    Example:
        >>> name_of("Example.com:8000"), name_of("[::1]:8000")
        ('example.com', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
