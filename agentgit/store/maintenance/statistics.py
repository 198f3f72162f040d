"""Statistics of sessions and branches, read without their states, and the bytes that a session takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, select

from agentgit.sessions import ExternalSession
from agentgit.sessions.stats import BranchFigures, Figures, Storage, Usage, subtract_usage
from agentgit.store.maintenance.gc import find_live_values, find_unused_steps
from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BLOB, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE, LIST, OPERATION, TOOL_INVOCATION
from agentgit.store.store import Store
from agentgit.store.threads import token_usage
from agentgit.store.threads.graph_rows import GraphKey, where
from agentgit.values import as_object

OF_THREADS = {
    GRAPH_CHECKPOINT: (GRAPH_CHECKPOINT.c.meta, GRAPH_CHECKPOINT.c.header, GRAPH_CHECKPOINT.c.channels),
    GRAPH_WRITE: (GRAPH_WRITE.c.value,),
}
"""The columns that count for the size of a thread."""

OF_BRANCHES = {
    TOOL_INVOCATION: (TOOL_INVOCATION.c.args, TOOL_INVOCATION.c.result, TOOL_INVOCATION.c.answers),
    CHECKPOINT: (CHECKPOINT.c.data, CHECKPOINT.c.pending),
}
"""The columns that count for the size of a branch."""


def lengths(columns: Sequence[Any]) -> Any:
    """Build the expression for the total length of some columns."""
    return reduce(add, (func.coalesce(func.length(column), 0) for column in columns))


class Sizes:
    """The size of the data that only one session needs; see `agentgit.sessions.stats.Storage`.

    Each method reads all references between stored values, but no state.

    Args:
        connection: Any open connection. The results describe the data that it sees.
        store: The store of the tenant.
        session_id: The session.
    """

    def __init__(self, connection: Connection, store: Store, session_id: int) -> None:
        self._connection = connection
        self._store = store
        self._blobs = store.graphs.content.blobs
        branches = store.sessions.branches(connection, session_id)
        self._branches = {row.id for row in branches}
        self._threads = {row.thread_id for row in branches}
        self._steps = self._step_sizes()
        self._calls = sum(self._branch_rows(TOOL_INVOCATION).values())
        self._points = self._branch_rows(CHECKPOINT)
        others, _ = find_live_values(connection, self._blobs, lambda place: place.thread in self._threads)
        query = select(BLOB.c.hash, BLOB.c.type, BLOB.c.size, func.length(BLOB.c.data))
        rows = connection.execute(query.where(BLOB.c.tenant_id == store.tenant_id))
        self._sizes = {
            key: (stored, 1 + items * HASH_BYTES if type_ == LIST else stored)
            for key, type_, items, stored in rows
            if key not in others
        }

    def now(self) -> int:
        """Return the current size in bytes."""
        return self._measured((), ())

    def size_without(self, points: Collection[int]) -> int:
        """Return the size in bytes without some checkpoints and without the steps that nothing would need then."""
        spare = find_unused_steps(self._connection, self._store.tenant_id, frozenset(points), self._branches)
        return self._measured(points, {place for one in spare for place in one.gone})

    def _measured(self, points: Collection[int], gone: Collection[GraphKey]) -> int:
        live, lists = find_live_values(
            self._connection, self._blobs, lambda place: place.thread not in self._threads or place in gone
        )
        total = self._calls + sum(size for place, size in self._steps.items() if place not in gone)
        total += sum(size for point, size in self._points.items() if point not in points)
        for key in live & self._sizes.keys():
            stored, in_full = self._sizes[key]
            base = lists.get(key)
            total += in_full if base is not None and base not in lists else stored
        return total

    def _step_sizes(self) -> Counter[GraphKey]:
        found: Counter[GraphKey] = Counter()
        for table, columns in OF_THREADS.items():
            at = (table.c.thread_id, table.c.ns, table.c.checkpoint_id)
            query = select(*at, func.sum(lengths(columns))).where(table.c.tenant_id == self._store.tenant_id)
            for part in slices(sorted(self._threads)):
                for *place, size in self._connection.execute(query.where(at[0].in_(part)).group_by(*at)):
                    found[GraphKey(*place)] += size
        return found

    def _branch_rows(self, table: Any) -> dict[int, int]:
        query = select(table.c.id, lengths(OF_BRANCHES[table])).where(table.c.tenant_id == self._store.tenant_id)
        parts = (query.where(table.c.internal_session_id.in_(part)) for part in slices(sorted(self._branches)))
        return {id: size for part in parts for id, size in self._connection.execute(part)}


def figures(
    connection: Connection, store: Store, sessions: Sequence[ExternalSession], branches: Sequence[StoredRow]
) -> list[BranchFigures]:
    """Count what was done on some branches.

    Args:
        connection: Any open connection.
        store: The store of the tenant.
        sessions: The sessions of the branches.
        branches: The rows of the branches.
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
    """Count how often each checkpoint name occurs, most frequent first."""
    counts: Counter[str] = Counter()
    for row in _many(connection, store, _NAMES, branch_ids):
        counts[row.name] += row.total
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def storage(connection: Connection, store: Store, branches: Sequence[StoredRow]) -> Storage:
    """Measure the space that some branches take. It reads all references between stored values, but no state.

    Args:
        connection: Any open connection.
        store: The store of the tenant.
        branches: The rows of the branches.
    """
    blobs, threads = store.graphs.content.blobs, {branch.thread_id for branch in branches}
    mine, _ = find_live_values(connection, blobs, lambda place: place.thread not in threads)
    others, _ = find_live_values(connection, blobs, lambda place: place.thread in threads)
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


def _tokens(connection: Connection, store: Store, branch: StoredRow, began: str | None) -> Usage:
    """Return the tokens used on a branch itself: those of its newest state minus those of its first state."""
    thread = {"tenant_id": store.tenant_id, "thread_id": branch.thread_id, "ns": ""}
    now = _NEWEST.first(connection, thread)
    if now is None:
        return {}
    first = _ONE.first(connection, {**thread, "checkpoint_id": began}) if began is not None else None
    before = token_usage.read(as_object(first.header)) if first is not None else {}
    return subtract_usage(token_usage.read(as_object(now.header)), before)


def _beginnings(connection: Connection, store: Store, branches: Sequence[StoredRow]) -> dict[int, str]:
    """Return the graph checkpoint that each branch began with, if it began with one (a fork or a template)."""
    left = {branch.branch_point_id: branch.id for branch in branches if branch.branch_point_id is not None}
    points = _many(connection, store, _LEFT, list(left))
    # A branch that is not published yet has no first checkpoint, so its branch point stands in for it.
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
        TOOL_INVOCATION.c.internal_session_id.label("branch"),
        TOOL_INVOCATION.c.status.label("word"),
        func.count().label("total"),
    )
    .where(TOOL_INVOCATION.c.tenant_id == bindparam("tenant"), TOOL_INVOCATION.c.internal_session_id.in_(_of_branches))
    .group_by(TOOL_INVOCATION.c.internal_session_id, TOOL_INVOCATION.c.status)
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
    """Build the query for the total length of some columns in the rows with these keys."""
    mine = key.table.c.tenant_id == bindparam("tenant")
    return select(func.sum(lengths(columns)).label("bytes")).where(mine, key.in_(_of_branches))


_OF_THREADS = [_bytes(table.c.thread_id, columns) for table, columns in OF_THREADS.items()]
_OF_BRANCHES = [_bytes(table.c.internal_session_id, columns) for table, columns in OF_BRANCHES.items()]
_thread = where(GRAPH_CHECKPOINT, "tenant_id", "thread_id", "ns")
_NEWEST = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.header).where(*_thread).order_by(GRAPH_CHECKPOINT.c.seq.desc()).limit(1)
)
_ONE = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.header).where(*_thread, GRAPH_CHECKPOINT.c.checkpoint_id == bindparam("checkpoint_id"))
)
