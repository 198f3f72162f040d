"""Statistics of sessions and branches, read without their states, and the bytes that a session takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import bindparam, case, func, select

from agentgit.errors import Corrupt
from agentgit.sessions import ExternalSession
from agentgit.sessions.stats import BranchFigures, Figures, Storage, Usage, UsedTokens, sum_usages
from agentgit.store.maintenance.gc import find_live_values
from agentgit.store.queries.token_usage import TokenUsage
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import BLOB, CHECKPOINT, EVENT, GRAPH_CHECKPOINT, GRAPH_WRITE, OPERATION, TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.values import as_object

THREAD_COLUMNS = {
    GRAPH_CHECKPOINT: (GRAPH_CHECKPOINT.c.meta, GRAPH_CHECKPOINT.c.header, GRAPH_CHECKPOINT.c.channels),
    GRAPH_WRITE: (GRAPH_WRITE.c.value,),
}
"""The columns that count for the size of a thread."""

BRANCH_COLUMNS = {
    TOOL_INVOCATION: (TOOL_INVOCATION.c.args, TOOL_INVOCATION.c.result, TOOL_INVOCATION.c.answers),
    CHECKPOINT: (CHECKPOINT.c.data, CHECKPOINT.c.pending),
}
"""The columns that count for the size of a branch."""


def count_figures(
    transaction: Reading, store: Store, sessions: Sequence[ExternalSession], branches: Sequence[StoredRow]
) -> list[BranchFigures]:
    branch_ids = [branch.id for branch in branches]
    checkpoints: dict[int, dict[str, Any]] = {
        branch: dict(zip(("checkpoints", "automatic", "first", "last"), counts, strict=True))
        for branch, *counts in _read_rows(transaction, _CHECKPOINT_COUNTS, branch_ids)
    }
    calls, operations = (_count_by_word(transaction, query, branch_ids) for query in (_CALL_COUNTS, _OPERATION_COUNTS))
    tokens = count_tokens(transaction, store, branches)
    session_names = {session.id: session.session_name for session in sessions}
    return [
        BranchFigures(
            session_name=session_names[branch.external_session_id],
            name=branch.name,
            figures=Figures(
                **checkpoints.get(branch.id, {}),
                calls=calls[branch.id],
                operations=operations[branch.id],
                tokens=tokens[branch.id],
            ),
        )
        for branch in branches
    ]


def count_tokens(transaction: Reading, store: Store, branches: Sequence[StoredRow]) -> dict[int, Usage]:
    """Count the tokens that models used on each of some branches, by the id of the branch."""
    first_steps, usage = _find_first_steps(transaction, branches), TokenUsage(transaction, store)
    return {branch.id: usage.of_branch(branch.thread_id, first_steps.get(branch.id)) for branch in branches}


def tokens_of_erased_sessions(transaction: Reading, user_id: int) -> Usage:
    """Return the tokens that the erased sessions of a user had used, which their erasures noted."""
    query = select(EVENT.c.detail).where(
        EVENT.c.external_session_id.is_(None), EVENT.c.kind == "session.erased", EVENT.c.owner_id == user_id
    )
    usages = []
    for detail in transaction.execute(query).scalars():
        with suppress(Corrupt, ValueError, TypeError, AttributeError):  # fsck's check of the rows reports it
            noted = as_object(detail).get("tokens", {})
            usages.append({model: UsedTokens(*map(int, counts)) for model, counts in noted.items()})
    return sum_usages(usages)


def count_names(transaction: Reading, branch_ids: Sequence[int]) -> dict[str, int]:
    """Count how often each checkpoint name occurs, most frequent first."""
    counts: Counter[str] = Counter()
    for row in _read_rows(transaction, _NAME_COUNTS, branch_ids):
        counts[row.name] += row.total
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def measure_storage(transaction: Reading, store: Store, branches: Sequence[StoredRow]) -> Storage:
    """Measure the space that some branches take, by the references between stored values."""
    threads = {branch.thread_id for branch in branches}
    own_bytes = shared_bytes = 0
    for session_id in {branch.external_session_id for branch in branches}:
        blobs = store.graphs.blobs.of(session_id)
        own_hashes, _ = find_live_values(transaction, blobs, lambda graph_key: graph_key.thread not in threads)
        other_hashes, _ = find_live_values(transaction, blobs, lambda graph_key: graph_key.thread in threads)
        for key, size in transaction.execute(_VALUE_SIZES, {"session": session_id}):
            if key in own_hashes:
                own_bytes, shared_bytes = (
                    (own_bytes, shared_bytes + size) if key in other_hashes else (own_bytes + size, shared_bytes)
                )
    for keys, queries in ((list(threads), _THREAD_SIZES), ([branch.id for branch in branches], _BRANCH_SIZES)):
        for query in queries:
            own_bytes += sum(row.bytes or 0 for row in _read_rows(transaction, query, keys))
    return Storage(own=own_bytes, shared=shared_bytes)


def _read_rows(transaction: Reading, query: Any, ids: Sequence[int]) -> Iterator[Any]:
    for part in slices(ids):
        yield from transaction.execute(query, {"branches": part})


def _count_by_word(transaction: Reading, query: Any, ids: Sequence[int]) -> Mapping[int, dict[str, int]]:
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for row in _read_rows(transaction, query, ids):
        counts[row.branch][row.word] = row.total
    return counts


def _find_first_steps(transaction: Reading, branches: Sequence[StoredRow]) -> dict[int, str]:
    """Return the graph checkpoint that each branch began with, if it began with one (a fork or a template)."""
    branches_by_point = {branch.branch_point_id: branch.id for branch in branches if branch.branch_point_id is not None}
    branch_points = _read_rows(transaction, _BRANCH_POINTS, list(branches_by_point))
    # A branch that is not published yet has no first checkpoint, so its branch point stands in for it.
    first_steps = {branches_by_point[row.id]: row.graph_checkpoint_id for row in branch_points}
    first_checkpoints = _read_rows(transaction, _FIRST_CHECKPOINTS, [branch.id for branch in branches])
    first_steps.update((row.internal_session_id, row.graph_checkpoint_id) for row in first_checkpoints)
    return first_steps


_branch_ids: Any = bindparam("branches", expanding=True)
_CHECKPOINT_COUNTS = (
    select(
        CHECKPOINT.c.internal_session_id,
        func.count(),
        func.sum(case((CHECKPOINT.c.is_auto, 1), else_=0)),
        func.min(CHECKPOINT.c.created_at),
        func.max(CHECKPOINT.c.created_at),
    )
    .where(CHECKPOINT.c.internal_session_id.in_(_branch_ids))
    .group_by(CHECKPOINT.c.internal_session_id)
)


def _count_query(branch_id: Any, word: Any) -> Any:
    columns = branch_id.label("branch"), word.label("word"), func.count().label("total")
    return select(*columns).where(branch_id.in_(_branch_ids)).group_by(branch_id, word)


_CALL_COUNTS = _count_query(TOOL_INVOCATION.c.internal_session_id, TOOL_INVOCATION.c.status)
_OPERATION_COUNTS = _count_query(OPERATION.c.source_id, OPERATION.c.kind)
_FIRST_CHECKPOINTS = select(CHECKPOINT.c.internal_session_id, CHECKPOINT.c.graph_checkpoint_id).where(
    CHECKPOINT.c.internal_session_id.in_(_branch_ids), CHECKPOINT.c.kind == "branch"
)
_BRANCH_POINTS = select(CHECKPOINT.c.id, CHECKPOINT.c.graph_checkpoint_id).where(CHECKPOINT.c.id.in_(_branch_ids))
_NAME_COUNTS = (
    select(CHECKPOINT.c.name, func.count().label("total"))
    .where(CHECKPOINT.c.internal_session_id.in_(_branch_ids), CHECKPOINT.c.name.is_not(None))
    .group_by(CHECKPOINT.c.name)
)
_VALUE_SIZES = select(BLOB.c.hash, func.length(BLOB.c.data)).where(BLOB.c.external_session_id == bindparam("session"))


def _size_query(key: Any, columns: Sequence[Any]) -> Any:
    length = reduce(add, (func.coalesce(func.length(column), 0) for column in columns))
    return select(func.sum(length).label("bytes")).where(key.in_(_branch_ids))


_THREAD_SIZES = [_size_query(table.c.thread_id, columns) for table, columns in THREAD_COLUMNS.items()]
_BRANCH_SIZES = [_size_query(table.c.internal_session_id, columns) for table, columns in BRANCH_COLUMNS.items()]
