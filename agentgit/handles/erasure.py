"""Erasing for good, as the verbs that erase a session or a user share it."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from agentgit.auth.scopes import WRITE
from agentgit.errors import Conflict, Unavailable
from agentgit.handles.context import Context
from agentgit.sessions.maintenance import Erased
from agentgit.store.database import Database
from agentgit.store.maintenance import erasure


def erase(
    context: Context,
    which: erasure.Which,
    may: Callable[[Connection], object],
    work: Callable[[Connection], erasure.Gone],
) -> Erased:
    """Release the snapshots of files, delete in one transaction, and rewrite the database without what was deleted.

    Args:
        context: The context of the user who erases.
        which: The sessions to erase.
        may: A function that checks in a transaction whether the user may erase.
        work: A function that deletes.

    Raises:
        Conflict: Somebody works on a session, or made one meanwhile.
        NotFound, NotAllowed: Raised by `may`.
    """
    store = context.store

    def look(connection: Connection) -> list[int]:
        may(connection)
        found = list(connection.execute(which).scalars())
        for session_id in found:
            erasure.require_idle(store, connection, session_id)
        return found

    def delete(connection: Connection) -> erasure.Gone:
        if look(connection) != sessions:
            raise Conflict("Another session was made meanwhile. Nothing was erased; do it again.")
        return work(connection)

    sessions = context.change(look, scope=WRITE)
    # Before the rows that name them go: broken off, it is done again.
    files = context.engine().files
    snapshots, left = files.release_all(which)
    try:
        # Sessions of others may have begun as one of these, and say so in words.
        gone = context.change(delete, scope=WRITE, on=store.everybodys)
    finally:
        files.hold_again(snapshots)  # of what was not erased after all, or what others have come to need
    problem = wiped(store.database)
    return Erased(
        sessions=len(sessions),
        rows=gone.rows,
        values=gone.values,
        bytes=gone.bytes,
        events=gone.events,
        snapshots=len(snapshots),
        left=[*left, problem] if problem else left,
    )


def wiped(database: Database) -> str:
    """Write a database anew without what is deleted; say why not, where somebody holds it."""
    try:
        database.shrink(wipe=True)
    except Unavailable as error:
        return f"What was deleted may still lie in the files of the database: {error}"
    return ""
