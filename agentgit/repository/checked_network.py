"""Connections of webhooks to the address that was checked, so that a second DNS answer cannot redirect them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpcore

from agentgit.sessions.webhooks import WebhookHosts


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """A network backend that resolves a host once, checks all its addresses, and connects to one of them.

    TLS and HTTP still use the host name of the URL for the certificate, SNI and the `Host` header.
    """

    def __init__(self, hosts: WebhookHosts, timeout: float) -> None:
        self._hosts = hosts
        self._timeout = timeout
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host."""
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        self._hosts.require_allowed_addresses(host, addresses)
        address_timeout = self._timeout / max(1, len(addresses))  # so that a dead address leaves time for the others
        last_error: Exception = httpcore.ConnectError("The host has no address.")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, address_timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last_error = error
        raise last_error
