"""The heads of branches: where the next run of a branch, or of a thread of clients, begins."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from agentgit.store.records.sessions import IS_OF_THREAD, StoredRow
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH, GRAPH_CHECKPOINT, SESSION
from agentgit.store.store import Store


class BranchHead(NamedTuple):
    """A branch and its newest graph checkpoint."""

    row: StoredRow
    checkpoint_id: str | None


def read_branch_head(store: Store, connection: Connection, branch_id: int) -> BranchHead:
    """Read a branch and its newest graph checkpoint."""
    row = store.sessions.branch(connection, branch_id)
    head = store.graphs.head(connection, row.thread_id)
    return BranchHead(row, head.checkpoint_id if head is not None else None)


def find_thread_head(store: Store, connection: Connection, user_id: int, thread_id: str) -> BranchHead | None:
    """Find the current branch of a user's session for a thread of a served graph; None if it has none."""
    row = _OF_THREAD.first(connection, {"tenant": store.tenant_id, "user": user_id, "thread": thread_id})
    return BranchHead(row, row.newest_id) if row is not None else None


def _query() -> CompiledStatement:
    """Build the query for a thread. Without joins, a server uses the right indexes even before it has statistics."""
    c = GRAPH_CHECKPOINT.c
    of_branch = (c.tenant_id == BRANCH.c.tenant_id, c.thread_id == BRANCH.c.thread_id, c.ns == "")
    newest = select(c.checkpoint_id).where(*of_branch).order_by(c.seq.desc()).limit(1).scalar_subquery()
    current_id = select(SESSION.c.current_branch_id).where(IS_OF_THREAD).scalar_subquery()
    query = select(BRANCH, newest.label("newest_id"))
    return CompiledStatement(query.where(BRANCH.c.tenant_id == bindparam("tenant"), BRANCH.c.id == current_id))


_OF_THREAD = _query()
