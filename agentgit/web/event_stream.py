"""Live feeds of events, as server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from agentgit.errors import AgentGitError
from agentgit.values import to_json

if TYPE_CHECKING:
    from agentgit.sessions.events import Event

POLL_SECONDS = 1.0
"""The number of seconds between two reads of the feed."""

HEARTBEAT_SECONDS = 15.0
"""The number of seconds without an event after which a comment is sent, so that the client sees a live connection."""

RETRY_MILLISECONDS = 3_000
"""The number of milliseconds after which a disconnected browser reconnects."""


class FeedCounter:
    def __init__(self, most: int) -> None:
        self.most = most
        self._open_feeds: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._open_feeds.total()

    def acquire(self, user_id: int) -> bool:
        with self._lock:
            is_free = self._open_feeds[user_id] < self.most
            self._open_feeds[user_id] += is_free
            return is_free

    def release(self, user_id: int) -> None:
        with self._lock:
            self._open_feeds[user_id] -= 1
            if not self._open_feeds[user_id]:
                del self._open_feeds[user_id]


async def feed(read: Callable[[str], Sequence[Event]], start: str, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the bytes of a feed until the server stops, or the user may no longer read the events."""
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    cursor, quiet_seconds = start, 0.0
    while not is_over():
        try:
            events = await run_in_threadpool(read, cursor)
        except AgentGitError:
            return  # the client reconnects, and that request reports the error
        for event in events:
            yield encode_event(event)
            cursor = event.cursor or cursor
        quiet_seconds = 0.0 if events else quiet_seconds + POLL_SECONDS
        if quiet_seconds >= HEARTBEAT_SECONDS:
            quiet_seconds = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)


def encode_event(event: Event) -> bytes:
    """Encode an event. Its cursor is the id with which a browser that reconnects says where to go on."""
    data = to_json(event.to_dict()).strip()
    return f"id: {event.cursor}\nevent: {event.kind}\n".encode() + b"data: " + data + b"\n\n"
