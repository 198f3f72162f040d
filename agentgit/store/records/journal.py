"""The journal: every tool invocation with its status, and the order in which effects happened in the world.

    forward: intended → done | failed | unknown | paused        reverse: done → reversing → reversed | reverse_failed

A call that waits for a person's answer is `paused`. Once answered, it runs again as a new call. A paused call has done
nothing, so it has no place on the track and does not count in any position. It is shown only while it waits.

Each transition is a compare-and-swap on `status`, so that two processes cannot both make it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import (
    CALL,
    DONE,
    FAILED,
    INTENDED,
    PAUSED,
    REDO,
    REPLAY,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    REVERSING,
    SIMULATED,
    TRANSITIONS,
    UNKNOWN,
)
from agentgit.effects.kinds import RECORDED_KINDS, Kind, kind_of
from agentgit.errors import Conflict, Corrupt
from agentgit.store.audit.trail import EPOCH, know_names, record_event
from agentgit.store.sql.columns import bind_row
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import require_row, unreadable_row
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.rows import rows_with, update_rows, value_of
from agentgit.store.sql.tables import (
    BRANCH,
    LOGGED_STATUSES,
    SESSION,
    TOOL_INVOCATION,
    WORLD_LOG,
)
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import as_object, stored_json, to_json

LAST_LOGGED_STATUSES = {status: (status,) for status in LOGGED_STATUSES} | dict.fromkeys(
    (REVERSING, REVERSE_FAILED), (DONE, UNKNOWN, REVERSE_UNKNOWN)
)
"""For each status, the possible last events of the call in the world log. With other statuses it has no event."""


def _next_logged(status: str) -> list[str]:
    """Return the statuses that may come next in the world log."""
    reached: set[str] = set()
    unlogged = [status]
    while unlogged:
        after = TRANSITIONS.get(unlogged.pop(), frozenset()) - reached
        reached |= after
        unlogged += after - LOGGED_STATUSES
    return sorted(reached & LOGGED_STATUSES)


NEXT_LOGGED = {status: _next_logged(status) for status in sorted(LOGGED_STATUSES)}
"""For each event of a call in the world log, the events of the call that may follow it."""

AUDITED_STATUSES = LOGGED_STATUSES | {REVERSE_FAILED}
"""The statuses that are recorded in the audit trail."""


UNBOUNDED = 2**31 - 1
"""A number greater than that of any call or checkpoint on a branch."""


@dataclass(frozen=True, kw_only=True)
class TrackPart:
    """The part of a track that one branch recorded."""

    branch_id: int
    before: int
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Intent:
    session_id: int
    branch_id: int
    batch: int
    batch_index: int
    tool_name: str
    tool_call_id: str | None
    effect: Kind
    undo: str | None
    args: Any
    idempotency_key: str
    owner: str
    started_at: datetime
    verify: str | None = None
    precheck: str | None = None
    tool_path: str | None = None
    enclosing: str | None = None
    kind: str = CALL
    identity: str | None = None
    replay_of: int | None = None
    task: str | None = None
    made_on: int | None = None
    parent_id: int | None = None
    id: int = field(default_factory=new_id)


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    status: str
    result: Any = None
    error: str | None = None
    ended_at: datetime | None = None
    answers: Any = None


class CallTally(NamedTuple):
    """The calls that a branch made itself: their number on the track, and the number of the next batch."""

    calls: int
    next_batch: int


_OLDEST_FIRST, NEWEST_FIRST = (TOOL_INVOCATION.c.id,), (TOOL_INVOCATION.c.id.desc(),)


class Journal:
    # -- forward

    def intend(self, transaction: Writing, intent: Intent, arrival: int | None = None) -> int:
        self.add(transaction, [(intent, None)], arrival)
        return intent.id

    def add(
        self,
        transaction: Writing,
        calls: Sequence[tuple[Intent, CallOutcome | None]],
        first_arrival: int | None = None,
    ) -> None:
        if first_arrival is None:
            first_arrival = self.next_arrival(transaction, calls[0][0].branch_id)
        rows = [self._call_row(intent, outcome, first_arrival + index) for index, (intent, outcome) in enumerate(calls)]
        transaction.known_tallies.clear()
        _ADD.run(transaction, *rows)

    def add_imported(
        self, transaction: Writing, calls: Sequence[tuple[Intent, CallOutcome]], first_arrival: int, last_seq: int
    ) -> int:
        """Record calls that were made elsewhere, and the last event of each; return the last number of the log."""
        if calls:
            self.add(transaction, calls, first_arrival)
        for intent, outcome in calls:
            if not intent.effect.is_neutral and outcome.status in LAST_LOGGED_STATUSES:
                last_seq += 1
                entry = {
                    "external_session_id": intent.session_id,
                    "seq": last_seq,
                    "invocation_id": intent.id,
                    "action": LAST_LOGGED_STATUSES[outcome.status][0],
                    "operation_id": None,
                    "created_at": outcome.ended_at or intent.started_at,
                }
                _ADD_LOG_ENTRY.run(transaction, entry)
        return last_seq

    def _call_row(self, intent: Intent, outcome: CallOutcome | None, arrival: int) -> dict[str, Any]:
        row = {**vars(intent), "args": to_json(intent.args), "arrival": arrival, "owner": intent.owner or None}
        row["external_session_id"], row["internal_session_id"] = row.pop("session_id"), row.pop("branch_id")
        outcome_columns = _outcome_columns(outcome) if outcome else NO_OUTCOME
        return {**row, "status": outcome.status if outcome else INTENDED, **outcome_columns}

    def next_arrival(self, transaction: Reading, branch_id: int) -> int:
        return int(_NEXT_ARRIVAL.all(transaction, {"branch": branch_id})[0].arrival)

    def end(
        self, transaction: Writing, invocation_id: int, outcome: CallOutcome, *, is_past: bool = False
    ) -> int | None:
        """Record how a call ended, and return the number of the entry that it added to the world log, if it did."""
        values = _outcome_columns(outcome)
        if outcome.answers is None:
            del values["answers"]  # what the call had used when it was last heard of stays
        row = self._change_status(transaction, invocation_id, outcome.status, **values)
        if kind_of(row.effect).is_neutral:
            return None
        return self._log(transaction, row, outcome.status, is_past=is_past)

    def calls_of_turn(self, transaction: Reading, branch_id: int, owner: str) -> dict[int, str]:
        query = select(TOOL_INVOCATION.c.id, TOOL_INVOCATION.c.status).where(
            self._in_branch(branch_id), TOOL_INVOCATION.c.owner == owner
        )
        return {row.id: row.status for row in transaction.execute(query)}

    def abandon(self, transaction: Writing, branch_id: int, owner: str | None) -> None:
        """Mark the calls that a turn left without an outcome as `unknown`."""
        for row in _SELECT_RUNNING.all(transaction, {"branch": branch_id, "by": owner}):
            self.end(transaction, row.id, CallOutcome(status=UNKNOWN))

    # -- reversal and decisions

    def move(
        self,
        transaction: Writing,
        invocation_id: int,
        status: str,
        *,
        operation_id: int | None = None,
        owner: str | None = None,
        error: str | None = None,
        result: Any = None,
    ) -> None:
        """Change the status of an invocation, if the journal allows this transition."""
        values = {"result": to_json(result)} if result is not None else {}
        row = self._change_status(transaction, invocation_id, status, owner=owner, error_message=error, **values)
        self._log(transaction, row, status, operation_id)

    def set_error_message(self, transaction: Writing, call: ToolInvocation, error: str | None) -> None:
        """Replace the error message of a call whose outcome is unknown. No-op if its status has changed meanwhile."""
        self.change(transaction, call.id, TOOL_INVOCATION.c.status == call.status, error_message=error)

    def change(self, transaction: Writing, invocation_id: int, *conditions: Any, **values: Any) -> None:
        """Change columns of an invocation if it meets the conditions, without regard to its status."""
        transaction.known_tallies.clear()
        update_rows(transaction, TOOL_INVOCATION, TOOL_INVOCATION.c.id == invocation_id, *conditions, **values)

    def _change_status(self, transaction: Writing, invocation_id: int, status: str, **values: Any) -> Row[Any]:
        parameters = {"invocation": invocation_id}
        bound = bind_row(TOOL_INVOCATION, {"id": invocation_id, **values}) if transaction.seal is not None else values
        new_parameters = {f"new_{name}": bound[name] for name in values}
        transaction.known_tallies.clear()
        row = _moving(status, tuple(values)).first(transaction, parameters | new_parameters)
        if row is None:
            rows = self.load_rows(transaction, TOOL_INVOCATION.c.id == invocation_id)
            row = require_row(next(iter(rows), None), "tool invocation", invocation_id)
            raise Conflict(
                f"Invocation {invocation_id} ({row.tool_name}) is {row.status} and cannot become {status}: it was "
                "changed in the meantime. Plan the rollback again."
            )
        know_names(transaction, row.internal_session_id, lambda: row)
        return row

    def _log(
        self,
        transaction: Writing,
        row: Row[Any],
        action: str,
        operation_id: int | None = None,
        *,
        is_past: bool = False,
    ) -> int | None:
        """Record an event, and return the number of the entry that it added to the world log, if it did."""
        if action in AUDITED_STATUSES and not is_past:
            record_event(
                transaction,
                f"call.{action}",
                branch_id=row.internal_session_id,
                invocation=row.id,
                tool=row.tool_name,
                effect=row.effect,
                ran=row.kind,
                operation=operation_id,
            )
        if action not in LOGGED_STATUSES:
            return None
        entry = {
            "external_session_id": row.external_session_id,
            "invocation_id": row.id,
            "action": action,
            "operation_id": operation_id,
            "created_at": datetime.now(UTC),
        }
        return int(_APPEND_LOG_ENTRY.all(transaction, {"session": row.external_session_id, **entry})[0].seq)

    # -- reading

    def tally(self, transaction: Reading, branch_id: int) -> CallTally:
        known = transaction.known_tallies.get(branch_id)
        row = known() if known is not None else _SELECT_TALLY.first(transaction, {"branch": branch_id})
        return value_of(CallTally, row)

    def count(self, transaction: Reading, branch_id: int, *, before_batch: int | None) -> int:
        """Count the calls that a branch made itself before a batch; `before_batch=None` counts all."""
        batch_limit = UNBOUNDED if before_batch is None else before_batch
        return int(transaction.execute(_COUNT_CALLS, {"branch": branch_id, "until": batch_limit}).scalar_one())

    def have_ended(self, transaction: Reading, thread: str, tool_call_ids: Sequence[str]) -> bool:
        """Return whether the newest run of each of these tool calls is recorded on a thread and has ended."""
        c = TOOL_INVOCATION.c
        query = select(c.tool_call_id, c.status).select_from(WITH_BRANCH).order_by(c.id)
        query = query.where(BRANCH.c.thread_id == thread, c.tool_call_id.in_(tool_call_ids))
        statuses = dict(transaction.execute(query).all())
        return statuses.keys() == {*tool_call_ids} and not {INTENDED, PAUSED} & {*statuses.values()}

    def last_batch(self, transaction: Reading, branch_id: int, tool_call_ids: Iterable[str]) -> int | None:
        """Return the newest batch of a branch that contains one of these tool calls; None if none was recorded."""
        is_requested_call = TOOL_INVOCATION.c.tool_call_id.in_(bindparam("calls", expanding=True))
        query = select(func.max(TOOL_INVOCATION.c.batch)).where(self._in_branch(branch_id), is_requested_call)
        batch = transaction.execute(query, {"calls": list(tool_call_ids)}).scalar()
        return int(batch) if batch is not None else None

    def track(self, transaction: Reading, parts: Sequence[TrackPart], skip: int = 0) -> list[ToolInvocation]:
        """Read a track as it was recorded, in the order of the AI messages."""
        return [call for _, call in self._load_track(transaction, parts, skip)]

    def live_track(
        self, transaction: Reading, runs: Mapping[int, Row[Any]], parts: Sequence[TrackPart], skip: int = 0
    ) -> list[ToolInvocation]:
        """Read a track as it is now: in place of a call whose tool ran again, its newest run that did not fail."""
        track = self._load_track(transaction, parts, skip)
        return [_replace_run(row, call, runs.get(_original_id(row), row)) for row, call in track]

    def newest_runs(self, transaction: Reading, session_id: int) -> Mapping[int, Row[Any]]:
        """Read the runs of a session that a track shows in place of recorded calls, by the ids of the first runs.

        These are the newest run of each call that ran again, and each call that answered others and is or was not done.
        """
        rows = _SELECT_NEWEST_RUNS.all(transaction, {"session": session_id})
        redone = {row.replay_of: row for row in rows if row.kind == REDO}
        return {row.id: row for row in rows if row.kind != REDO} | redone

    def _load_track(
        self, transaction: Reading, parts: Sequence[TrackPart], skip: int
    ) -> list[tuple[Row[Any], ToolInvocation]]:
        track: list[tuple[Row[Any], ToolInvocation]] = []
        for part in parts:
            part_skip = max(0, skip - part.before)
            if part.count is not None and part.count <= part_skip:
                continue
            count = UNBOUNDED if part.count is None else part.count - part_skip
            rows = _SELECT_TRACK.all(transaction, {"branch": part.branch_id, "count": count, "skip": part_skip})
            first_position, runs = part.before + part_skip, self._run_counts(transaction, rows)
            track += [
                (row, _invocation_from_row(row, parts[-1].branch_id, first_position + n, runs.get(row.id, 1)))
                for n, row in enumerate(sorted(rows, key=_order))
            ]
        return track

    def waiting_calls(self, transaction: Reading, branch_id: int, position: int) -> list[ToolInvocation]:
        rows = transaction.execute(_SELECT_WAITING, {"branch": branch_id}).all()
        runs = self._run_counts(transaction, rows)
        return [_invocation_from_row(row, branch_id, position + n, runs.get(row.id, 1)) for n, row in enumerate(rows)]

    def _run_counts(self, transaction: Reading, rows: Sequence[Row[Any]]) -> dict[int, int]:
        """Return how often the tool of each call started; only for calls that received an answer of a person."""
        answered_ids = [row.id for row in rows if row.answers is not None]
        counted_rows = rows_with(transaction, _COUNT_PAUSED_RUNS, TOOL_INVOCATION.c.id, answered_ids)
        return {row.id: row.paused + 1 for row in counted_rows}

    def is_recorded_on(self, path: Sequence[TrackPart]) -> ColumnElement[bool]:
        return or_(false(), *(self._is_recorded_on_part(part) for part in path if part.count != 0))

    def _is_recorded_on_part(self, part: TrackPart) -> ColumnElement[bool]:
        c, own = TOOL_INVOCATION.c, _other_call.c
        last = select(own.arrival).where(own.internal_session_id == part.branch_id, own.status != PAUSED)
        last = last.where(own.kind != REDO).order_by(own.arrival).limit(1).offset((part.count or 1) - 1)
        last_arrival = UNBOUNDED if part.count is None else func.coalesce(last.scalar_subquery(), UNBOUNDED)
        return and_(c.internal_session_id == part.branch_id, c.kind != REDO, c.arrival <= last_arrival)

    def invocations_from_rows(self, transaction: Reading, rows: Sequence[Row[Any]]) -> list[ToolInvocation]:
        """Convert rows to values from the view of the branches that recorded them; a redo has the place of its call."""
        repeated_rows = self._load_rows_of(transaction, {row.replay_of for row in rows if row.kind == REDO})
        calls = self._invocations_from_rows(transaction, [*rows, *repeated_rows])
        places = {call.id: call for call in calls[len(rows) :]}
        return [
            replace(call, position=place.position, tool_call_id=place.tool_call_id)
            if call.kind == REDO and (place := places.get(call.first_id))
            else call
            for call in calls[: len(rows)]
        ]

    def _invocations_from_rows(self, transaction: Reading, rows: Sequence[Row[Any]]) -> list[ToolInvocation]:
        ids_by_branch: dict[int, list[int]] = {}
        for row in rows:
            if row.kind != REDO:  # a redo has no place of its own
                ids_by_branch.setdefault(row.internal_session_id, []).append(row.id)
        ranks: dict[int, int] = {}
        for branch_id, ids in ids_by_branch.items():
            ranked_rows = rows_with(transaction, _SELECT_RANKS, _ranked.c.id, ids, branch=branch_id)
            ranks |= {row.id: row.rank for row in ranked_rows}
        runs = self._run_counts(transaction, rows)
        return [
            _invocation_from_row(
                row, row.internal_session_id, row.inherited + ranks.get(row.id, 0), runs.get(row.id, 1)
            )
            for row in rows
        ]

    def load_rows(self, transaction: Reading, *conditions: Any, order: Sequence[Any] = _OLDEST_FIRST) -> list[Row[Any]]:
        return [*transaction.execute(_WITH_INHERITED.where(*conditions).order_by(*order))]

    def find(
        self, transaction: Reading, *conditions: Any, order: Sequence[Any] = _OLDEST_FIRST
    ) -> list[ToolInvocation]:
        """Read calls from the view of the branches that recorded them."""
        return self.invocations_from_rows(transaction, self.load_rows(transaction, *conditions, order=order))

    def invocation(self, transaction: Reading, invocation_id: int) -> ToolInvocation | None:
        return self.invocations(transaction, [invocation_id]).get(invocation_id)

    def invocations(self, transaction: Reading, ids: Sequence[int]) -> dict[int, ToolInvocation]:
        return {call.id: call for call in self.invocations_from_rows(transaction, self._load_rows_of(transaction, ids))}

    def _load_rows_of(self, transaction: Reading, ids: Iterable[int]) -> Sequence[Row[Any]]:
        query = _WITH_INHERITED.order_by(TOOL_INVOCATION.c.id)
        return rows_with(transaction, query, TOOL_INVOCATION.c.id, ids)

    def ids_in_reversal(self, transaction: Reading, session_id: int, owner: str | None) -> list[int]:
        """Return the ids of the invocations of a session that this owner was reversing, even if it is dead."""
        query = select(TOOL_INVOCATION.c.id).where(
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.status == REVERSING,
            TOOL_INVOCATION.c.owner == owner,
        )
        return list(transaction.execute(query).scalars())

    def _in_branch(self, branch_id: int) -> Any:
        return TOOL_INVOCATION.c.internal_session_id == branch_id


def acts(effect: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition for calls whose effect is not neutral."""
    return and_(*(effect != kind for kind in RECORDED_KINDS if kind.is_neutral))


_other_call = TOOL_INVOCATION.alias("other_call")
IS_ON_TRACK = and_(TOOL_INVOCATION.c.status != PAUSED, TOOL_INVOCATION.c.kind != REDO)
"""The condition for calls with a place on the track: not paused, and not run again in place of another call."""

# The statements of every turn and call are built once, because building one takes as long as running it.
_is_in_branch = TOOL_INVOCATION.c.internal_session_id == bindparam("branch")
_ADD = CompiledStatement(insert(TOOL_INVOCATION))
_next_arrival = func.coalesce(func.max(TOOL_INVOCATION.c.arrival) + 1, 0)
_NEXT_ARRIVAL = CompiledStatement(select(_next_arrival.label("arrival")).where(_is_in_branch))
_next_batch = func.coalesce(func.max(TOOL_INVOCATION.c.batch) + 1, 0)
_SELECT_TALLY = CompiledStatement(
    select(func.count(case((IS_ON_TRACK, 1))).label("calls"), _next_batch.label("next_batch")).where(_is_in_branch)
)
_of_branch = TOOL_INVOCATION.c.internal_session_id == BRANCH.c.id
CALLS = select(func.count()).where(_of_branch, IS_ON_TRACK).correlate(BRANCH).scalar_subquery()
NEXT_BATCH = select(_next_batch).where(_of_branch).correlate(BRANCH).scalar_subquery()
NEXT_ARRIVAL_OF_BRANCH = select(_next_arrival).where(_of_branch).correlate(BRANCH).scalar_subquery()
LAST_SEQ_OF_BRANCH = (
    select(func.max(WORLD_LOG.c.seq))
    .where(WORLD_LOG.c.external_session_id == BRANCH.c.external_session_id)
    .correlate(BRANCH)
    .scalar_subquery()
)
"""The length of the world log of a branch's session, in a query for the branch."""

_COUNT_CALLS = (
    select(func.count())
    .select_from(TOOL_INVOCATION)
    .where(_is_in_branch, IS_ON_TRACK, TOOL_INVOCATION.c.batch < bindparam("until"))
)
_SELECT_RUNNING = CompiledStatement(
    select(TOOL_INVOCATION.c.id)
    .where(_is_in_branch, TOOL_INVOCATION.c.status == INTENDED, TOOL_INVOCATION.c.owner == bindparam("by"))
    .order_by(TOOL_INVOCATION.c.arrival)
)
_later = TOOL_INVOCATION.alias("later")
_SELECT_WAITING = (
    select(TOOL_INVOCATION)
    .where(
        _is_in_branch,
        TOOL_INVOCATION.c.status == PAUSED,
        ~exists().where(
            _later.c.internal_session_id == TOOL_INVOCATION.c.internal_session_id,
            _later.c.arrival > TOOL_INVOCATION.c.arrival,
            or_(_later.c.tool_call_id == TOOL_INVOCATION.c.tool_call_id, _later.c.batch > TOOL_INVOCATION.c.batch),
        ),
    )
    .order_by(TOOL_INVOCATION.c.arrival)
)

_of_session = TOOL_INVOCATION.c.external_session_id == bindparam("session")
NEWEST_REDOS = (
    select(func.max(TOOL_INVOCATION.c.id))
    .where(
        _of_session,
        TOOL_INVOCATION.c.replay_of.is_not(None),
        TOOL_INVOCATION.c.kind == REDO,
        TOOL_INVOCATION.c.status != FAILED,
    )
    .group_by(TOOL_INVOCATION.c.replay_of)
)
"""The ids of the newest runs of the calls of a session that ran again. A failed run changed nothing.

A query with these ids does not name the session itself, so that SQLite looks the ids up instead of reading all calls.
"""

_ANSWERING = select(TOOL_INVOCATION.c.replay_of).where(
    _of_session, TOOL_INVOCATION.c.replay_of.is_not(None), TOOL_INVOCATION.c.kind == REPLAY
)
_COPIED_UNKNOWN = _ANSWERING.where(TOOL_INVOCATION.c.status == UNKNOWN)
_SELECT_TRACK = CompiledStatement(
    select(TOOL_INVOCATION)
    .where(_is_in_branch, IS_ON_TRACK)
    .order_by(TOOL_INVOCATION.c.arrival)
    .limit(bindparam("count"))
    .offset(bindparam("skip"))
)

_SELECT_NEWEST_RUNS = CompiledStatement(
    select(TOOL_INVOCATION).where(
        TOOL_INVOCATION.c.id.in_(union_all(NEWEST_REDOS, _ANSWERING)),
        or_(
            TOOL_INVOCATION.c.kind == REDO, TOOL_INVOCATION.c.status != DONE, TOOL_INVOCATION.c.id.in_(_COPIED_UNKNOWN)
        ),
    )
)
"""What `Journal.newest_runs` reads."""

_paused = TOOL_INVOCATION.alias("paused")
_COUNT_PAUSED_RUNS = (
    select(TOOL_INVOCATION.c.id, func.count(_paused.c.id).label("paused"))
    .join_from(
        TOOL_INVOCATION,
        _paused,
        and_(
            _paused.c.external_session_id == TOOL_INVOCATION.c.external_session_id,
            _paused.c.status == PAUSED,
            _paused.c.internal_session_id == TOOL_INVOCATION.c.internal_session_id,
            _paused.c.idempotency_key == TOOL_INVOCATION.c.idempotency_key,
            _paused.c.arrival < TOOL_INVOCATION.c.arrival,
        ),
    )
    .group_by(TOOL_INVOCATION.c.id)
)

TRACK_ORDER = (
    TOOL_INVOCATION.c.batch,
    TOOL_INVOCATION.c.batch_index,
    TOOL_INVOCATION.c.started_at,
    TOOL_INVOCATION.c.arrival,
)
"""The SQL order of a branch's own calls, the same as `_order`."""
_ranked = (
    select(TOOL_INVOCATION.c.id, (func.row_number().over(order_by=TRACK_ORDER) - 1).label("rank"))
    .where(_is_in_branch, IS_ON_TRACK)
    .subquery()
)
_SELECT_RANKS = select(_ranked.c.id, _ranked.c.rank)
WITH_BRANCH = TOOL_INVOCATION.join(
    BRANCH,
    BRANCH.c.id == TOOL_INVOCATION.c.internal_session_id,
)
_WITH_INHERITED = select(TOOL_INVOCATION, BRANCH.c.inherited).select_from(WITH_BRANCH)
_is_invocation = TOOL_INVOCATION.c.id == bindparam("invocation")
_ADD_LOG_ENTRY = CompiledStatement(insert(WORLD_LOG))
_next_seq = func.coalesce(func.max(WORLD_LOG.c.seq), 0) + 1
_next_entry = select(
    *(_next_seq if c is WORLD_LOG.c.seq else bindparam(c.name, type_=c.type) for c in WORLD_LOG.c)
).where(WORLD_LOG.c.external_session_id == bindparam("session"))
# Citus takes no subquery among the values of an INSERT.
_APPEND_LOG_ENTRY = CompiledStatement(
    insert(WORLD_LOG).from_select([*WORLD_LOG.c.keys()], _next_entry).returning(WORLD_LOG.c.seq)
)
LAST_SEQ = CompiledStatement(
    select(func.max(WORLD_LOG.c.seq).label("seq")).where(WORLD_LOG.c.external_session_id == bindparam("session"))
)

_of_call = SESSION.c.id == TOOL_INVOCATION.c.external_session_id
_NAMES_OF_CALL = (
    TOOL_INVOCATION.c.external_session_id.label("session_id"),
    select(BRANCH.c.name).where(_of_branch).correlate(TOOL_INVOCATION).scalar_subquery().label("branch_name"),
    select(SESSION.c.session_name).where(_of_call).correlate(TOOL_INVOCATION).scalar_subquery().label("session_name"),
    select(SESSION.c.user_id).where(_of_call).correlate(TOOL_INVOCATION).scalar_subquery().label("session_owner"),
    EPOCH,
)
"""The columns that `know_names` needs, of the branch on which a call was recorded."""

NO_OUTCOME = {"result": None, "error_message": None, "ended_at": None, "answers": None}


@functools.cache
def _moving(status: str, columns: tuple[str, ...]) -> CompiledStatement:
    """Build the statement that sets the status of an invocation if the current one allows it, and returns the row."""
    old_statuses = [status_before for status_before, after in TRANSITIONS.items() if status in after]
    new_values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return CompiledStatement(
        update(TOOL_INVOCATION)
        .where(_is_invocation, or_(false(), *(TOOL_INVOCATION.c.status == one for one in old_statuses)))
        .values(status=status, **new_values)
        .returning(TOOL_INVOCATION, *_NAMES_OF_CALL)
    )


def _outcome_columns(outcome: CallOutcome) -> dict[str, Any]:
    has_result = outcome.status in (DONE, SIMULATED) or outcome.result is not None
    return {
        "result": to_json(outcome.result) if has_result else None,
        "error_message": outcome.error,
        "ended_at": outcome.ended_at,
        "answers": to_json(outcome.answers) if outcome.answers is not None else None,
    }


def _order(row: Row[Any]) -> tuple[Any, ...]:
    """Return the sort key for the order of the AI messages; the calls that a tool makes come after it."""
    return row.batch, row.batch_index, row.started_at, row.arrival


def _original_id(row: Row[Any]) -> int:
    """Return the id of the call whose result a row on a track has. A failed answer from the record was not used."""
    return int((row.replay_of if row.kind == REPLAY and row.status != FAILED else None) or row.id)


def _replace_run(row: Row[Any], call: ToolInvocation, run: Row[Any]) -> ToolInvocation:
    """Return what a track shows in place of a call: a run of it; for an answer from the record, of what it repeats."""
    ran_since = run.kind == REDO and (row.kind != REPLAY or run.id > row.id)
    if run.id == row.id or (run.status == row.status == DONE and not ran_since):
        return call
    return replace(
        _invocation_from_row(run, run.internal_session_id, call.position, runs=1),
        internal_session_id=call.internal_session_id,
        tool_call_id=call.tool_call_id,
        kind=REDO if ran_since else REPLAY,
        replay_of=_original_id(row),
    )


def _invocation_from_row(row: Row[Any], branch_id: int, position: int, runs: int) -> ToolInvocation:
    """Convert a row to a value. On a branch other than its own, the call appears as a replay of itself."""
    try:
        args, result = as_object(row.args), stored_json(row.result) if row.result is not None else None
    except Corrupt as error:
        raise unreadable_row("tool_invocation", row.id) from error
    replay_of = row.replay_of if row.internal_session_id == branch_id else row.id
    given = {"internal_session_id": branch_id, "position": position, "replay_of": replay_of, "runs": runs}
    return value_of(ToolInvocation, row, args=args, result=result, **given)
