"""Checking the heads: the state of each branch is made as for its next turn, and hashed anew."""

from __future__ import annotations

from sqlalchemy import Connection, select

from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, rows
from agentgit.store.objects.blobs import RECORD, Leaf, leaf, list_hash, pack
from agentgit.store.objects.content import Body, Part
from agentgit.store.records.sessions import Found
from agentgit.store.sql.tables import BRANCH, CHECKPOINT
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import Found as At
from agentgit.store.threads.graph_rows import hash_state


def check_heads(connection: Connection, store: Store, report: FsckReport) -> None:
    """Make the state at the end of each branch, and compare its hash with what is recorded."""
    columns = (BRANCH.c.id, BRANCH.c.name, BRANCH.c.thread_id, BRANCH.c.head_id)
    for branch in rows(
        connection, select(*columns).where(BRANCH.c.tenant_id == store.tenant_id), report, counted=False
    ):
        report.attempt(f"internal_session {branch.id}", lambda one=branch: _check(connection, store, one, report))  # type: ignore[misc]  # mypy cannot infer it


def _check(connection: Connection, store: Store, branch: Found, report: FsckReport) -> None:
    name = f"internal_session {branch.id}"
    newest = store.graphs.newest(connection, branch.thread_id)
    heads = store.checkpoints.find(connection, CHECKPOINT.c.id == branch.head_id) if branch.head_id is not None else []
    head = heads[0] if heads else None  # that it is not there was told already
    if newest is None:
        if head is not None and head.graph_checkpoint_id is not None:
            report.add(name, f"the thread of branch {branch.name} is empty, and its head has a state", RESTORE)
        return
    if _made(connection, store, newest) != newest.state_hash:
        report.add(name, f"the state of branch {branch.name} is another one than was recorded", RESTORE)
    store.state(connection, branch.thread_id, newest.place.checkpoint_id)
    if head is not None and head.graph_checkpoint_id not in (None, newest.place.checkpoint_id):
        at = store.graphs.find(connection, newest.place._replace(checkpoint_id=head.graph_checkpoint_id))
        if at is not None and _made(connection, store, at) != head.state_hash:
            report.add(name, f"the state of the head of branch {branch.name} is another one than was recorded", RESTORE)


def _made(connection: Connection, store: Store, at: At) -> bytes:
    """Read the values of a graph checkpoint, and hash what was read."""
    bodies = store.graphs.content.get(connection, at.values.values())
    return hash_state({**{name: _hashed(bodies[key]) for name, key in at.values.items()}, **at.digests})


def _hashed(body: Body) -> bytes:
    if isinstance(body, dict):
        return leaf(RECORD, pack({name: _part(part) for name, part in body.items()})).hash
    return _part(body)


def _part(part: Part) -> bytes:
    return leaf(part.type, part.data).hash if isinstance(part, Leaf) else list_hash(item.hash for item in part)
