"""The state that all requests of one application share: how users log in, the host names, the limits of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from agentgit.web.authentication import Accounts, OwnerLink
from agentgit.web.event_stream import Seats
from agentgit.web.metrics import USER, Metrics
from agentgit.web.proxies import Address, Proxies

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names of this machine for itself."""

KEY = "agentgit.site"
"""The key in the scope of a request for the site."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one request.

    Args:
        body: Bytes of its body.
        head: Bytes of its line and headers.
        seconds: The most seconds that each of these may take to arrive, and the other side to read on.
        feeds: The number of live feeds that one user may have open at once.
        connections: The most connections a server has open at once; for another one it ends the one that waits longest
            for a request.
        connections_each: The number of them that one address may have, if it is not a trusted proxy.
    """

    body: int = 1_000_000
    head: int = 16_384
    seconds: float = 20.0
    feeds: int = 8
    connections: int = 500
    connections_each: int = 100


@dataclass(kw_only=True)
class Site:
    """One application.

    Args:
        entrance: The way people log in.
        hosts: The names under which it may be asked for, without a port; None is any.
        insecure: True to let people log in over plain http from other machines.
        proxies: Whose word is taken of where a request comes from.
        public: The address at which browsers find it; None is where a request was sent to.
        limits: The limits of one request.
        metrics_token: The token that lets a program read the metrics, besides the key of an admin.
        metrics: The counters.
        connections: Tells how many are open, if a server of ours serves it.
    """

    entrance: Accounts | OwnerLink
    hosts: frozenset[str] | None = None
    insecure: bool = False
    proxies: Proxies = field(default_factory=Proxies)
    public: Address | None = None
    limits: Limits = field(default_factory=Limits)
    metrics_token: str | None = None
    metrics: Metrics = field(default_factory=Metrics)
    connections: Callable[[], int] | None = None
    is_closing: bool = False
    """True once the server stops: live feeds end."""

    def __post_init__(self) -> None:
        self.seats = Seats(self.limits.feeds)

    @property
    def repo(self) -> Repository:
        """The repository of whoever started it; of nobody else."""
        return self.entrance.repo


def site_of(connection: HTTPConnection) -> Site:
    """Return the application that a request is for."""
    site: Site = connection.scope[KEY]
    return site


def note_user(connection: HTTPConnection, user_id: int) -> None:
    """Note as whom a request is served, for the access log."""
    connection.scope[USER] = user_id


def name_of(host: str) -> str:
    """Return the name in a Host header, without its port.

    Example:
        >>> name_of("Example.com:8000"), name_of("[::1]:8000")
        ('example.com', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
