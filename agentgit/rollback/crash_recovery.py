"""Exclusive access to the world of a session: recovery from dead processes, and refusal of concurrent operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from agentgit.effects import invocation
from agentgit.errors import Conflict
from agentgit.sessions.session import PARTIAL
from agentgit.store.records.json_columns import read_report
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.process import beyond_ctrl_c, is_interrupt
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store


@contextmanager
def owning(store: Store, session_id: int) -> Iterator[str]:
    """Yield a name for one piece of work in a session, which may take branches and operations until the block ends.

    What it still holds when it is interrupted is given back at once: to other processes it would seem alive for as long
    as this process lives.
    """
    try:
        with store.register_owner() as owner:
            yield owner
    except BaseException as error:
        if is_interrupt(error):
            beyond_ctrl_c(partial(recover_all_abandoned, store, session_id))
        raise


def recover_abandoned(store: Store, transaction: Writing, session_id: int) -> list[int]:
    """Recover the turns and operations that dead processes held in a session. Such an operation becomes `partial`."""
    branches, operations = _running(store, transaction, session_id)
    for branch in branches:
        if store.sessions.is_abandoned(transaction, branch):
            store.recover(transaction, store.sessions.branch(transaction, branch.id))
    running_ids = []
    for row in operations:
        if store.sessions.is_abandoned(transaction, row):
            mark_interrupted(store, transaction, row)
        else:
            running_ids.append(int(row.id))
    return running_ids


def recover_all_abandoned(store: Store, session_id: int) -> None:
    """Recover what dead processes held in a session. Write only if there is something to recover."""
    with store.database.reading() as transaction:
        running = _running(store, transaction, session_id)
        has_abandoned = any(store.sessions.is_abandoned(transaction, row) for rows in running for row in rows)
    if has_abandoned:

        def recover(transaction: Writing) -> None:
            store.sessions.lock(transaction, session_id)
            recover_abandoned(store, transaction, session_id)

        store.database.write(recover, durable=True)


def _running(store: Store, transaction: Reading, session_id: int) -> list[list[StoredRow]]:
    """Read the branches and the operations that run in a session; both queries are sent before the first answer."""
    rooms = store.sessions, store.operations
    return [list(result.all()) for result in [room.query_running(transaction, session_id) for room in rooms]]


def mark_interrupted(store: Store, transaction: Writing, row: StoredRow) -> None:
    """Stop an operation whose process died: its current reversals become unknown, and the rest can be resumed."""
    for invocation_id in store.journal.ids_in_reversal(transaction, row.external_session_id, row.owner):
        died = {"operation_id": row.id, "error": invocation.DIED}
        store.journal.move(transaction, invocation_id, invocation.REVERSE_UNKNOWN, **died)
    store.journal.abandon(transaction, row.internal_session_id, row.owner)
    store.sessions.set_status(transaction, row.internal_session_id, PARTIAL)
    store.snapshots.record_crash(transaction, row.external_session_id)
    store.operations.end(transaction, row.id, PARTIAL, {**read_report(row), "died": True})


def require_idle(store: Store, transaction: Writing, session_id: int) -> None:
    """Recover what dead processes held in a session, then check that no turn and no operation is running."""
    recover_abandoned(store, transaction, session_id)
    require_nothing_running(store, transaction, session_id)


def require_nothing_running(store: Store, transaction: Reading, session_id: int) -> None:
    """Refuse a session in which a turn or an operation is running. Call `recover_abandoned` first."""
    branches, operations = _running(store, transaction, session_id)
    for branch in branches:
        name = store.sessions.branch(transaction, branch.id).name
        raise Conflict(
            f"Nothing was done: branch {name} is running. Wait for its turn to end, or close the stream that "
            "you have not finished reading; then try again."
        )
    for row in operations:
        raise Conflict(f"Rollback {row.id} of this session is in progress. Wait until it ends.")
