"""The address of the application as browsers know it, and the proxies in front of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from agentgit.errors import InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}

FROM_PROXY = "agentgit.from_proxy"
"""The key in the scope of a request that tells whether a trusted proxy has connected."""


@dataclass(frozen=True)
class Address:
    """The address at which browsers reach the application."""

    scheme: str
    host: str
    path: str = ""

    @property
    def origin(self) -> str:
        """The scheme and the host, in the form of the `Origin` header."""
        return f"{self.scheme}://{self.host}"


def read_address(text: str) -> Address | None:
    """Parse a URL; return None if it is not valid, or has a user, a query or a fragment.

    Example:
        >>> read_address("https://Git.example:443/path/")
        Address(scheme='https', host='git.example', path='/path')
        >>> read_address("null") is None
        True
    """
    try:
        parts = urlsplit(text)
        port, hostname = parts.port, parts.hostname
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not hostname or "@" in parts.netloc or parts.query or parts.fragment:
        return None
    host = f"[{hostname}]" if ":" in hostname else hostname
    authority = host if port in (None, DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    return Address(parts.scheme, authority, parts.path.rstrip("/"))


def public_address(text: str) -> Address:
    """Parse the public URL that an operator gives."""
    address = read_address(text)
    if address is None or not (text.isascii() and text.isprintable()) or "//" in address.path:
        raise InvalidInput(f"{text!r} is not a valid public URL. Write one like https://git.example.com:8443/path.")
    return address


class TrustedProxies:
    """Middleware around uvicorn's, which takes client and scheme from the headers of trusted proxies.

    It records whether such a proxy has connected before uvicorn replaces the address of the peer by one that a header
    names.
    """

    def __init__(self, app: ASGIApp, trusted: Iterable[str]) -> None:
        addresses = list(trusted)
        try:
            self._networks = [ip_network(one) for one in addresses]
        except ValueError as error:
            raise InvalidInput(f"--trusted-proxy takes an address or a network: {error}.") from error
        if any(network.prefixlen == 0 for network in self._networks):
            raise InvalidInput("--trusted-proxy must not cover all addresses. Give the addresses of your proxies.")
        self.app = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), addresses))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        scope[FROM_PROXY] = peer is not None and self._is_trusted(peer[0])
        await self.app(scope, receive, send)

    def _is_trusted(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
