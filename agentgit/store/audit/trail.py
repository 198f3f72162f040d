"""The trail: an append-only table of events, each written in the same transaction as the change that it describes.

A transaction collects notes of what it does. Just before it commits, the notes become rows, in one statement.

The feed reads the rows in one order that is the same for all readers: by epoch, ordinal and id. On SQLite, where
writers take turns, the ordinal numbers the rows; `AUTOINCREMENT` does not give the number of an erased row again. On
PostgreSQL it is the number of the transaction, and a reader stops before the oldest one that still runs, because that
one may still commit events: by id alone, 29 of 906 events of six writers were missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    table,
    tuple_,
)

from agentgit.auth.principal import LOCAL
from agentgit.errors import Corrupt, NotFound
from agentgit.next_steps import Next
from agentgit.sessions.events import Cursor, Event
from agentgit.store.objects.blobs import compact
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import BRANCH, EVENT, SESSION, USER
from agentgit.store.sql.transaction import PendingEvent, Reading, Writing
from agentgit.values import as_object

_SESSION_NAME, _BRANCH_NAME = "session", "branch"
"""The keys of the names in the detail of a row, which are those at the time of the event."""

RESTARTED = "feed.restarted"


class _Names(NamedTuple):
    """The parts of an event besides its note: the epoch of the feed, and the names of its session and branch."""

    epoch: int
    session_id: int | None = None
    session_name: str | None = None
    session_owner: int | None = None
    branch_name: str | None = None


def record_event(
    transaction: Writing,
    kind: str,
    *,
    session_id: int | None = None,
    branch_id: int | None = None,
    user_id: int | None = None,
    owner_id: int | None = None,
    **detail: Any,
) -> None:
    """Note an event of this transaction. It becomes part of the trail when the transaction commits."""
    event = PendingEvent(kind, session_id, branch_id, user_id, owner_id, datetime.now(UTC), detail)
    transaction.events.append(event)


def know_names(transaction: Writing, branch_id: int, read: Callable[[], Any]) -> None:
    """Use the names of a branch and its session that a transaction reads anyway, for its events."""
    transaction.known_names[branch_id] = read


def finish_events(transaction: Writing) -> Sequence[Mapping[str, Any]]:
    """Write the notes of a transaction that is about to commit, and return the rows."""
    names: dict[tuple[int | None, int | None], _Names] = {}
    rows = []
    for event in transaction.events:
        key = (event.session_id if event.branch_id is None else None, event.branch_id)
        if key not in names:
            names[key] = _read_names(transaction, event)
        rows.append(_row(event, names[key]))
    if rows:
        _ADD.run(transaction, *rows)
    return rows


def _read_names(transaction: Writing, event: PendingEvent) -> _Names:
    if event.branch_id is not None:
        known = transaction.known_names.get(event.branch_id)
        row = known() if known is not None else _NAMES_OF_BRANCH.first(transaction, {"branch": event.branch_id})
        if row is not None:
            return _Names(row.event_epoch, row.session_id, row.session_name, row.session_owner, row.branch_name)
    if event.session_id is None:
        return _Names(_present_epoch(transaction))
    row = _NAMES_OF_SESSION.first(transaction, {"session": event.session_id})
    if row is None:
        raise NotFound("This session has been deleted.", Next("list_sessions"))
    return _Names(row.event_epoch, event.session_id, row.session_name, row.session_owner)


def _present_epoch(transaction: Reading) -> int:
    row = _PRESENT_EPOCH.first(transaction, {})
    return int(row.event_epoch) if row is not None else 0


def _row(event: PendingEvent, names: _Names) -> dict[str, Any]:
    detail = {_SESSION_NAME: names.session_name, _BRANCH_NAME: names.branch_name, **event.detail}
    return {
        "epoch": names.epoch,
        "id": new_id(),
        "external_session_id": names.session_id,
        "internal_session_id": event.branch_id,
        "owner_id": next((one for one in (event.owner_id, names.session_owner) if one is not None), event.user_id),
        "user_id": event.user_id,
        "kind": event.kind,
        "detail": compact({name: value for name, value in detail.items() if value is not None}),
        "created_at": event.at,
    }


def read_event(row: Mapping[str, Any], cursor: Cursor | None = None) -> Event:
    try:
        detail = as_object(row["detail"])
        return Event(
            id=row["id"],
            kind=row["kind"],
            session_id=row["external_session_id"],
            session_name=detail.pop(_SESSION_NAME, None),
            branch_id=row["internal_session_id"],
            branch_name=detail.pop(_BRANCH_NAME, None),
            owner_id=row["owner_id"],
            user_id=row["user_id"],
            created_at=row["created_at"],
            detail=detail,
            cursor=str(cursor) if cursor is not None else None,
        )
    except (Corrupt, ValueError, TypeError, LookupError, AttributeError) as error:
        name = f"event {row['id']}"
        raise Corrupt(f"{name} cannot be read.", Next("fsck"), row=name) from error


Scope = Sequence[ColumnElement[bool]]
"""The events to read: those that meet one of the conditions, each of which has its own index."""

NO_SESSION: Scope = (EVENT.c.external_session_id.is_(None),)
"""The events that belong to no session."""


def of_session(session_id: int) -> Scope:
    return (EVENT.c.external_session_id == session_id,)


def of_user(user_id: int, shared: Collection[int]) -> Scope:
    own = EVENT.c.owner_id == user_id
    return (own, EVENT.c.external_session_id.in_(shared)) if shared else (own,)


_ORDER = (EVENT.c.epoch, EVENT.c.ordinal, EVENT.c.id)


def _bound(cursor: Cursor) -> ColumnElement[Any]:
    return tuple_(*(literal(number, BigInteger) for number in cursor))


def _cursor_of(row: Any) -> Cursor:
    return Cursor(row["epoch"], row["ordinal"], row["id"])


class Trail:
    def end(self, transaction: Reading) -> Cursor:
        """Return the end of the feed: no event can still be committed before it."""
        (row,) = _END.all(transaction, {})
        return Cursor(_present_epoch(transaction), row.oldest)

    def has_place(self, transaction: Reading, cursor: Cursor) -> bool:
        """Return False if another event has the number of this one: SQLite gives it again after a restored file."""
        if not transaction.is_sqlite or not cursor.event_id:
            return True
        known_id = transaction.execute(select(EVENT.c.id).where(EVENT.c.ordinal == cursor.ordinal)).scalar()
        return known_id in (None, cursor.event_id)  # None: its session was erased

    def read(
        self, transaction: Reading, scope: Scope, *, after: Cursor, before: Cursor, limit: int, **filters: Any
    ) -> list[Event]:
        """Read the events between two places of the feed in its order."""
        is_between = and_(tuple_(*_ORDER) > _bound(after), tuple_(*_ORDER) < _bound(before))
        rows = self._rows(transaction, scope, _ORDER, limit, is_between, **filters)
        return [read_event(row, _cursor_of(row)) for row in rows[:limit]]

    def newest(self, transaction: Reading, scope: Scope, *, limit: int, **filters: Any) -> list[Event]:
        """Read the newest events in the order of the feed, also those that it has not reached yet."""
        end, newest_first = self.end(transaction), [column.desc() for column in _ORDER]
        rows = self._rows(transaction, scope, newest_first, limit, **filters)
        return [read_event(row, min(end, _cursor_of(row))) for row in rows[-limit:]]

    def _rows(
        self,
        transaction: Reading,
        scope: Scope,
        order: Sequence[ColumnElement[Any]],
        limit: int,
        *conditions: ColumnElement[bool],
        kinds: Collection[str] | None = None,
        since: datetime | None = None,
    ) -> list[Any]:
        """Return the first rows of each query of a scope together, in the order of the feed."""
        conditions += (EVENT.c.kind.in_(sorted(kinds)),) if kinds is not None else ()
        conditions += (EVENT.c.created_at >= since,) if since is not None else ()
        queries = (select(EVENT).where(one, *conditions).order_by(*order).limit(limit) for one in scope)
        return sorted((row for one in queries for row in transaction.execute(one).mappings()), key=_cursor_of)

    def is_restarted(self, transaction: Reading) -> bool:
        """Return whether the database was restored into a server that has not reached its newest transaction."""
        newest, (end,) = _NEWEST.first(transaction, {}), _END.all(transaction, {})
        return newest is not None and bool(newest.ordinal >= end.next)

    def begin_epoch(self, transaction: Writing) -> None:
        """Begin a new epoch with an event that says so, unless another process has just done that."""
        transaction.execute(select(USER.c.id).where(USER.c.name == LOCAL).with_for_update())
        if self.is_restarted(transaction):
            event = PendingEvent(RESTARTED, None, None, None, None, datetime.now(UTC), {})
            _ADD.run(transaction, _row(event, _Names(_present_epoch(transaction) + 1)))


# -- statements

_GIVEN_COLUMNS = [
    Column(one.name, one.type, primary_key=one.primary_key) for one in EVENT.c if one is not EVENT.c.ordinal
]
_ADD = CompiledStatement(insert(Table(EVENT.name, MetaData(), *_GIVEN_COLUMNS)))
EPOCH = (
    select(func.coalesce(func.max(EVENT.c.epoch), 0))
    .where(EVENT.c.external_session_id.is_(None))
    .scalar_subquery()
    .label("event_epoch")
)
"""The present epoch: each but the first began with an event of no session."""

NAME_COLUMNS = (
    BRANCH.c.external_session_id.label("session_id"),
    BRANCH.c.name.label("branch_name"),
    SESSION.c.session_name,
    SESSION.c.user_id.label("session_owner"),
    EPOCH,
)
"""The columns that `know_names` needs, in a query from `BRANCH_WITH_SESSION`."""

BRANCH_WITH_SESSION = BRANCH.join(SESSION, SESSION.c.id == BRANCH.c.external_session_id)
_NAMES_OF_BRANCH = CompiledStatement(
    select(*NAME_COLUMNS).select_from(BRANCH_WITH_SESSION).where(BRANCH.c.id == bindparam("branch"))
)
_NAMES_OF_SESSION = CompiledStatement(
    select(SESSION.c.session_name, SESSION.c.user_id.label("session_owner"), EPOCH).where(
        SESSION.c.id == bindparam("session")
    )
)
_PRESENT_EPOCH = CompiledStatement(select(EPOCH))


def _number(xid: ColumnElement[Any]) -> ColumnElement[int]:
    """Convert PostgreSQL's type of transaction numbers, which casts to text alone."""
    return cast(cast(xid, Text), BigInteger)


_SEQUENCE = table("sqlite_sequence", column("name"), column("seq", BigInteger))
_last = select(_SEQUENCE.c.seq).where(_SEQUENCE.c.name == EVENT.name).scalar_subquery()
_snapshot = func.pg_current_snapshot()
_END = CompiledStatement(
    {
        "sqlite": select((func.coalesce(_last, 0) + 1).label("oldest")),
        "postgresql": select(
            _number(func.pg_snapshot_xmin(_snapshot)).label("oldest"),
            _number(func.pg_snapshot_xmax(_snapshot)).label("next"),
        ),
    }
)
"""The least number that an event may still get, and on PostgreSQL that of the server's next transaction.

It names no table: Citus would ask the node that has the table, where transactions have other numbers.
"""

_NEWEST = CompiledStatement(select(EVENT.c.ordinal).order_by(EVENT.c.epoch.desc(), EVENT.c.ordinal.desc()).limit(1))
