"""Erasure of a session or a user: all of its rows, with the values that belong to them.

An erasure is one transaction, so that nothing is half erased. The events of a session are deleted with it; one event of
no session says that it existed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, delete, func, select

from agentgit.auth import User
from agentgit.errors import Conflict, Corrupt, KeyMissing
from agentgit.next_steps import Next
from agentgit.sessions.session import RUNNING
from agentgit.sessions.stats import sum_usages
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance.statistics import count_tokens
from agentgit.store.queries import templates
from agentgit.store.search.index import delete_words
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import (
    BLOB,
    BRANCH,
    EVENT,
    GRAPH_CHECKPOINT,
    GRAPH_WRITE,
    METADATA,
    SEARCH_TEXT,
    SESSION,
    USER,
)
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.values import UNREADABLE, as_object

AUTHORED_TABLES = {"checkpoint", "tag", "operation", SESSION.name, EVENT.name}
"""Tables in which a user is the author of something in another user's session. The user's id stays there, no name."""


SessionIds = Select[int]
"""A query that returns session ids."""


class ErasedData(NamedTuple):
    """The result of an erasure: rows by table, the number and size of stored values, and the number of events."""

    rows: Mapping[str, int]
    values: int
    bytes: int
    events: int


def select_session(session_id: int) -> SessionIds:
    return select(SESSION.c.id).where(SESSION.c.id == session_id)


def select_user_sessions(user_id: int) -> SessionIds:
    condition = SESSION.c.user_id == user_id
    return select(SESSION.c.id).where(condition).order_by(SESSION.c.id)


def require_idle(store: Store, transaction: Writing, session_id: int) -> None:
    """Check that no run or operation works on a session. Recover runs whose process has died."""
    store.sessions.lock(transaction, session_id)
    for branch in store.sessions.branches(transaction, session_id):
        if store.recover(transaction, branch).status == RUNNING:
            raise Conflict(
                f"Branch {branch.name} is running. Nothing was erased. Wait for its turn to end.", Next("recover")
            )
    for row in store.operations.query_running(transaction, session_id).all():
        if not store.sessions.is_abandoned(transaction, row):
            raise Conflict(f"Operation {row.id} ({row.kind}) is running. Wait for it to finish. Nothing was erased.")


def erase_session(store: Store, transaction: Writing, session_id: int, user_id: int | None) -> ErasedData:
    value_bytes = _lock_and_measure(store, transaction, [session_id])
    row_counts = _delete_session(store, transaction, session_id, user_id)
    return _finish_erasure(transaction, row_counts, value_bytes)


def lock_user(store: Store, transaction: Reading, user_id: int) -> None:
    """Lock a user, so that nobody can create a session for the user until the transaction ends."""
    store.users.lock(transaction, user_id, admins=True)  # otherwise the last two admins could be erased at once
    admins = {user.id for user in store.users.all(transaction) if user.is_admin and user.disabled_at is None}
    if admins == {user_id}:
        raise Conflict("This is the last admin. Make another user an admin first.")


def erase_user(store: Store, transaction: Writing, user: User, by_user_id: int | None) -> ErasedData:
    """Erase a user and everything that belongs to the user. What the user made in other users' sessions stays."""
    lock_user(store, transaction, user.id)
    user_id = user.id
    session_ids = transaction.execute(select_user_sessions(user_id)).scalars().all()
    value_bytes = _lock_and_measure(store, transaction, session_ids)
    row_counts: Counter[str] = Counter()
    for session_id in session_ids:
        row_counts += _delete_session(store, transaction, session_id, by_user_id)
    for table in reversed(METADATA.sorted_tables):
        if table.name not in AUTHORED_TABLES and "user_id" in table.c:
            row_counts += _delete_from(transaction, table, table.c.user_id == user_id)
    row_counts += _delete_from(transaction, USER, USER.c.id == user_id)
    erased_data = _finish_erasure(transaction, row_counts, value_bytes)
    record_event(transaction, "user.erased", user_id=by_user_id, erased=user_id, rows=row_counts.total())
    return erased_data


def list_erased_users(transaction: Reading) -> list[int]:
    """List the ids of erased users. What they made in other users' sessions still contains these ids."""
    query = select(EVENT.c.detail).where(EVENT.c.external_session_id.is_(None), EVENT.c.kind == "user.erased")
    user_ids = []
    for detail in transaction.execute(query).scalars():
        with suppress(Corrupt, *UNREADABLE):  # fsck's check of the rows reports it
            user_ids.append(int(as_object(detail)["erased"]))
    return user_ids


def _lock_and_measure(store: Store, transaction: Writing, session_ids: Sequence[int]) -> int:
    """Wait for the writers of sessions and lock out others; return the size of the stored values."""
    for session_id in session_ids:
        store.graphs.blobs.of(session_id).lock(transaction)
    query = select(func.coalesce(func.sum(func.length(BLOB.c.data)), 0))
    queries = (query.where(BLOB.c.external_session_id.in_(part)) for part in slices(session_ids))
    return sum(int(transaction.execute(one).scalar_one()) for one in queries)


def _delete_session(store: Store, transaction: Writing, session_id: int, user_id: int | None) -> Counter[str]:
    require_idle(store, transaction, session_id)
    templates.erase_references(store, transaction, session_id)
    events = transaction.execute(
        select(func.count()).select_from(EVENT).where(EVENT.c.external_session_id == session_id)
    ).scalar_one()
    owner_id = store.sessions.load_row(transaction, session_id).user_id
    try:
        tokens = sum_usages(count_tokens(transaction, store, store.sessions.branches(transaction, session_id)).values())
    except (Corrupt, KeyMissing, *UNREADABLE):  # neither damage nor a lost key may prevent an erasure
        tokens = {}
    row_counts = _delete_session_rows(transaction, session_id)
    record_event(
        transaction,
        "session.erased",
        user_id=user_id,
        owner_id=owner_id,
        erased=session_id,
        rows=row_counts.total(),
        tokens={model: list(counts) for model, counts in tokens.items()} or None,
    )
    return row_counts + Counter({EVENT.name: events})


def _delete_session_rows(transaction: Writing, session_id: int) -> Counter[str]:
    """Delete a session with its rows in all tables, most of which go with it by their references."""
    row_counts: Counter[str] = Counter()
    branch_ids = select(BRANCH.c.id).where(BRANCH.c.external_session_id == session_id)
    for table in METADATA.sorted_tables:
        is_own = table.c.external_session_id == session_id if "external_session_id" in table.c else None
        if is_own is None and "internal_session_id" in table.c:
            is_own = table.c.internal_session_id.in_(branch_ids)
        if is_own is None or table is EVENT:
            continue
        if table in (GRAPH_CHECKPOINT, GRAPH_WRITE, BLOB):  # threads without a session have such rows, too
            row_counts += _delete_from(transaction, table, is_own)
        elif count := transaction.execute(select(func.count()).select_from(table).where(is_own)).scalar_one():
            row_counts[table.name] = count
    return row_counts + _delete_from(transaction, SESSION, SESSION.c.id == session_id)


def _delete_from(transaction: Writing, table: Table, *conditions: Any) -> Counter[str]:
    count = transaction.execute(delete(table).where(*conditions)).rowcount
    return Counter({table.name: count} if count else {})


def _finish_erasure(transaction: Writing, row_counts: Counter[str], value_bytes: int) -> ErasedData:
    """Delete the words of SQLite's search index."""
    if row_counts[SEARCH_TEXT.name] and transaction.is_sqlite:
        delete_words(transaction)
    events = row_counts.pop(EVENT.name, 0)
    return ErasedData(row_counts, row_counts[BLOB.name], value_bytes, events)
