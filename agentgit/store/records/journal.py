"""The journal of effects: every tool invocation, its status, and the order in which things happened in the world.

    forward: intended → done | failed | unknown | paused        reverse: done → reversing → reversed | reverse_failed

A call that waits for a person's answer is `paused`; answered, it runs again as a call of its own. A paused one has done
nothing, so it has no place on the track and counts in no position; it is shown only while it waits.

Each step is its own compare-and-swap on `status`, so that no two processes take the same one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, exists, false, func, insert, or_, select, update

from agentgit.effects import ToolInvocation
from agentgit.effects.effects import READ_ONLY
from agentgit.effects.invocation import (
    CALL,
    DONE,
    INTENDED,
    MOVES,
    PAUSED,
    REDO,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    REVERSING,
    UNKNOWN,
)
from agentgit.errors import Conflict
from agentgit.store.audit.trail import note
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import missing_row
from agentgit.store.sql.encryption import seal_of
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import (
    BRANCH,
    TOOL_INVOCATION,
    WORLD_LOG,
)
from agentgit.values import as_object, from_json, to_json

LOGGED = frozenset({"done", "failed", "unknown", "reversed", "reverse_unknown"})
"""The statuses after which something may be otherwise in the world."""

LAST_LOGGED = {status: (status,) for status in LOGGED} | dict.fromkeys(
    (REVERSING, REVERSE_FAILED), (DONE, REVERSE_UNKNOWN)
)
"""The last events in the world log of a call that has this status now. For other statuses it has none."""

TOLD = LOGGED | {REVERSE_FAILED}
"""The statuses that the audit trail tells of."""


@dataclass(frozen=True, kw_only=True)
class TrackPart:
    """The part of a track that one branch recorded itself.

    Args:
        branch_id: The branch.
        before: The number of invocations before its first one.
        count: The number of its own invocations that belong to the track; None for all.
    """

    branch_id: int
    before: int
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A call that is about to run.

    Args:
        session_id: The external session.
        branch_id: The branch that calls.
        batch: The calls of one AI message have the same, those of a later one a greater number.
        batch_index: Its place in the AI message.
        tool_name: The name of the tool.
        tool_call_id: The id of the call in the AI message, if one asked for it.
        effect: The effect of the tool on the world.
        undo: The qualified name of its undo function.
        args: The arguments, JSON-like.
        idempotency_key: A key that is the same for every attempt.
        owner: The turn that calls.
        started_at: The start, in aware UTC.
        verify: The qualified name of the function that looks whether it happened.
        precheck: The qualified name of the function that looks whether it can be undone.
        kind: `call`, `replay` or `redo`.
        identity: The hash of what makes two calls the same.
        replay_of: The invocation that it stands for.
        task: The task that makes it, if no AI message asked for it.
    """

    session_id: int
    branch_id: int
    batch: int
    batch_index: int
    tool_name: str
    tool_call_id: str | None
    effect: str
    undo: str | None
    args: Any
    idempotency_key: str
    owner: str
    started_at: datetime
    verify: str | None = None
    precheck: str | None = None
    kind: str = CALL
    identity: str | None = None
    replay_of: int | None = None
    task: str | None = None


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """The outcome of a call.

    Args:
        status: `done`, `failed`, `paused` or `unknown`.
        result: The value that it returned, JSON-like.
        error: The error that it raised, as text.
        ended_at: The time at which it ended, aware UTC; None if that is not known.
        answers: The answers of a person that it took, JSON-like; None if it asked nothing.
    """

    status: str
    result: Any = None
    error: str | None = None
    ended_at: datetime | None = None
    answers: Any = None


class Journal:
    """The invocations of one tenant.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    # -- forward

    def intend(self, connection: Connection, intent: Intent) -> int:
        """Record that a call is about to run; give its id."""
        return self.add(connection, [(intent, None)])

    def add(self, connection: Connection, calls: Sequence[tuple[Intent, CallOutcome | None]]) -> int:
        """Record calls of one branch, in their order; give the id of the last.

        Args:
            calls: The calls, each with its outcome; None if it is about to run.
        """
        first = self.arrivals(connection, calls[0][0].branch_id)
        rows = [self._row(intent, outcome, first + index) for index, (intent, outcome) in enumerate(calls)]
        _ADD.run(connection, *rows)
        return int(rows[-1]["id"])

    def _row(self, intent: Intent, outcome: CallOutcome | None, arrival: int) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant_id,
            "id": new_id(),
            "external_session_id": intent.session_id,
            "internal_session_id": intent.branch_id,
            "arrival": arrival,
            "batch": intent.batch,
            "batch_index": intent.batch_index,
            "tool_name": intent.tool_name,
            "tool_call_id": intent.tool_call_id,
            "effect": intent.effect,
            "status": outcome.status if outcome else INTENDED,
            "args": to_json(intent.args),
            "undo": intent.undo,
            "verify": intent.verify,
            "precheck": intent.precheck,
            "idempotency_key": intent.idempotency_key,
            "identity": intent.identity,
            "owner": intent.owner,
            "started_at": intent.started_at,
            "kind": intent.kind,
            "replay_of": intent.replay_of,
            "made_on": None,
            "task": intent.task,
            **(_ended(outcome) if outcome else NOT_ENDED),
        }

    def arrivals(self, connection: Connection, branch_id: int) -> int:
        """Return the number that the next call of a branch has."""
        last = _LAST_ARRIVAL.all(connection, self._key(branch_id))[0].arrival
        return 0 if last is None else int(last) + 1

    def end(self, connection: Connection, invocation_id: int, outcome: CallOutcome, *, is_past: bool = False) -> None:
        """Record how a call ended.

        Args:
            connection: A connection in a transaction that writes.
            invocation_id: The invocation.
            outcome: The outcome of the call.
            is_past: True if it was made elsewhere long ago: then the trail does not tell of it.

        Raises:
            Conflict: Its status is no longer one that can end so.
        """
        row = self._move(connection, invocation_id, outcome.status, **_ended(outcome))
        if row.effect != READ_ONLY:
            if not is_past:
                self._tell(connection, row, outcome.status, None)
            self._log(connection, row, outcome.status, None)

    def abandon(self, connection: Connection, branch_id: int, owner: str | None) -> None:
        """Mark the calls of a turn that ended without their outcome: nobody knows whether they happened."""
        self.abandoning(connection, branch_id, owner)()

    def abandoning(self, connection: Connection, branch_id: int, owner: str | None) -> Callable[[], None]:
        """Ask which calls a turn has left; give what does as `abandon` when it is called."""
        left = _RUNNING.ask(connection, {**self._key(branch_id), "by": owner})

        def abandon() -> None:
            for row in left.all():
                self.end(connection, row.id, CallOutcome(status=UNKNOWN))

        return abandon

    # -- reverse, and what a person decides

    def move(
        self,
        connection: Connection,
        invocation_id: int,
        status: str,
        *,
        operation_id: int | None = None,
        owner: str | None = None,
        error: str | None = None,
        result: Any = None,
    ) -> None:
        """Move one invocation to another status, by the rules of the journal.

        Args:
            invocation_id: The invocation.
            status: The new status.
            operation_id: The rollback that does it.
            owner: The piece of work that does it.
            error: The error that its undo raised.
            result: The result of the call, if it became known only now.

        Raises:
            Conflict: It is not in a status from which that may follow.
        """
        values = {"result": to_json(result)} if result is not None else {}
        row = self._move(connection, invocation_id, status, owner=owner, error_message=error, **values)
        self._tell(connection, row, status, operation_id)
        self._log(connection, row, status, operation_id)

    def remark(self, connection: Connection, call: ToolInvocation, error: str | None) -> None:
        """Write down what else is known of a call whose outcome nobody knows, if that is still so.

        Args:
            connection: A connection in a transaction that writes.
            call: The call, as it was last read.
            error: Its new error message.
        """
        self.change(connection, call.id, TOOL_INVOCATION.c.status == call.status, error_message=error)

    def change(self, connection: Connection, invocation_id: int, *conditions: Any, **values: Any) -> None:
        """Change an invocation if it meets some conditions, whatever its status."""
        this = (TOOL_INVOCATION.c.tenant_id == self.tenant_id, TOOL_INVOCATION.c.id == invocation_id)
        row_codes.change(connection, TOOL_INVOCATION, *this, *conditions, **values)

    def _move(self, connection: Connection, invocation_id: int, status: str, **values: Any) -> Row[Any]:
        this = {"tenant": self.tenant_id, "invocation": invocation_id}
        seal = seal_of(connection)
        if seal is not None:
            for found in _LOCKED.all(connection, this):
                after = {**values, "status": status}
                values["mac"] = row_codes.code_after(seal, TOOL_INVOCATION, found, after)
        new = {f"new_{name}": value for name, value in values.items()}
        row: Row[Any] | None = _moving(status, tuple(values)).first(connection, this | new)
        if row is None:
            row = connection.execute(_ONE, this).first()
            if row is None:
                raise missing_row("tool invocation", invocation_id)
            raise Conflict(
                f"Invocation {invocation_id} ({row.tool_name}) is {row.status} and cannot become {status}: it was "
                "changed in the meantime. Plan the rollback again."
            )
        return row

    def _tell(self, connection: Connection, row: Row[Any], action: str, operation_id: int | None) -> None:
        if action in TOLD:
            note(
                connection,
                self.tenant_id,
                f"call.{action}",
                branch_id=row.internal_session_id,
                invocation=row.id,
                tool=row.tool_name,
                effect=row.effect,
                ran=row.kind,
                operation=operation_id,
            )

    def _log(self, connection: Connection, row: Row[Any], action: str, operation_id: int | None) -> None:
        if action not in LOGGED:
            return
        world = {"tenant": self.tenant_id, "session": row.external_session_id}
        last = LAST_SEQ.all(connection, world)[0].seq or 0
        happened = {
            "tenant_id": self.tenant_id,
            "external_session_id": row.external_session_id,
            "seq": last + 1,
            "invocation_id": row.id,
            "action": action,
            "operation_id": operation_id,
            "created_at": datetime.now(UTC),
        }
        _LOG.run(connection, happened)

    # -- reading

    def tally(self, connection: Connection, branch_id: int) -> Callable[[], tuple[int, int]]:
        """Ask for the count of calls that a branch made itself, and the number that its next batch has."""
        asked = _TALLY.ask(connection, self._key(branch_id))

        def told() -> tuple[int, int]:
            row = asked.all()[0]
            return row.calls, 0 if row.batch is None else row.batch + 1

        return told

    def count(self, connection: Connection, branch_id: int, *, before_batch: int | None) -> int:
        """Count the calls that a branch made itself before one of its batches; None for all."""
        until = 2**31 - 1 if before_batch is None else before_batch
        return int(connection.execute(_COUNT, {**self._key(branch_id), "until": until}).scalar_one())

    def last_batch(self, connection: Connection, branch_id: int, tool_call_ids: Iterable[str]) -> int | None:
        """Return the newest batch of a branch that one of these tool calls belongs to; None if none was recorded."""
        called = TOOL_INVOCATION.c.tool_call_id.in_(bindparam("calls", expanding=True))
        query = select(func.max(TOOL_INVOCATION.c.batch)).where(self._of(branch_id), called)
        found = connection.execute(query, {"calls": list(tool_call_ids)}).scalar()
        return int(found) if found is not None else None

    def track(self, connection: Connection, parts: Sequence[TrackPart], skip: int = 0) -> list[ToolInvocation]:
        """Read a track, in the order of the AI messages.

        Args:
            connection: Any open connection.
            parts: The parts, root first. The last is the branch that is looked at.
            skip: The number of calls to leave out at its beginning, up to the end of a batch.
        """
        track: list[ToolInvocation] = []
        for part in parts:
            before = max(0, skip - part.before)
            if part.count is not None and part.count <= before:
                continue
            query = (
                select(TOOL_INVOCATION).where(self._of(part.branch_id), HAS_PLACE).order_by(TOOL_INVOCATION.c.arrival)
            )
            query = query.limit(None if part.count is None else part.count - before)
            rows = self.authentic(connection, connection.execute(query.offset(before) if before else query).all())
            place, runs = part.before + before, self._runs(connection, rows)
            track += [
                _value(row, parts[-1].branch_id, place + n, runs.get(row.id, 1))
                for n, row in enumerate(sorted(rows, key=_order))
            ]
        return track

    def waiting(self, connection: Connection, branch_id: int, position: int) -> list[ToolInvocation]:
        """Read the calls of a branch that wait for an answer.

        Args:
            connection: Any open connection.
            branch_id: The branch.
            position: The length of its track.
        """
        rows = self.authentic(connection, connection.execute(_PAUSED, self._key(branch_id)).all())
        runs = self._runs(connection, rows)
        return [_value(row, branch_id, position + n, runs.get(row.id, 1)) for n, row in enumerate(rows)]

    def _runs(self, connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, int]:
        """Count how often the tools of these calls have begun, of those that waited for a person on the way."""
        asked = [row.id for row in rows if row.answers is not None]
        found = [row for part in slices(asked) for row in connection.execute(_BEGUN, {**self._mine, "ids": part})]
        return {row.id: row.paused + 1 for row in found}

    @property
    def _mine(self) -> dict[str, int]:
        return {"tenant": self.tenant_id}

    def last_of(self, connection: Connection, part: TrackPart) -> int:
        """Return the arrival of the last call of a part of a track; -1 if it has none."""
        if part.count == 0:
            return -1
        if part.count is None:
            return 2**31 - 1
        query = select(TOOL_INVOCATION.c.arrival).where(self._of(part.branch_id), HAS_PLACE)
        found = connection.execute(query.order_by(TOOL_INVOCATION.c.arrival).limit(1).offset(part.count - 1)).scalar()
        return int(found) if found is not None else 2**31 - 1

    def own_values(self, connection: Connection, rows: Sequence[Row[Any]]) -> list[ToolInvocation]:
        """Make values of rows, each as the branch that recorded it sees it; positions are those of its track.

        Args:
            connection: Any open connection.
            rows: The rows, with the column `inherited` of their branch, as `WITH_BRANCH` returns them.
        """
        of_branch: dict[int, list[int]] = {}
        for row in self.authentic(connection, rows):
            if row.kind != REDO:  # that has no place of its own
                of_branch.setdefault(row.internal_session_id, []).append(row.id)
        ranks: dict[int, int] = {}
        for branch_id, ids in of_branch.items():
            for part in slices(ids):
                found = connection.execute(_RANKS, {**self._key(branch_id), "ids": part})
                ranks.update((row.id, row.rank) for row in found)
        runs = self._runs(connection, rows)
        return [
            _value(row, row.internal_session_id, row.inherited + ranks.get(row.id, 0), runs.get(row.id, 1))
            for row in rows
        ]

    def authentic(self, connection: Connection, rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
        """Return rows of calls as they were read, if nobody without the key has changed one."""
        return row_codes.authentic(connection, TOOL_INVOCATION, rows)

    def invocation(self, connection: Connection, invocation_id: int) -> ToolInvocation | None:
        """Read one invocation, as the branch that recorded it sees it; None if there is none."""
        return self.invocations(connection, [invocation_id]).get(invocation_id)

    def invocations(self, connection: Connection, ids: Sequence[int]) -> dict[int, ToolInvocation]:
        """Read several invocations, each as the branch that recorded it sees it, by their ids."""
        query = select(TOOL_INVOCATION, BRANCH.c.inherited).select_from(WITH_BRANCH)
        mine = TOOL_INVOCATION.c.tenant_id == self.tenant_id
        rows = [
            row for part in slices(ids) for row in connection.execute(query.where(mine, TOOL_INVOCATION.c.id.in_(part)))
        ]
        return {call.id: call for call in self.own_values(connection, rows)}

    def in_reversal(self, connection: Connection, session_id: int, owner: str | None) -> list[int]:
        """List the invocations of a session that this owner is, or was when it died, about to reverse."""
        query = select(TOOL_INVOCATION.c.id).where(
            TOOL_INVOCATION.c.tenant_id == self.tenant_id,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.status == REVERSING,
            TOOL_INVOCATION.c.owner == owner,
        )
        return list(connection.execute(query).scalars())

    def _key(self, branch_id: int) -> dict[str, Any]:
        return {"tenant": self.tenant_id, "branch": branch_id}

    def _of(self, branch_id: int) -> Any:
        return and_(TOOL_INVOCATION.c.tenant_id == self.tenant_id, TOOL_INVOCATION.c.internal_session_id == branch_id)


HAS_PLACE = and_(TOOL_INVOCATION.c.status != PAUSED, TOOL_INVOCATION.c.kind != REDO)
"""The calls with a place on the track: not a call that waits for an answer, nor one that ran again for another."""

# The statements of every turn and call, built once: building one takes as long as running it.
_of_branch = (
    TOOL_INVOCATION.c.tenant_id == bindparam("tenant"),
    TOOL_INVOCATION.c.internal_session_id == bindparam("branch"),
)
_ADD = row_codes.SignedWrite(insert(TOOL_INVOCATION), TOOL_INVOCATION)
_LAST_ARRIVAL = CompiledStatement(select(func.max(TOOL_INVOCATION.c.arrival).label("arrival")).where(*_of_branch))
_TALLY = CompiledStatement(
    select(func.count(case((HAS_PLACE, 1))).label("calls"), func.max(TOOL_INVOCATION.c.batch).label("batch")).where(
        *_of_branch
    )
)
_COUNT = (
    select(func.count())
    .select_from(TOOL_INVOCATION)
    .where(*_of_branch, HAS_PLACE, TOOL_INVOCATION.c.batch < bindparam("until"))
)
_RUNNING = CompiledStatement(
    select(TOOL_INVOCATION.c.id)
    .where(*_of_branch, TOOL_INVOCATION.c.status == INTENDED, TOOL_INVOCATION.c.owner == bindparam("by"))
    .order_by(TOOL_INVOCATION.c.arrival)
)
_later = TOOL_INVOCATION.alias("later")
_PAUSED = (
    select(TOOL_INVOCATION)
    .where(
        *_of_branch,
        TOOL_INVOCATION.c.status == PAUSED,
        ~exists().where(
            _later.c.tenant_id == TOOL_INVOCATION.c.tenant_id,
            _later.c.internal_session_id == TOOL_INVOCATION.c.internal_session_id,
            _later.c.arrival > TOOL_INVOCATION.c.arrival,
            or_(_later.c.tool_call_id == TOOL_INVOCATION.c.tool_call_id, _later.c.batch > TOOL_INVOCATION.c.batch),
        ),
    )
    .order_by(TOOL_INVOCATION.c.arrival)
)

_paused = TOOL_INVOCATION.alias("paused")
_BEGUN = (
    select(TOOL_INVOCATION.c.id, func.count(_paused.c.id).label("paused"))
    .join_from(
        TOOL_INVOCATION,
        _paused,
        and_(
            _paused.c.tenant_id == TOOL_INVOCATION.c.tenant_id,
            _paused.c.external_session_id == TOOL_INVOCATION.c.external_session_id,
            _paused.c.status == PAUSED,
            _paused.c.internal_session_id == TOOL_INVOCATION.c.internal_session_id,
            _paused.c.idempotency_key == TOOL_INVOCATION.c.idempotency_key,
            _paused.c.arrival < TOOL_INVOCATION.c.arrival,
        ),
    )
    .where(
        TOOL_INVOCATION.c.tenant_id == bindparam("tenant"), TOOL_INVOCATION.c.id.in_(bindparam("ids", expanding=True))
    )
    .group_by(TOOL_INVOCATION.c.id)
)

IN_ORDER = (
    TOOL_INVOCATION.c.batch,
    TOOL_INVOCATION.c.batch_index,
    TOOL_INVOCATION.c.started_at,
    TOOL_INVOCATION.c.arrival,
)
"""The order of a branch's own calls, as `_order` sorts them."""
_ranked = (
    select(TOOL_INVOCATION.c.id, (func.row_number().over(order_by=IN_ORDER) - 1).label("rank"))
    .where(*_of_branch, HAS_PLACE)
    .subquery()
)
_RANKS = select(_ranked.c.id, _ranked.c.rank).where(_ranked.c.id.in_(bindparam("ids", expanding=True)))
WITH_BRANCH = TOOL_INVOCATION.join(
    BRANCH,
    and_(BRANCH.c.tenant_id == TOOL_INVOCATION.c.tenant_id, BRANCH.c.id == TOOL_INVOCATION.c.internal_session_id),
)
_one = (TOOL_INVOCATION.c.tenant_id == bindparam("tenant"), TOOL_INVOCATION.c.id == bindparam("invocation"))
_ONE = select(TOOL_INVOCATION).where(*_one)
_LOCKED = CompiledStatement(_ONE.with_for_update(key_share=True))
_LOG = row_codes.SignedWrite(insert(WORLD_LOG), WORLD_LOG)
LAST_SEQ = CompiledStatement(
    select(func.max(WORLD_LOG.c.seq).label("seq")).where(
        WORLD_LOG.c.tenant_id == bindparam("tenant"), WORLD_LOG.c.external_session_id == bindparam("session")
    )
)


NOT_ENDED = {"result": None, "error_message": None, "ended_at": None, "answers": None}


@functools.cache
def _moving(status: str, columns: tuple[str, ...]) -> CompiledStatement:
    """Make the statement that moves an invocation to a status if that may follow the one it has, and gives the row."""
    before = [status_before for status_before, after in MOVES.items() if status in after]
    new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return CompiledStatement(
        update(TOOL_INVOCATION)
        .where(*_one, or_(false(), *(TOOL_INVOCATION.c.status == one for one in before)))
        .values(status=status, **new)
        .returning(TOOL_INVOCATION)
    )


def _ended(outcome: CallOutcome) -> dict[str, Any]:
    return {
        "result": to_json(outcome.result) if outcome.status == "done" else None,
        "error_message": outcome.error,
        "ended_at": outcome.ended_at,
        "answers": to_json(outcome.answers) if outcome.answers is not None else None,
    }


def _order(row: Row[Any]) -> tuple[Any, ...]:
    """Sort by the order of the AI messages; what a tool itself called comes after it."""
    return row.batch, row.batch_index, row.started_at, row.arrival


def _value(row: Row[Any], seen_by: int, position: int, runs: int) -> ToolInvocation:
    """Make the value of a row; on another branch than its own it is a replay of itself."""
    own = row.internal_session_id == seen_by
    return ToolInvocation(
        id=row.id,
        internal_session_id=seen_by,
        position=position,
        tool_name=row.tool_name,
        args=as_object(row.args),
        result=from_json(row.result) if row.result is not None else None,
        error_message=row.error_message,
        status=row.status,
        effect=row.effect,
        tool_call_id=row.tool_call_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        replay_of=row.replay_of if own else row.id,
        idempotency_key=row.idempotency_key,
        undo=row.undo,
        verify=row.verify,
        precheck=row.precheck,
        kind=row.kind,
        identity=row.identity,
        made_on=row.made_on,
        runs=runs,
    )
