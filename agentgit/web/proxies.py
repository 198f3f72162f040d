"""The client address and the URL of a request: the headers of trusted proxies, and the public URL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from agentgit.errors import InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}


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


class Proxies:
    """The proxies whose forwarding headers are trusted.

    Example:
        >>> proxies = Proxies(["10.0.0.0/24"])
        >>> proxies.client("10.0.0.1", "6.6.6.6, 192.0.2.9, 10.0.0.7")
        '192.0.2.9'
        >>> proxies.client("192.0.2.1", "6.6.6.6")
        '192.0.2.1'
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        try:
            self._networks = [ip_network(one) for one in trusted]
        except ValueError as error:
            raise InvalidInput(f"--trusted-proxy takes an address or a network: {error}.") from error
        if any(network.prefixlen == 0 for network in self._networks):
            raise InvalidInput("--trusted-proxy must not cover all addresses. Give the addresses of your proxies.")

    def is_trusted(self, host: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        address = read_ip(host)
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, forwarded: str) -> str:
        """Return the address of the nearest hop that is not a trusted proxy.

        Each proxy appends the address that connected to it. Everything to the left of the last address that is not a
        trusted proxy can be forged.
        """
        client_address = peer
        for hop in reversed(forwarded.split(",")):
            if not self.is_trusted(client_address) or (hop_address := read_ip(hop.strip())) is None:
                break
            client_address = str(hop_address)
        return client_address

    def apply(self, scope: Scope, public: Address | None) -> None:
        """Set the client, scheme, host and path of a request from the headers of a trusted proxy and the public URL.

        The headers are ignored if the peer is not a trusted proxy.
        """
        peer, port = scope.get("client") or ("", 0)
        if self.is_trusted(peer):
            headers = Headers(scope=scope)
            client_address = self.client(peer, ",".join(headers.getlist("x-forwarded-for")))
            scope["client"] = (client_address, port if client_address == peer else 0)
            scheme = _last_value(headers, "x-forwarded-proto").lower()
            host = _last_value(headers, "x-forwarded-host") or (public.host if public else "")
            scope["scheme"] = scheme if scheme in DEFAULT_PORTS else scope["scheme"]
            if host:
                other_headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
                scope["headers"] = [(b"host", host.encode("latin-1")), *other_headers]
        root = scope.get("root_path", "")
        if public is not None and public.path and not f"{root}/".startswith(f"{public.path}/"):
            # A proxy may pass on the path of the public URL, or strip it.
            is_whole = f"{scope['path']}/".startswith(f"{public.path}{root}/")
            scope["root_path"] = public.path + root
            scope["path"] = scope["path"] if is_whole else public.path + scope["path"]


def _last_value(headers: Headers, name: str) -> str:
    """Return the last value of a header: the one that the nearest proxy added."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


def read_ip(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, with or without a port; return None if it is not one.

    Example:
        >>> read_ip("192.0.2.1:80"), read_ip("[2001:db8::1]:80"), read_ip("::ffff:192.0.2.1"), read_ip("unknown")
        (IPv4Address('192.0.2.1'), IPv6Address('2001:db8::1'), IPv4Address('192.0.2.1'), None)
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
