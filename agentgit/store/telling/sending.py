"""Sending what is in the outbox, several at a time; each try ends before anybody else may make one."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple

from agentgit.errors import InvalidInput, Unavailable
from agentgit.sessions.events import Event
from agentgit.sessions.webhooks import FROM_ENVIRONMENT, Delivered, key_of, message_of, signed
from agentgit.store.telling.outbox import LEASE, Taken, report_of
from agentgit.values import told

if TYPE_CHECKING:
    import httpx

    from agentgit.store.store import Store

AT_ONCE = 8
"""How many are sent at the same time."""

SECONDS = 10.0
"""How long one try takes at most, whatever the other side does."""

GONE = 410
"""What a receiver answers that never wants anything more."""

PROBLEM_LIMIT = 200
"""Characters of what is kept of a failure."""


class _End(NamedTuple):
    """How a try ended."""

    problem: str | None
    for_good: bool = False


def deliver(store: Store) -> Delivered:
    """Send what is due, of all users of the tenant, until nothing is.

    Raises:
        Unavailable: httpx is not installed.
    """
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise Unavailable('Webhooks are sent with httpx. Run: pip install "agentgit[webhooks]"') from error

    stopped = threading.Event()

    async def work() -> Delivered:
        ends: list[str] = []
        # No redirects: the URL that was given is the one that somebody has looked at.
        # No cookies: one client serves all webhooks.
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        async with httpx.AsyncClient(follow_redirects=False, timeout=SECONDS, cookies=cookies) as client:
            while not stopped.is_set() and (taken := await asyncio.to_thread(_take, store)):
                until = time.monotonic() + LEASE.total_seconds() - SECONDS
                tries = await asyncio.gather(*(_try(client, one, event, until) for one, event in taken))
                ends += await asyncio.to_thread(_settle, store, taken, tries)
        waiting = await asyncio.to_thread(_waiting, store)
        return report_of(ends, waiting)

    def run() -> Delivered:
        with _unlogged():
            return asyncio.run(work())

    with ThreadPoolExecutor(1) as apart:  # a loop of its own, also where the caller has one
        try:
            return apart.submit(run).result()
        except BaseException:  # Ctrl-C: what is being sent is finished, and no more is taken
            stopped.set()
            raise


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep httpx from logging URLs in this thread: what follows a `?` in one may be a secret."""
    here, log = threading.get_ident(), logging.getLogger("httpx")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != here

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


def _take(store: Store) -> list[tuple[Taken, Event | None]]:
    taken = store.database.write(lambda c: store.outbox.take(c, AT_ONCE), durable=True)
    with store.database.reading() as connection:
        return [(one, next(store.trail.at(connection, [(one.session_id, one.number)]), None)) for one in taken]


def _settle(store: Store, taken: list[tuple[Taken, Event | None]], tries: list[_End]) -> list[str]:
    pairs = list(zip(taken, tries, strict=True))
    return store.database.write(
        lambda c: [store.outbox.settle(c, one, end.problem, for_good=end.for_good) for (one, _), end in pairs],
        durable=True,
    )


def _waiting(store: Store) -> int:
    with store.database.reading() as connection:
        return store.outbox.waiting(connection)


async def _try(client: httpx.AsyncClient, taken: Taken, event: Event | None, until: float) -> _End:
    """Send one event; what goes wrong is told, and never raised."""
    if event is None:
        return _End("its event is not in the trail; run: agentgit audit verify", for_good=True)
    if time.monotonic() > until:
        return _End("there was no time left to send it")
    try:
        message_id, body = message_of(event)
        headers = signed(_secret(taken), message_id, body)
        async with asyncio.timeout(SECONDS):
            status = await _post(client, taken.url, headers, body)
    except Exception as error:  # noqa: BLE001  # whatever the network or the other side does
        return _End(told(error)[:PROBLEM_LIMIT])
    return _End(None if 200 <= status < 300 else f"the receiver answered {status}", for_good=status == GONE)


async def _post(client: httpx.AsyncClient, url: str, headers: dict[str, str], body: bytes) -> int:
    """Send a message; the answer's text is not read."""
    more = {"content-type": "application/json", "user-agent": "agentgit"}
    async with client.stream("POST", url, content=body, headers={**headers, **more}) as answer:
        return int(answer.status_code)


def _secret(taken: Taken) -> str:
    """Give the secret of a webhook, from the environment if it is there."""
    if not taken.secret.startswith(FROM_ENVIRONMENT):
        return taken.secret
    name = taken.secret[len(FROM_ENVIRONMENT) :]
    secret = os.environ.get(name)
    if not secret:
        raise InvalidInput(f"The environment variable {name} has no secret. Set it where webhooks are delivered.")
    key_of(secret)
    return secret
