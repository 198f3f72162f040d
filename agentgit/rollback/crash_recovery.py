"""Exclusive access to the world of a session: what dead processes held is taken back, and two never act at once."""

from __future__ import annotations

from sqlalchemy import Connection

from agentgit.effects import invocation
from agentgit.errors import Conflict
from agentgit.sessions import operation
from agentgit.sessions.session import PARTIAL
from agentgit.store.records.sessions import Found
from agentgit.store.store import Store
from agentgit.values import as_object


def recover_abandoned(store: Store, connection: Connection, session_id: int) -> list[int]:
    """Take back what dead processes held in a session: turns, and rollbacks, which are half done from then on.

    Args:
        store: The store of the database.
        connection: A connection in a transaction that writes.
        session_id: The session.

    Returns:
        The operations that are being worked on.
    """
    branches, operations = (
        store.sessions.running(connection, session_id),
        store.operations.running(connection, session_id),
    )
    for branch in branches.all():
        if store.sessions.is_abandoned(connection, branch):
            store.recover(connection, store.sessions.branch(connection, branch.id))
    alive = []
    for row in operations.all():
        if store.sessions.is_abandoned(connection, row):
            break_off(store, connection, row)
        else:
            alive.append(int(row.id))
    return alive


def recover_all_abandoned(store: Store, session_id: int) -> None:
    """Take back what dead processes held in a session, writing only if there is something to take back."""
    with store.database.reading() as connection:
        held = [store.sessions.running(connection, session_id), store.operations.running(connection, session_id)]
        is_dead = any(store.sessions.is_abandoned(connection, row) for answer in held for row in answer.all())
    if is_dead:

        def take(connection: Connection) -> None:
            store.sessions.lock(connection, session_id)
            recover_abandoned(store, connection, session_id)

        store.database.write(take, durable=True)


def break_off(store: Store, connection: Connection, row: Found) -> None:
    """Note that the process of an operation has died: what it was just doing is unknown, the rest can be resumed."""
    for invocation_id in store.journal.in_reversal(connection, row.external_session_id, row.owner):
        store.journal.move(
            connection,
            invocation_id,
            invocation.REVERSE_UNKNOWN,
            operation_id=row.id,
            error="the process died during its reversal",
        )
    store.journal.abandon(connection, row.internal_session_id, row.owner)
    store.sessions.set_status(connection, row.internal_session_id, PARTIAL)
    store.operations.end(connection, row.id, operation.PARTIAL, as_object(row.report))


def require_quiet(store: Store, connection: Connection, session_id: int) -> None:
    """Check that neither a turn nor an operation acts on the world of a session.

    Raises:
        Conflict: One does.
    """
    recover_abandoned(store, connection, session_id)
    refuse_busy(store, connection, session_id)


def refuse_busy(store: Store, connection: Connection, session_id: int) -> None:
    """Refuse a session that somebody acts on the world of, after what dead processes held was taken back.

    Raises:
        Conflict: A turn runs, or an operation.
    """
    running, operations = (
        store.sessions.running(connection, session_id),
        store.operations.running(connection, session_id),
    )
    for branch in running.all():
        name = store.sessions.branch(connection, branch.id).name
        raise Conflict(
            f"Nothing was done: branch {name} is running. Wait for its turn to end, or close the stream that "
            "you have not finished reading; then try again."
        )
    for row in operations.all():
        raise Conflict(f"Rollback {row.id} of this session is in progress. Wait until it ends.")
