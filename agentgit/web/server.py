"""The HTTP server: its socket, the limits on connections, and the graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentgit.auth.principal import LOCAL
from agentgit.errors import InvalidInput, Unavailable
from agentgit.store.records.login_attempts import network_of
from agentgit.web.app import app
from agentgit.web.authentication import OwnerLink
from agentgit.web.metrics import ACCESS_LOG
from agentgit.web.site import LOOPBACK, Site

if TYPE_CHECKING:
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.repository import Repository

LOG = logging.getLogger("agentgit.web")

WARNING_SECONDS = 60.0
"""The minimum number of seconds between two warnings about an address with too many connections."""


class Connections:
    """The open connections of one server."""

    def __init__(self, site: Site) -> None:
        self.limits = site.limits
        self._proxies = site.proxies
        self._counts: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}
        self._warned_at = 0.0

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, connection: Connection) -> None:
        """Count a new connection, and abort one if there are too many.

        If its address has too many, abort the new one. If the server has too many, abort the one that has waited
        longest for a request.
        """
        peer, source = connection.client[0] if connection.client else "", connection.source
        self._counts[source] += 1
        if self._counts[source] > self.limits.connections_each and not self._proxies.is_trusted(peer):
            self._warn(source)
            connection.transport.abort()
        elif len(self) >= self.limits.connections:
            oldest = next((candidate for candidate in self._waiting if candidate is not connection), None)
            if oldest is not None:
                self._waiting.pop(oldest)
                oldest.transport.abort()

    def remove(self, connection: Connection) -> None:
        """Remove a connection from the counts."""
        self._waiting.pop(connection, None)
        self._counts[connection.source] -= 1
        if not self._counts[connection.source]:
            del self._counts[connection.source]

    def set_waiting(self, connection: Connection, is_waiting: bool) -> None:
        """Record whether a connection is waiting for a complete request. If it already was, it keeps its place."""
        if is_waiting:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)

    def _warn(self, source: str) -> None:
        if time.monotonic() >= self._warned_at:
            self._warned_at = time.monotonic() + WARNING_SECONDS
            LOG.warning(
                "%s has reached the limit of %d connections. If it is your proxy: agentgit serve --trusted-proxy %s",
                source,
                self.limits.connections_each,
                source,
            )


class Connection(H11Protocol):
    """A connection that is aborted if the head of a request does not arrive in time, or the client does not read."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.source = ""
        self._connections = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the signature of uvicorn's method
        """Start to wait for a request."""
        super().connection_made(transport)
        self.source = network_of(self.client[0]) if self.client else ""
        self._watch()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data. A complete head ends the wait."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Start to wait until the client reads."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._connections.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting: the client reads again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _watch(self) -> None:
        """Start the timer for the head of a request if none is in progress; otherwise cancel it.

        `Guard` limits the time for the body. Until the body is complete, the connection still counts as waiting, so it
        can be aborted in favor of a new one.
        """
        is_waiting = self.cycle is None or self.cycle.response_complete
        self._connections.set_waiting(self, is_waiting or self.cycle.more_body)
        if is_waiting == (self._head_timer is not None):
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = (
            self.loop.call_later(self._connections.limits.seconds, self.transport.abort) if is_waiting else None
        )


STOP_SECONDS = 10
"""The number of seconds that requests in progress have to finish when the server stops."""

IDLE_SECONDS = 5
"""The number of seconds that an idle connection is kept open after a response."""


class Server(uvicorn.Server):
    """A server for an application. Its shutdown first ends the live feeds, which would not end by themselves."""

    def __init__(self, application: FastAPI) -> None:
        self._site: Site = application.state.site
        connections, limits = Connections(self._site), self._site.limits
        self._site.connections = connections.__len__
        config = uvicorn.Config(
            application,
            http=cast(Any, partial(Connection, connections)),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            limit_concurrency=limits.connections,
            h11_max_incomplete_event_size=limits.head,
        )
        super().__init__(config)

    async def shutdown(self, sockets: Any = None) -> None:
        """End the live feeds, finish the other requests, and stop."""
        self._site.is_closing = True
        await super().shutdown(sockets)


def serve(
    repo: Repository,
    *,
    graph: RollbackGraph | None = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    accounts: bool = False,
    hosts: Iterable[str] = (),
    insecure: bool = False,
    trusted_proxies: Iterable[str] = (),
    public_url: str | None = None,
    metrics_token: str | None = None,
    access_log: bool = False,
    say: Callable[[str], None] = print,
    browser: bool = False,
) -> None:
    """Serve a repository until Ctrl-C or SIGTERM.

    A SQLite database that is served on a loopback address is open to whoever has the printed link. In all other cases
    users log in with accounts.
    """
    is_loopback = host in ("localhost", "127.0.0.1", "::1")
    link = None if accounts or not is_loopback or not repo.context.store.database.is_sqlite else OwnerLink(repo)
    if link is None and not any(user.name != LOCAL for user in repo.users.list()):
        raise InvalidInput(
            "Nobody could log in: there is no account yet. Create one: agentgit users add NAME --password"
        )
    if access_log:
        ACCESS_LOG.addHandler(logging.StreamHandler(sys.stdout))
        ACCESS_LOG.setLevel(logging.INFO)
        ACCESS_LOG.propagate = False
    host_names, proxies = {*LOOPBACK, *hosts} if is_loopback else set(hosts) or None, tuple(trusted_proxies)
    application = app(
        repo,
        graph=graph,
        link=link,
        hosts=host_names,
        insecure=insecure,
        trusted_proxies=proxies,
        public_url=public_url,
        metrics_token=metrics_token,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port: --port PORT"
        ) from error
    host_text = f"[{host}]" if ":" in host else host
    local_url = f"http://{host_text}:{listener.getsockname()[1]}"
    if public_url is not None:
        say(f"Listening on {local_url}")
    _announce(say, f"{(public_url or local_url).rstrip('/')}/", link, browser=browser)
    if proxies and public_url is None and host_names is not None and host_names <= LOOPBACK:
        say("Only localhost names are allowed. To allow the name that browsers use, add: --public-url https://NAME")
    # uvicorn shuts down gracefully on a signal, and then raises the signal again for its caller.
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Server(application).run([listener])


def _announce(say: Callable[[str], None], address: str, link: OwnerLink | None, *, browser: bool) -> None:
    """Print the address of the server, with the token of the link if there is one."""
    address = f"{address}enter?token={link.token}" if link is not None else address
    say(f"agentgit is running at {address}")
    if link is not None:
        say("The link logs a browser in for 12 hours. Anyone who has it can use the whole database.")
    say("Press Ctrl-C to stop.")
    if browser:
        webbrowser.open(address)
