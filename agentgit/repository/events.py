"""The events of a user's sessions: callbacks, and the feed."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentgit.async_api import async_iterator_twin, async_twin
from agentgit.errors import Conflict, InvalidInput
from agentgit.handles.context import Context
from agentgit.handles.session_reader import SessionReader, SessionRef, session_id
from agentgit.sessions.events import Cursor, Event, match_kinds
from agentgit.sessions.session import require_limit
from agentgit.store.audit.callbacks import Callback, Subscription
from agentgit.store.audit.trail import NO_SESSION, Scope, of_session, of_user
from agentgit.store.sql.transaction import Reading

PAGE = 500
"""The number of events that one query reads."""

START = Cursor(0, 0)

POLL_SECONDS = 0.5
"""The number of seconds between two queries of a reader that follows the feed."""


class Events:
    """The events of a user's sessions, available as `Repository.events`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def on(
        self, kinds: str | Sequence[str], callback: Callback, *, session: SessionReader | SessionRef = None
    ) -> Subscription:
        """Call a function with each event that is committed through this repository, from now on.

        It is called after the commit, by the thread that has committed, before the verb returns. An exception that it
        raises is logged and counted. Events of other processes, and all events exactly once, are in the feed: `list`.

        Args:
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            callback: The function to call with the `Event`. A turn waits for it, so it must not wait for a turn.
            session: The session whose events to receive; None for all of the user's and those shared with the user.

        Returns:
            The subscription; its `close` ends it.

        Raises:
            InvalidInput: There is no such kind, or `callback` is not a plain function.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> def show(event):
            ...     print(event.branch_name, event.detail["number"])
            >>> with repo.events.on("checkpoint.created", show):
            ...     checkpoint = agent.checkpoint("before payment")
            ...     print("saved")
            main 1
            saved
        """
        database = self.context.store.database
        database.require_open()
        matching_kinds = match_kinds(kinds)
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            raise InvalidInput(
                f"{callback!r} is no function that can be called with an event. Asynchronous code can iterate over "
                "events.afollow()."
            )
        chosen_session_id = session_id(self.context, session)

        def is_wanted(event: Event) -> bool:
            return (
                event.kind in matching_kinds and chosen_session_id in (None, event.session_id) and self._can_see(event)
            )

        return database.callbacks.add(callback, is_wanted)

    def _can_see(self, event: Event) -> bool:
        """Return whether the user may see an event, at the time when it is delivered."""
        store, principal = self.context.store, self.context.principal
        is_own = event.owner_id == principal.user.id
        if is_own and principal.is_operator:
            return True
        # Not `context.read`: it records the refusal of an ended handle, and that event would come here again.
        with store.database.reading() as transaction:
            if not store.users.is_valid(transaction, principal):
                return False
            return is_own or (
                event.session_id is not None
                and self.context.lookup.find_visible(transaction, event.session_id) is not None
            )

    # -- the feed

    def list(
        self,
        *,
        session: SessionReader | SessionRef = None,
        after: Event | str | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
    ) -> Iterator[Event]:
        """Iterate over the events so far, oldest first, including those of other processes.

        Called again and again with the last event as `after`, it returns every event exactly once, in an order that is
        the same for all readers. On PostgreSQL an event appears once every transaction that began before its own has
        ended, whoever runs it on that server.

        Args:
            session: The session whose events to return; None for all of the user's and those shared with the user.
            after: The last event that you have, or its `cursor`; only later events are returned.
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            since: The earliest time of an event, with a time zone.

        Raises:
            InvalidInput: There is no such kind, the time has no zone, or `after` is no event of the feed.
            NotFound: There is no such session.
            Conflict: `after` is ahead of the feed, because the database was restored from an older backup.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> seen = list(repo.events.list())
            >>> checkpoint = session.checkpoint("before payment")
            >>> [event.kind for event in repo.events.list(after=seen[-1])]
            ['checkpoint.created']
        """
        pages = self._pages(session, after, kinds, since)
        return (event for page in pages if page for event in page)

    def follow(
        self,
        *,
        session: SessionReader | SessionRef = None,
        after: Event | str | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        poll: float = POLL_SECONDS,
    ) -> Iterator[Event]:
        """Iterate over the events as `list` does, then wait for new ones and never end.

        Args:
            session: The session whose events to return; None for all of the user's and those shared with the user.
            after: The last event that you have, or its `cursor`; only later events are returned.
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            since: The earliest time of an event, with a time zone.
            poll: The seconds between two queries.

        Raises:
            InvalidInput: There is no such kind, the time has no zone, or `after` is no event of the feed.
            NotFound: There is no such session.
            Conflict: `after` is ahead of the feed, because the database was restored from an older backup.
        """
        pages = self._pages(session, after, kinds, since, follow=True)

        def iterate() -> Iterator[Event]:
            for page in pages:
                yield from page
                if not page:
                    time.sleep(poll)

        return iterate()

    alist = async_iterator_twin(list)

    async def afollow(
        self,
        *,
        session: SessionReader | SessionRef = None,
        after: Event | str | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        poll: float = POLL_SECONDS,
    ) -> AsyncIterator[Event]:
        """See `follow`."""
        pages = await asyncio.to_thread(self._pages, session, after, kinds, since, follow=True)
        while True:
            page = await asyncio.to_thread(next, pages)
            for event in page:
                yield event
            if not page:  # waits here and not in the thread, where it could not be cancelled
                await asyncio.sleep(poll)

    def _pages(
        self,
        session: SessionReader | SessionRef,
        after: Event | str | None,
        kinds: str | Sequence[str],
        since: datetime | None,
        *,
        follow: bool = False,
    ) -> Iterator[Sequence[Event]]:
        """Check the arguments of `list` and return its events in pages; while following, a page may be empty."""
        start = _cursor_of(after)
        return self._read_pages(session_id(self.context, session), start, _filters(kinds, since), follow=follow)

    def _read_pages(
        self, session_id: int | None, position: Cursor, filters: Mapping[str, Any], *, follow: bool
    ) -> Iterator[Sequence[Event]]:
        trail = self.context.store.trail

        def read(transaction: Reading) -> tuple[Cursor, Sequence[Event]]:
            end = trail.end(transaction)
            if position > end or not trail.has_place(transaction, position):
                raise Conflict(
                    f"The feed ends before {position}: the database was restored from an older backup. Read it from "
                    "the beginning, or from events.end()."
                )
            scope = self._scope(transaction, session_id)
            return end, trail.read(transaction, scope, after=position, before=end, limit=PAGE, **filters)

        while True:
            end, page = self.context.read(read)
            if page:
                yield page
            if len(page) == PAGE:
                position = Cursor.parse(page[-1].cursor or "")
            elif follow:
                position = end
                yield ()
            else:
                return

    def end(self) -> str:
        """Return the cursor of the end of the feed: `list(after=...)` returns only what comes after it.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session, end = repo.session("support-42", create=True), repo.events.end()
            >>> list(repo.events.list(after=end))
            []
        """
        return str(self.context.read(self.context.store.trail.end))

    def newest(
        self,
        *,
        session: SessionReader | SessionRef = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[Event]:
        """Return the newest events, oldest first, also those that the feed has not reached yet.

        Args:
            session: The session whose events to return; None for all of the user's and those shared with the user.
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            since: The earliest time of an event, with a time zone.
            limit: The maximum number of results.

        Raises:
            InvalidInput: There is no such kind, the time has no zone, or the limit is not valid.
            NotFound: There is no such session.
        """
        filters, chosen_session_id = _filters(kinds, since), session_id(self.context, session)
        require_limit(limit, "events")
        return self.context.read(
            lambda c: self.context.store.trail.newest(c, self._scope(c, chosen_session_id), limit=limit, **filters)
        )

    def audit(self, *, kinds: str | Sequence[str] = "*", limit: int = 50) -> Sequence[Event]:
        """Return the newest events that belong to no session, such as new keys, oldest first. For admins.

        Args:
            kinds: A kind like `user.added`, a pattern like `user.*` or `*`; or several.
            limit: The maximum number of results.

        Raises:
            NotAllowed: You are not an admin.
            InvalidInput: There is no such kind, or the limit is not valid.
        """
        filters = _filters(kinds, None)
        require_limit(limit, "events")
        self.context.require_admin("events.audit")
        return self.context.read(lambda c: self.context.store.trail.newest(c, NO_SESSION, limit=limit, **filters))

    def _scope(self, transaction: Reading, session_id: int | None) -> Scope:
        """Return the events that the user may see now."""
        if session_id is not None:
            self.context.lookup.require_role(transaction, session_id)
            return of_session(session_id)
        user_id = self.context.user.id
        return of_user(user_id, self.context.store.visible_sessions.shared_ids(transaction, user_id))

    aend = async_twin(end)
    anewest = async_twin(newest)
    aaudit = async_twin(audit)


def _cursor_of(after: Event | str | None) -> Cursor:
    if after is None:
        return START
    text = after.cursor if isinstance(after, Event) else after
    if not isinstance(text, str):
        raise InvalidInput(
            f"after must be an event of the feed or its cursor, not {after!r}. What a callback received has none."
        )
    return Cursor.parse(text)


def _filters(kinds: str | Sequence[str], since: datetime | None) -> Mapping[str, Any]:
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidInput(f"since must be a datetime with a time zone, not {since!r}.")
    return {"kinds": match_kinds(kinds), "since": since}
