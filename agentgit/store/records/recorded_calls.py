"""Recorded calls: marks for the tree, lookup of earlier attempts and standing effects, and copies onto a new track."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, and_, bindparam, func, not_, or_, select

from agentgit.effects import ToolInvocation
from agentgit.effects.function_names import in_another_world
from agentgit.effects.invocation import (
    CALL,
    DONE,
    FAILED,
    INTENDED,
    REDO,
    REPLAY,
    REVERSE_FAILED,
    REVERSED,
    SIMULATED,
    STANDING,
    UNKNOWN,
    mark,
    repeat_key,
)
from agentgit.effects.kinds import MEMORY
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.sessions.tree import Branch
from agentgit.store.records.journal import (
    IS_ON_TRACK,
    NEWEST_FIRST,
    NEWEST_REDOS,
    TRACK_ORDER,
    CallOutcome,
    Intent,
    Journal,
    TrackPart,
    acts,
)
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.world_log import IS_REMADE, IS_SUPERSEDED, WorldLog
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.rows import insert_rows, rows_with, update_rows
from agentgit.store.sql.tables import BRANCH, TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import as_object


def call_marks(transaction: Reading, session_id: int, branch_ids: Sequence[int]) -> dict[int, list[tuple[int, str]]]:
    """Read the marks of the calls of each branch in a session, with their indexes among the branch's own calls.

    Calls that were answered from the record or made in another world have no mark. A call that ran again has the mark
    of its newest run.
    """
    key = {"session": session_id}
    redo_statuses = {row.replay_of: row.status for row in _SELECT_REDO_STATUSES.all(transaction, key)}
    marks_by_branch: dict[int, list[tuple[int, str]]] = {}
    for row in (row for part in slices(branch_ids) for row in transaction.execute(_calls(part), key)):
        call_mark = mark(row.effect, redo_statuses.get(row.id, row.status))
        if call_mark is not None:
            marks_by_branch.setdefault(row.internal_session_id, []).append((row.place, call_mark))
    return marks_by_branch


def add_marks(branch: Branch, calls: Sequence[tuple[int, str]], inherited: int) -> Branch:
    """Assign each call to the next checkpoint of its branch, and the calls after the last checkpoint to the branch."""
    positions = [point.position for point in branch.points]
    counts = [Counter[str]() for _ in range(len(positions) + 1)]
    for index, call_mark in calls:
        counts[bisect_right(positions, inherited + index)][call_mark] += 1
    points = [
        replace(point, effects=dict(count)) if count else point
        for point, count in zip(branch.points, counts, strict=False)
    ]
    return replace(branch, points=points, effects=dict(counts[-1]))


_of_session = TOOL_INVOCATION.c.external_session_id == bindparam("session")
_call_index = func.row_number().over(partition_by=TOOL_INVOCATION.c.internal_session_id, order_by=TRACK_ORDER) - 1


def _calls(branch_ids: Sequence[int]) -> Select[Any]:
    """Return the query for the calls that have a mark, each with its index among the calls of its branch."""
    columns = (TOOL_INVOCATION.c[name] for name in ("id", "internal_session_id", "kind", "effect", "status", "made_on"))
    in_branches = TOOL_INVOCATION.c.internal_session_id.in_(branch_ids)
    indexed = select(*columns, _call_index.label("place")).where(_of_session, IS_ON_TRACK, in_branches).subquery()
    return select(indexed).where(acts(indexed.c.effect), indexed.c.kind != REPLAY, indexed.c.made_on.is_(None))


_SELECT_REDO_STATUSES = CompiledStatement(
    select(TOOL_INVOCATION.c.replay_of, TOOL_INVOCATION.c.status).where(TOOL_INVOCATION.c.id.in_(NEWEST_REDOS))
)


def _replay_intent(call: ToolInvocation, intent: Intent) -> Intent:
    return replace(intent, kind=REPLAY, replay_of=call.first_id, effect=call.effect, undo=None)


RESULT_STATUSES = frozenset({DONE, REVERSE_FAILED})
"""The statuses of calls whose effect stands and that have a result."""

ANSWERING = RESULT_STATUSES | {SIMULATED}
"""The statuses of calls whose results stand on the tracks that they answered."""


class RecordedCalls:
    def __init__(self, journal: Journal, world: WorldLog) -> None:
        self.journal = journal
        self.world = world

    def attempts(
        self,
        transaction: Reading,
        path: Sequence[TrackPart],
        tool_name: str,
        tool_call_id: str | None,
        task: str | None,
    ) -> list[ToolInvocation]:
        """Read the earlier attempts at a call on a path: those with this id or by this task, newest first.

        An answer from the record counts while the call that it stands for does; otherwise, that call counts.
        """
        is_call = TOOL_INVOCATION.c.tool_call_id == tool_call_id if task is None else TOOL_INVOCATION.c.task == task
        conditions = (self.journal.is_recorded_on(path), is_call, TOOL_INVOCATION.c.tool_name == tool_name)
        attempts = self.journal.find(transaction, *conditions, order=NEWEST_FIRST)
        originals = self.originals(transaction, {one.id: one for one in attempts}).values()
        return [
            one if {one.status, made.status} <= ANSWERING else replace(made, idempotency_key=one.idempotency_key)
            for one, made in zip(attempts, originals, strict=True)
        ]

    def used_answers(self, transaction: Reading, path: Sequence[TrackPart]) -> list[dict[str, Any]]:
        """Read which answers of a person calls used and which graphs they ran; later attempts, nearer branches last."""
        branch_ids = [part.branch_id for part in path]
        rows = self.journal.load_rows(
            transaction, TOOL_INVOCATION.c.internal_session_id.in_(branch_ids), TOOL_INVOCATION.c.answers.is_not(None)
        )
        rows = sorted(rows, key=lambda row: (branch_ids.index(row.internal_session_id), row.id))
        return [as_object(row.answers) for row in rows]

    def answers(self, transaction: Reading, invocation_id: int) -> dict[str, Any] | None:
        """Read which of a person's answers a call used and which graphs it ran; None if there are none."""
        rows = self.journal.load_rows(transaction, TOOL_INVOCATION.c.id == invocation_id)
        return as_object(rows[0].answers) if rows and rows[0].answers is not None else None

    def has_asked(self, transaction: Reading, session_id: int, call: ToolInvocation) -> bool:
        """Return whether the tool of a call used a person's answers; of a simulated call, when it made an equal one."""
        c, simulated = TOOL_INVOCATION.c, call.status == SIMULATED
        of_call = (
            and_(c.external_session_id == session_id, c.tool_name == call.tool_name) if simulated else c.id == call.id
        )
        rows = [
            row
            for row in self.journal.load_rows(transaction, of_call, c.answers.is_not(None))
            if as_object(row.answers).get("taken")
        ]
        made = self.journal.invocations_from_rows(transaction, rows)
        return any(one.identity == call.identity and (call.identity or one.args == call.args) for one in made)

    def find_identical(self, transaction: Reading, session_id: int, identity: str) -> list[ToolInvocation]:
        """Read the identical calls whose effect is or may be in the world of a session, oldest first."""
        return self.journal.find(
            transaction,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.identity == identity,
            TOOL_INVOCATION.c.status.in_(sorted(STANDING - {FAILED})),
            TOOL_INVOCATION.c.kind != REPLAY,
            ~IS_SUPERSEDED,
            ~IS_REMADE,
        )

    def inner_calls(
        self,
        transaction: Reading,
        call: ToolInvocation,
        statuses: Collection[str] = RESULT_STATUSES,
        *,
        include_reads: bool = False,
    ) -> list[ToolInvocation]:
        """Read the calls with these statuses that a tool made, at any depth, or that the record answered for it."""
        rows = self._load_inner_rows(
            transaction,
            call,
            *(() if include_reads else (acts(TOOL_INVOCATION.c.effect),)),
            TOOL_INVOCATION.c.tool_name.not_in(sorted(MEMORY_TOOLS)),
        )
        found = {one.id: one for one in self.journal.invocations_from_rows(transaction, rows)}
        made = {one.id: one for one in self.originals(transaction, found).values()}
        return [one for one in made.values() if one.status in statuses]

    def originals(self, transaction: Reading, rows: Mapping[int, ToolInvocation]) -> dict[int, ToolInvocation]:
        """Return the calls that rows of a track stand for. A failed answer from the record was not used."""
        ids = {id: row.replay_of for id, row in rows.items() if row.kind == REPLAY and row.status != FAILED}
        calls = self.journal.invocations(transaction, [id for id in ids.values() if id is not None])
        return {id: calls.get(ids.get(id) or 0, row) for id, row in rows.items()}

    def add_replays(
        self, transaction: Writing, path: Sequence[TrackPart], call: ToolInvocation, intent: Intent
    ) -> Intent:
        """Record that a recorded call and the calls that its tool made answer a new call, and return its own intent."""
        inner_calls = self.inner_calls(transaction, call)
        path_ids = self.world.ids_on_path(transaction, path, (one.first_id for one in inner_calls))
        intents = {call.id: _replay_intent(call, intent)}
        for one in inner_calls:
            if one.id not in path_ids:
                inner_intent = replace(
                    intent,
                    id=new_id(),
                    parent_id=intents.get(one.parent_id or 0, intents[call.id]).id,
                    tool_name=one.tool_name,
                    tool_call_id=None,
                    args=one.args,
                    identity=one.identity,
                    idempotency_key=repeat_key(intent.idempotency_key, str(one.id)),
                )
                intents[one.id] = _replay_intent(one, inner_intent)
        now = datetime.now(UTC)
        results = [one.result for one in (call, *inner_calls) if one.id in intents]
        outcomes = [CallOutcome(status=DONE, result=result, ended_at=now) for result in results]
        self.journal.add(transaction, list(zip(intents.values(), outcomes, strict=True)))
        return intents[call.id]

    def has_written_memory(self, transaction: Reading, call: ToolInvocation) -> bool:
        return bool(self._load_inner_rows(transaction, call, TOOL_INVOCATION.c.tool_name.in_(sorted(MEMORY_TOOLS))))

    def _load_inner_rows(self, transaction: Reading, call: ToolInvocation, *conditions: Any) -> Sequence[Row[Any]]:
        c = TOOL_INVOCATION.c
        session = select(c.external_session_id).where(c.id == call.id)
        # An earlier attempt at the call may have made what answered this one. All attempts have the same key; a later
        # run in its place may have made other calls.
        is_attempt = or_(c.idempotency_key == call.idempotency_key, and_(c.kind == REDO, c.replay_of == call.id))
        inner = (
            select(c.id)
            .where(c.external_session_id == session.scalar_subquery(), is_attempt)
            .cte("inner_calls", recursive=True)
        )
        children = TOOL_INVOCATION.alias("children").c
        inner = inner.union(  # ends in a circle, too
            select(children.id).where(children.parent_id == inner.c.id)
        )
        is_made = c.kind.in_((CALL, REPLAY, REDO)), not_(is_attempt)
        return self.journal.load_rows(transaction, c.id.in_(select(inner.c.id)), *is_made, *conditions)

    def later_writers(self, transaction: Reading, session_id: int, identity: str, invocation_id: int) -> list[int]:
        """Return the ids of other sessions whose newest writes to an item of memory stand and are newer than a call."""
        parameters = {"session": session_id, "identity": identity, "call": invocation_id}
        rows = transaction.execute(_LATER_WRITES, parameters).all()
        return list(dict.fromkeys(row.external_session_id for row in rows))

    def fail_replay(self, transaction: Writing, invocation_id: int, error: str) -> None:
        """Mark a replay as failed, because its call raised before it used the recorded answer."""
        is_replay = TOOL_INVOCATION.c.kind == REPLAY
        self.journal.change(transaction, invocation_id, is_replay, status=FAILED, result=None, error_message=error)


MAX_LATER_WRITES = 50
"""The number of later writes to an item, the newest first, whose sessions a conflict can name."""

_LATER_WRITES = (
    select(TOOL_INVOCATION)
    .where(
        TOOL_INVOCATION.c.identity == bindparam("identity"),
        TOOL_INVOCATION.c.effect == MEMORY,
        TOOL_INVOCATION.c.id > bindparam("call"),
        TOOL_INVOCATION.c.status.in_(sorted(STANDING - {FAILED})),
        TOOL_INVOCATION.c.made_on.is_(None),
        TOOL_INVOCATION.c.external_session_id != bindparam("session"),
        ~IS_SUPERSEDED,
    )
    .order_by(TOOL_INVOCATION.c.id.desc())
    .limit(MAX_LATER_WRITES)
)


COPIED_STATUS = {FAILED: FAILED, UNKNOWN: UNKNOWN, INTENDED: UNKNOWN, REVERSED: REVERSED}
"""The status of a copied call, by the status of the original; `DONE` for statuses that are not listed."""


class PlacedCall(NamedTuple):
    """One position on a new track.

    `row_id` is the call at this position on the parent's track. `original_id` is that call, or the call whose result
    answered it. `run_id` is the new run that takes the position; None if the record answers. `stands` is True if the
    call stands in the world, also by an earlier run that took its place after it had been reversed.
    """

    row_id: int
    original_id: int
    run_id: int | None
    stands: bool = False


def replace_track(transaction: Writing, journal: Journal, branch_id: int, track: Sequence[PlacedCall]) -> None:
    """Replace the track that a branch inherits with a track of its own."""
    # Move the existing calls past all old and new arrival numbers, which must be unique in the branch at any moment.
    offset = len(track) + journal.next_arrival(transaction, branch_id)
    own = select(TOOL_INVOCATION).where(TOOL_INVOCATION.c.internal_session_id == branch_id)
    for row in transaction.execute(own).all():
        journal.change(transaction, row.id, arrival=row.arrival + offset)
    new_ids = {one.row_id: one.run_id or new_id() for one in track}
    for placed_call, (row, track_columns) in zip(track, _new_places(transaction, new_ids), strict=True):
        if placed_call.run_id is None:
            replay = _replay_row(row, branch_id, placed_call.original_id)
            status = {"status": DONE} if placed_call.stands else {}
            insert_rows(transaction, TOOL_INVOCATION, replay | track_columns | status | {"id": new_ids[row.id]})
        else:
            journal.change(transaction, placed_call.run_id, **track_columns, kind=CALL, tool_call_id=row.tool_call_id)
    update_rows(transaction, BRANCH, BRANCH.c.id == branch_id, inherited=0)


def copy_track(transaction: Writing, branch: StoredRow, calls: Sequence[ToolInvocation]) -> None:
    """Copy recorded calls to a branch of another session, marked as calls that were made in another world."""
    new_ids = {call.id: new_id() for call in calls}
    for row, track_columns in _new_places(transaction, new_ids):
        new_values = track_columns | {
            "id": new_ids[row.id],
            "external_session_id": branch.external_session_id,
            "kind": CALL,
            "replay_of": None,
            "made_on": row.made_on or row.internal_session_id,
            "status": DONE if row.status == REVERSED else COPIED_STATUS.get(row.status, DONE),
            "answers": row.answers,
            "tool_path": row.tool_path and in_another_world(row.tool_path),
        }
        insert_rows(transaction, TOOL_INVOCATION, _replay_row(row, branch.id, row.id) | new_values)


def _new_places(transaction: Reading, new_ids: Mapping[int, int]) -> Iterator[tuple[Row[Any], dict[str, Any]]]:
    """Yield calls in the order of a new track, each with the columns of its place there."""
    rows = {row.id: row for row in rows_with(transaction, select(TOOL_INVOCATION), TOOL_INVOCATION.c.id, new_ids)}
    batches: dict[tuple[int, int], int] = {}
    for arrival, id in enumerate(new_ids):
        row = rows[id]
        batch = batches.setdefault((row.internal_session_id, row.batch), len(batches))
        parent_id = new_ids.get(row.parent_id)
        yield row, {"arrival": arrival, "batch": batch, "batch_index": row.batch_index, "parent_id": parent_id}


def _replay_row(row: Row[Any], branch_id: int, original_id: int) -> dict[str, Any]:
    """Build the row of a replay, which has the outcome of the original although no tool ran."""
    status = COPIED_STATUS.get(row.status, DONE)
    empty_columns = dict.fromkeys(("undo", "verify", "precheck", "owner", "answers"))
    return {
        **row._asdict(),
        **empty_columns,
        "internal_session_id": branch_id,
        "status": status,
        "kind": REPLAY,
        "replay_of": original_id,
        "error_message": row.error_message if status == FAILED else None,
    }
