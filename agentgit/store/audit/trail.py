"""The audit trail: an append-only record of events, written in the same transaction as the changes it describes.

Each session has its own hash chain, so that sessions do not wait for each other. A transaction collects notes of what
it does. Just before it commits, the notes become rows, with two statements for each session that it touched.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, and_, bindparam, func, insert, literal, select

from agentgit.errors import Corrupt, NotFound
from agentgit.sessions.events import NO_SESSION, Event, Tip, hash_row
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import (
    AUDIT_EVENT,
    BRANCH,
    SESSION,
)
from agentgit.values import as_object, to_json

_PENDING = "agentgit_notes"
"""The key under which a connection keeps the notes of its transaction."""

_KNOWN = "agentgit_trail"
"""The key under which a connection keeps the end of a branch's trail that its transaction has read."""

_WRITTEN = "agentgit_written"
"""The key under which a connection keeps the events written from these notes."""

_SESSION_NAME, _BRANCH_NAME = "session", "branch"
"""The keys of the names in the detail of a row. The names remain after the session and the branch are deleted."""


class PendingEvent(NamedTuple):
    """An event that a transaction has noted and not written yet."""

    tenant_id: int
    kind: str
    session_id: int | None
    branch_id: int | None
    user_id: int | None
    at: datetime
    detail: Mapping[str, Any]


@dataclass
class _Chain:
    """The end of one session's trail, to which events are appended."""

    session_id: int
    name: str | None
    owner_id: int | None
    seq: int
    last_id: int
    hash: bytes

    @classmethod
    def from_row(cls, session_id: int, row: Any) -> _Chain:
        """Create a chain from a row of `_CHAIN_END` or `_CHAIN_END_OF_BRANCH`."""
        last_event = (row.event_seq or 0, row.event_id or 0, row.event_hash or b"")
        if not all(isinstance(one, int) for one in last_event[:2]) or not isinstance(last_event[2], bytes):
            raise _damaged_event(session_id, row.event_seq)
        return cls(session_id, row.session_name, row.session_owner, *last_event)


def begin_events(connection: Connection) -> None:
    """Start collecting the notes of a write transaction."""
    connection.info[_PENDING], connection.info[_WRITTEN] = [], WrittenEvents()
    connection.info.pop(_KNOWN, None)


def finish_events(connection: Connection) -> WrittenEvents:
    """Write the remaining notes of a transaction that is about to commit; return all events that it wrote."""
    write_events(connection)
    del connection.info[_PENDING]
    written: WrittenEvents = connection.info.pop(_WRITTEN)
    return written


def record_event(
    connection: Connection,
    tenant_id: int,
    kind: str,
    *,
    session_id: int | None = None,
    branch_id: int | None = None,
    user_id: int | None = None,
    **detail: Any,
) -> None:
    """Note an event of this transaction. It becomes part of the trail when the transaction commits."""
    event = PendingEvent(tenant_id, kind, session_id, branch_id, user_id, datetime.now(UTC), detail)
    connection.info[_PENDING].append(event)


def know_chain(connection: Connection, tenant_id: int, branch_id: int, row: Any) -> None:
    """Use the end of a branch's trail that a transaction has already read."""
    connection.info[_KNOWN] = (tenant_id, branch_id), lambda: row


def queue_chain(connection: Connection, tenant_id: int, branch_id: int) -> None:
    """Read the end of a branch's trail together with the next queries, for the events of this transaction."""
    result = _CHAIN_END_OF_BRANCH.submit(connection, {"tenant": tenant_id, "branch": branch_id})
    connection.info[_KNOWN] = (tenant_id, branch_id), result.first


def write_events(connection: Connection) -> None:
    """Write the notes that a transaction has collected so far to the trail."""
    pending: list[PendingEvent] = connection.info[_PENDING]
    if not pending:
        return
    chains: dict[tuple[int, int], _Chain] = {}
    chain_of_branch: dict[int, tuple[_Chain, str | None]] = {}
    rows: list[dict[str, Any]] = []
    for event in pending:
        if event.branch_id is None:
            chain, branch_name = _chain_of_session(connection, event, chains), None
        else:
            if event.branch_id not in chain_of_branch:
                chain_of_branch[event.branch_id] = _chain_of_branch(connection, event, chains)
            chain, branch_name = chain_of_branch[event.branch_id]
        rows.append(_next(chain, event, branch_name))
    _ADD.run(connection, *rows)
    pending.clear()
    connection.info.pop(_KNOWN, None)  # it may be another end now
    written: WrittenEvents = connection.info[_WRITTEN]
    written.rows += rows


class WrittenEvents:
    """The events that a transaction added to the trail."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        """The rows as they were inserted."""

    @cached_property
    def events(self) -> list[Event]:
        """The rows as events, built on first use."""
        return [_read_event(row) for row in self.rows]


def _chain_of_session(connection: Connection, event: PendingEvent, chains: dict[tuple[int, int], _Chain]) -> _Chain:
    """Return the end of a session's trail, or of the trail for events of no session."""
    key = (event.tenant_id, event.session_id or NO_SESSION)
    if key not in chains:
        row = _CHAIN_END.first(connection, {"tenant": event.tenant_id, "session": key[1]})
        assert row is not None  # noqa: S101  # the query selects from a constant
        if event.session_id is not None and row.session_name is None:
            raise NotFound("This session has been deleted. repo.sessions() lists the others.")
        chains[key] = _Chain.from_row(key[1], row)
    return chains[key]


def _chain_of_branch(
    connection: Connection, event: PendingEvent, chains: dict[tuple[int, int], _Chain]
) -> tuple[_Chain, str | None]:
    """Return the end of the trail for events of a branch, and the name of the branch."""
    known_branch, read_row = connection.info.pop(_KNOWN, (None, None))
    if known_branch == (event.tenant_id, event.branch_id):
        row = read_row()
    else:
        row = _CHAIN_END_OF_BRANCH.first(connection, {"tenant": event.tenant_id, "branch": event.branch_id})
    if row is None:
        return _chain_of_session(connection, event, chains), None
    key = (event.tenant_id, int(row.session_id))
    if key not in chains:
        chains[key] = _Chain.from_row(key[1], row)
    return chains[key], row.branch_name


def _next(chain: _Chain, event: PendingEvent, branch_name: str | None) -> dict[str, Any]:
    """Build the next row of a trail and advance the chain."""
    chain.seq += 1
    # Ids must grow even if another process has a faster clock. The random step avoids ids that other chains have taken.
    chain.last_id = max(new_id(), chain.last_id + 1 + random.getrandbits(10))  # needs no secure randomness
    detail = {_SESSION_NAME: chain.name, _BRANCH_NAME: branch_name, **event.detail}
    row = {
        "tenant_id": event.tenant_id,
        "external_session_id": chain.session_id,
        "seq": chain.seq,
        "id": chain.last_id,
        "internal_session_id": event.branch_id,
        "owner_id": event.user_id if chain.owner_id is None else chain.owner_id,
        "user_id": event.user_id,
        "kind": event.kind,
        "detail": _json({name: value for name, value in detail.items() if value is not None}),
        "created_at": event.at,
    }
    row["hash"] = chain.hash = hash_row(chain.hash, row)
    return row


def _json(detail: dict[str, Any]) -> bytes:
    """Serialize with orjson, which nearly always succeeds; else with `to_json`, which inspects every value first."""
    try:
        return orjson.dumps(detail)
    except TypeError:
        return to_json(detail)


def _damaged_event(session_id: Any, seq: Any) -> Corrupt:
    name = f"audit_event {session_id}/{seq}"
    return Corrupt(f"{name} cannot be read: the audit trail was modified. Run: agentgit audit verify", row=name)


def _tip_of_row(row: Any) -> Tip:
    if not isinstance(row.hash, bytes) or not isinstance(row.seq, int):
        raise _damaged_event(row.external_session_id, row.seq)
    return Tip(session_id=row.external_session_id, number=row.seq, hash=row.hash.hex())


def _read_event(row: Any) -> Event:
    """Convert a row, a mapping by column names, to an event."""
    try:
        return _event_of_row(row)
    except (Corrupt, ValueError, TypeError, LookupError, AttributeError) as error:
        raise _damaged_event(row["external_session_id"], row["seq"]) from error


def _event_of_row(row: Any) -> Event:
    detail = as_object(row["detail"])
    return Event(
        id=row["id"],
        kind=row["kind"],
        number=row["seq"],
        session_id=row["external_session_id"] or None,
        session_name=detail.pop(_SESSION_NAME, None),
        branch_id=row["internal_session_id"],
        branch_name=detail.pop(_BRANCH_NAME, None),
        owner_id=row["owner_id"],
        user_id=row["user_id"],
        created_at=row["created_at"],
        detail=detail,
        hash=bytes(row["hash"]).hex(),
    )


class EventFilter(NamedTuple):
    """A filter for the events to read."""

    user_id: int
    shared: Collection[int] = ()
    session_id: int | None = None


def _id_of_row(row: Any) -> int:
    return int(row["id"])


class Trail:
    """The audit trail of one tenant."""

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def read(
        self,
        connection: Connection,
        event_filter: EventFilter,
        *,
        after: int = 0,
        kinds: Collection[str] | None = None,
        since: datetime | None = None,
        limit: int,
    ) -> list[Event]:
        """Read events, oldest first."""
        rows: list[Any] = []
        for query in self._queries(event_filter, kinds, since):
            page_query = query.order_by(AUDIT_EVENT.c.id)
            if event_filter.session_id is None:
                page_query = page_query.where(AUDIT_EVENT.c.id > after)
            elif after:  # start from its number in the chain, because the numbers are indexed
                is_in_chain = and_(
                    AUDIT_EVENT.c.tenant_id == self.tenant_id,
                    AUDIT_EVENT.c.external_session_id == event_filter.session_id,
                )
                last_seen = (
                    select(AUDIT_EVENT.c.seq)
                    .where(is_in_chain, AUDIT_EVENT.c.id <= after)
                    .order_by(AUDIT_EVENT.c.seq.desc())
                    .limit(1)
                )
                page_query = page_query.where(AUDIT_EVENT.c.seq > func.coalesce(last_seen.scalar_subquery(), 0))
            rows += connection.execute(page_query.limit(limit)).mappings()
        return [_read_event(row) for row in sorted(rows, key=_id_of_row)[:limit]]

    def newest(
        self,
        connection: Connection,
        event_filter: EventFilter,
        *,
        kinds: Collection[str] | None = None,
        since: datetime | None = None,
        limit: int,
    ) -> list[Event]:
        """Read the newest events, in the order oldest first. See `read` for the arguments."""
        rows: list[Any] = []
        for query in self._queries(event_filter, kinds, since):
            rows += connection.execute(query.order_by(AUDIT_EVENT.c.id.desc()).limit(limit)).mappings()
        return [_read_event(row) for row in sorted(rows, key=_id_of_row)[-limit:]]

    def _queries(self, event_filter: EventFilter, kinds: Collection[str] | None, since: datetime | None) -> list[Any]:
        """Build one query for the user's own sessions and one for shared sessions, because each has its own index."""
        scopes = (
            [AUDIT_EVENT.c.external_session_id == event_filter.session_id]
            if event_filter.session_id is not None
            else [
                AUDIT_EVENT.c.owner_id == event_filter.user_id,
                *([AUDIT_EVENT.c.external_session_id.in_(event_filter.shared)] if event_filter.shared else []),
            ]
        )
        conditions: list[Any] = [AUDIT_EVENT.c.kind.in_(sorted(kinds))] if kinds is not None else []
        if since is not None:
            conditions.append(AUDIT_EVENT.c.created_at >= since)
        return [
            select(AUDIT_EVENT).where(AUDIT_EVENT.c.tenant_id == self.tenant_id, scope, *conditions) for scope in scopes
        ]

    def last_id(self, connection: Connection, event_filter: EventFilter) -> int:
        """Return the id of the newest event; 0 if there is none."""
        events = self.newest(connection, event_filter, limit=1)
        return events[-1].id if events else 0

    def tips(self, connection: Connection) -> list[Tip]:
        """Return the last event of each trail."""
        conditions = (AUDIT_EVENT.c.tenant_id == self.tenant_id,)
        last_seqs = select(AUDIT_EVENT.c.external_session_id, func.max(AUDIT_EVENT.c.seq).label("seq")).where(
            *conditions
        )
        ends = last_seqs.group_by(AUDIT_EVENT.c.external_session_id).subquery()
        is_last = and_(AUDIT_EVENT.c.external_session_id == ends.c.external_session_id, AUDIT_EVENT.c.seq == ends.c.seq)
        query = (
            select(AUDIT_EVENT.c.external_session_id, AUDIT_EVENT.c.seq, AUDIT_EVENT.c.hash)
            .join(ends, is_last)
            .where(*conditions)
        )
        return [_tip_of_row(row) for row in connection.execute(query.order_by(AUDIT_EVENT.c.external_session_id))]


_ADD = CompiledStatement(insert(AUDIT_EVENT))


def _chain_columns() -> Sequence[Any]:
    """Return the columns of the end of a trail, for a query that joins the session and its last event."""
    return (
        SESSION.c.session_name,
        SESSION.c.user_id.label("session_owner"),
        AUDIT_EVENT.c.seq.label("event_seq"),
        AUDIT_EVENT.c.id.label("event_id"),
        AUDIT_EVENT.c.hash.label("event_hash"),
    )


def _is_last_event(session_id: Any) -> Any:
    """Build the condition that an event is the last one of a session's trail."""
    other = AUDIT_EVENT.alias("one")
    conditions = (other.c.tenant_id == bindparam("tenant"), other.c.external_session_id == session_id)
    last_seq = select(func.max(other.c.seq)).where(*conditions).correlate(BRANCH).scalar_subquery()
    return and_(
        AUDIT_EVENT.c.tenant_id == bindparam("tenant"),
        AUDIT_EVENT.c.external_session_id == session_id,
        AUDIT_EVENT.c.seq == last_seq,
    )


# One statement reads all that the next event needs. It returns a row even without a session or an event.
_CHAIN_END = CompiledStatement(
    select(*_chain_columns()).select_from(
        select(literal(1).label("one"))
        .subquery()
        .outerjoin(SESSION, and_(SESSION.c.tenant_id == bindparam("tenant"), SESSION.c.id == bindparam("session")))
        .outerjoin(AUDIT_EVENT, _is_last_event(bindparam("session")))
    )
)
BRANCH_CHAIN_COLUMNS = (
    BRANCH.c.external_session_id.label("session_id"),
    BRANCH.c.name.label("branch_name"),
    *_chain_columns(),
)
"""The columns that `know_chain` needs, in a query from `BRANCH_WITH_CHAIN`."""

BRANCH_WITH_CHAIN = BRANCH.join(
    SESSION, and_(SESSION.c.tenant_id == BRANCH.c.tenant_id, SESSION.c.id == BRANCH.c.external_session_id)
).outerjoin(AUDIT_EVENT, _is_last_event(BRANCH.c.external_session_id))
"""Branches, each with its session and the last event of the session's trail."""

_CHAIN_END_OF_BRANCH = CompiledStatement(
    select(*BRANCH_CHAIN_COLUMNS)
    .select_from(BRANCH_WITH_CHAIN)
    .where(BRANCH.c.tenant_id == bindparam("tenant"), BRANCH.c.id == bindparam("branch"))
)
