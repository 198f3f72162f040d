"""Limits on failed logins, counted in the database so that they hold across all processes.

A password attempt is counted before the password is checked, so that a thousand concurrent attempts count as a
thousand; a successful attempt is subtracted again. Keys and tokens cannot be guessed, so they are counted only when
they fail, and a valid one costs no write. The database stores only a hash of the name or the address, for one day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from agentgit.errors import TooManyAttempts
from agentgit.store.sql.tables import LOGIN_FAILURE

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=2), timedelta(minutes=15)
"""The first and the longest pause after too many attempts. The pause doubles with each attempt."""

FAILURE_LIFETIME = timedelta(days=1)
"""The time after the last failure when all failures of a subject are deleted."""


class LoginSubject(NamedTuple):
    """A name or an address whose failures are counted."""

    hash: bytes
    free_failures: int


def subject_hash(tenant_id: int, kind: str, value: str) -> bytes:
    """Return the hash that is stored instead of a name or an address."""
    return hashlib.sha256(f"{tenant_id}\0{kind}\0{value}".encode(errors="surrogatepass")).digest()


class LoginAttempts:
    """The failed logins of one tenant."""

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def subjects(self, name: str | None, source: str | None, device: str | None = None) -> list[LoginSubject]:
        """Return the subjects for which an attempt counts. Success deletes the failures of the first one."""
        if device is not None:
            return [self._subject("device", f"{name}\0{device}", 10)]
        source = network_of(source) if source is not None else None
        subjects = []
        if name is not None:
            subjects.append(self._subject("user", f"{name}\0{source or ''}", 10))
        if name is not None and source is not None:
            subjects.append(self._subject("user", name, 100))
        if source is not None:
            subjects.append(self._subject("address", source, 30))
        return subjects

    def _subject(self, kind: str, value: str, free_failures: int) -> LoginSubject:
        return LoginSubject(subject_hash(self.tenant_id, kind, value), free_failures)

    def require_not_blocked(self, connection: Connection, subjects: Sequence[LoginSubject]) -> None:
        """Check that an attempt may go ahead, without counting it."""
        hashes = [subject.hash for subject in subjects]
        condition = and_(LOGIN_FAILURE.c.tenant_id == self.tenant_id, LOGIN_FAILURE.c.subject.in_(hashes))
        for blocked_until in connection.execute(select(LOGIN_FAILURE.c.blocked_until).where(condition)).scalars():
            _require_pause_over(blocked_until, datetime.now(UTC))

    def count_attempt(self, connection: Connection, subjects: Sequence[LoginSubject]) -> None:
        """Count an attempt."""
        now = datetime.now(UTC)
        connection.execute(
            delete(LOGIN_FAILURE).where(LOGIN_FAILURE.c.tenant_id == self.tenant_id, LOGIN_FAILURE.c.forget_at <= now)
        )
        for subject in sorted(subjects):  # always in the same order, to prevent deadlocks
            row = connection.execute(
                select(LOGIN_FAILURE).where(self._subject_condition(subject)).with_for_update()
            ).first()
            if row is not None:
                _require_pause_over(row.blocked_until, now)
            failures = (row.failures if row is not None else 0) + 1
            values = {
                "failures": failures,
                "blocked_until": now + pause(failures - subject.free_failures),
                "forget_at": now + FAILURE_LIFETIME,
            }
            if row is None:
                connection.execute(
                    insert(LOGIN_FAILURE), {"tenant_id": self.tenant_id, "subject": subject.hash, **values}
                )
            else:
                connection.execute(update(LOGIN_FAILURE).where(self._subject_condition(subject)).values(**values))

    def record_success(self, connection: Connection, subjects: Sequence[LoginSubject]) -> None:
        """Delete the failures of the first subject, and subtract the attempt from the others and end their pause."""
        for index, subject in enumerate(subjects):
            decrement = {"failures": LOGIN_FAILURE.c.failures - 1, "blocked_until": datetime.now(UTC)}
            deletion = delete(LOGIN_FAILURE).where(self._subject_condition(subject))
            connection.execute(
                deletion
                if index == 0
                else update(LOGIN_FAILURE).where(self._subject_condition(subject)).values(**decrement)
            )

    def delete_failures(self, connection: Connection, name: str) -> None:
        """Delete the failures of a name. Those for a name and an address expire within a day."""
        for value in (f"{name}\0", name):
            connection.execute(delete(LOGIN_FAILURE).where(self._subject_condition(self._subject("user", value, 0))))

    def _subject_condition(self, subject: LoginSubject) -> ColumnElement[bool]:
        return and_(LOGIN_FAILURE.c.tenant_id == self.tenant_id, LOGIN_FAILURE.c.subject == subject.hash)


def _require_pause_over(blocked_until: datetime, now: datetime) -> None:
    """Refuse an attempt during a pause. Ignore an end too far ahead: it was set before the clock was put back."""
    if now < blocked_until <= now + LONGEST_PAUSE:
        seconds_left = max(1, ceil((blocked_until - now).total_seconds()))
        raise TooManyAttempts(f"Too many failed attempts. Try again in {seconds_left} s.", retry_after=seconds_left)


def network_of(source: str) -> str:
    """Return the network that counts as one caller: an IPv4 address, or the /64 network of an IPv6 address.

    One household usually has a whole /64 network.

    Example:
        >>> network_of("192.0.2.1"), network_of("::ffff:192.0.2.1"), network_of("2001:db8::1:2:3:4")
        ('192.0.2.1', '192.0.2.1', '2001:db8::/64')
    """
    try:
        address = ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))


def pause(excess: int) -> timedelta:
    """Return the pause after this number of failures beyond the free ones.

    Example:
        >>> [pause(n).total_seconds() for n in (0, 1, 2, 3, 100)]
        [0.0, 2.0, 4.0, 8.0, 900.0]
    """
    if excess <= 0:
        return timedelta(0)
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(excess - 1, 20)))
