"""The events of a user's sessions: callbacks, feeds and the audit trail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.errors import InvalidInput, NotAllowed
from agentgit.handles.context import Context
from agentgit.handles.session_reader import SessionReader, SessionRef, session_id
from agentgit.sessions.events import NO_SESSION, Event, Tip, Verified, match_kinds
from agentgit.sessions.reports import OnProgress
from agentgit.sessions.session import require_limit
from agentgit.store.audit.bus import Callback, Subscription
from agentgit.store.audit.trail import EventFilter
from agentgit.store.maintenance.fsck import check
from agentgit.store.sql.ids import COUNTER_BITS, ID_LIMIT, new_id

PAGE = 500
"""The number of events that one query reads."""

SLOW_SECONDS = 30
"""The seconds after a newer event of another session in which an event can be committed and still be in a feed."""


class Events:
    """The events of a user's sessions, available as `Repository.events`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def __repr__(self) -> str:
        return f"Events(of {self.context.user.name!r})"

    def on(
        self,
        kinds: str | Sequence[str],
        callback: Callback,
        *,
        session: SessionReader | SessionRef = None,
        wait: bool = False,
    ) -> Subscription:
        """Call a function with each event that is committed through this repository, from now on.

        The function is called after the commit, in its own thread, in the order of events of each session. It may be
        slow. Exceptions that it raises are logged and counted. A coroutine function runs on the event loop of the async
        call that caused the event, or on its own loop if the call was synchronous.

        Args:
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            callback: The function to call with the `Event`.
            session: The session whose events to receive; None for all of the user's and those shared with the user.
            wait: True to let what causes an event return only when the function has handled it. The function is still
                called after the commit. What it does itself does not wait, and it must not wait for what called it.

        Returns:
            The subscription; its `close` ends it.

        Raises:
            InvalidInput: There is no such kind, or `callback` is not callable.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> def show(event):
            ...     print(event.branch_name, event.detail["number"])
            >>> with repo.events.on("checkpoint.*", show) as told:
            ...     answer = agent.run("order two chairs")
            ...     done = told.wait()
            main 1
            main 2
            >>> with repo.events.on("checkpoint.created", show, wait=True):
            ...     checkpoint = repo.session("s").checkpoint("before payment")
            ...     print("saved")
            main 3
            saved
        """
        self.context.store.database.require_open()
        matching_kinds = match_kinds(kinds)
        if not callable(callback):
            raise InvalidInput(f"{callback!r} is not callable. Give a function that takes an event.")
        chosen_session_id = session_id(self.context, session)

        def is_match(event: Event) -> bool:
            return event.kind in matching_kinds and chosen_session_id in (None, event.session_id)

        return self.context.store.database.bus.subscribe(callback, is_match, self._can_see, holds_verbs=wait)

    def _can_see(self, event: Event) -> bool:
        """Return whether the user may see an event, at the time when it is delivered."""
        if event.owner_id == self.context.user.id and self.context.principal.since is None:
            return True
        with suppress(NotAllowed):  # an expired or revoked handle receives nothing
            return self.context.read(
                lambda c: (
                    event.owner_id == self.context.user.id
                    or (
                        event.session_id is not None
                        and self.context.lookup.find_visible(c, event.session_id) is not None
                    )
                )
            )
        return False

    # -- the trail

    def list(
        self,
        *,
        session: SessionReader | SessionRef = None,
        after: Event | int | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        follow: bool = False,
        poll: float = 0.5,
    ) -> Iterator[Event]:
        """Iterate over the events in the audit trail, oldest first, including those of other processes.

        Args:
            session: The session whose events to return; None for all of the user's and those shared with the user.
            after: The last event that you have, or its id; only later events are returned.
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            since: The earliest time of an event, with a time zone.
            follow: True to keep waiting for new events and never return.
            poll: The seconds between two queries while following.

        Raises:
            InvalidInput: There is no such kind, the time has no zone, or `after` is neither an event nor an id.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> [event.kind for event in repo.events.list()]
            ['session.created']
        """
        pages = self._pages(session, after, kinds, since, follow=follow)
        return self._iterate_events(pages, poll)

    async def alist(
        self,
        *,
        session: SessionReader | SessionRef = None,
        after: Event | int | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        follow: bool = False,
        poll: float = 0.5,
    ) -> AsyncIterator[Event]:
        """See `list`."""
        pages = await asyncio.to_thread(self._pages, session, after, kinds, since, follow=follow)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for event in page:
                yield event
            if not page:  # waits here and not in the thread, where it could not be cancelled
                await asyncio.sleep(poll)

    def _iterate_events(self, pages: Iterator[Sequence[Event]], poll: float) -> Iterator[Event]:
        for page in pages:
            yield from page
            if not page:
                time.sleep(poll)

    def _pages(
        self,
        session: SessionReader | SessionRef,
        after: Event | int | None,
        kinds: str | Sequence[str],
        since: datetime | None,
        *,
        follow: bool,
    ) -> Iterator[Sequence[Event]]:
        """Check the arguments of `list` and return its events in pages; while following, a page may be empty."""
        matching_kinds, chosen_session_id = _validate_filter(kinds, since), session_id(self.context, session)
        start_id = after.id if isinstance(after, Event) else after or 0
        if isinstance(start_id, bool) or not isinstance(start_id, int):
            raise InvalidInput(f"after must be an event or its id, not {after!r}.")
        return self._read_pages(
            chosen_session_id, max(0, min(start_id, ID_LIMIT)), matching_kinds, since, follow=follow
        )

    def _read_pages(
        self, session_id: int | None, start_id: int, kinds: frozenset[str], since: datetime | None, *, follow: bool
    ) -> Iterator[Sequence[Event]]:
        """Read page by page; while following, read the newest again, because slow transactions may commit late."""
        last_numbers: dict[int, int] = {}
        newest_id = position = start_id
        while True:
            page = self._read_page(session_id, after=position, kinds=kinds, since=since)
            new_events: list[Event] = []
            for event in page:
                position = event.id
                trail_id = event.session_id or NO_SESSION
                if event.number > last_numbers.get(trail_id, 0):
                    last_numbers[trail_id] = event.number
                    new_events.append(event)
            if new_events:
                yield new_events
            newest_id = max(newest_id, position)
            if len(page) == PAGE:
                continue
            if not follow:
                return
            position = newest_id
            if session_id is None:  # counted from now if the newest event is from a process whose clock is ahead
                position = max(start_id, min(newest_id, new_id()) - (SLOW_SECONDS * 1000 << COUNTER_BITS))
            yield ()

    def _read_page(
        self, session_id: int | None, *, after: int, kinds: frozenset[str], since: datetime | None
    ) -> Sequence[Event]:
        trail = self.context.store.trail
        return self.context.read(
            lambda c: trail.read(c, self._filter(c, session_id), after=after, kinds=kinds, since=since, limit=PAGE)
        )

    def newest(
        self,
        *,
        session: SessionReader | SessionRef = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[Event]:
        """Return the newest events, oldest first.

        Args:
            session: The session whose events to return; None for all of the user's and those shared with the user.
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            since: The earliest time of an event, with a time zone.
            limit: The maximum number of results.

        Raises:
            InvalidInput: There is no such kind, the time has no zone, or the limit is not valid.
            NotFound: There is no such session.
        """
        matching_kinds, chosen_session_id = _validate_filter(kinds, since), session_id(self.context, session)
        require_limit(limit, "events")
        return self.context.read(
            lambda c: self.context.store.trail.newest(
                c, self._filter(c, chosen_session_id), kinds=matching_kinds, since=since, limit=limit
            )
        )

    def last_id(self) -> int:
        """Return the id of the newest event of the user's sessions; 0 if there is none."""
        return self.context.read(lambda c: self.context.store.trail.last_id(c, self._filter(c, None)))

    def _filter(self, connection: Connection, session_id: int | None) -> EventFilter:
        """Return the filter for the events that the user may see now."""
        if session_id is not None:
            self.context.lookup.require_role(connection, session_id)
            return EventFilter(self.context.user.id, session_id=session_id)
        return EventFilter(
            self.context.user.id, self.context.store.visible_sessions.shared_ids(connection, self.context.user.id)
        )

    def verify(self, known: Collection[Tip] = (), *, progress: OnProgress | None = None) -> Verified:
        """Check whether the audit trail of this database is intact.

        A row that was changed, moved or removed breaks the hashes after it. Rows removed from the end, or a trail that
        was rewritten as a whole, can only be detected by comparison with tips that were stored elsewhere.

        Args:
            known: Tips that were stored elsewhere; each trail must still contain its own.
            progress: Called with the number of rows that are done, and their total.

        Raises:
            NotAllowed: You are not an admin.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> before = repo.events.tips()
            >>> other = repo.session("support-43", create=True)
            >>> repo.events.verify(before).is_sound
            True
        """
        self.context.require_admin("events.verify")
        return check.verify_trail(self.context.store, known, progress)

    def tips(self) -> Sequence[Tip]:
        """Return the tip of each trail of this database, to store elsewhere and pass to `verify` later.

        Raises:
            NotAllowed: You are not an admin.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> [tip.session_id == session.id for tip in repo.events.tips()]
            [True]
        """
        self.context.require_admin("events.tips")
        return self.context.read(self.context.store.trail.tips)

    def audit(self, *, kinds: str | Sequence[str] = "*", limit: int = 50) -> Sequence[Event]:
        """Return the newest events that belong to no session, such as logins, oldest first. For admins.

        Args:
            kinds: A kind like `user.added`, a pattern like `user.*` or `*`; or several.
            limit: The maximum number of results.

        Raises:
            NotAllowed: You are not an admin.
            InvalidInput: There is no such kind, or the limit is not valid.
        """
        matching_kinds, no_session_filter = match_kinds(kinds), EventFilter(self.context.user.id, session_id=NO_SESSION)
        require_limit(limit, "events")
        self.context.require_admin("events.audit")
        return self.context.read(
            lambda c: self.context.store.trail.newest(c, no_session_filter, kinds=matching_kinds, limit=limit)
        )

    anewest = async_twin(newest)
    alast_id = async_twin(last_id)
    averify = async_twin(verify)
    atips = async_twin(tips)
    aaudit = async_twin(audit)


def _validate_filter(kinds: str | Sequence[str], since: datetime | None) -> frozenset[str]:
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidInput(f"since must be a datetime with a time zone, not {since!r}.")
    return match_kinds(kinds)
