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
from agentgit.store.audit.outbox import LEASE, ClaimedDelivery, report_of
from agentgit.values import describe_error

if TYPE_CHECKING:
    import httpcore

    from agentgit.store.store import Store

AT_ONCE = 8
"""The number of messages that are sent at the same time."""

ATTEMPT_TIMEOUT = 10.0
"""The timeout of one attempt, in seconds."""

HTTP_GONE = 410
"""The HTTP status of a receiver that wants no more messages."""

PROBLEM_LIMIT = 200
"""The maximum length of a stored error message, in characters."""


class _Outcome(NamedTuple):
    """The outcome of a delivery attempt."""

    problem: str | None
    for_good: bool = False


def deliver(store: Store) -> Delivered:
    """Send the due events of all users of the tenant until none is due."""
    try:
        # httpcore rather than httpx: it has no redirects, cookies, .netrc or environment proxies that would have to be
        # turned off, and `CheckedNetwork` can make its connections.
        import httpcore

        from agentgit.repository.checked_network import CheckedNetwork
    except ModuleNotFoundError as error:
        raise Unavailable('Webhooks are sent with httpcore. Run: pip install "agentgit[webhooks]"') from error

    stopped = threading.Event()

    async def deliver_all() -> Delivered:
        statuses: list[str] = []
        network = CheckedNetwork(store.webhook_hosts, ATTEMPT_TIMEOUT)
        async with httpcore.AsyncConnectionPool(network_backend=network) as client:
            while not stopped.is_set() and (deliveries := await asyncio.to_thread(_claim_deliveries, store)):
                deadline = time.monotonic() + LEASE.total_seconds() - ATTEMPT_TIMEOUT
                outcomes = await asyncio.gather(
                    *(_attempt(client, delivery, event, deadline) for delivery, event in deliveries)
                )
                statuses += await asyncio.to_thread(_record_outcomes, store, deliveries, outcomes)
        pending_count = await asyncio.to_thread(_count_waiting, store)
        return report_of(statuses, pending_count)

    with ThreadPoolExecutor(1) as executor:  # a separate event loop, because the caller may be running one
        try:
            return executor.submit(lambda: asyncio.run(deliver_all())).result()
        except BaseException:  # such as Ctrl-C: finish the current attempts, and take no more
            stopped.set()
            raise


def _claim_deliveries(store: Store) -> list[tuple[ClaimedDelivery, Event | None]]:
    deliveries = store.database.write(lambda c: store.outbox.claim(c, AT_ONCE), durable=True)
    with store.database.reading() as connection:
        return [
            (delivery, next(store.trail.at(connection, [(delivery.session_id, delivery.number)]), None))
            for delivery in deliveries
        ]


def _record_outcomes(
    store: Store, deliveries: list[tuple[ClaimedDelivery, Event | None]], outcomes: list[_Outcome]
) -> list[str]:
    pairs = list(zip(deliveries, outcomes, strict=True))
    return store.database.write(
        lambda c: [
            store.outbox.record_attempt(c, delivery, outcome.problem, is_permanent=outcome.for_good)
            for (delivery, _), outcome in pairs
        ],
        durable=True,
    )


def _count_waiting(store: Store) -> int:
    with store.database.reading() as connection:
        return store.outbox.count_pending(connection)


async def _attempt(
    client: httpcore.AsyncConnectionPool, delivery: ClaimedDelivery, event: Event | None, deadline: float
) -> _Outcome:
    """Send one event. Errors are returned, never raised."""
    if event is None:
        return _Outcome("its event is not in the audit trail; run agentgit audit verify", for_good=True)
    if time.monotonic() > deadline:
        return _Outcome("it could not be sent in time")
    try:
        message_id, body = message_of(event)
        headers = sign(delivery.secret, message_id, body)
        async with asyncio.timeout(ATTEMPT_TIMEOUT):
            status = await _post(client, delivery.url, headers, body)
    except Exception as error:  # noqa: BLE001  # any error of the network or the receiver
        return _Outcome(_describe_failure(error)[:PROBLEM_LIMIT], for_good=isinstance(error, InvalidInput))
    return _Outcome(None if 200 <= status < 300 else f"the receiver answered {status}", for_good=status == HTTP_GONE)


def _describe_failure(error: Exception) -> str:
    """Return why an attempt failed, without the receiver's response, which the user may not be allowed to read."""
    is_protocol_error = type(error).__name__ == "RemoteProtocolError"
    return "RemoteProtocolError: the receiver did not answer in HTTP" if is_protocol_error else describe_error(error)


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
    extra_headers = {
        "host": parts.netloc.rpartition("@")[2],
        "content-type": "application/json",
        "user-agent": "agentgit",
    }
    async with client.stream(
        "POST", target, headers=[*headers.items(), *extra_headers.items()], content=body
    ) as response:
        return int(response.status)
