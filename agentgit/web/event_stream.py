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

BEAT_SECONDS = 15.0
"""The number of seconds without an event after which a comment is sent, so that the client sees a live connection."""

RETRY_MILLISECONDS = 3_000
"""The number of milliseconds after which a disconnected browser reconnects."""


class TooManyFeeds(Exception):
    """The user has reached the limit of open feeds."""


class FeedCounter:
    """The number of open feeds of each user.

    Args:
        most: The maximum number of open feeds of one user.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._taken.total()

    def acquire(self, user_id: int) -> None:
        """Count a new feed of a user.

        Raises:
            TooManyFeeds: The user has reached the limit.
        """
        with self._lock:
            if self._taken[user_id] >= self.most:
                raise TooManyFeeds
            self._taken[user_id] += 1

    def release(self, user_id: int) -> None:
        """Count a feed of a user as closed."""
        with self._lock:
            self._taken[user_id] -= 1
            if not self._taken[user_id]:
                del self._taken[user_id]


class EventPoller:
    """Polls the audit trail, and returns each event once.

    Args:
        repo: The repository whose events are read.
        session_id: The session whose events to return; None for all sessions.
        start: The id of the last event that the client has received.
    """

    def __init__(self, repo: Repository, session_id: int | None, start: int) -> None:
        self._repo = repo
        self._session_id = session_id
        self._start = self.newest = start
        self._given: set[int] = set()

    def poll(self) -> list[Event]:
        """Return the events that were not returned before.

        With several sessions, an event can be committed after one with a higher id. So recent ids are read again.
        """
        back = SLOW_SECONDS * 1000 << COUNTER_BITS if self._session_id is None else 0
        after = max(self._start, self.newest - back)
        found = list(self._repo.events.list(session=self._session_id, after=after))
        new = [event for event in found if event.id not in self._given]
        self._given = {event.id for event in found} if back else set()
        self.newest = max([self.newest, *(event.id for event in new)])
        return new


async def feed(looking: EventPoller, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the bytes of a feed until the server stops, or the user may no longer read the events.

    Args:
        looking: The source of the events.
        is_over: A function that returns whether the server is stopping or the login has ended.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    quiet = 0.0
    while not is_over():
        newest = looking.newest
        try:
            events = await run_in_threadpool(looking.poll)
        except AgentGitError:
            return  # the client reconnects, and that request reports the error
        for event in events:
            yield encode_event(event, newest)
            newest = max(newest, event.id)
        quiet = 0.0 if events else quiet + POLL_SECONDS
        if quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)


def encode_event(event: Event, newest: int) -> bytes:
    """Encode an event. A late event gets no id, so that a browser that reconnects continues after the newest one."""
    id = f"id: {event.id}\n".encode() if event.id > newest else b""
    return id + b"event: " + event.kind.encode() + b"\ndata: " + to_json(event.to_dict()).strip() + b"\n\n"
