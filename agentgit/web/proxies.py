"""Origin and target address of a request: the headers of trusted proxies, and the public URL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from agentgit.errors import InvalidInput

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """The address of the application for browsers.

    Args:
        scheme: `http` or `https`.
        host: With the port, if that is not the usual one of the scheme; lower case.
        path: The path below which it is served; empty or begins with a `/`.
    """

    scheme: str
    host: str
    path: str = ""

    @property
    def origin(self) -> str:
        """The scheme and the host, as browsers write them in `Origin`."""
        return f"{self.scheme}://{self.host}"


def read_address(text: str) -> Address | None:
    """Read a URL without user, query and fragment; None if it is not one.

    Example:
        >>> read_address("https://Git.example:443/path/")
        Address(scheme='https', host='git.example', path='/path')
        >>> read_address("null") is None
        True
    """
    try:
        parts = urlsplit(text)
        port, name = parts.port, parts.hostname
    except ValueError:
        return None
    if parts.scheme not in PORTS or not name or "@" in parts.netloc or parts.query or parts.fragment:
        return None
    host = f"[{name}]" if ":" in name else name
    shown = host if port in (None, PORTS[parts.scheme]) else f"{host}:{port}"
    return Address(parts.scheme, shown, parts.path.rstrip("/"))


def public_address(text: str) -> Address:
    """Read the public URL that an operator gives.

    Raises:
        InvalidInput: It is not one.
    """
    found = read_address(text)
    if found is None or not (text.isascii() and text.isprintable()) or "//" in found.path:
        raise InvalidInput(f"{text!r} is not a valid public URL. Write one like https://git.example.com:8443/path.")
    return found


class Proxies:
    """The proxies whose word is taken.

    Args:
        trusted: Addresses and networks, like `10.0.0.7` and `10.0.0.0/24`.

    Raises:
        InvalidInput: One is neither, or means everybody.

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

    def trust(self, host: str) -> bool:
        """Return whether an address is one of them."""
        found = read_ip(host)
        return found is not None and any(found in network for network in self._networks)

    def client(self, peer: str, forwarded: str) -> str:
        """Return the address that the nearest trusted proxy saw.

        Each proxy writes whom it saw to the right of what it was told; what is left of the first stranger, anybody can
        have written.

        Args:
            peer: The address that connected.
            forwarded: The X-Forwarded-For of the request.
        """
        seen = peer
        for hop in reversed(forwarded.split(",")):
            if not self.trust(seen) or (found := read_ip(hop.strip())) is None:
                break
            seen = str(found)
        return seen

    def apply(self, scope: Scope, public: Address | None) -> None:
        """Write into a request what its trusted proxy says of it; what anybody else says is not read.

        Args:
            scope: The scope of the request.
            public: The address at which browsers find the application; None is where the request was sent to.
        """
        peer, port = scope.get("client") or ("", 0)
        if self.trust(peer):
            headers = Headers(scope=scope)
            seen = self.client(peer, ",".join(headers.getlist("x-forwarded-for")))
            scope["client"] = (seen, port if seen == peer else 0)
            scheme = _last(headers, "x-forwarded-proto").lower()
            host = _last(headers, "x-forwarded-host") or (public.host if public else "")
            scope["scheme"] = scheme if scheme in PORTS else scope["scheme"]
            if host:
                others = [(name, value) for name, value in scope["headers"] if name != b"host"]
                scope["headers"] = [(b"host", host.encode("latin-1")), *others]
        root = scope.get("root_path", "")
        if public is not None and public.path and not f"{root}/".startswith(f"{public.path}/"):
            # A proxy may pass the path of the public URL on, or take it off.
            is_whole = f"{scope['path']}/".startswith(f"{public.path}{root}/")
            scope["root_path"] = public.path + root
            scope["path"] = scope["path"] if is_whole else public.path + scope["path"]


def _last(headers: Headers, name: str) -> str:
    """Return what the nearest proxy says, where several have written."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


def read_ip(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, also with a port; None if it is not one.

    Example:
        >>> read_ip("192.0.2.1:80"), read_ip("[2001:db8::1]:80"), read_ip("::ffff:192.0.2.1"), read_ip("unknown")
        (IPv4Address('192.0.2.1'), IPv6Address('2001:db8::1'), IPv4Address('192.0.2.1'), None)
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
