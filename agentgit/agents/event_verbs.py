"""The verbs of an agent that tell what happens to its session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from agentgit.sessions.events import Event
from agentgit.store.audit.bus import Callback, Subscription

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


class EventVerbs:
    """The methods of `RollbackAgent` that report events of its session, on any branch."""

    @property
    def _told(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    def on(self, kinds: str | Sequence[str], callback: Callback) -> Subscription:
        """Call a function with each event of this session, as `Repository.on`.

        Args:
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            callback: Gets the `Event`; or a coroutine function.

        Raises:
            InvalidInput: There is no such kind, or nothing to call.
        """
        return self._told.repository.on(kinds, callback, self._told._session_id)

    def events(
        self, *, after: Event | int | None = None, kinds: str | Sequence[str] = "*", since: datetime | None = None
    ) -> Iterator[Event]:
        """Return what happened to this session, the oldest first, as `Repository.events`.

        Args:
            after: The last event that you have, or its id.
            kinds: The kinds of events, as `on` takes them.
            since: Only what happened then or later, an aware time.

        Raises:
            InvalidInput: There is no such kind, or the time has no zone.
        """
        return self._told.repository.events(self._told._session_id, after=after, kinds=kinds, since=since)
