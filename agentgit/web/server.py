"""Runs the application: where it listens, how long connections may take, and how it stops."""

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
from agentgit.web.metrics import ACCESS
from agentgit.web.site import LOOPBACK, Site

if TYPE_CHECKING:
    from agentgit.repository import Repository

LOG = logging.getLogger("agentgit.web")

QUIET_SECONDS = 60.0
"""For so long the log does not tell again that an address has too many connections."""


class Connections:
    """The open connections of one server.

    Args:
        site: Its limits, and its proxies, to which the limit for one address does not apply.
    """

    def __init__(self, site: Site) -> None:
        self.limits = site.limits
        self._proxies = site.proxies
        self._of: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}
        self._told = 0.0

    def __len__(self) -> int:
        return self._of.total()

    def enter(self, connection: Connection) -> None:
        """End a connection whose address has too many; where there are too many, end the one that waits longest."""
        peer, source = connection.client[0] if connection.client else "", connection.source
        self._of[source] += 1
        if self._of[source] > self.limits.connections_each and not self._proxies.trust(peer):
            self._tell(source)
            connection.transport.abort()
        elif len(self) >= self.limits.connections:
            longest = next((one for one in self._waiting if one is not connection), None)
            if longest is not None:
                self._waiting.pop(longest)
                longest.transport.abort()

    def leave(self, connection: Connection) -> None:
        """Let a connection be gone."""
        self._waiting.pop(connection, None)
        self._of[connection.source] -= 1
        if not self._of[connection.source]:
            del self._of[connection.source]

    def wait(self, connection: Connection, waits: bool) -> None:
        """Note whether a connection waits for a whole request; who waits already keeps the place."""
        if waits:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)

    def _tell(self, source: str) -> None:
        if time.monotonic() >= self._told:
            self._told = time.monotonic() + QUIET_SECONDS
            LOG.warning(
                "%s has reached the limit of %d connections. If it is your proxy: agentgit serve --trusted-proxy %s",
                source,
                self.limits.connections_each,
                source,
            )


class Connection(H11Protocol):
    """A connection that is cut if the head of a request does not come in time, or the other side does not read.

    Args:
        among: All of the server.
        given: As uvicorn gives it.
    """

    def __init__(self, among: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.source = ""
        self._among = among
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.source = network_of(self.client[0]) if self.client else ""
        self._watch()
        self._among.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        self._among.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a whole head ends the wait."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Begin to wait until the other side reads."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self._among.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the other side reads."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _watch(self) -> None:
        """See whether a request is under way. If not, the time runs from the moment on at which the last one ended.

        One whose body is still to come has its time in `Guard`, but gives way to others as if it had not come.
        """
        waits = self.cycle is None or self.cycle.response_complete
        self._among.wait(self, waits or self.cycle.more_body)
        if waits == (self._late is not None):
            return
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self._among.limits.seconds, self.transport.abort) if waits else None


STOP_SECONDS = 10
"""The seconds that answers in progress may take when the server stops."""

IDLE_SECONDS = 5
"""The seconds that a connection is kept after an answer if nothing more comes."""


class Server(uvicorn.Server):
    """Serves an application; when it stops it ends live feeds first, which would go on for ever.

    Args:
        made: As `app` makes it.
    """

    def __init__(self, made: FastAPI) -> None:
        self._site: Site = made.state.site
        connections, limits = Connections(self._site), self._site.limits
        self._site.connections = connections.__len__
        config = uvicorn.Config(
            made,
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
        """End what is being answered, and stop."""
        self._site.is_closing = True
        await super().shutdown(sockets)


def serve(
    repo: Repository,
    *,
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

    A SQLite file on this machine is shown to whoever has the link that is said; everything else asks for accounts.

    Args:
        repo: The repository to serve.
        host: The address on which it listens.
        port: The port on which it listens; 0 is any that is free.
        accounts: True to ask for accounts on a SQLite file, too.
        hosts: The names under which it may be asked for, besides that of the public URL; none are those of this
            machine if it listens there, else any if there is no public URL.
        insecure: True to let people log in over plain http from other machines.
        trusted_proxies: Addresses and networks of the proxies before it, which say who asks, by which scheme and host.
        public_url: The address at which browsers find it; None is the scheme and host of each request.
        metrics_token: The token that lets a program read `/metrics`; None lets admins only, with an API key.
        access_log: True to write a line for each request to the standard output.
        say: The function that gets the address of the page.
        browser: True to open it in a browser.

    Raises:
        InvalidInput: Nobody could come in: there is no account; or a proxy or the public URL is none.
        Unavailable: The place to listen is taken.
    """
    is_here = host in ("localhost", "127.0.0.1", "::1")
    link = None if accounts or not is_here or not repo.context.store.database.is_sqlite else OwnerLink(repo)
    if link is None and not any(user.name != LOCAL for user in repo.users.all()):
        raise InvalidInput(
            "Nobody could log in: there is no account yet. Create one: agentgit users add NAME --password"
        )
    if access_log:
        ACCESS.addHandler(logging.StreamHandler(sys.stdout))
        ACCESS.setLevel(logging.INFO)
        ACCESS.propagate = False
    names, proxies = {*LOOPBACK, *hosts} if is_here else set(hosts) or None, tuple(trusted_proxies)
    made = app(
        repo,
        link=link,
        hosts=names,
        insecure=insecure,
        trusted_proxies=proxies,
        public_url=public_url,
        metrics_token=metrics_token,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port: --port PORT"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    place = f"http://{shown}:{listening.getsockname()[1]}"
    if public_url is not None:
        say(f"Listening on {place}")
    _tell(say, f"{(public_url or place).rstrip('/')}/", link, browser=browser)
    if proxies and public_url is None and names is not None and names <= LOOPBACK:
        say("Only localhost names are allowed. To allow the name that browsers use, add: --public-url https://NAME")
    # uvicorn stops in good order at a signal, and then sends it again for whoever called it.
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Server(made).run([listening])


def _tell(say: Callable[[str], None], address: str, link: OwnerLink | None, *, browser: bool) -> None:
    """Print the address of the server; the link lets browsers in."""
    address = f"{address}enter?token={link.token}" if link is not None else address
    say(f"agentgit is running at {address}")
    if link is not None:
        say("The link logs a browser in for 12 hours. Anyone who has it can use the whole database.")
    say("Press Ctrl-C to stop.")
    if browser:
        webbrowser.open(address)
