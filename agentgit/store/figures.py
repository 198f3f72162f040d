"""Counting sessions and branches, from columns: no state is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, select

from agentgit.sessions import ExternalSession
from agentgit.sessions.stats import BranchFigures, Figures, Storage, Usage, beyond
from agentgit.store import usage
from agentgit.store.blobs import BLOB
from agentgit.store.checkpoints import OPERATION
from agentgit.store.collect import in_use
from agentgit.store.graph_rows import CHECKPOINT as GRAPH
from agentgit.store.graph_rows import where
from agentgit.store.journal import INVOCATION
from agentgit.store.prepared import Prepared
from agentgit.store.sessions import CHECKPOINT, Found
from agentgit.store.sizes import OF_BRANCHES, OF_THREADS, lengths
from agentgit.store.slices import slices
from agentgit.store.store import Store
from agentgit.values import from_json


def figures(
    connection: Connection, store: Store, sessions: Sequence[ExternalSession], branches: Sequence[Found]
) -> list[BranchFigures]:
    """Count what was done on some branches.

    Args:
        connection: any.
        store: where.
        sessions: the sessions that they are of.
        branches: their rows.
    """
    ids = [branch.id for branch in branches]
    points = {row.branch: row for row in _many(connection, store, _POINTS, ids)}
    calls, operations = (_by_word(connection, store, query, ids) for query in (_CALLS, _OPERATIONS))
    began = _beginnings(connection, store, branches)
    names = {session.id: session.session_name for session in sessions}
    return [
        BranchFigures(
            session_name=names[branch.external_session_id],
            name=branch.name,
            figures=Figures(
                checkpoints=points[branch.id].total if branch.id in points else 0,
                automatic=points[branch.id].automatic if branch.id in points else 0,
                first=points[branch.id].first if branch.id in points else None,
                last=points[branch.id].last if branch.id in points else None,
                calls=calls[branch.id],
                operations=operations[branch.id],
                tokens=_tokens(connection, store, branch, began.get(branch.id)),
            ),
        )
        for branch in branches
    ]


def names(connection: Connection, store: Store, branch_ids: Sequence[int]) -> dict[str, int]:
    """Count how often each name of a checkpoint occurs, the most frequent first."""
    counts: Counter[str] = Counter()
    for row in _many(connection, store, _NAMES, branch_ids):
        counts[row.name] += row.total
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def storage(connection: Connection, store: Store, branches: Sequence[Found]) -> Storage:
    """Measure what some branches take; it walks through everything that is stored, but reads no state.

    Args:
        connection: any.
        store: where.
        branches: their rows.
    """
    blobs, threads = store.graphs.content.blobs, {branch.thread_id for branch in branches}
    mine, _ = in_use(connection, blobs, lambda place: place.thread not in threads)
    others, _ = in_use(connection, blobs, lambda place: place.thread in threads)
    own = shared = 0
    for key, size in connection.execute(_SIZES, {"tenant": store.tenant_id}):
        if key in mine:
            own, shared = (own, shared + size) if key in others else (own + size, shared)
    for keys, queries in ((list(threads), _OF_THREADS), ([branch.id for branch in branches], _OF_BRANCHES)):
        for query in queries:
            own += sum(row.bytes or 0 for row in _many(connection, store, query, keys))
    return Storage(own=own, shared=shared)


def _many(connection: Connection, store: Store, query: Any, ids: Sequence[int]) -> Iterator[Any]:
    for part in slices(ids):
        yield from connection.execute(query, {"tenant": store.tenant_id, "branches": part})


def _by_word(connection: Connection, store: Store, query: Any, ids: Sequence[int]) -> Mapping[int, dict[str, int]]:
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for row in _many(connection, store, query, ids):
        counts[row.branch][row.word] = row.total
    return counts


def _tokens(connection: Connection, store: Store, branch: Found, began: str | None) -> Usage:
    """Tell what was used on a branch itself: what its newest state has more than the one that it began with."""
    thread = {"tenant_id": store.tenant_id, "thread_id": branch.thread_id, "ns": ""}
    now = _NEWEST.first(connection, thread)
    if now is None:
        return {}
    first = _ONE.first(connection, {**thread, "checkpoint_id": began}) if began is not None else None
    return beyond(usage.read(from_json(now.header)), usage.read(from_json(first.header)) if first is not None else {})


def _beginnings(connection: Connection, store: Store, branches: Sequence[Found]) -> dict[int, str]:
    """Give the graph checkpoint that each branch began with, if it did not begin with nothing: a fork, a template."""
    left = {branch.branch_point_id: branch.id for branch in branches if branch.branch_point_id is not None}
    points = _many(connection, store, _LEFT, list(left))
    # Where a branch is not published yet, the checkpoint where it left says the same.
    found = {left[row.id]: row.graph_checkpoint_id for row in points}
    own = _many(connection, store, _BEGAN, [branch.id for branch in branches])
    found.update((row.internal_session_id, row.graph_checkpoint_id) for row in own)
    return found


_of_branches: Any = bindparam("branches", expanding=True)
_POINTS = (
    select(
        CHECKPOINT.c.internal_session_id.label("branch"),
        func.count().label("total"),
        func.sum(case((CHECKPOINT.c.is_auto, 1), else_=0)).label("automatic"),
        func.min(CHECKPOINT.c.created_at).label("first"),
        func.max(CHECKPOINT.c.created_at).label("last"),
    )
    .where(CHECKPOINT.c.tenant_id == bindparam("tenant"), CHECKPOINT.c.internal_session_id.in_(_of_branches))
    .group_by(CHECKPOINT.c.internal_session_id)
)
_CALLS = (
    select(
        INVOCATION.c.internal_session_id.label("branch"), INVOCATION.c.status.label("word"), func.count().label("total")
    )
    .where(INVOCATION.c.tenant_id == bindparam("tenant"), INVOCATION.c.internal_session_id.in_(_of_branches))
    .group_by(INVOCATION.c.internal_session_id, INVOCATION.c.status)
)
_OPERATIONS = (
    select(OPERATION.c.source_id.label("branch"), OPERATION.c.kind.label("word"), func.count().label("total"))
    .where(OPERATION.c.tenant_id == bindparam("tenant"), OPERATION.c.source_id.in_(_of_branches))
    .group_by(OPERATION.c.source_id, OPERATION.c.kind)
)
_BEGAN = select(CHECKPOINT.c.internal_session_id, CHECKPOINT.c.graph_checkpoint_id).where(
    CHECKPOINT.c.tenant_id == bindparam("tenant"),
    CHECKPOINT.c.internal_session_id.in_(_of_branches),
    CHECKPOINT.c.kind == "branch",
)
_LEFT = select(CHECKPOINT.c.id, CHECKPOINT.c.graph_checkpoint_id).where(
    CHECKPOINT.c.tenant_id == bindparam("tenant"), CHECKPOINT.c.id.in_(_of_branches)
)
_NAMES = (
    select(CHECKPOINT.c.name, func.count().label("total"))
    .where(
        CHECKPOINT.c.tenant_id == bindparam("tenant"),
        CHECKPOINT.c.internal_session_id.in_(_of_branches),
        CHECKPOINT.c.name.is_not(None),
    )
    .group_by(CHECKPOINT.c.name)
)
_SIZES = select(BLOB.c.hash, func.length(BLOB.c.data)).where(BLOB.c.tenant_id == bindparam("tenant"))


def _bytes(key: Any, columns: Sequence[Any]) -> Any:
    """Add up how long the contents of some columns are, of the rows with these keys."""
    mine = key.table.c.tenant_id == bindparam("tenant")
    return select(func.sum(lengths(columns)).label("bytes")).where(mine, key.in_(_of_branches))


_OF_THREADS = [_bytes(table.c.thread_id, columns) for table, columns in OF_THREADS.items()]
_OF_BRANCHES = [_bytes(table.c.internal_session_id, columns) for table, columns in OF_BRANCHES.items()]
_thread = where(GRAPH, "tenant_id", "thread_id", "ns")
_NEWEST = Prepared(select(GRAPH.c.header).where(*_thread).order_by(GRAPH.c.seq.desc()).limit(1))
_ONE = Prepared(select(GRAPH.c.header).where(*_thread, GRAPH.c.checkpoint_id == bindparam("checkpoint_id")))
