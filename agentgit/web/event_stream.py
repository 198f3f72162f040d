"""Live feeds of events, as server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from agentgit.errors import AgentGitError
from agentgit.repository.events import SLOW_SECONDS
from agentgit.store.sql.ids import COUNTER_BITS
from agentgit.values import to_json

if TYPE_CHECKING:
    from agentgit.repository import Repository
    from agentgit.sessions.events import Event

POLL_SECONDS = 1.0
"""The number of seconds between two polls of the audit trail."""

HEARTBEAT_SECONDS = 15.0
"""The number of seconds without an event after which a comment is sent, so that the client sees a live connection."""

RETRY_MILLISECONDS = 3_000
"""The number of milliseconds after which a disconnected browser reconnects."""


class TooManyFeeds(Exception):
    """The user has reached the limit of open feeds."""


class FeedCounter:
    """The number of open feeds of each user."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open_feeds: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._open_feeds.total()

    def acquire(self, user_id: int) -> None:
        """Count a new feed of a user."""
        with self._lock:
            if self._open_feeds[user_id] >= self.most:
                raise TooManyFeeds
            self._open_feeds[user_id] += 1

    def release(self, user_id: int) -> None:
        """Count a feed of a user as closed."""
        with self._lock:
            self._open_feeds[user_id] -= 1
            if not self._open_feeds[user_id]:
                del self._open_feeds[user_id]


class EventPoller:
    """Polls the audit trail, and returns each event once."""

    def __init__(self, repo: Repository, session_id: int | None, start: int) -> None:
        self._repo = repo
        self._session_id = session_id
        self._start = self.newest = start
        self._returned_ids: set[int] = set()

    def poll(self) -> list[Event]:
        """Return the events that were not returned before.

        With several sessions, an event can be committed after one with a higher id. So recent ids are read again.
        """
        overlap = SLOW_SECONDS * 1000 << COUNTER_BITS if self._session_id is None else 0
        after = max(self._start, self.newest - overlap)
        events = list(self._repo.events.list(session=self._session_id, after=after))
        new_events = [event for event in events if event.id not in self._returned_ids]
        self._returned_ids = {event.id for event in events} if overlap else set()
        self.newest = max([self.newest, *(event.id for event in new_events)])
        return new_events


async def feed(poller: EventPoller, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the bytes of a feed until the server stops, or the user may no longer read the events."""
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    quiet_seconds = 0.0
    while not is_over():
        newest = poller.newest
        try:
            events = await run_in_threadpool(poller.poll)
        except AgentGitError:
            return  # the client reconnects, and that request reports the error
        for event in events:
            yield encode_event(event, newest)
            newest = max(newest, event.id)
        quiet_seconds = 0.0 if events else quiet_seconds + POLL_SECONDS
        if quiet_seconds >= HEARTBEAT_SECONDS:
            quiet_seconds = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)


def encode_event(event: Event, newest: int) -> bytes:
    """Encode an event. A late event gets no id, so that a browser that reconnects continues after the newest one."""
    id_line = f"id: {event.id}\n".encode() if event.id > newest else b""
    return id_line + b"event: " + event.kind.encode() + b"\ndata: " + to_json(event.to_dict()).strip() + b"\n\n"
