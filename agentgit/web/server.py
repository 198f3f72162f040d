"""Runs the application: which way people come in, where it listens, and how it stops."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import FastAPI

from agentgit.auth.user import LOCAL
from agentgit.errors import InvalidInput, Unavailable
from agentgit.web.app import app
from agentgit.web.authentication import OwnerLink
from agentgit.web.connections import Connection, Connections
from agentgit.web.metrics import ACCESS
from agentgit.web.site import LOOPBACK, Site

if TYPE_CHECKING:
    from agentgit.repository import Repository

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
            "Nobody could come in: there is no account yet. Make one: agentgit users add NAME --password"
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
            f"{host}:{port} cannot be listened at: {error.strerror}. Name another port: --port PORT"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    place = f"http://{shown}:{listening.getsockname()[1]}"
    if public_url is not None:
        say(f"It listens at {place}")
    _tell(say, f"{(public_url or place).rstrip('/')}/", link, browser=browser)
    if proxies and public_url is None and names is not None and names <= LOOPBACK:
        say("Only localhost names are answered. For the name that browsers use, add: --public-url https://NAME")
    # uvicorn stops in good order at a signal, and then sends it again for whoever called it.
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Server(made).run([listening])


def _tell(say: Callable[[str], None], address: str, link: OwnerLink | None, *, browser: bool) -> None:
    """Print the address of the server; the link lets browsers in."""
    address = f"{address}enter?token={link.token}" if link is not None else address
    say(f"agentgit is at {address}")
    if link is not None:
        say("The link lets a browser in, for 12 hours. Whoever has it sees all of this database.")
    say("Ctrl-C stops it.")
    if browser:
        webbrowser.open(address)
