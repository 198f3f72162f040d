"""Operations in the database: rollbacks, forks and switches that are running, done or partial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, or_, select, update

from agentgit.errors import Conflict
from agentgit.next_steps import Next
from agentgit.sessions.reports import Operation
from agentgit.sessions.session import DONE, PARTIAL, RUNNING
from agentgit.store.audit.trail import record_event
from agentgit.store.records.json_columns import read_report
from agentgit.store.sql.compiled_statement import CompiledStatement, PendingResult
from agentgit.store.sql.driver_errors import require_row
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.process import LEASE_END, LeasedRow, Leases
from agentgit.store.sql.rows import CompiledUpdate, queue_insert, update_rows, value_of
from agentgit.store.sql.tables import OPERATION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import to_json

NO_REPORT: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class NewOperation:
    kind: str
    external_session_id: int
    user_id: int
    source_id: int
    target_id: int | None
    internal_session_id: int
    request_id: str | None
    request: Mapping[str, Any]


class OperationStore:
    def __init__(self, leases: Leases | None = None) -> None:
        self.leases = leases

    def begin(self, transaction: Writing, new_operation: NewOperation, owner: str) -> int:
        operation_id = self._insert(transaction, new_operation, status=RUNNING)
        self._set_owner(transaction, operation_id, owner)
        self._record_event(transaction, operation_id, "begun", new_operation)
        return operation_id

    def record_done(
        self, transaction: Writing, new_operation: NewOperation, report: Mapping[str, Any] = NO_REPORT
    ) -> int:
        ended = {"status": DONE, "ended_at": datetime.now(UTC), "report": to_json(report)}
        operation_id = self._insert(transaction, new_operation, **ended)
        self._record_event(transaction, operation_id, "done", new_operation)
        return operation_id

    def _insert(self, transaction: Writing, new_operation: NewOperation, **state: Any) -> int:
        operation_id = new_id()
        row = {
            **vars(new_operation),
            "id": operation_id,
            "request_id": new_operation.request_id or str(operation_id),
            "request": to_json(new_operation.request),
            "report": to_json({}),
            "created_at": datetime.now(UTC),
            **state,
        }
        queue_insert(transaction, OPERATION, row)
        return operation_id

    def resume(self, transaction: Writing, operation_id: int, owner: str) -> None:
        self._set_owner(transaction, operation_id, owner)
        self._record_event(transaction, operation_id, "resumed", self._load(transaction, operation_id))

    def _set_owner(self, transaction: Writing, operation_id: int, owner: str) -> None:
        statement = update(OPERATION).where(self._id_condition(operation_id)).values(owner=owner, status=RUNNING)
        if self.leases is None:
            transaction.execute(statement)
            return
        transaction.execute(statement.values(lease_until=LEASE_END), self.leases.parameters)
        self.leases.start_renewing(owner, LeasedRow(OPERATION, operation_id))

    def require_held(self, transaction: Reading, operation_id: int, owner: str) -> None:
        """Check that an owner still holds its operation, and lock the operation until this transaction ends."""
        row = require_row(_LOCK_OWNER.first(transaction, {"operation": operation_id}), "operation", operation_id)
        if (row.status, row.owner) != (RUNNING, owner):
            raise Conflict(
                f"Operation {operation_id} was taken over because this process was assumed dead. It stops here.",
                Next("resume", operation=operation_id),
            )

    def set_request(self, transaction: Writing, operation_id: int, request: Mapping[str, Any]) -> None:
        update_rows(transaction, OPERATION, self._id_condition(operation_id), request=to_json(request))

    def end(self, transaction: Writing, operation_id: int, status: str, report: Mapping[str, Any]) -> None:
        values: dict[str, Any] = {"report": to_json(report), "owner": None, "lease_until": None}
        values["ended_at"] = datetime.now(UTC)
        _END.run(transaction, {"id": operation_id}, status=status, **values)
        event = "done" if status == DONE else "incomplete"
        counts = {group: len(items) for group, items in report.items() if isinstance(items, list) and items}
        self._record_event(transaction, operation_id, event, self._load(transaction, operation_id), counts)

    def _load(self, transaction: Reading, operation_id: int) -> Row[Any]:
        return require_row(self.find(transaction, operation_id), "operation", operation_id)

    def _record_event(
        self,
        transaction: Writing,
        operation_id: int,
        event: str,
        started: NewOperation | Any,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        record_event(
            transaction,
            f"{started.kind}.{event}",
            branch_id=started.internal_session_id,
            user_id=started.user_id,
            operation=operation_id,
            source=started.source_id,
            checkpoint=started.target_id,
            **(counts or {}),
        )

    def find(self, transaction: Reading, operation_id: int) -> Row[Any] | None:
        return _SELECT_OPERATION.first(transaction, {"operation": operation_id})

    def find_by_request_id(self, transaction: Reading, session_id: int, request_id: str) -> Row[Any] | None:
        query = select(OPERATION).where(self._in_session(session_id), OPERATION.c.request_id == request_id)
        return transaction.execute(query.limit(1)).first()

    def of_branch(self, transaction: Reading, branch_id: int) -> Sequence[Row[Any]]:
        return _OF_BRANCH.all(transaction, {"branch": branch_id})

    def of_branches(self, transaction: Reading, branch_ids: Sequence[int]) -> Sequence[Row[Any]]:
        """Read the operations that created these branches or led to them, oldest first."""
        leads_to_branch = OPERATION.c.internal_session_id.in_(bindparam("branches", expanding=True))
        query = select(OPERATION).where(leads_to_branch).order_by(OPERATION.c.id)
        return transaction.execute(query, {"branches": list(branch_ids)}).all()

    def stopped(self, transaction: Reading, session_id: int) -> Sequence[Row[Any]]:
        return transaction.execute(
            select(OPERATION).where(self._in_session(session_id), OPERATION.c.status == PARTIAL)
        ).all()

    def query_running(self, transaction: Reading, session_id: int) -> PendingResult:
        """Query the running operations of a session, including those whose process has died."""
        return _RUNNING.submit(transaction, {"session": session_id})

    def all(self, transaction: Reading, session_id: int) -> list[Operation]:
        query = select(OPERATION).where(self._in_session(session_id)).order_by(OPERATION.c.id.desc())
        return [operation_from_row(row) for row in transaction.execute(query).all()]

    def last_move(self, transaction: Reading, session_id: int) -> int:
        return int(_LAST_MOVE.all(transaction, {"session": session_id})[0].id or 0)

    def _id_condition(self, operation_id: int) -> Any:
        return OPERATION.c.id == operation_id

    def _in_session(self, session_id: int) -> Any:
        return OPERATION.c.external_session_id == session_id


_END = CompiledUpdate(OPERATION, "status", "report", "owner", "lease_until", "ended_at")
_SELECT_OPERATION = CompiledStatement(select(OPERATION).where(OPERATION.c.id == bindparam("operation")))
_LOCK_OWNER = CompiledStatement(
    select(OPERATION.c.status, OPERATION.c.owner)
    .where(OPERATION.c.id == bindparam("operation"))
    .with_for_update(key_share=True)  # SQLite has one writer anyway
)
_OF_BRANCH = CompiledStatement(
    select(OPERATION).where(OPERATION.c.internal_session_id == bindparam("branch")).order_by(OPERATION.c.id)
)
_LAST_MOVE = CompiledStatement(
    select(func.max(OPERATION.c.id).label("id")).where(
        OPERATION.c.external_session_id == bindparam("session"),
        or_(OPERATION.c.kind == "rollback", OPERATION.c.kind == "switch"),
    )
)
_RUNNING = CompiledStatement(
    select(OPERATION).where(OPERATION.c.external_session_id == bindparam("session"), OPERATION.c.status == RUNNING)
)


def operation_from_row(row: Row[Any]) -> Operation:
    places = {"source_session_id": row.source_id, "checkpoint_id": row.target_id or 0}
    return value_of(Operation, row, report=read_report(row), **places)
