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
from contextvars import ContextVar
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

_in_callback: ContextVar[bool] = ContextVar("agentgit_in_callback", default=False)
"""True in what a callback runs, on any thread or event loop: waiting there for a callback could wait for itself."""

Callback = Callable[[Event], Any]
EventPredicate = Callable[[Event], bool]


@dataclass
class _QueuedEvents:
    """An entry in the queue of one session: the events of one transaction."""

    session_id: int
    events: list[tuple[Event, asyncio.AbstractEventLoop | None]]
    is_committed: bool | None = None
    """True if the transaction was committed, False if it was rolled back; None while the outcome is not known."""
    delivered: threading.Event = field(default_factory=threading.Event)
    """Set when the events are in the queues of the subscriptions."""


@dataclass
class Bus:
    """The subscriptions to the events of one open database."""

    _subscriptions: list[Subscription] = field(default_factory=list)
    _queues: dict[int, deque[_QueuedEvents]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _has_exit_handler: bool = False

    @property
    def has_subscriptions(self) -> bool:
        """True if there are subscriptions."""
        return bool(self._subscriptions)

    def enqueue(self, events: Sequence[Event]) -> list[_QueuedEvents]:
        """Queue the events of a transaction that is about to commit."""
        loop = LOOP.get()
        entries: dict[int, _QueuedEvents] = {}
        for event in events:
            session_id = event.session_id or NO_SESSION
            entries.setdefault(session_id, _QueuedEvents(session_id, [])).events.append((event, loop))
        with self._lock:
            for entry in entries.values():
                self._queues.setdefault(entry.session_id, deque()).append(entry)
        return list(entries.values())

    def finish_transaction(self, entries: Sequence[_QueuedEvents], *, committed: bool) -> None:
        """Record whether a transaction was committed, then deliver the committed events at the head of its queues.

        Wait for the subscriptions that handle events before the verb returns.
        """
        overflowed: list[Subscription] = []
        with self._lock:
            for entry in entries:
                entry.is_committed = committed
                queue = self._queues[entry.session_id]
                while queue and queue[0].is_committed is not None:
                    head = queue.popleft()
                    for event, loop in head.events if head.is_committed else ():
                        overflowed += [one for one in self._subscriptions if not one.enqueue(event, loop)]
                    head.delivered.set()
                if not queue:
                    del self._queues[entry.session_id]
        for subscription in overflowed:  # outside the lock, because a log handler may write to this database too
            LOG.error("%r is too slow and missed events. Read them in the audit trail.", subscription)
        if committed and not _in_callback.get():
            self._wait_for_callbacks(entries)

    def _wait_for_callbacks(self, entries: Sequence[_QueuedEvents]) -> None:
        """Wait until the subscriptions that hold verbs back have handled the events of a transaction."""
        for subscription in [one for one in self._subscriptions if one.holds_verbs]:
            for entry in entries:
                entry.delivered.wait()  # behind a transaction of the same session whose outcome is not known yet
            subscription.wait_for_received()

    def subscribe(
        self,
        callback: Callback,
        is_wanted: EventPredicate,
        is_allowed: EventPredicate | None = None,
        *,
        holds_verbs: bool = False,
    ) -> Subscription:
        """Call `callback` with each later event for which `is_wanted` and `is_allowed` return True.

        With `holds_verbs`, what commits an event returns only when the callback has handled it.
        """
        subscription = Subscription(self, callback, is_wanted, is_allowed, holds_verbs=holds_verbs)
        with self._lock:
            self._subscriptions = [*self._subscriptions, subscription]
            if not self._has_exit_handler:
                self._has_exit_handler = True
                atexit.register(_close_at_exit, weakref.ref(self))
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription, so that it receives no more events."""
        with self._lock:
            self._subscriptions = [other for other in self._subscriptions if other is not subscription]

    def after_fork(self) -> None:
        """Clear all subscriptions and queues in a child process. Their threads and transactions are in the parent."""
        self._subscriptions, self._queues, self._lock = [], {}, threading.Lock()

    def close(self) -> None:
        """Close all subscriptions. Wait up to `CLOSE_SECONDS` in all for the events that they have not handled yet."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for subscription in self._subscriptions:
            subscription.close(max(0.0, deadline - time.monotonic()))


def _close_at_exit(bus_reference: weakref.ref[Bus]) -> None:
    if (bus := bus_reference()) is not None:
        bus.close()


class Subscription:
    """A callback that receives events until it is closed. A context manager, returned by `Events.on`.

    Args:
        bus: The bus that delivers the events.
        callback: The function or coroutine function to call with each event, in its own thread.
        wants: The function that selects events when they are committed. It must be quick.
        may: The function that checks permission just before an event is delivered. It may read the database.
        holds_verbs: True if what commits an event returns only when the callback has handled it.

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

    def __init__(
        self,
        bus: Bus,
        callback: Callback,
        wants: EventPredicate,
        may: EventPredicate | None = None,
        *,
        holds_verbs: bool = False,
    ) -> None:
        self.callback = callback
        self.holds_verbs = holds_verbs
        self.handled = 0
        """The number of calls that returned."""
        self.failed = 0
        """The number of calls that raised."""
        self.missed = 0
        """The number of events that were dropped: too many waited, or the subscription was closed first."""
        self.last_error: BaseException | None = None
        """The last exception that the callback raised."""
        self._bus = bus
        self._is_wanted = wants
        self._is_allowed = may
        self._queue: deque[tuple[Event, asyncio.AbstractEventLoop | None]] = deque()
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._deliver_events, name="agentgit-events", daemon=True)
        self._is_busy = False
        self._is_closed = False
        self._received = self._finished = 0
        self._blocked_loop: asyncio.AbstractEventLoop | None = None
        self._thread.start()  # now, not at the first event: delivery follows a commit and must not fail

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
        with self._condition:
            return self._condition.wait_for(lambda: not self._queue and not self._is_busy, timeout)

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """End the subscription once all events committed so far are handled, or after `timeout` seconds."""
        self._bus.unsubscribe(self)
        try:  # close() blocks this loop: run its pending async callbacks in the thread instead
            self._blocked_loop = asyncio.get_running_loop()
        except RuntimeError:
            self._blocked_loop = None
        self.wait(timeout)
        with self._condition:
            self._is_closed = True
            self.missed += len(self._queue)
            self._queue.clear()
            self._condition.notify_all()

    def wait_for_received(self) -> None:
        """Wait until all events in the queue so far are handled, however many arrive in the meantime."""
        with self._condition:
            target = self._received
            self._condition.wait_for(lambda: self._finished >= target or self._is_closed)

    # -- the thread

    def enqueue(self, event: Event, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Queue an event for the thread. Return False if an event had to be dropped for the first time."""
        if not self._is_wanted(event):
            return True
        if self.holds_verbs and _is_running_here(loop):
            loop = None  # it is blocked until the callback has returned
        with self._condition:
            is_full = len(self._queue) >= MOST
            if is_full:
                self._queue.popleft()
                self.missed += 1
                self._finished += 1
            self._queue.append((event, loop))
            self._received += 1
            self._condition.notify_all()
            return not is_full or self.missed > 1

    def _deliver_events(self) -> None:
        _in_callback.set(True)
        with asyncio.Runner() as runner:
            while (item := self._wait_for_event()) is not None:
                event, loop = item
                try:
                    if self._is_allowed is not None and not self._is_allowed(event):
                        continue
                    result = self.callback(event)
                    if inspect.isawaitable(result):
                        self._run_awaitable(result, loop, runner)
                    self.handled += 1
                except BaseException as error:  # whatever a callback raises, deliver the next event
                    self.failed += 1
                    self.last_error = error
                    LOG.error("A callback failed for event %s %d: %r", event.kind, event.id, self, exc_info=error)

    def _wait_for_event(self) -> tuple[Event, asyncio.AbstractEventLoop | None] | None:
        with self._condition:
            self._finished += self._is_busy
            self._is_busy = False
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            self._is_busy = True
            return self._queue.popleft()

    def _run_awaitable(
        self, awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop | None, runner: asyncio.Runner
    ) -> None:
        """Run an async callback: on the event loop that caused the event, or in this thread if that loop has ended."""
        has_started = threading.Event()

        async def run() -> None:
            has_started.set()
            await awaitable

        if loop is None or not loop.is_running() or loop is self._blocked_loop:
            runner.run(run())
            return
        coroutine = run()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop has just been closed
            coroutine.close()
            runner.run(run())
            return
        while not _wait_until_done(future):
            if loop.is_running() and loop is not self._blocked_loop:
                continue
            if has_started.is_set():
                if loop is self._blocked_loop and loop.is_running():
                    return  # close() blocks the loop; the callback continues there afterwards
                raise RuntimeError("the event loop ended before the callback did")
            future.cancel()
            coroutine.close()
            runner.run(run())
            return
        try:
            future.result()
        except concurrent.futures.CancelledError:
            if has_started.is_set():
                raise
            coroutine.close()  # the loop ended before the callback started
            runner.run(run())


def _is_running_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        return loop is not None and loop is asyncio.get_running_loop()
    except RuntimeError:
        return False


def _wait_until_done(future: concurrent.futures.Future[None]) -> bool:
    """Wait up to `POLL_SECONDS` for a future; return whether it is done."""
    return bool(concurrent.futures.wait([future], POLL_SECONDS).done)
