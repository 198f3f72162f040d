"""Rules for the hosts of webhooks: public addresses, and what the operator allows. Nothing is resolved here."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from agentgit.errors import InvalidInput, NotAllowed

ENVIRONMENT = "AGENTGIT_WEBHOOK_ALLOW"
"""The environment variable of the operator that allows more hosts, with commas between them."""

PUBLIC_6 = IPv6Network("2000::/3")
"""The only part of IPv6 from which public addresses are given out."""

NAT64 = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last four bytes."""

ISATAP = 0x00005EFE
"""The third quarter of IPv6 addresses that stand for the IPv4 address in their last four bytes (RFC 5214)."""

SHARED = IPv4Network("100.64.0.0/10")
"""Addresses inside of a carrier's network, or of a cloud's."""

NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # Python before 3.11.10 takes most of it for public; Oracle's metadata is in it
    IPv4Network("168.63.129.16"),  # a public address by number, where each virtual machine of Azure reaches its host
    IPv6Network("3fff::/20"),  # documentation, which Python does not know yet
)
"""Networks that `ipaddress` calls public, and that are not."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class WebhookHosts:
    """The hosts that webhooks may be sent to although their addresses are not public.

    Args:
        names: The names of hosts, in lower case; whatever they resolve to is allowed.
        networks: The networks of addresses that are allowed.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, given: Sequence[str]) -> WebhookHosts:
        """Read the list of an operator.

        Args:
            given: Host names, addresses and networks, such as `hooks.internal`, `10.0.0.7` or `10.0.0.0/8`.

        Raises:
            InvalidInput: It is no list, or one of them is none of these.

        Example:
            >>> WebhookHosts.of(["Hooks.internal", "10.0.0.0/8"]).names
            frozenset({'hooks.internal'})
        """
        if isinstance(given, str) or not all(isinstance(one, str) for one in given):
            raise InvalidInput(f"webhook_hosts={given!r} is not a list of hosts; write webhook_hosts=['10.0.0.0/8'].")
        names, networks = set(), []
        for one in given:
            try:
                networks.append(ip_network(one.strip("[]")))
            except ValueError as error:
                if not _NAME.fullmatch(plain_name(one)):
                    raise InvalidInput(
                        f"{one!r} is no host name, address or network. Allow webhooks to hosts like hooks.internal, "
                        "10.0.0.7 or 10.0.0.0/8."
                    ) from error
                names.add(plain_name(one))
        return cls(frozenset(names), tuple(networks))

    def require_written(self, host: str) -> None:
        """Refuse a host that is written as an address, in whatever form, where webhooks may not be sent.

        Raises:
            InvalidInput: It is one, or `localhost`.
        """
        address = _written(host)
        kind = None if address is None or plain_name(host) in self.names else self._refused(address)
        if kind is not None:
            raise InvalidInput(_refusal(kind))

    def require_resolved(self, host: str, addresses: Iterable[str]) -> None:
        """Refuse a host one of whose addresses is where webhooks may not be sent.

        Args:
            host: As the URL has it.
            addresses: All that it resolved to.

        Raises:
            NotAllowed: One of them is; its kind is told, and not the address.
        """
        if plain_name(host) in self.names:
            return
        for one in addresses:
            if (kind := self._refused(ip_address(one))) is not None:
                raise NotAllowed(_refusal(kind))

    def _refused(self, address: Address) -> str | None:
        """Return the kind of an address that is neither public nor allowed."""
        plain = _embedded(address)
        return None if any(one in net for net in self.networks for one in (address, plain)) else kind_of(plain)


def kind_of(address: Address) -> str | None:
    """Return what keeps webhooks from an address; None if it is public.

    Example:
        >>> kind_of(ip_address("127.0.0.1")), kind_of(ip_address("169.254.169.254")), kind_of(ip_address("8.8.8.8"))
        ('a loopback address', 'a link-local address', None)
    """
    plain = _embedded(address)
    kinds = {
        "an unspecified address": plain.is_unspecified,
        "a loopback address": plain.is_loopback,
        "a link-local address": plain.is_link_local,
        "a multicast address": plain.is_multicast,
        "a private address": plain.is_private,
        "a shared address": plain in SHARED,
        "a reserved address": not plain.is_global
        or any(plain in net for net in NOT_PUBLIC)
        or (plain.version == 6 and plain not in PUBLIC_6),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)


def plain_name(host: str) -> str:
    """Return the name of a host in the one form that is compared."""
    return host.lower().rstrip(".")


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if (int(address) >> 32) & 0xFCFFFFFF == ISATAP:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _written(host: str) -> Address | None:
    """Return the address that a host is written as, also in the forms that only the C library knows, like `0x7f.1`."""
    name = plain_name(host)
    try:
        return ip_address(name)
    except ValueError:
        pass
    if name == "localhost" or name.endswith(".localhost"):
        return IPv4Address("127.0.0.1")
    try:
        return IPv4Address(socket.inet_aton(name))
    except (OSError, UnicodeError):
        return None


def _refusal(kind: str) -> str:
    return f"Webhooks are not sent to {kind}, and this host has one. Who runs this server can allow it: {ENVIRONMENT}."
