"""Webhooks: their values, the hosts that are allowed, and signatures (Standard Webhooks). Pure values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit

from agentgit.errors import InvalidInput, NotAllowed
from agentgit.sessions.events import Event
from agentgit.values import to_json

ALLOWED_HOSTS_VARIABLE = "AGENTGIT_WEBHOOK_ALLOW"
"""The environment variable with which the operator allows more hosts, separated by commas."""

PUBLIC_IPV6 = IPv6Network("2000::/3")
"""The only part of IPv6 from which public addresses are assigned."""

NAT64 = IPv6Network("64:ff9b::/96")
"""The network of the IPv6 addresses that embed an IPv4 address in their last four bytes (NAT64)."""

ISATAP = 0x00005EFE
"""The third quarter of the IPv6 addresses that embed an IPv4 address in their last four bytes (RFC 5214)."""

SHARED_NETWORK = IPv4Network("100.64.0.0/10")
"""Addresses inside the network of a carrier or a cloud."""

NON_PUBLIC_NETWORKS = (
    IPv4Network("192.0.0.0/24"),  # mostly public to Python before 3.11.10; has Oracle's metadata service
    IPv4Network("168.63.129.16"),  # public by number; Azure's virtual machines reach their host there
    IPv6Network("3fff::/20"),  # the documentation network, which Python does not know yet
)
"""Networks that `ipaddress` treats as public although they are not."""

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class WebhookHosts:
    """The hosts to which webhooks may be sent although their addresses are not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, hosts: Sequence[str]) -> WebhookHosts:
        """Parse the operator's list of allowed hosts.

        Example:
            >>> WebhookHosts.of(["Hooks.internal", "10.0.0.0/8"]).names
            frozenset({'hooks.internal'})
        """
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            raise InvalidInput(f"webhook_hosts={hosts!r} is not a list of hosts; write webhook_hosts=['10.0.0.0/8'].")
        names, networks = set(), []
        for host in hosts:
            try:
                networks.append(ip_network(host.strip("[]")))
            except ValueError as error:
                if not _HOST_NAME.fullmatch(plain_name(host)):
                    raise InvalidInput(
                        f"{host!r} is not a host name, address or network. Allow webhooks to hosts like "
                        "hooks.internal, 10.0.0.7 or 10.0.0.0/8."
                    ) from error
                names.add(plain_name(host))
        return cls(frozenset(names), tuple(networks))

    def require_allowed_literal(self, host: str) -> None:
        """Check that a host which is written as an address, in any notation, may receive webhooks."""
        address = _literal_address(host)
        kind = None if address is None or plain_name(host) in self.names else self._refused_kind(address)
        if kind is not None:
            raise InvalidInput(_refusal_message(kind))

    def require_allowed_addresses(self, host: str, addresses: Iterable[str]) -> None:
        """Check that all addresses of a host may receive webhooks."""
        if plain_name(host) in self.names:
            return
        for address in addresses:
            if (kind := self._refused_kind(ip_address(address))) is not None:
                raise NotAllowed(_refusal_message(kind))

    def _refused_kind(self, address: Address) -> str | None:
        """Return the kind of an address that is neither public nor allowed; None if it may receive webhooks."""
        embedded = _embedded_ipv4(address)
        return (
            None
            if any(candidate in net for net in self.networks for candidate in (address, embedded))
            else non_public_kind(embedded)
        )


def non_public_kind(address: Address) -> str | None:
    """Return the kind of a non-public address, in words; None if the address is public.

    Example:
        >>> [non_public_kind(ip_address(text)) for text in ("127.0.0.1", "169.254.169.254", "8.8.8.8")]
        ['a loopback address', 'a link-local address', None]
    """
    embedded = _embedded_ipv4(address)
    kinds = {
        "an unspecified address": embedded.is_unspecified,
        "a loopback address": embedded.is_loopback,
        "a link-local address": embedded.is_link_local,
        "a multicast address": embedded.is_multicast,
        "a private address": embedded.is_private,
        "a shared address": embedded in SHARED_NETWORK,
        "a reserved address": not embedded.is_global
        or any(embedded in net for net in NON_PUBLIC_NETWORKS)
        or (embedded.version == 6 and embedded not in PUBLIC_IPV6),
    }
    return next((kind for kind, applies in kinds.items() if applies), None)


def plain_name(host: str) -> str:
    """Normalize a host name for comparison: lower case, without a trailing dot."""
    return host.lower().rstrip(".")


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if (int(address) >> 32) & 0xFCFFFFFF == ISATAP:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _literal_address(host: str) -> Address | None:
    """Return the address that a host spells out, also in notations of the C library like `0x7f.1`; None for a name."""
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


def _refusal_message(kind: str) -> str:
    return (
        f"Webhooks are not sent to {kind}, and this host has one. The operator can allow it: {ALLOWED_HOSTS_VARIABLE}."
    )


SECRET_PREFIX = "whsec_"  # noqa: S105  # a prefix, not a secret
"""The prefix of a secret whose rest is base64."""

VARIABLE_PREFIX = "env:"
"""A prefix that secrets must not have: users would expect a variable's value, but the literal text would be the key."""

MIN_SECRET_BYTES = 24
"""The least number of bytes of a secret."""

PENDING, DEAD = "pending", "dead"
"""The statuses of a delivery: it is still to be sent, or it was given up."""

TOLERANCE_SECONDS = 300
"""The greatest difference in seconds between the timestamp of a message and the receiver's clock."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A webhook: a URL to which events are sent.

    Args:
        id: The id of the webhook.
        url: The URL, without its query.
        kinds: The kinds of events to send, as patterns.
        session_id: The session whose events are sent; None means all sessions.
        created_at: The time of creation, aware UTC.
        pending: The number of events that are still to be sent.
        dead: The number of events that were given up after too many attempts. `retry` queues them again.
        last_error: The error of the last failed attempt at these events.
        secret: The signing key. Set only in the result of `add`; `repr` and `to_dict` leave it out.
    """

    id: int
    url: str
    kinds: tuple[str, ...]
    session_id: int | None
    created_at: datetime
    pending: int = 0
    dead: int = 0
    last_error: str | None = None
    secret: str | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the secret as JSON-like data."""
        public = {name: value for name, value in vars(self).items() if name != "secret"}
        return {**public, "kinds": list(self.kinds), "created_at": self.created_at.isoformat()}


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """The result of sending the events in the outbox.

    Args:
        sent: The number of events that were accepted.
        failed: The number of events that failed and will be sent again later.
        dead: The number of events that failed and were given up.
        waiting: The number of events that are still to be sent.
    """

    sent: int = 0
    failed: int = 0
    dead: int = 0
    waiting: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return all fields as JSON-like data."""
        return dict(vars(self))


def message_of(event: Event) -> tuple[str, bytes]:
    """Return the id and the body of the message about an event.

    Both are the same for every attempt, and unique to the event.
    """
    data = event.to_dict()
    body = to_json({"type": event.kind, "timestamp": data["created_at"], "data": data})
    return f"evt_{event.hash[:32]}", body


def new_secret() -> str:
    """Generate a secret for signing a webhook's messages."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signing_key(secret: str) -> bytes:
    """Return the key of a secret: its decoded base64 after `whsec_`, else the bytes of its text."""
    if secret.startswith(VARIABLE_PREFIX):
        raise InvalidInput("env:NAME is not accepted: users cannot use the server's variables. Give the secret itself.")
    try:
        key = (
            base64.b64decode(secret[len(SECRET_PREFIX) :], validate=True)
            if secret.startswith(SECRET_PREFIX)
            else secret.encode()
        )
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInput("A secret must be base64 after whsec_. To generate one, leave it out.") from error
    if len(key) < MIN_SECRET_BYTES:
        raise InvalidInput(f"A secret must have at least {MIN_SECRET_BYTES} bytes. To generate one, leave it out.")
    return key


def sign(secret: str, message_id: str, body: bytes, timestamp: int | None = None) -> dict[str, str]:
    """Return the headers that sign a message.

    Args:
        secret: The secret of the webhook.
        message_id: The id of the message, the same for every attempt.
        body: The body as it is sent.
        timestamp: Seconds since 1970; None means now.
    """
    sent_at = str(int(time.time()) if timestamp is None else timestamp)
    digest = hmac.new(signing_key(secret), f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> None:
    """Check that a message is signed with the secret and is recent, so that it cannot be a replayed one.

    Args:
        secret: The secret of the webhook.
        headers: The headers of the request.
        body: The body as it was received, before anything reads it.
        now: The time in seconds since 1970; None means now.

    Raises:
        NotAllowed: The signature does not match, or the timestamp is missing or too far from now.

    Example:
        >>> secret = new_secret()
        >>> headers = sign(secret, "evt_1", b"{}")
        >>> verify(secret, headers, b"{}")
        >>> verify(secret, headers, b"{} ")
        Traceback (most recent call last):
            ...
        agentgit.errors.NotAllowed: The message is not signed with this secret. Do not act on it.
    """
    lower_headers = {name.lower(): value for name, value in headers.items()}
    message_id, sent_at = lower_headers.get("webhook-id", ""), lower_headers.get("webhook-timestamp", "")
    if (
        not (sent_at.isascii() and sent_at.isdigit())
        or abs((time.time() if now is None else now) - int(sent_at)) > TOLERANCE_SECONDS
    ):
        raise NotAllowed("The message has no timestamp, or an old one. Do not act on it.")
    expected = sign(secret, message_id, body, int(sent_at))["webhook-signature"]
    if not any(
        hmac.compare_digest(signature.encode(), expected.encode())
        for signature in lower_headers.get("webhook-signature", "").split()
    ):
        raise NotAllowed("The message is not signed with this secret. Do not act on it.")


def require_url(url: str) -> str:
    """Check that a URL can be the target of a webhook, and return it.

    Example:
        >>> require_url("https://example.com/hook?token=1")
        'https://example.com/hook?token=1'
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError):
        parts, host = SplitResult("", "", "", "", ""), None
    is_readable = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or not is_readable:
        raise InvalidInput("A webhook is sent to an http or https URL, like https://example.com/hooks/agentgit.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("Leave user and password out of the URL: messages are signed, and the URL is shown.")
    return url


def redact_url(url: str) -> str:
    """Return a URL without its query and fragment, which may contain a token.

    Example:
        >>> redact_url("https://example.com/hook?token=1")
        'https://example.com/hook?…'
    """
    parts = urlsplit(url)
    redacted = parts._replace(query="", fragment="").geturl()
    return f"{redacted}?…" if parts.query or parts.fragment else redacted
