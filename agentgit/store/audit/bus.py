"""The event bus of one open database: it calls callbacks with the events that are committed through this database.

Each callback has its own thread, so that a slow or blocked callback delays neither the agent nor the other callbacks.
Exceptions of a callback are logged and counted. Events of a session are delivered in the order of its trail: a
transaction joins the session's queue before it commits, and the events behind it wait until its outcome is known.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from agentgit.async_api import LOOP
from agentgit.sessions.events import NO_SESSION, Event

LOG = logging.getLogger("agentgit.events")

MOST = 10_000
"""The greatest number of events that wait for a callback. If there are more, the oldest are dropped and counted."""

CLOSE_SECONDS = 5.0
"""The seconds that closing waits for unfinished callbacks."""

POLL_SECONDS = 0.05
"""The interval, in seconds, at which a waiting thread checks that the event loop of its callback still runs."""

Callback = Callable[[Event], Any]
Wants = Callable[[Event], bool]


@dataclass
class _QueuedEvents:
    """An entry in the queue of one session: the events of one transaction."""

    session_id: int
    events: list[tuple[Event, asyncio.AbstractEventLoop | None]]
    settled: bool | None = None
    """True if the transaction was committed, False if it was rolled back; None while the outcome is not known."""


@dataclass
class Bus:
    """The subscriptions to the events of one open database."""

    _subscriptions: list[Subscription] = field(default_factory=list)
    _lines: dict[int, deque[_QueuedEvents]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_known_at_exit: bool = False

    @property
    def has_subscriptions(self) -> bool:
        """True if there are subscriptions."""
        return bool(self._subscriptions)

    def enqueue(self, events: Sequence[Event]) -> list[_QueuedEvents]:
        """Queue the events of a transaction that is about to commit."""
        loop = LOOP.get()
        places: dict[int, _QueuedEvents] = {}
        for event in events:
            session_id = event.session_id or NO_SESSION
            places.setdefault(session_id, _QueuedEvents(session_id, [])).events.append((event, loop))
        with self._lock:
            for place in places.values():
                self._lines.setdefault(place.session_id, deque()).append(place)
        return list(places.values())

    def finish_transaction(self, places: Sequence[_QueuedEvents], *, committed: bool) -> None:
        """Record whether a transaction was committed, then deliver the committed events at the head of its queues."""
        slow: list[Subscription] = []
        with self._lock:
            for place in places:
                place.settled = committed
                line = self._lines[place.session_id]
                while line and line[0].settled is not None:
                    first = line.popleft()
                    for event, loop in first.events if first.settled else ():
                        slow += [one for one in self._subscriptions if not one._take(event, loop)]
                if not line:
                    del self._lines[place.session_id]
        for one in slow:  # outside the lock, because a log handler may write to this database too
            LOG.error("%r is too slow and missed events. Read them with repo.events.list(after=...).", one)

    def subscribe(self, callback: Callback, wants: Wants, is_allowed: Wants | None = None) -> Subscription:
        """Call `callback` with each later event for which `wants` and `is_allowed` return True."""
        made = Subscription(self, callback, wants, is_allowed)
        made._thread.start()  # now, not at the first event: delivery follows a commit and must not fail
        with self._lock:
            self._subscriptions = [*self._subscriptions, made]
            if not self._is_known_at_exit:
                self._is_known_at_exit = True
                atexit.register(_at_exit, weakref.ref(self))
        return made

    def unsubscribe(self, one: Subscription) -> None:
        """Remove a subscription, so that it receives no more events."""
        with self._lock:
            self._subscriptions = [other for other in self._subscriptions if other is not one]

    def after_fork(self) -> None:
        """Clear all subscriptions and queues in a child process. Their threads and transactions are in the parent."""
        self._subscriptions, self._lines, self._lock = [], {}, threading.Lock()

    def close(self) -> None:
        """Close all subscriptions. Wait up to `CLOSE_SECONDS` in all for the events that they have not handled yet."""
        until = time.monotonic() + CLOSE_SECONDS
        for one in self._subscriptions:
            one.close(max(0.0, until - time.monotonic()))


def _at_exit(bus: weakref.ref[Bus]) -> None:
    if (found := bus()) is not None:
        found.close()


class Subscription:
    """A callback that receives events until it is closed. A context manager, returned by `Events.on`.

    Args:
        bus: The bus that delivers the events.
        callback: The function or coroutine function to call with each event, in its own thread.
        wants: The function that selects events when they are committed. It must be quick.
        may: The function that checks permission just before an event is delivered. It may read the database.

    Example:
        >>> import agentgit
        >>> repo = agentgit.open(":memory:")
        >>> with repo.events.on("session.*", lambda event: print(event.kind, event.session_name)) as subscription:
        ...     session = repo.session("support-42", create=True)
        ...     done = subscription.wait()
        session.created support-42
        >>> subscription.handled, subscription.failed
        (1, 0)
    """

    def __init__(self, bus: Bus, callback: Callback, wants: Wants, may: Wants | None = None) -> None:
        self.callback = callback
        self.handled = 0
        """The number of calls that returned."""
        self.failed = 0
        """The number of calls that raised."""
        self.missed = 0
        """The number of events that were dropped: too many waited, or the subscription was closed first."""
        self.last_error: BaseException | None = None
        """The last exception that the callback raised."""
        self._bus = bus
        self._wants = wants
        self._may = may
        self._waiting: deque[tuple[Event, asyncio.AbstractEventLoop | None]] = deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="agentgit-events", daemon=True)
        self._is_busy = False
        self._is_closed = False
        self._blocked_loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        name = getattr(self.callback, "__qualname__", type(self.callback).__name__)
        return f"Subscription({name}, handled={self.handled}, failed={self.failed}, missed={self.missed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float | None = CLOSE_SECONDS) -> bool:
        """Wait until all events that are committed so far are handled; return whether they are.

        On an event loop, use `await asyncio.to_thread(subscription.wait)`. Inside the callback it returns False at
        once.

        Args:
            timeout: The greatest number of seconds to wait; None means no limit.
        """
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, timeout)

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """End the subscription once all events committed so far are handled, or after `timeout` seconds."""
        self._bus.unsubscribe(self)
        try:  # close() blocks this loop: run its pending async callbacks in the thread instead
            self._blocked_loop = asyncio.get_running_loop()
        except RuntimeError:
            self._blocked_loop = None
        self.wait(timeout)
        with self._changed:
            self._is_closed = True
            self.missed += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    # -- the thread

    def _take(self, event: Event, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Queue an event for the thread. Return False if an event had to be dropped for the first time."""
        if not self._wants(event):
            return True
        with self._changed:
            is_full = len(self._waiting) >= MOST
            if is_full:
                self._waiting.popleft()
                self.missed += 1
            self._waiting.append((event, loop))
            self._changed.notify_all()
            return not is_full or self.missed > 1

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            while (found := self._next()) is not None:
                event, loop = found
                try:
                    if self._may is not None and not self._may(event):
                        continue
                    answer = self.callback(event)
                    if inspect.isawaitable(answer):
                        self._finish(answer, loop, runner)
                    self.handled += 1
                except BaseException as error:  # whatever a callback raises, deliver the next event
                    self.failed += 1
                    self.last_error = error
                    LOG.error("A callback failed for event %s %d: %r", event.kind, event.id, self, exc_info=error)

    def _next(self) -> tuple[Event, asyncio.AbstractEventLoop | None] | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            self._is_busy = True
            return self._waiting.popleft()

    def _finish(self, answer: Awaitable[Any], loop: asyncio.AbstractEventLoop | None, runner: asyncio.Runner) -> None:
        """Run an async callback: on the event loop that caused the event, or in this thread if that loop has ended."""
        begun = threading.Event()

        async def run() -> None:
            begun.set()
            await answer

        if loop is None or not loop.is_running() or loop is self._blocked_loop:
            runner.run(run())
            return
        there = run()
        try:
            future = asyncio.run_coroutine_threadsafe(there, loop)
        except RuntimeError:  # the loop has just been closed
            there.close()
            runner.run(run())
            return
        while not _is_over(future):
            if loop.is_running() and loop is not self._blocked_loop:
                continue
            if begun.is_set():
                if loop is self._blocked_loop and loop.is_running():
                    return  # close() blocks the loop; the callback continues there afterwards
                raise RuntimeError("the event loop ended before the callback did")
            future.cancel()
            there.close()
            runner.run(run())
            return
        try:
            future.result()
        except concurrent.futures.CancelledError:
            if begun.is_set():
                raise
            there.close()  # the loop ended before the callback started
            runner.run(run())


def _is_over(future: concurrent.futures.Future[None]) -> bool:
    """Wait up to `POLL_SECONDS` for a future; return whether it is done."""
    return bool(concurrent.futures.wait([future], POLL_SECONDS).done)
