"""Event callbacks: functions that are called with the events that are committed through an open database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Self

from agentgit.sessions.events import Event

LOG = logging.getLogger("agentgit.events")

Callback = Callable[[Event], Any]
EventPredicate = Callable[[Event], bool]


class Callbacks:
    """The subscriptions to the events of one open database."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []

    def add(self, callback: Callback, is_wanted: EventPredicate) -> Subscription:
        """Call `callback` with each later event for which `is_wanted` returns True."""
        subscription = Subscription(self, callback, is_wanted)
        self.subscriptions.append(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        with suppress(ValueError):
            self.subscriptions.remove(subscription)

    def call(self, events: Sequence[Event]) -> None:
        for event in events:
            for subscription in tuple(self.subscriptions):
                # In a context of its own, because the callback is no part of the turn or the verb that has committed.
                Context().run(subscription.receive, event)


class Subscription:
    """A callback that receives events until it is closed. A context manager, returned by `Events.on`.

    Args:
        callbacks: The subscriptions of the database.
        callback: The function to call with each event.
        is_wanted: The function that selects the events.

    Example:
        >>> import agentgit
        >>> repo = agentgit.open(":memory:")
        >>> with repo.events.on("session.*", lambda event: print(event.kind, event.session_name)):
        ...     session = repo.session("support-42", create=True)
        session.created support-42
    """

    def __init__(self, callbacks: Callbacks, callback: Callback, is_wanted: EventPredicate) -> None:
        self.callback = callback
        self.failed = 0
        """The number of calls that raised."""
        self.last_error: Exception | None = None
        """The last exception that the callback raised."""
        self._callbacks = callbacks
        self._is_wanted = is_wanted

    def __repr__(self) -> str:
        name = getattr(self.callback, "__qualname__", type(self.callback).__name__)
        return f"Subscription({name}, failed={self.failed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription."""
        self._callbacks.remove(self)

    def receive(self, event: Event) -> None:
        """Call the callback with an event that it wants. The event is committed, so an exception is only logged."""
        try:
            if self._is_wanted(event):
                self.callback(event)
        except Exception as error:  # whatever a user's function raises
            self.failed += 1
            self.last_error = error
            LOG.error("A callback failed for event %s %d: %r", event.kind, event.id, self, exc_info=error)
