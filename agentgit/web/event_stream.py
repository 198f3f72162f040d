"""Live feeds: what happens, as server-sent events (WHATWG HTML, section 9.2)."""

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
"""The seconds between two looks at the trail."""

BEAT_SECONDS = 15.0
"""After so long without an event, a comment tells the other side that the feed lives."""

RETRY_MILLISECONDS = 3_000
"""After so long a browser connects again."""


class Full(Exception):
    """Somebody has as many feeds open as one may."""


class Seats:
    """Counts the feeds that each user has open.

    Args:
        most: The largest number of feeds that one user may have open.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._taken.total()

    def take(self, user_id: int) -> None:
        """Take a seat.

        Raises:
            Full: There is none.
        """
        with self._lock:
            if self._taken[user_id] >= self.most:
                raise Full
            self._taken[user_id] += 1

    def leave(self, user_id: int) -> None:
        """Free a seat."""
        with self._lock:
            self._taken[user_id] -= 1
            if not self._taken[user_id]:
                del self._taken[user_id]


class Looking:
    """Looks at the trail again and again, and gives each event once.

    Args:
        repo: The repository whose events are read.
        session_id: Only those of this session; None is all.
        start: The id of the last event that is known.
    """

    def __init__(self, repo: Repository, session_id: int | None, start: int) -> None:
        self._repo = repo
        self._session_id = session_id
        self._start = self.newest = start
        self._given: set[int] = set()

    def look(self) -> list[Event]:
        """Return what is new. Of several sessions one may commit late what has a lower id: that is looked for, too."""
        back = SLOW_SECONDS * 1000 << COUNTER_BITS if self._session_id is None else 0
        after = max(self._start, self.newest - back)
        found = list(self._repo.events.list(session=self._session_id, after=after))
        new = [event for event in found if event.id not in self._given]
        self._given = {event.id for event in found} if back else set()
        self.newest = max([self.newest, *(event.id for event in new)])
        return new


async def feed(looking: Looking, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Return the bytes of a feed until the server stops, or whoever asked may not see it any more.

    Args:
        looking: The source of the events.
        is_over: Tells whether the server stops, or the browser has left.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    quiet = 0.0
    while not is_over():
        newest = looking.newest
        try:
            events = await run_in_threadpool(looking.look)
        except AgentGitError:
            return  # the next request is told why
        for event in events:
            yield written(event, newest)
            newest = max(newest, event.id)
        quiet = 0.0 if events else quiet + POLL_SECONDS
        if quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)


def written(event: Event, newest: int) -> bytes:
    """Write one event. One that came late has no id: a browser that comes again asks for what came after the newest."""
    id = f"id: {event.id}\n".encode() if event.id > newest else b""
    return id + b"event: " + event.kind.encode() + b"\ndata: " + to_json(event.to_dict()).strip() + b"\n\n"
