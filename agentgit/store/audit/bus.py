"""The event bus of one open database: callbacks that are told what was committed through it.

Each callback has a thread of its own, so that one that is slow or blocks holds up neither the agent nor the others.
What it raises is logged and counted. The order of each session is that of its trail: a transaction takes its place in
line before it commits, and who comes after it waits for how that ends.
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
from agentgit.sessions.events import NOWHERE, Event

LOG = logging.getLogger("agentgit.events")

MOST = 10_000
"""The greatest number of events that wait for a callback. Beyond it, the oldest are left out and counted."""

LAST_SECONDS = 5.0
"""The time that closing waits for unfinished callbacks."""

LOOK_SECONDS = 0.05
"""The interval at which a thread checks that the loop that it waits for still runs."""

Callback = Callable[[Event], Any]
Wants = Callable[[Event], bool]


@dataclass
class _Place:
    """The place of a transaction in the line of one session."""

    session_id: int
    events: list[tuple[Event, asyncio.AbstractEventLoop | None]]
    settled: bool | None = None
    """True if it was committed, False if it was not; None while that is not known."""


@dataclass
class Bus:
    """The callbacks of one open database."""

    _subscriptions: list[Subscription] = field(default_factory=list)
    _lines: dict[int, deque[_Place]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_known_at_exit: bool = False

    @property
    def is_heard(self) -> bool:
        """True if somebody listens."""
        return bool(self._subscriptions)

    def expect(self, events: Sequence[Event]) -> list[_Place]:
        """Take a place in line for events whose transaction is about to commit."""
        loop = LOOP.get()
        places: dict[int, _Place] = {}
        for event in events:
            session_id = event.session_id or NOWHERE
            places.setdefault(session_id, _Place(session_id, [])).events.append((event, loop))
        with self._lock:
            for place in places.values():
                self._lines.setdefault(place.session_id, deque()).append(place)
        return list(places.values())

    def settle(self, places: Sequence[_Place], *, committed: bool) -> None:
        """Record how a transaction ended, and pass the committed events at the head of its lines to the callbacks."""
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
        for one in slow:  # no lock is held: a handler of the log may write here, too
            LOG.error("%r is too slow and missed events. Read them with repo.events.list(after=...).", one)

    def subscribe(self, callback: Callback, wants: Wants, may: Wants | None = None) -> Subscription:
        """Call `callback` with each event that it wants and may be told, from now on."""
        made = Subscription(self, callback, wants, may)
        made._thread.start()  # not at the first event: that is told behind a commit, where nothing may fail
        with self._lock:
            self._subscriptions = [*self._subscriptions, made]
            if not self._is_known_at_exit:
                self._is_known_at_exit = True
                atexit.register(_at_exit, weakref.ref(self))
        return made

    def leave(self, one: Subscription) -> None:
        """Remove a subscription, so that it receives nothing more."""
        with self._lock:
            self._subscriptions = [other for other in self._subscriptions if other is not one]

    def after_fork(self) -> None:
        """Clear all subscriptions and lines in a child process; their threads and transactions are in its parent."""
        self._subscriptions, self._lines, self._lock = [], {}, threading.Lock()

    def close(self) -> None:
        """Close all subscriptions, each when it has done what waits for it, or after a few seconds."""
        until = time.monotonic() + LAST_SECONDS
        for one in self._subscriptions:
            one.close(max(0.0, until - time.monotonic()))


def _at_exit(bus: weakref.ref[Bus]) -> None:
    if (found := bus()) is not None:
        found.close()


class Subscription:
    """A callback that is told events, until it is closed. A context manager. Made by `Events.on`.

    Args:
        bus: The bus that calls it.
        callback: The function to call with each event, in a thread of its own; or a coroutine function.
        wants: The function that decides which events it gets. It must be quick.
        may: The function that decides whether it may get an event when its turn has come. It may read the database.

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
        """The number of calls of the callback that returned."""
        self.failed = 0
        """The number of calls that raised."""
        self.missed = 0
        """The number of events that the callback missed: too many waited, or it was closed before their turn."""
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
        self._left: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        name = getattr(self.callback, "__qualname__", type(self.callback).__name__)
        return f"Subscription({name}, handled={self.handled}, failed={self.failed}, missed={self.missed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float | None = LAST_SECONDS) -> bool:
        """Wait until it has done what was committed so far; tell whether it has.

        Args:
            timeout: Seconds; None is for ever. On an event loop use `await asyncio.to_thread(subscription.wait)`.
                In the callback itself it does not wait.
        """
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, timeout)

    def close(self, timeout: float | None = LAST_SECONDS) -> None:
        """End it, when it has done what was committed so far, or after `timeout` seconds."""
        self._bus.leave(self)
        try:  # where this blocks a loop, nothing can run on that: what waits for it runs elsewhere
            self._left = asyncio.get_running_loop()
        except RuntimeError:
            self._left = None
        self.wait(timeout)
        with self._changed:
            self._is_closed = True
            self.missed += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    # -- the thread

    def _take(self, event: Event, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Let an event wait for the thread; False if for the first time another one was left out for it."""
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
                except BaseException as error:  # whatever a callback raises is no reason to lose the next
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
        """Wait for an async callback: on the loop of the verb that it is told of, while that runs, else in here."""
        begun = threading.Event()

        async def run() -> None:
            begun.set()
            await answer

        if loop is None or not loop.is_running() or loop is self._left:
            runner.run(run())
            return
        there = run()
        try:
            future = asyncio.run_coroutine_threadsafe(there, loop)
        except RuntimeError:  # it was closed just now
            there.close()
            runner.run(run())
            return
        while not _is_over(future):
            if loop.is_running() and loop is not self._left:
                continue
            if begun.is_set():
                if loop is self._left and loop.is_running():
                    return  # it goes on there by itself; who closes the subscription holds its loop up
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
            there.close()  # the loop ended before it came to it
            runner.run(run())


def _is_over(future: concurrent.futures.Future[None]) -> bool:
    """Wait a moment for a future; tell whether it is over."""
    return bool(concurrent.futures.wait([future], LOOK_SECONDS).done)
