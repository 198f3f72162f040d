"""Retention of checkpoints: what needs each checkpoint of a session, and deletion of those that may go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, bindparam, func, select

from agentgit.checkpoints.retention import KeptPoint, Retention, RetentionVerdict, judge
from agentgit.effects.invocation import INTENDED, REVERSE_FAILED, REVERSE_UNKNOWN, REVERSING, UNKNOWN
from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.store.queries.explorations import mark_of
from agentgit.store.records.checkpoints import merge_source_id
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.rows import CompiledUpdate
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, OPERATION, SESSION, TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.pending_writes import waiting
from agentgit.values import UNREADABLE, as_object, to_json

MARK = "retention"
"""The key in the metadata of a session that holds its retention."""

UNRESOLVED = (INTENDED, UNKNOWN, REVERSING, REVERSE_FAILED, REVERSE_UNKNOWN)
"""The statuses of effects that are not settled: the outcome is unknown, or a reversal has not succeeded."""


def read_retention(transaction: Reading, store: Store, session_id: int) -> Retention | None:
    """Read the retention of a session; None if it has none and keeps everything."""
    return parse_retention(store.sessions.load_row(transaction, session_id).meta)


def parse_retention(meta: bytes) -> Retention | None:
    try:
        data = as_object(meta).get(MARK) if MARK.encode() in meta else None  # most have none: skip the parse
        return Retention.from_dict(data) if data is not None else None
    except UNREADABLE as error:
        raise Corrupt("The retention of a session cannot be read.", Next("fsck")) from error


def sessions_with_retention(transaction: Reading) -> list[int]:
    rows = transaction.execute(select(SESSION.c.id, SESSION.c.meta))
    return [row.id for row in rows if MARK.encode() in row.meta]


def write_retention(transaction: Writing, store: Store, session_id: int, retention: Retention | None) -> None:
    """Set the retention of a session; None keeps everything."""
    store.sessions.lock(transaction, session_id)
    meta = as_object(store.sessions.load_row(transaction, session_id).meta)
    meta.pop(MARK, None)
    if retention is not None:
        meta[MARK] = retention.to_dict()
    _SET_META.run(transaction, {"id": session_id}, meta=to_json(meta))


def apply_if_due(transaction: Writing, store: Store, session_id: int, meta: bytes | None = None) -> int:
    """Apply a session's retention if it is due, in the transaction of a new checkpoint; return the number deleted."""
    if meta is None:
        store.sessions.lock(transaction, session_id)
        meta = store.sessions.load_row(transaction, session_id).meta
    retention = parse_retention(meta)
    if retention is None:
        return 0
    count = _CHECKPOINT_COUNT.all(transaction, {"session": session_id})[0].checkpoints
    limits = [limit for limit in (retention.compress_after, retention.max_checkpoints) if limit is not None]
    if not any(count > limit for limit in limits) and not _has_old_checkpoint(
        transaction, session_id, retention, count
    ):
        return 0
    return sum(verdict.is_removed for verdict in apply_retention(transaction, store, session_id, retention))


def _has_old_checkpoint(transaction: Reading, session_id: int, retention: Retention, count: int) -> bool:
    """Return whether a session may have a checkpoint older than `max_age`, without reading all checkpoints."""
    if retention.max_age is None or count <= retention.keep_last:
        return False
    parameters = {"session": session_id}
    old_rows = transaction.execute(
        _OLD_CHECKPOINTS, {**parameters, "before": datetime.now(UTC) - retention.max_age}
    ).all()
    return len(old_rows) > 1  # the first checkpoint stays


def apply_retention(
    transaction: Reading, store: Store, session_id: int, retention: Retention, user_id: int | None = None
) -> Sequence[RetentionVerdict]:
    """Delete what a retention does not keep, unless the transaction only reads; return all verdicts, oldest first."""
    writing = transaction if isinstance(transaction, Writing) else None
    if writing:
        store.sessions.lock(writing, session_id)
    verdicts = judge(points(transaction, store, session_id), retention, datetime.now(UTC))
    if writing:
        store.checkpoints.delete(writing, session_id, _removed(verdicts), user_id)
    return verdicts


def delete_unneeded(
    transaction: Writing,
    store: Store,
    session_id: int,
    *,
    branch_id: int | None = None,
    ids: Collection[int] | None = None,
    user_id: int | None = None,
) -> list[RetentionVerdict]:
    """Delete the checkpoints of a session that nothing needs; return the verdict on each checkpoint."""
    store.sessions.lock(transaction, session_id)  # so that no other transaction starts to need one
    session_points = points(transaction, store, session_id, branch_id)
    selected_points = [point for point in session_points if ids is None or point.id in ids]
    verdicts = [RetentionVerdict(point=one, is_removed=not one.needed, why=one.needed) for one in selected_points]
    store.checkpoints.delete(transaction, session_id, _removed(verdicts), user_id)
    return verdicts


def _removed(verdicts: Sequence[RetentionVerdict]) -> list[int]:
    return [verdict.point.id for verdict in verdicts if verdict.is_removed]


def points(transaction: Reading, store: Store, session_id: int, branch_id: int | None = None) -> list[KeptPoint]:
    """Read the checkpoints of a session, each with the reason why it is needed. No state is read."""
    branches = {row.id: row for row in store.sessions.branches(transaction, session_id)}
    branch_ids = list(branches) if branch_id is None else [branch_id]
    rows: list[Any] = [
        row for part in slices(branch_ids) for row in transaction.execute(_CHECKPOINTS, {"branches": part})
    ]
    reasons = _find_reasons(transaction, store, session_id, branches, rows)
    return [
        KeptPoint(
            id=row.id,
            reference=f"{branches[row.internal_session_id].name}#{row.number}",
            name=row.name,
            is_auto=row.is_auto and row.name is None,
            created_at=row.created_at,
            needed=reasons.get(row.id, ""),
        )
        for row in rows
    ]


def _find_reasons(
    transaction: Reading, store: Store, session_id: int, branches: Mapping[int, StoredRow], rows: Sequence[StoredRow]
) -> dict[int, str]:
    """Return the reason why each needed checkpoint stays, by id. It has all to which a row refers."""
    reasons = _find_before_unresolved(transaction, store, session_id, rows)
    waiting_ids = (row.id for row in rows if waiting(row.pending, f"checkpoint {row.id}"))
    reasons.update((id, "it waits for a person's answer") for id in waiting_ids)
    parameters = {"session": session_id}
    for branch in branches.values():
        if end_id := mark_of(branch).get("end"):
            reasons[end_id] = f"the exploration on branch {branch.name} ends there"
    for row in (row for part in slices([*branches]) for row in transaction.execute(_WITH_DATA, {"branches": part})):
        if (source_id := merge_source_id(row.data)) is not None:
            reasons[row.id] = "it is a merge, and the next merge continues from it"
            reasons[source_id] = f"{branches[row.internal_session_id].name}#{row.number} was merged from it"
    target_ids = transaction.execute(_TARGETS, parameters).scalars()
    reasons.update((id, "it is the target of a rollback or a fork") for id in target_ids)
    reasons.update((row.id, "a branch begins with it") for row in rows if row.kind == "branch")
    tags = store.tags.names_of(transaction, [row.id for row in rows])
    reasons.update((id, f"it has the tag {names[0]}") for id, names in tags.items())
    for branch in branches.values():
        reasons[branch.branch_point_id or 0] = f"branch {branch.name} starts from it"
    for branch in branches.values():
        reasons[branch.head_id or 0] = f"it is the head of branch {branch.name}"
    return reasons


def _find_before_unresolved(
    transaction: Reading, store: Store, session_id: int, rows: Sequence[StoredRow]
) -> dict[int, str]:
    """Find the last checkpoint of the branch before each unresolved effect, with the reason to keep it."""
    call_ids = transaction.execute(_UNRESOLVED_CALLS, {"session": session_id}).scalars().all()
    reasons: dict[int, str] = {}
    if not call_ids:
        return reasons
    rows_by_branch: dict[int, list[StoredRow]] = defaultdict(list)
    for row in rows:
        rows_by_branch[row.internal_session_id].append(row)
    for call in store.journal.invocations(transaction, call_ids).values():
        earlier_rows = [row for row in rows_by_branch[call.internal_session_id] if row.position <= call.position]
        if earlier_rows:
            last_row = max(earlier_rows, key=lambda row: row.number)
            reasons[last_row.id] = f"it is the last checkpoint before {call.tool_name}, which is {call.status}"
    return reasons


_branch_conditions = BRANCH.c.external_session_id == bindparam("session")
_CHECKPOINT_COUNT = CompiledStatement(
    select(func.count().label("checkpoints"))
    .select_from(CHECKPOINT)
    .where(CHECKPOINT.c.internal_session_id.in_(select(BRANCH.c.id).where(_branch_conditions)))
)
_OLD_CHECKPOINTS = (
    select(CHECKPOINT.c.id)
    .where(
        CHECKPOINT.c.internal_session_id.in_(select(BRANCH.c.id).where(_branch_conditions)),
        CHECKPOINT.c.created_at < bindparam("before"),
        CHECKPOINT.c.kind != "branch",
        CHECKPOINT.c.id.not_in(select(func.coalesce(BRANCH.c.head_id, 0)).where(_branch_conditions)),
        CHECKPOINT.c.id.not_in(select(func.coalesce(BRANCH.c.branch_point_id, 0)).where(_branch_conditions)),
    )
    .limit(2)
)
_CHECKPOINTS = (
    select(
        CHECKPOINT.c.id,
        CHECKPOINT.c.internal_session_id,
        CHECKPOINT.c.number,
        CHECKPOINT.c.name,
        CHECKPOINT.c.kind,
        CHECKPOINT.c.is_auto,
        CHECKPOINT.c.created_at,
        CHECKPOINT.c.position,
        CHECKPOINT.c.pending,
    )
    .where(CHECKPOINT.c.internal_session_id.in_(bindparam("branches", expanding=True)))
    .order_by(CHECKPOINT.c.id)
)
_WITH_DATA: Select[Any] = select(
    CHECKPOINT.c.id, CHECKPOINT.c.internal_session_id, CHECKPOINT.c.number, CHECKPOINT.c.data
).where(
    CHECKPOINT.c.internal_session_id.in_(bindparam("branches", expanding=True)),
    CHECKPOINT.c.kind == "named",
    CHECKPOINT.c.data.is_not(None),
)
_TARGETS = select(OPERATION.c.target_id).where(OPERATION.c.external_session_id == bindparam("session"))
_UNRESOLVED_CALLS = select(TOOL_INVOCATION.c.id).where(
    TOOL_INVOCATION.c.external_session_id == bindparam("session"), TOOL_INVOCATION.c.status.in_(UNRESOLVED)
)
_SET_META = CompiledUpdate(SESSION, "meta")
