"""The world of a session: the effects of its tools, their order, and the changes that other branches made.

A session has one world and many branches. The path of a branch contains the invocations of its track, those that it
took over from the record (`replay`), and those that ran again in place of one of them (`redo`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, exists, false, func, or_, select

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import (
    CALL,
    FAILED,
    PAUSED,
    REDO,
    REPLAY,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    SIMULATED,
    STANDING,
    UNKNOWN,
)
from agentgit.effects.kinds import RECORDED_KINDS, REVERSIBLE, WORKSPACE
from agentgit.store.records.journal import LAST_SEQ, NEWEST_FIRST, UNBOUNDED, Journal, TrackPart, acts
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.rows import rows_with
from agentgit.store.sql.tables import BRANCH, OPERATION, TOOL_INVOCATION, WORLD_LOG
from agentgit.store.sql.transaction import Reading


class WorldLog:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    # -- the log

    def last_seq(self, transaction: Reading, session_id: int) -> int:
        return int(LAST_SEQ.all(transaction, {"session": session_id})[0].seq or 0)

    def changes_by_others(self, transaction: Reading, branch: Row[Any]) -> set[int]:
        """Return the calls that others changed since this branch last saw the world, and those that they repeat."""
        parameters = {"session": branch.external_session_id, "branch": branch.id, "seen": branch.world_seen}
        rows = _CHANGES_BY_OTHERS.all(transaction, parameters)
        return {row.invocation_id for row in rows} | {row.replay_of for row in rows if row.kind == REDO}

    def last_actions(self, transaction: Reading, branch: Row[Any], ids: Sequence[int]) -> dict[int, str]:
        """Return the last action of each of these calls, or of its redo, when a branch last saw the world."""
        c = WORLD_LOG.c
        query = _LOGGED_ACTIONS.where(
            c.external_session_id == branch.external_session_id, c.seq <= branch.world_seen
        ).order_by(c.seq)
        return {row.first_id: row.action for row in rows_with(transaction, query, _FIRST_ID, ids)}

    # -- calls in effect

    def calls_in_effect(
        self, transaction: Reading, session_id: int, path: Sequence[TrackPart] = ()
    ) -> list[ToolInvocation]:
        """Read the invocations of a session that may have an effect in its world, newest first in world order."""
        rows = self.journal.load_rows(
            transaction,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.status.in_(sorted(STANDING)),
            acts(TOOL_INVOCATION.c.effect),
            TOOL_INVOCATION.c.kind != REPLAY,
            or_(TOOL_INVOCATION.c.kind == REDO, ~self.journal.is_recorded_on(path)),
            ~IS_SUPERSEDED,
            ~IS_REMADE,
            order=_NEWEST_IN_WORLD_FIRST,
        )
        path_ids = self.ids_on_path(transaction, path, map(_first_id, rows))
        return self.journal.invocations_from_rows(transaction, [row for row in rows if _first_id(row) not in path_ids])

    def paused_calls(self, transaction: Reading, session_id: int) -> list[ToolInvocation]:
        """Read the calls that asked a person and have not run again, newest first. They may have acted before."""
        return self.journal.find(
            transaction,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.status == PAUSED,
            BRANCH.c.status != SIMULATED,  # its tool did not run
            TOOL_INVOCATION.c.made_on.is_(None),
            acts(TOOL_INVOCATION.c.effect),
            TOOL_INVOCATION.c.effect != WORKSPACE,
            ~_RAN_AGAIN,
            order=NEWEST_FIRST,
        )

    def reversed_calls(self, transaction: Reading, path: Sequence[TrackPart]) -> list[ToolInvocation]:
        """Read the invocations on a path that were reversed or simulated and have no redo in effect, oldest first."""
        on_path = self.journal.is_recorded_on(path)
        replayed = select(TOOL_INVOCATION.c.replay_of).where(on_path, *_IS_USED_REPLAY)
        replayed_ids = transaction.execute(replayed).scalars().all()
        recorded = and_(on_path, TOOL_INVOCATION.c.kind != REPLAY)
        is_undone = or_(TOOL_INVOCATION.c.status == REVERSED, IS_SUPERSEDED, _WAS_SIMULATED)
        on_path = or_(recorded, TOOL_INVOCATION.c.id.in_(replayed_ids))
        rows = self.journal.load_rows(transaction, is_undone, on_path)
        redone_ids = self._redone_ids(transaction, [row.id for row in rows])
        return self.journal.invocations_from_rows(transaction, [row for row in rows if row.id not in redone_ids])

    def uncertain_calls(self, transaction: Reading, session_id: int, path: Sequence[TrackPart]) -> list[ToolInvocation]:
        """Read the invocations on a path for which it is unknown whether they were reversed or ran again."""
        rows = self.journal.load_rows(
            transaction,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.status.in_((REVERSING, REVERSE_UNKNOWN, UNKNOWN)),
            or_(TOOL_INVOCATION.c.kind == REDO, TOOL_INVOCATION.c.status != UNKNOWN),
            ~MAY_BE_REPEATED,
        )
        path_ids = self.ids_on_path(transaction, path, map(_first_id, rows))
        return self.journal.invocations_from_rows(transaction, [row for row in rows if _first_id(row) in path_ids])

    def redo_calls(self, transaction: Reading, invocation_id: int) -> list[ToolInvocation]:
        """Read the invocations that ran again in place of an invocation, newest first."""
        session_query = select(_first_run.c.external_session_id).where(_first_run.c.id == invocation_id)
        return self.journal.find(
            transaction,
            TOOL_INVOCATION.c.external_session_id == session_query.scalar_subquery(),  # for the index
            TOOL_INVOCATION.c.replay_of == invocation_id,
            TOOL_INVOCATION.c.kind == REDO,
            order=NEWEST_FIRST,
        )

    def last_run(self, transaction: Reading, call: ToolInvocation) -> ToolInvocation:
        """Return the last run in place of a call that was reversed or simulated; the call if there is none."""
        runs = self.redo_calls(transaction, call.id) if call.status in (REVERSED, SIMULATED) else ()
        return next((one for one in runs if one.status != FAILED), call)

    def may_be_in_world(self, transaction: Reading, call: ToolInvocation) -> bool:
        """Return whether a call, or one that ran again in its place, may have an effect in the world."""
        redos = [redo for redo in self.redo_calls(transaction, call.id) if redo.status != FAILED]
        return any(one.status in STANDING for one in (redos or [call]) if one.status != FAILED)

    def with_repeated_ids(self, transaction: Reading, ids: Iterable[int]) -> set[int]:
        """Return the ids of these invocations, and the ids of the calls that they repeat."""
        all_ids = set(ids)
        redos = rows_with(transaction, _SELECT_REPEATED, TOOL_INVOCATION.c.id, all_ids)
        return all_ids | {row.replay_of for row in redos}

    def _redone_ids(self, transaction: Reading, ids: Sequence[int]) -> set[int]:
        """Return those of these invocations whose redo may be in effect."""
        query = select(TOOL_INVOCATION.c.replay_of).where(
            TOOL_INVOCATION.c.kind == REDO,
            TOOL_INVOCATION.c.status.in_(sorted(STANDING - {FAILED})),
            ~MAY_BE_REPEATED,
        )
        return {row.replay_of for row in rows_with(transaction, query, TOOL_INVOCATION.c.replay_of, ids)}

    # -- the path

    def ids_on_path(self, transaction: Reading, path: Sequence[TrackPart], ids: Iterable[int]) -> set[int]:
        """Return those of these invocations that a path recorded or took over from the record."""
        searched_ids = set(ids) if path else set()
        if not searched_ids:
            return searched_ids
        c, on_path = TOOL_INVOCATION.c, self.journal.is_recorded_on(path)
        recorded = rows_with(transaction, select(c.id).where(on_path), c.id, searched_ids)
        replayed = rows_with(
            transaction, select(c.replay_of).where(on_path, *_IS_USED_REPLAY), c.replay_of, searched_ids
        )
        return {id for (id,) in (*recorded, *replayed)}


def _first_id(row: Row[Any]) -> int:
    """Return the id of the call of a row; for a redo, the id of the call that it repeats."""
    return int(row.replay_of if row.kind == REDO else row.id)


_first_seq = select(func.min(WORLD_LOG.c.seq)).where(WORLD_LOG.c.invocation_id == TOOL_INVOCATION.c.id)
# A call that is still running sorts as the newest.
_NEWEST_IN_WORLD_FIRST = (func.coalesce(_first_seq.scalar_subquery(), UNBOUNDED).desc(), *NEWEST_FIRST)

_SELECT_REPEATED = select(TOOL_INVOCATION.c.replay_of).where(TOOL_INVOCATION.c.kind == REDO)

_IS_USED_REPLAY = (
    TOOL_INVOCATION.c.kind == REPLAY,
    TOOL_INVOCATION.c.status != FAILED,
)  # the answer of a failed replay was never used

_WAS_SIMULATED = and_(
    TOOL_INVOCATION.c.status == SIMULATED,
    TOOL_INVOCATION.c.error_message.is_(None),
    acts(TOOL_INVOCATION.c.effect),
)
"""The SQL condition for a call whose effect a rerun took for granted."""

MAY_BE_REPEATED = and_(
    TOOL_INVOCATION.c.status == UNKNOWN, TOOL_INVOCATION.c.effect == REVERSIBLE, TOOL_INVOCATION.c.ended_at.is_not(None)
)
"""The SQL condition for `ToolInvocation.may_be_repeated`."""

_rerun = TOOL_INVOCATION.alias("again")
# A redo replaces the call that it repeats, because that call was reversed or never ran in the fresh world.
IS_SUPERSEDED = exists().where(
    _rerun.c.external_session_id == TOOL_INVOCATION.c.external_session_id,
    _rerun.c.replay_of == TOOL_INVOCATION.c.id,
    _rerun.c.kind == REDO,
    _rerun.c.status != FAILED,
)
_RAN_AGAIN = exists().where(
    _rerun.c.internal_session_id == TOOL_INVOCATION.c.internal_session_id,
    _rerun.c.idempotency_key == TOOL_INVOCATION.c.idempotency_key,
    _rerun.c.arrival > TOOL_INVOCATION.c.arrival,
)
# A call that was imported from another world, and that a branch made again here. The new call represents both.
IS_REMADE = and_(
    TOOL_INVOCATION.c.made_on.is_not(None),
    exists().where(
        _rerun.c.external_session_id == TOOL_INVOCATION.c.external_session_id,
        _rerun.c.replay_of == TOOL_INVOCATION.c.id,
        _rerun.c.kind == CALL,
    ),
)
_first_run = TOOL_INVOCATION.alias("first")
_FIRST_ID = case((TOOL_INVOCATION.c.kind == REDO, TOOL_INVOCATION.c.replay_of), else_=TOOL_INVOCATION.c.id)
_LOGGED_ACTIONS = select(WORLD_LOG.c.seq, WORLD_LOG.c.action, _FIRST_ID.label("first_id")).select_from(
    WORLD_LOG.join(
        TOOL_INVOCATION,
        TOOL_INVOCATION.c.id == WORLD_LOG.c.invocation_id,
    )
)
_is_call_of_branch = TOOL_INVOCATION.c.internal_session_id == bindparam("branch")
_is_operation_of_branch = OPERATION.c.internal_session_id == bindparam("branch")
_CHANGES_BY_OTHERS = CompiledStatement(
    select(WORLD_LOG.c.invocation_id, TOOL_INVOCATION.c.kind, TOOL_INVOCATION.c.replay_of)
    .select_from(
        WORLD_LOG.join(
            TOOL_INVOCATION,
            TOOL_INVOCATION.c.id == WORLD_LOG.c.invocation_id,
        ).outerjoin(OPERATION, OPERATION.c.id == WORLD_LOG.c.operation_id)
    )
    .where(
        WORLD_LOG.c.external_session_id == bindparam("session"),
        WORLD_LOG.c.seq > bindparam("seen"),
        # Memory is shared by sessions, so its changes never stop a branch.
        and_(*(TOOL_INVOCATION.c.effect != kind for kind in RECORDED_KINDS if not kind.is_exclusive)),
        # A call is ours if this branch made it. A reversal is ours if the rollback or switch was to this branch.
        case(
            (
                or_(WORLD_LOG.c.action == REVERSED, WORLD_LOG.c.action == REVERSE_UNKNOWN),
                func.coalesce(_is_operation_of_branch, false()),
            ),
            else_=_is_call_of_branch,
        ).is_(false()),
    )
)
