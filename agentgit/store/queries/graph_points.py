"""The places of a session that LangGraph's checkpoint ids name: branch points between the checkpoints of a branch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, select

from agentgit.errors import NotFound
from agentgit.store.records.sessions import IS_OF_THREAD, StoredRow
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, SESSION
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphCheckpoint, parse_graph_checkpoint
from agentgit.store.threads.pending_writes import NO_WRITES


@dataclass(frozen=True, kw_only=True)
class GraphPoint:
    """A graph checkpoint of a session."""

    branch: StoredRow
    checkpoint: GraphCheckpoint
    is_head: bool
    target: StoredRow | None

    def require_target(self) -> StoredRow:
        """Return the row of the checkpoint to roll back to."""
        if self.target is None:
            raise NotFound(f"Branch {self.branch.name} has no checkpoint after {self.checkpoint.key.checkpoint_id}.")
        return self.target


def find_graph_point(
    store: Store, connection: Connection, session_id: int, current_id: int | None, checkpoint_id: str
) -> GraphPoint | None:
    """Find a checkpoint of the root graph by LangGraph's id.

    Forks copy graph checkpoints with their ids, so that several branches can have one. The current branch comes first,
    then the oldest.
    """
    branches = {row.thread_id: row for row in store.sessions.branches(connection, session_id)}
    c = GRAPH_CHECKPOINT.c
    query = select(GRAPH_CHECKPOINT).where(
        c.tenant_id == store.tenant_id, c.thread_id.in_(list(branches)), c.ns == "", c.checkpoint_id == checkpoint_id
    )
    rows = connection.execute(query).all()
    if not rows:
        return None
    row = min(rows, key=lambda row: (branches[row.thread_id].id != current_id, branches[row.thread_id].id))
    branch, checkpoint = branches[row.thread_id], parse_graph_checkpoint(row)
    newest = store.graphs.newest(connection, branch.thread_id)
    return GraphPoint(
        branch=branch,
        checkpoint=checkpoint,
        is_head=newest is not None and newest.key == checkpoint.key,
        target=_find_target(store, connection, branch, checkpoint),
    )


def _find_target(
    store: Store, connection: Connection, branch: StoredRow, checkpoint: GraphCheckpoint
) -> StoredRow | None:
    """Return the checkpoint with this state or, if there is none, the one after it, moved to this state."""
    c, graph = CHECKPOINT.c, GRAPH_CHECKPOINT.c
    own = (c.tenant_id == store.tenant_id, c.internal_session_id == branch.id)
    state_of = and_(
        graph.tenant_id == c.tenant_id,
        graph.thread_id == branch.thread_id,
        graph.ns == "",
        graph.checkpoint_id == c.graph_checkpoint_id,
    )

    def first(query: Any) -> StoredRow | None:
        id = connection.execute(query.limit(1)).scalar()
        return store.checkpoints.load_with_branch(connection, id) if id is not None else None

    same = first(select(c.id).where(*own, c.graph_checkpoint_id == checkpoint.key.checkpoint_id).order_by(c.number))
    if same is not None:
        return same
    after = first(
        select(c.id)
        .select_from(CHECKPOINT.join(GRAPH_CHECKPOINT, state_of))
        .where(*own, graph.seq > checkpoint.seq)
        .order_by(c.number)
    )
    if after is None:
        return None
    before = first(select(c.id).where(*own, c.number < after.number).order_by(c.number.desc()))
    return move(
        after,
        {
            "graph_checkpoint_id": checkpoint.key.checkpoint_id,
            "state_hash": checkpoint.state_hash.hex(),
            "message_count": checkpoint.message_count,
            "position": _position(store, connection, branch, checkpoint, before, after),
            "workspace_snapshot_id": before.workspace_snapshot_id if before is not None else None,
            "keeps_writes": _has_memory_of_subgraphs(store, connection, branch.thread_id),
        },
    )


def _has_memory_of_subgraphs(store: Store, connection: Connection, thread_id: str) -> bool:
    """Return whether a subgraph of a thread has a history of its own, which only a copy with the writes continues."""
    c = GRAPH_CHECKPOINT.c
    query = select(c.ns).where(
        c.tenant_id == store.tenant_id, c.thread_id == thread_id, c.ns != "", c.ns.not_like("%:%")
    )
    return connection.execute(query.limit(1)).first() is not None


def _position(
    store: Store,
    connection: Connection,
    branch: StoredRow,
    checkpoint: GraphCheckpoint,
    before: StoredRow | None,
    after: StoredRow,
) -> int:
    """Count the calls up to a graph checkpoint between two checkpoints: those that began before it was made.

    Only calls of the turn between the two are compared by their times, so that clocks of different machines do not
    matter.
    """
    first: int = before.position if before is not None else branch.inherited
    calls = store.track(connection, branch, after.position)[first:]
    made_at = datetime.fromisoformat(str(checkpoint.header["ts"]))
    return first + sum(call.started_at is not None and call.started_at < made_at for call in calls)


def move(row: StoredRow, point: dict[str, Any]) -> StoredRow:
    """Return the row of a checkpoint as if it had the state of a graph checkpoint before it."""
    changes = {**point, "state_hash": bytes.fromhex(point["state_hash"]), "restore_point": None}
    changes["pending"] = None if point["keeps_writes"] else NO_WRITES
    moved: Any = SimpleNamespace(**{**row._asdict(), **changes}, moved_to=point)
    return moved  # type: ignore[no-any-return]  # it has the columns of the row


def moved_to(row: StoredRow) -> dict[str, Any] | None:
    """Return the state to which a row was moved, to be stored with an operation; None if it was not moved."""
    point: dict[str, Any] | None = getattr(row, "moved_to", None)
    return point


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
