"""The outbox: events for webhooks, written in the transaction of the event and kept until they are sent.

A sender takes deliveries by moving their `next_at` into the future, so that no other sender takes them before then. A
delivery that succeeds is deleted. One that fails is tried again later. After `MAX_ATTEMPTS` attempts it is dead until
somebody calls `retry`.
"""

from __future__ import annotations

import functools
import random
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, or_, select, update

from agentgit.errors import InvalidInput
from agentgit.sessions.events import NO_SESSION, Event, match_kinds
from agentgit.sessions.webhooks import DEAD, PENDING, Delivered, Webhook, redact_url
from agentgit.store.audit.trail import record_event
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import (
    SESSION_MEMBER,
    USER,
    WEBHOOK,
    WEBHOOK_DELIVERY,
)
from agentgit.values import as_strings, to_json

LEASE = timedelta(seconds=60)
"""The time for which a delivery belongs to the process that took it."""

MAX_ATTEMPTS = 12
"""The number of attempts to send an event before it is given up, which takes about six hours."""

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(hours=2)
"""The bounds of the pause between attempts. It doubles each time, with some randomness."""

MAX_HOLD = timedelta(minutes=1)
"""The longest time that the other events of a webhook wait after a failed attempt."""


@dataclass(frozen=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that a sender has taken."""

    id: int
    owner: str
    webhook_id: int
    url: str
    secret: str = field(repr=False)
    session_id: int
    number: int
    attempts: int


def enqueue_deliveries(connection: Connection, tenant_id: int, events: Sequence[Event]) -> None:
    """Store events for the webhooks that want them, in the transaction of the events."""
    now, rows = datetime.now(UTC), []
    for webhook in _WEBHOOKS.all(connection, {"tenant": tenant_id}):
        kinds = _matching_kinds(webhook.kinds)
        for event in events:
            is_wanted = event.kind in kinds and webhook.external_session_id in (None, event.session_id)
            if is_wanted and (
                event.owner_id == webhook.user_id or _is_shared(connection, tenant_id, event, webhook.user_id)
            ):
                rows.append(
                    {
                        "tenant_id": tenant_id,
                        "id": new_id(),
                        "webhook_id": webhook.id,
                        "external_session_id": event.session_id or NO_SESSION,
                        "seq": event.number,
                        "status": PENDING,
                        "attempts": 0,
                        "next_at": now,
                        "created_at": now,
                        "owner": None,
                        "last_error": None,
                    }
                )
    if rows:
        _ADD.run(connection, *rows)


def _is_shared(connection: Connection, tenant_id: int, event: Event, user_id: int) -> bool:
    """Return whether the session of an event is currently shared with a user."""
    parameters = {"tenant": tenant_id, "session": event.session_id, "user": user_id, "now": datetime.now(UTC)}
    return event.session_id is not None and bool(
        row_codes.verify_rows(connection, SESSION_MEMBER, _MEMBERSHIP.all(connection, parameters))
    )


@functools.lru_cache(maxsize=256)
def _matching_kinds(patterns: bytes) -> frozenset[str]:
    kinds: set[str] = set()
    for pattern in as_strings(patterns):
        with suppress(InvalidInput):  # an event kind of a newer version must not stop this writer
            kinds |= match_kinds(pattern)
    return frozenset(kinds)


def retry_delay(attempts: int) -> timedelta:
    """Return a random pause before the next attempt, given the number of attempts so far.

    Example:
        >>> timedelta(seconds=2) < retry_delay(1) <= timedelta(seconds=5)
        True
        >>> retry_delay(100) <= LONGEST_PAUSE
        True
    """
    max_delay: timedelta = min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(attempts - 1, 20)))
    return max_delay * random.uniform(0.5, 1)  # noqa: S311  # only spreads the attempts


class Outbox:
    """The webhooks of one tenant and their deliveries."""

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    # -- webhooks

    def add(
        self, connection: Connection, user_id: int, url: str, kinds: Sequence[str], secret: str, session_id: int | None
    ) -> int:
        """Add a webhook; return its id."""
        webhook_id = new_id()
        connection.execute(
            insert(WEBHOOK),
            {
                "tenant_id": self.tenant_id,
                "id": webhook_id,
                "user_id": user_id,
                "external_session_id": session_id,
                "url": url,
                "kinds": to_json(list(kinds)),
                "secret": secret,
                "created_at": datetime.now(UTC),
            },
        )
        record_event(
            connection,
            self.tenant_id,
            "webhook.added",
            session_id=session_id,
            user_id=user_id,
            webhook=webhook_id,
            kinds=list(kinds),
        )
        return webhook_id

    def all(self, connection: Connection, user_id: int) -> list[Webhook]:
        """List a user's webhooks, oldest first."""
        is_of_webhook = and_(
            WEBHOOK_DELIVERY.c.tenant_id == WEBHOOK.c.tenant_id, WEBHOOK_DELIVERY.c.webhook_id == WEBHOOK.c.id
        )
        last_error = (
            select(WEBHOOK_DELIVERY.c.last_error)
            .where(is_of_webhook, WEBHOOK_DELIVERY.c.last_error.is_not(None))
            .order_by(WEBHOOK_DELIVERY.c.id.desc())
            .limit(1)
        )
        query = (
            select(
                WEBHOOK,
                func.count(case((WEBHOOK_DELIVERY.c.status == PENDING, 1))).label("pending"),
                func.count(case((WEBHOOK_DELIVERY.c.status == DEAD, 1))).label("dead"),
                last_error.correlate(WEBHOOK).scalar_subquery().label("last_error"),
            )
            .select_from(WEBHOOK.outerjoin(WEBHOOK_DELIVERY, is_of_webhook))
            .where(WEBHOOK.c.tenant_id == self.tenant_id, WEBHOOK.c.user_id == user_id)
            .group_by(*WEBHOOK.c)
            .order_by(WEBHOOK.c.id)
        )
        return [
            Webhook(
                id=row.id,
                url=redact_url(row.url),
                kinds=as_strings(row.kinds),
                session_id=row.external_session_id,
                created_at=row.created_at,
                pending=row.pending,
                dead=row.dead,
                last_error=row.last_error,
            )
            for row in connection.execute(query)
        ]

    def remove(self, connection: Connection, user_id: int, webhook_id: int) -> bool:
        """Remove a webhook and its deliveries; return whether it existed."""
        conditions = (WEBHOOK.c.tenant_id == self.tenant_id, WEBHOOK.c.user_id == user_id, WEBHOOK.c.id == webhook_id)
        row = connection.execute(select(WEBHOOK.c.external_session_id).where(*conditions)).first()
        if row is None:
            return False
        connection.execute(delete(WEBHOOK_DELIVERY).where(*self._delivery_conditions(webhook_id)))
        if not connection.execute(delete(WEBHOOK).where(*conditions)).rowcount:  # another transaction was faster
            return False
        record_event(
            connection,
            self.tenant_id,
            "webhook.removed",
            session_id=row.external_session_id,
            user_id=user_id,
            webhook=webhook_id,
        )
        return True

    def retry(self, connection: Connection, webhook_id: int) -> int:
        """Make all dead and pending deliveries of a webhook due now; return how many there are.

        Deliveries that a sender has taken are left alone.
        """
        statement = update(WEBHOOK_DELIVERY).where(
            *self._delivery_conditions(webhook_id), WEBHOOK_DELIVERY.c.owner.is_(None)
        )
        now = datetime.now(UTC)
        attempts = case((WEBHOOK_DELIVERY.c.status == DEAD, 0), else_=WEBHOOK_DELIVERY.c.attempts)
        return int(connection.execute(statement.values(attempts=attempts, status=PENDING, next_at=now)).rowcount)

    def _delivery_conditions(self, webhook_id: int) -> tuple[Any, ...]:
        return WEBHOOK_DELIVERY.c.tenant_id == self.tenant_id, WEBHOOK_DELIVERY.c.webhook_id == webhook_id

    # -- sending

    def claim(self, connection: Connection, limit: int) -> list[ClaimedDelivery]:
        """Take deliveries that are due. No other sender can take them for the time `LEASE`."""
        now, owner = datetime.now(UTC), secrets.token_hex(16)
        due = connection.execute(_DUE.limit(limit), {"tenant": self.tenant_id, "now": now}).all()
        for row in due:
            connection.execute(
                _CLAIM, {"tenant": self.tenant_id, "delivery": row.id, "by": owner, "until": now + LEASE}
            )
        return [
            ClaimedDelivery(
                id=row.id,
                owner=owner,
                webhook_id=row.webhook_id,
                url=row.url,
                secret=row.secret,
                session_id=row.external_session_id,
                number=row.seq,
                attempts=row.attempts + 1,
            )
            for row in due
        ]

    def record_attempt(
        self, connection: Connection, delivery: ClaimedDelivery, error: str | None, *, is_permanent: bool = False
    ) -> str:
        """Record the result of an attempt; return `sent`, `failed`, `dead` or `gone`.

        A failed attempt is `gone`, and changes nothing, if another sender has taken the delivery since or if it was
        deleted with its session.
        """
        parameters = {"tenant": self.tenant_id, "delivery": delivery.id, "by": delivery.owner}
        if error is None:
            connection.execute(_DELETE_SENT, parameters)
            return "sent"
        is_dead = is_permanent or delivery.attempts >= MAX_ATTEMPTS
        status, next_at = (DEAD if is_dead else PENDING), datetime.now(UTC) + retry_delay(delivery.attempts)
        if not connection.execute(
            _RECORD_FAILURE, {**parameters, "now": status, "next": next_at, "error": error}
        ).rowcount:
            return "gone"
        # Delay the other events of this webhook, so that a receiver that is down does not hold up other webhooks.
        hold = {
            "tenant": self.tenant_id,
            "webhook": delivery.webhook_id,
            "until": min(next_at, datetime.now(UTC) + MAX_HOLD),
        }
        connection.execute(_DELAY_OTHERS, hold)
        return DEAD if is_dead else "failed"

    def count_pending(self, connection: Connection) -> int:
        """Count the pending deliveries."""
        pending = and_(WEBHOOK_DELIVERY.c.tenant_id == self.tenant_id, WEBHOOK_DELIVERY.c.status == PENDING)
        return int(connection.execute(select(func.count()).select_from(WEBHOOK_DELIVERY).where(pending)).scalar_one())


def report_of(results: Sequence[str], pending: int) -> Delivered:
    """Build the report from the results of the attempts."""
    return Delivered(
        sent=results.count("sent"), failed=results.count("failed"), dead=results.count(DEAD), waiting=pending
    )


_WEBHOOKS = CompiledStatement(
    select(WEBHOOK.c.id, WEBHOOK.c.user_id, WEBHOOK.c.external_session_id, WEBHOOK.c.kinds)
    .select_from(WEBHOOK.outerjoin(USER, and_(USER.c.tenant_id == WEBHOOK.c.tenant_id, USER.c.id == WEBHOOK.c.user_id)))
    .where(WEBHOOK.c.tenant_id == bindparam("tenant"), USER.c.disabled_at.is_(None))
)
_MEMBERSHIP = CompiledStatement(
    select(SESSION_MEMBER)
    .where(
        SESSION_MEMBER.c.tenant_id == bindparam("tenant"),
        SESSION_MEMBER.c.external_session_id == bindparam("session"),
        SESSION_MEMBER.c.user_id == bindparam("user"),
        or_(
            SESSION_MEMBER.c.expires_at.is_(None),
            SESSION_MEMBER.c.expires_at > bindparam("now", type_=SESSION_MEMBER.c.expires_at.type),
        ),
    )
    .limit(1)
)
_ADD = CompiledStatement(insert(WEBHOOK_DELIVERY))
_DUE = (
    select(
        WEBHOOK_DELIVERY.c.id,
        WEBHOOK_DELIVERY.c.webhook_id,
        WEBHOOK_DELIVERY.c.external_session_id,
        WEBHOOK_DELIVERY.c.seq,
        WEBHOOK_DELIVERY.c.attempts,
        WEBHOOK.c.url,
        WEBHOOK.c.secret,
    )
    .select_from(
        WEBHOOK_DELIVERY.join(
            WEBHOOK,
            and_(WEBHOOK.c.tenant_id == WEBHOOK_DELIVERY.c.tenant_id, WEBHOOK.c.id == WEBHOOK_DELIVERY.c.webhook_id),
        )
    )
    .where(
        WEBHOOK_DELIVERY.c.tenant_id == bindparam("tenant"),
        WEBHOOK_DELIVERY.c.status == PENDING,
        WEBHOOK_DELIVERY.c.next_at <= bindparam("now"),
    )
    .order_by(WEBHOOK_DELIVERY.c.next_at, WEBHOOK_DELIVERY.c.id)
    .with_for_update(skip_locked=True, of=WEBHOOK_DELIVERY)
)
_delivery_key = (WEBHOOK_DELIVERY.c.tenant_id == bindparam("tenant"), WEBHOOK_DELIVERY.c.id == bindparam("delivery"))
_CLAIM = (
    update(WEBHOOK_DELIVERY)
    .where(*_delivery_key)
    .values(owner=bindparam("by"), next_at=bindparam("until"), attempts=WEBHOOK_DELIVERY.c.attempts + 1)
)
_is_owner = WEBHOOK_DELIVERY.c.owner == bindparam("by")
_DELETE_SENT = delete(WEBHOOK_DELIVERY).where(*_delivery_key, _is_owner)
_RECORD_FAILURE = (
    update(WEBHOOK_DELIVERY)
    .where(*_delivery_key, _is_owner)
    .values(status=bindparam("now"), next_at=bindparam("next"), last_error=bindparam("error"), owner=None)
)
_DELAY_OTHERS = (
    update(WEBHOOK_DELIVERY)
    .where(
        WEBHOOK_DELIVERY.c.tenant_id == bindparam("tenant"),
        WEBHOOK_DELIVERY.c.webhook_id == bindparam("webhook"),
        WEBHOOK_DELIVERY.c.status == PENDING,
        WEBHOOK_DELIVERY.c.owner.is_(None),
        WEBHOOK_DELIVERY.c.next_at < bindparam("until"),
    )
    .values(next_at=bindparam("until"))
)
