"""Runs the application: which way people come in, where it listens, and how it stops."""

from __future__ import annotations

import signal
import socket
import webbrowser
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from agentgit.auth.user import LOCAL
from agentgit.errors import InvalidInput, Unavailable
from agentgit.web.app import app
from agentgit.web.entrance import Link
from agentgit.web.site import LOOPBACK, Site

if TYPE_CHECKING:
    from agentgit.repository import Repository

STOP_SECONDS = 10
"""How long what is being answered may take when the server stops."""

MOST_AT_ONCE = 500
"""How many requests and feeds are held open at once; more are told to come again."""


class Server(uvicorn.Server):
    """Stops live feeds first, which would go on for ever.

    Args:
        config: as uvicorn takes it.
        site: what the requests share.
    """

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: Any = None) -> None:
        """End what is being answered, and stop."""
        self._site.is_closing = True
        await super().shutdown(sockets)


def serve(
    repo: Repository, *, host: str = "127.0.0.1", port: int = 8700, accounts: bool = False,
    hosts: Iterable[str] = (), insecure: bool = False, behind_proxy: bool = False,
    say: Callable[[str], None] = print, browser: bool = False,
) -> None:  # fmt: skip
    """Serve a repository until Ctrl-C or SIGTERM.

    A SQLite file on this machine is shown to whoever has the link that is said; everything else asks for accounts.

    Args:
        repo: whose.
        host: where it listens.
        port: where it listens; 0 is any that is free.
        accounts: True to ask for accounts on a SQLite file, too.
        hosts: the names under which it may be asked for; none are those of this machine if it listens there, else any.
        insecure: True to let people log in over plain http from other machines.
        behind_proxy: True to believe the proxy before it who asks, and whether they came by https.
        say: is told where it is.
        browser: True to open it in a browser.

    Raises:
        InvalidInput: nobody could come in: there is no account.
        Unavailable: the place to listen is taken.
    """
    is_here = host in ("localhost", "127.0.0.1", "::1")
    link = None if accounts or not is_here or not repo.store.database.is_sqlite else Link(repo)
    if link is None and not any(user.name != LOCAL for user in repo.users.all()):
        raise InvalidInput(
            "Nobody could come in: there is no account yet. Make one: agentgit users add NAME --password"
        )
    names = {*LOOPBACK, *hosts} if is_here else set(hosts) or None
    made = app(repo, link=link, hosts=names, insecure=insecure)
    config = uvicorn.Config(
        made, host=host, port=port, log_level="warning", access_log=False, server_header=False,
        proxy_headers=behind_proxy, forwarded_allow_ips="*" if behind_proxy else None,
        timeout_graceful_shutdown=STOP_SECONDS, limit_concurrency=MOST_AT_ONCE,
    )  # fmt: skip
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"{host}:{port} cannot be listened at: {error.strerror}. Name another port: --port PORT"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    _tell(say, address, link, browser=browser)
    # uvicorn stops in good order at a signal, and then sends it again for whoever called it.
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Server(config, made.state.site).run([listening])


def _tell(say: Callable[[str], None], address: str, link: Link | None, *, browser: bool) -> None:
    """Say where it is; the link is good for one browser."""
    address = f"{address}enter?token={link.token}" if link is not None else address
    say(f"agentgit is at {address}")
    if link is not None:
        say("The link lets one browser in, for 12 hours. Whoever has it sees all of this database.")
    say("Ctrl-C stops it.")
    if browser:
        webbrowser.open(address)
