"""The HTTP server: uvicorn with its limits, and the graceful shutdown."""

from __future__ import annotations

import re
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from agentgit.auth.principal import LOCAL
from agentgit.errors import InvalidInput, Unavailable
from agentgit.next_steps import Next
from agentgit.web.app import create_app, serve_graph
from agentgit.web.authentication import Authenticator, OwnerLink
from agentgit.web.proxies import TrustedProxies
from agentgit.web.site import LOOPBACK, Site

if TYPE_CHECKING:
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.repository import Repository

MAX_CONNECTIONS = 500
"""The maximum number of open connections; further requests are answered with 503."""

MAX_HEAD_BYTES = 16_384
"""The maximum number of bytes of the head of a request."""

STOP_SECONDS = 10
"""The number of seconds that requests in progress have to finish when the server stops."""

IDLE_SECONDS = 5
"""The number of seconds that an idle connection is kept open after a response."""


class Server(uvicorn.Server):
    """A server for an application. Its shutdown first ends the live feeds, which would not end by themselves."""

    def __init__(self, application: FastAPI, trusted_proxies: Iterable[str] = ()) -> None:
        self._site: Site = application.state.site
        config = uvicorn.Config(
            TrustedProxies(application, trusted_proxies),
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `TrustedProxies` applies them, after it has seen the peer
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        super().__init__(config)

    async def shutdown(self, sockets: Any = None) -> None:
        self._site.is_closing = True
        await super().shutdown(sockets)


def serve(
    repo: Repository,
    *,
    graph: RollbackGraph | None = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    hosts: Iterable[str] = (),
    trusted_proxies: Iterable[str] = (),
    no_proxy: bool = False,
    user_header: str | None = None,
    create_users: bool = False,
    public_url: str | None = None,
    say: Callable[[str], None] = print,
    browser: bool = False,
) -> None:
    """Serve a repository until Ctrl-C or SIGTERM.

    On a loopback address, a database without users is open to whoever has the printed link.
    """
    is_loopback, proxies = host in ("localhost", "127.0.0.1", "::1"), tuple(trusted_proxies)
    if not is_loopback and not proxies and not no_proxy:
        raise InvalidInput(
            f"On {host}, other machines would send their keys unencrypted: put a proxy in front as in "
            "docs/samples/nginx.conf and give its address with --trusted-proxy, or go on with --no-proxy."
        )
    if user_header is not None and not re.fullmatch(r"[A-Za-z0-9-]+", user_header):
        raise InvalidInput(f"{user_header!r} is not the name of a header, like X-Remote-User.")
    if user_header is not None and not proxies:
        raise InvalidInput("--user-header needs --trusted-proxy ADDRESS: anybody else could send the header, too.")
    if create_users and user_header is None:
        raise InvalidInput("--create-users needs --user-header NAME, which names the users.")
    users = _enabled_users(repo)
    link = OwnerLink() if is_loopback and not proxies and users <= {repo.user.name} else None
    if link is None and not users and not create_users:
        raise InvalidInput("Nobody could sign in: there is no user yet.", Next("add_user"))
    if graph is not None:
        serve_graph(graph)
    host_names = {*LOOPBACK, *hosts} if is_loopback else set(hosts) or None
    authenticator = Authenticator(repo=repo, link=link, user_header=user_header, create_users=create_users)
    application = create_app(authenticator, hosts=host_names, insecure=no_proxy, public_url=public_url)
    server = Server(application, proxies)
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
    rights = "can use the whole database" if repo.user.name == LOCAL else f"acts as {repo.user.name}"
    _announce(say, f"{(public_url or local_url).rstrip('/')}/", link, rights, browser=browser)
    if proxies and public_url is None and host_names is not None and host_names <= LOOPBACK:
        say("Only localhost names are allowed. To allow the name that browsers use, add: --public-url https://NAME")
    # uvicorn shuts down gracefully on a signal, and then raises the signal again for its caller.
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        server.run([listener])


def _enabled_users(repo: Repository) -> set[str]:
    """Return the names of the users who can sign in; the local owner cannot."""
    store = repo.context.store
    with store.database.reading() as transaction:
        return {user.name for user in store.users.all(transaction) if user.name != LOCAL and user.disabled_at is None}


def _announce(say: Callable[[str], None], address: str, link: OwnerLink | None, rights: str, *, browser: bool) -> None:
    address = f"{address}sign-in?token={link.token}" if link is not None else address
    say(f"agentgit is running at {address}")
    if link is not None:
        say(f"The link signs a browser in while the server runs. Anyone who has it {rights}.")
    else:
        say("Sign in with an API key, or with a link: agentgit users link NAME")
    say("Press Ctrl-C to stop.")
    if browser:
        webbrowser.open(address)
