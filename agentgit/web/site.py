"""What all requests of one application share: how people come in, under which names, and how much one may ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import HTTPConnection

from agentgit.web.entrance import Accounts, Link
from agentgit.web.live import Seats

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names of this machine for itself."""

KEY = "agentgit.site"
"""Where the scope of a request has it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request may ask for.

    Args:
        body: bytes of its body.
        seconds: how long it may take to send that.
        feeds: how many live feeds one user may have open at once.
    """

    body: int = 1_000_000
    seconds: float = 20.0
    feeds: int = 8


@dataclass(kw_only=True)
class Site:
    """One application.

    Args:
        entrance: how people come in.
        hosts: the names under which it may be asked for, without a port; None is any.
        insecure: True to let people log in over plain http from other machines.
        limits: how much one request may ask for.
    """

    entrance: Accounts | Link
    hosts: frozenset[str] | None = None
    insecure: bool = False
    limits: Limits = field(default_factory=Limits)
    is_closing: bool = False
    """True once the server stops: live feeds end."""

    def __post_init__(self) -> None:
        self.seats = Seats(self.limits.feeds)

    @property
    def repo(self) -> Repository:
        """The repository of whoever started it; of nobody else."""
        return self.entrance.repo


def site_of(connection: HTTPConnection) -> Site:
    """Give the application that a request is for."""
    return cast(Site, connection.scope[KEY])


def name_of(host: str) -> str:
    """Give the name in a Host header, without its port.

    Example:
        >>> name_of("Example.com:8000"), name_of("[::1]:8000")
        ('example.com', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
