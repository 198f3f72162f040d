"""Taking back a branch whose process died."""

from __future__ import annotations

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR
from agentgit.errors import Conflict
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.rollback.crash_recovery import break_off
from agentgit.sessions import InternalSession
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import note
from agentgit.store.sql import process_owner


def recover(access: SessionAccess, branch: BranchRef, *, force: bool) -> InternalSession:
    """Take back a branch whose turn or rollback died.

    Args:
        access: The session.
        branch: The branch; None is the current one.
        force: True to take it also from a process of this machine that lives.

    Raises:
        NotFound: There is no such branch.
        Conflict: Its process is alive, on this machine; nothing was done.
    """
    context, store = access.context, access.context.store

    def take(connection: Connection) -> InternalSession:
        found = access.find(connection, EDITOR)
        store.sessions.lock(connection, found.id)
        row = context.lookup.branch(connection, found, branch)
        operations = [
            o for o in store.operations.running(connection, found.id).all() if o.internal_session_id == row.id
        ]
        if not force and any(map(process_owner.is_here, [row.owner, *(one.owner for one in operations)])):
            raise Conflict(
                f"Branch {row.name} is at work in a process of this machine. Wait until it ends, or end that "
                "process; force=True takes the branch from it."
            )
        store.journal.abandon(connection, row.id, row.owner)
        store.sessions.release(connection, row.id, row.owner)
        if row.status == RUNNING:
            note(connection, store.tenant_id, "turn.abandoned", branch_id=row.id, user_id=context.user.id)
        for operation in operations:
            break_off(store, connection, operation)
        return context.views.branch(connection, found, store.sessions.branch(connection, row.id))

    return context.change(take)
