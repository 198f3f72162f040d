"""The verbs that tell: callbacks and feeds of events, the audit trail, webhooks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from urllib.parse import urlsplit

from sqlalchemy import Connection

from agentgit.auth.scopes import WRITE
from agentgit.errors import InvalidInput, NotAllowed, NotFound
from agentgit.handles.session import SessionRef, Verbs
from agentgit.repository.webhook_sender import deliver
from agentgit.sessions.events import NOWHERE, Event, Tip, Verified, chosen
from agentgit.sessions.maintenance import Progress
from agentgit.sessions.session import expect_limit
from agentgit.sessions.webhooks import Delivered, Webhook, expect_url, key_of, new_secret
from agentgit.store.audit.bus import Callback, Subscription
from agentgit.store.audit.trail import Whose
from agentgit.store.maintenance.fsck import check
from agentgit.store.sql.ids import COUNTER_BITS, ID_LIMIT, new_id

PAGE = 500
"""The number of events that are read at once."""

SLOW_SECONDS = 30
"""The seconds by which an event may be committed later than a newer one of another session, and still be in a feed."""


class Tells(Verbs):
    """Methods of a repository that report the events of its user's sessions."""

    # -- callbacks

    def on(self, kinds: str | Sequence[str], callback: Callback, session: SessionRef = None) -> Subscription:
        """Call a function with each event that is committed through this repository, from now on.

        It is called after the commit, in the order of each session, in a thread of its own: it may be slow, and what it
        raises is logged and counted. A coroutine function runs on the event loop of the async verb that it is told of;
        of a sync verb, on a loop of its own.

        Args:
            kinds: A kind like `checkpoint.created`, a pattern like `checkpoint.*` or `*`; or several.
            callback: The function to call with the `Event`.
            session: Only this one; None for all of the user's, and those that others share.

        Returns:
            What `close` ends.

        Raises:
            InvalidInput: There is no such kind, or nothing to call.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> with repo.on("checkpoint.*", lambda event: print(event.branch_name, event.detail["number"])) as told:
            ...     answer = agent.run("order two chairs")
            ...     done = told.wait()
            main 1
            main 2
        """
        self.store.database.expect_open()
        wanted = chosen(kinds)
        if not callable(callback):
            raise InvalidInput(f"{callback!r} cannot be called. Give a function that takes an event.")
        of = self._of(session)

        def wants(event: Event) -> bool:
            return event.kind in wanted and of in (None, event.session_id)

        return self.store.database.bus.subscribe(callback, wants, self._may_be_told)

    def _may_be_told(self, event: Event) -> bool:
        """Return whether an event is of an own session, or of one that is shared now; asked when it is told."""
        if event.owner_id == self.user.id and self.principal.since is None:
            return True
        with suppress(NotAllowed):  # a handle that holds no more is told nothing
            return self._read(
                lambda c: (
                    event.owner_id == self.user.id
                    or (event.session_id is not None and self.lookup.sees(c, event.session_id) is not None)
                )
            )
        return False

    def _of(self, session: SessionRef) -> int | None:
        return self._read(lambda c: self.lookup.session(c, session)).id if session is not None else None

    # -- the trail

    def events(
        self,
        session: SessionRef = None,
        *,
        after: Event | int | None = None,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        follow: bool = False,
        poll: float = 0.5,
    ) -> Iterator[Event]:
        """Return what happened, the oldest first, from the audit trail: also what other processes did.

        Args:
            session: Only this one; None for all of the user's.
            after: The last event that you have, or its id.
            kinds: The kinds of events, as `on` takes them.
            since: Only what happened then or later, an aware time.
            follow: True to wait for what comes, for ever.
            poll: The seconds between two looks.

        Raises:
            InvalidInput: There is no such kind, or the time has no zone.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.ensure_session("support-42")
            >>> [event.kind for event in repo.events()]
            ['session.created']
        """
        wanted, of = _wanted(kinds, since), self._of(session)
        start = after.id if isinstance(after, Event) else after or 0
        if isinstance(start, bool) or not isinstance(start, int):
            raise InvalidInput(f"after={after!r} is no event. Give one, or its id.")
        start = max(0, min(start, ID_LIMIT))
        return self._events(of, start, wanted, since, poll if follow else None)

    def _events(
        self, session_id: int | None, start: int, kinds: frozenset[str], since: datetime | None, poll: float | None
    ) -> Iterator[Event]:
        """Read page by page; while following, look again at the newest, where slow transactions may come late."""
        given: dict[int, int] = {}
        newest = at = start
        while True:
            page = self._read(
                lambda c, at=at: self.store.trail.read(  # type: ignore[misc]
                    c, self._whose(c, session_id), after=at, kinds=kinds, since=since, limit=PAGE
                )
            )
            for event in page:
                at = event.id
                place = event.session_id or NOWHERE
                if event.number > given.get(place, 0):
                    given[place] = event.number
                    yield event
            newest = max(newest, at)
            if len(page) == PAGE:
                continue
            if poll is None:
                return
            at = newest
            if session_id is None:  # back from now, if the newest is of a process whose clock is ahead
                at = max(start, min(newest, new_id()) - (SLOW_SECONDS * 1000 << COUNTER_BITS))
            time.sleep(poll)

    def last_events(
        self,
        session: SessionRef = None,
        *,
        kinds: str | Sequence[str] = "*",
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[Event]:
        """Return the newest events, the oldest of these first.

        Args:
            session: The session, as `events` takes it.
            kinds: Patterns like `rollback.*`, one or several.
            since: Only events from this time on.
            limit: The largest number of results.

        Raises:
            InvalidInput, NotFound: As `events`.
        """
        wanted, of = _wanted(kinds, since), self._of(session)
        expect_limit(limit, "events")
        return self._read(
            lambda c: self.store.trail.newest(c, self._whose(c, of), kinds=wanted, since=since, limit=limit)
        )

    def last_event_id(self) -> int:
        """Return the id of the newest event of the user's sessions; 0 if there is none."""
        return self._read(lambda c: self.store.trail.last_id(c, self._whose(c, None)))

    def _whose(self, connection: Connection, session_id: int | None) -> Whose:
        """Return which events the user may see now."""
        if session_id is not None:
            self.lookup.admit(connection, session_id)
            return Whose(self.user.id, session_id=session_id)
        return Whose(self.user.id, self.store.visible.shared_ids(connection, self.user.id))

    def audit_verify(self, known: Collection[Tip] = (), *, progress: Progress | None = None) -> Verified:
        """Check whether the audit trail of this database is as it was written.

        A row that was changed, moved or taken out breaks the hashes after it. If rows were cut off at the end, or all
        of it was written anew, that only shows in comparison with tips that were kept somewhere else.

        Args:
            known: Tips that were kept somewhere else: each trail must still lead through its own.
            progress: Called with how many rows are done, and of how many.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.ensure_session("support-42")
            >>> before = repo.audit_tips()
            >>> other = repo.ensure_session("support-43")
            >>> repo.audit_verify(before).is_sound
            True
        """
        self._expect_admin("audit_verify")
        return check.verify_trail(self.store, known, progress)

    def audit_tips(self) -> list[Tip]:
        """Return the last event of each trail of this database, to be kept somewhere else; `audit_verify` takes them.

        Raises:
            NotAllowed: You are no admin.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.ensure_session("support-42")
            >>> [tip.session_id == session.id for tip in repo.audit_tips()]
            [True]
        """
        self._expect_admin("audit_tips")
        return self._read(self.store.trail.tips)

    # -- webhooks

    @cached_property
    def webhooks(self) -> Webhooks:
        """The webhooks that this user's events are sent to."""
        return Webhooks(self)


class Webhooks:
    """The webhooks of a user. `Repository.webhooks` is it.

    Args:
        verbs: The repository, which is bound to the user.
    """

    def __init__(self, verbs: Tells) -> None:
        self.store = verbs.store
        self.user = verbs.user
        self._verbs = verbs

    def __repr__(self) -> str:
        return f"Webhooks(user={self.user.name!r})"

    def add(
        self, url: str, kinds: str | Sequence[str] = "*", secret: str | None = None, session: SessionRef = None
    ) -> Webhook:
        """Send events to a URL from now on; they wait in the outbox until `deliver` sends them.

        Args:
            url: Http or https, of a host with public addresses, or of one that the operator allows
                (`agentgit.open(webhook_hosts=...)`). Its addresses are resolved and checked at each delivery.
            kinds: The kinds of events, as `Repository.on` takes them.
            secret: Signs the messages: at least 24 bytes, as text or as base64 after `whsec_`. None makes one.
            session: Only its events; None for all of the user's.

        Returns:
            The webhook; its `secret` is only here, and is not in its repr.

        Raises:
            InvalidInput: The URL, a kind or the secret cannot be meant, or the URL has an address that is not public.
            NotFound: There is no such session.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> hook = repo.webhooks.add("https://example.com/hooks", "rollback.*")
            >>> session = repo.ensure_session("support-42")
            >>> [(one.url, one.pending) for one in repo.webhooks.list()]
            [('https://example.com/hooks', 0)]
        """
        patterns = [kinds] if isinstance(kinds, str) else list(kinds)
        if not chosen(patterns):
            raise InvalidInput("Say which events: '*' is all of them.")
        of, given = self._verbs._of(session), secret if secret is not None else new_secret()
        key_of(given)
        self.store.webhook_hosts.expect_written(urlsplit(expect_url(url)).hostname or "")

        def make(connection: Connection) -> int:
            self.store.users.expect(connection, self.user.id)
            if of is not None:
                self.store.sessions.lock(connection, of)  # who erases it comes before this, or takes it along
            return self.store.outbox.add(connection, self.user.id, url, patterns, given, of)

        found = self._find(self._verbs._change(make, scope=WRITE))
        object.__setattr__(found, "secret", given)
        return found

    def list(self) -> list[Webhook]:
        """List them, the oldest first, each with what is still to be sent."""
        return self._verbs._read(lambda c: self.store.outbox.all(c, self.user.id))

    def remove(self, webhook: Webhook | int) -> Webhook:
        """Send nothing more to a webhook, also not what waits; give what it was.

        Raises:
            NotFound: There is none.
        """
        found = self._find(webhook)
        self._verbs._change(lambda c: self.store.outbox.remove(c, self.user.id, found.id), scope=WRITE)
        return found

    def retry(self, webhook: Webhook | int) -> int:
        """Let what was given up be sent again, and what waits at once; tell how many events that are.

        Raises:
            NotFound: There is none.
        """
        found = self._find(webhook)
        return self._verbs._change(lambda c: self.store.outbox.retry(c, found.id), scope=WRITE)

    def deliver(self) -> Delivered:
        """Send what is due, of all users of this database, until nothing is; call it again and again.

        Each event is sent at least once, with the same `webhook-id` each time. Several processes may deliver at once.

        Raises:
            Unavailable: Httpcore is not installed.
        """
        self._verbs._expect_admin("webhooks.deliver")
        return deliver(self.store)

    def _find(self, webhook: Webhook | int) -> Webhook:
        wanted = webhook.id if isinstance(webhook, Webhook) else webhook
        found = next((one for one in self.list() if one.id == wanted), None)
        if found is None:
            raise NotFound(f"There is no webhook {wanted}. List them: repo.webhooks.list(), or agentgit webhooks list.")
        return found


def _wanted(kinds: str | Sequence[str], since: datetime | None) -> frozenset[str]:
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidInput(f"since={since!r} is no aware time. Give one with a zone.")
    return chosen(kinds)
