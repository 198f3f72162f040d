"""Delivery of the outbox: several messages at a time. Each attempt ends before another process may start one."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from agentgit.errors import InvalidInput, Unavailable
from agentgit.sessions.events import Event
from agentgit.sessions.webhooks import Delivered, message_of, sign
from agentgit.store.audit.outbox import LEASE, TakenDelivery, report_of
from agentgit.values import describe_error

if TYPE_CHECKING:
    import httpcore

    from agentgit.store.store import Store

AT_ONCE = 8
"""The number of messages that are sent at the same time."""

ATTEMPT_TIMEOUT = 10.0
"""The timeout of one attempt, in seconds."""

GONE = 410
"""The HTTP status of a receiver that wants no more messages."""

PROBLEM_LIMIT = 200
"""The maximum length of a stored error message, in characters."""


class _End(NamedTuple):
    """The outcome of a delivery attempt."""

    problem: str | None
    for_good: bool = False


def deliver(store: Store) -> Delivered:
    """Send the due events of all users of the tenant until none is due.

    Raises:
        Unavailable: The package `httpcore` is not installed.
    """
    try:
        # httpcore rather than httpx: it has no redirects, cookies, .netrc or environment proxies that would have to be
        # turned off, and `CheckedNetwork` can make its connections.
        import httpcore

        from agentgit.repository.checked_network import CheckedNetwork
    except ModuleNotFoundError as error:
        raise Unavailable('Webhooks are sent with httpcore. Run: pip install "agentgit[webhooks]"') from error

    stopped = threading.Event()

    async def work() -> Delivered:
        ends: list[str] = []
        network = CheckedNetwork(store.webhook_hosts, ATTEMPT_TIMEOUT)
        async with httpcore.AsyncConnectionPool(network_backend=network) as client:
            while not stopped.is_set() and (taken := await asyncio.to_thread(_take, store)):
                until = time.monotonic() + LEASE.total_seconds() - ATTEMPT_TIMEOUT
                tries = await asyncio.gather(*(_try(client, one, event, until) for one, event in taken))
                ends += await asyncio.to_thread(_record_outcomes, store, taken, tries)
        waiting = await asyncio.to_thread(_waiting, store)
        return report_of(ends, waiting)

    with ThreadPoolExecutor(1) as apart:  # a separate event loop, because the caller may be running one
        try:
            return apart.submit(lambda: asyncio.run(work())).result()
        except BaseException:  # such as Ctrl-C: finish the current attempts, and take no more
            stopped.set()
            raise


def _take(store: Store) -> list[tuple[TakenDelivery, Event | None]]:
    taken = store.database.write(lambda c: store.outbox.take(c, AT_ONCE), durable=True)
    with store.database.reading() as connection:
        return [(one, next(store.trail.at(connection, [(one.session_id, one.number)]), None)) for one in taken]


def _record_outcomes(store: Store, taken: list[tuple[TakenDelivery, Event | None]], tries: list[_End]) -> list[str]:
    pairs = list(zip(taken, tries, strict=True))
    return store.database.write(
        lambda c: [store.outbox.record_attempt(c, one, end.problem, for_good=end.for_good) for (one, _), end in pairs],
        durable=True,
    )


def _waiting(store: Store) -> int:
    with store.database.reading() as connection:
        return store.outbox.waiting(connection)


async def _try(client: httpcore.AsyncConnectionPool, taken: TakenDelivery, event: Event | None, until: float) -> _End:
    """Send one event. Errors are returned, never raised."""
    if event is None:
        return _End("its event is not in the audit trail; run agentgit audit verify", for_good=True)
    if time.monotonic() > until:
        return _End("it could not be sent in time")
    try:
        message_id, body = message_of(event)
        headers = sign(taken.secret, message_id, body)
        async with asyncio.timeout(ATTEMPT_TIMEOUT):
            status = await _post(client, taken.url, headers, body)
    except Exception as error:  # noqa: BLE001  # any error of the network or the receiver
        return _End(_problem(error)[:PROBLEM_LIMIT], for_good=isinstance(error, InvalidInput))
    return _End(None if 200 <= status < 300 else f"the receiver answered {status}", for_good=status == GONE)


def _problem(error: Exception) -> str:
    """Return why an attempt failed, without the receiver's response, which the user may not be allowed to read."""
    is_answer = type(error).__name__ == "RemoteProtocolError"
    return "RemoteProtocolError: the receiver did not answer in HTTP" if is_answer else describe_error(error)


async def _post(client: httpcore.AsyncConnectionPool, url: str, headers: dict[str, str], body: bytes) -> int:
    """Send a message and return the HTTP status. The body of the response is not read."""
    import httpcore

    parts = urlsplit(url)
    target = httpcore.URL(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port,
        target=f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/",
    )
    more = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json", "user-agent": "agentgit"}
    async with client.stream("POST", target, headers=[*headers.items(), *more.items()], content=body) as answer:
        return int(answer.status)
