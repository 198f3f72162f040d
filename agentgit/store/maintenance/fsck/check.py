"""The database check: references between rows, hashes of values, and the state of every head.

There are three levels, each of which includes those before it: 1 references, 2 hashes, 3 heads. The check changes
nothing. It sees the database at one moment, so it may run beside turns and other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, and_, func, select, text
from sqlalchemy.exc import DBAPIError

from agentgit.effects.invocation import CALL_KINDS, CALL_STATUSES, LOGGED_STATUSES
from agentgit.effects.kinds import MEMORY, RECORDED_KINDS
from agentgit.effects.memory import names_item
from agentgit.errors import AgentGitError, Corrupt
from agentgit.sessions.reports import Checked, Finding, OnProgress
from agentgit.store.maintenance.fsck.cells import RowReader, select_suspicious, tolerate_invalid_text
from agentgit.store.maintenance.fsck.rows import RowCheck, check_rights
from agentgit.store.maintenance.fsck.states import check_heads, check_pending, check_states
from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, check_values
from agentgit.store.maintenance.key_rotation import Rotation
from agentgit.store.records.journal import LAST_LOGGED_STATUSES
from agentgit.store.sql.driver_errors import is_dbapi_error
from agentgit.store.sql.tables import (
    BRANCH,
    METADATA,
    OPERATION,
    OPERATION_KINDS,
    OPERATION_STATUSES,
    TOOL_INVOCATION,
    WORLD_LOG,
)
from agentgit.store.store import Store
from agentgit.values import as_object, from_json


def check_world(check: RowCheck) -> None:
    """Check the tool invocations, the operations and the world log."""
    _check_calls(check)
    _check_operations(check)
    _check_log(check)
    _check_last_logged(check)
    _check_world_seen(check)


def _check_calls(check: RowCheck) -> None:
    """Check the tool invocations: their branch, the call that they replay, and their enumerated values."""
    columns = ("id", "external_session_id", "internal_session_id", "status", "effect", "kind", "replay_of", "parent_id")
    content = ("args", "result", "answers") if check.with_hashes else ()
    for row in check.read(*(TOOL_INVOCATION.c[name] for name in (*columns, *content))):
        name = f"tool_invocation {row.id}"
        check.require_same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "earlier call", row.replay_of, check.call_ids)
        check.require_existing(name, "enclosing call", row.parent_id, check.call_ids)
        check.require_known(name, "status", row.status, CALL_STATUSES)
        check.require_known(name, "effect", row.effect, RECORDED_KINDS)
        check.require_known(name, "kind", row.kind, CALL_KINDS)
        if check.with_hashes:
            check.require_valid_json(name, args=row.args, result=row.result, answers=row.answers)
            if row.effect == MEMORY and not _names_item(row.args):
                check.report.add(name, "it is a write to memory without the item or the value before it", RESTORE)


def _names_item(args: bytes) -> bool:
    """Return whether arguments name an item of memory; True if they are unreadable and already reported."""
    try:
        return names_item(as_object(args))
    except Corrupt:
        return True


def _check_operations(check: RowCheck) -> None:
    """Check the operations: their session, branches, target checkpoint, and the calls of their steps."""
    columns = ("id", "external_session_id", "user_id", "kind", "status", "source_id", "target_id", "request", "report")
    for row in check.read(*(OPERATION.c[name] for name in columns), OPERATION.c.internal_session_id):
        name = f"operation {row.id}"
        check.require_existing(name, "session", row.external_session_id, check.current_branches)
        check.require_existing(name, "user", row.user_id, check.author_ids)
        if row.external_session_id in check.current_branches:
            check.require_same_session(name, "source", row.source_id, row.external_session_id)
            check.require_same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "checkpoint", row.target_id, check.checkpoint_positions)
        check.require_known(name, "kind", row.kind, OPERATION_KINDS)
        check.require_known(name, "status", row.status, OPERATION_STATUSES)
        check.require_valid_json(name, request=row.request, report=row.report)
        for call_id in _call_ids_of_steps(row.request) if check.with_hashes else ():
            check.require_existing(name, "call", call_id, check.call_ids)


def _call_ids_of_steps(request: bytes) -> list[int]:
    """Return the ids of the calls in an operation's steps; none if the request is unreadable and already reported."""
    try:
        return [step["invocation"] for step in from_json(request).get("steps", ())]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []


def _check_log(check: RowCheck) -> None:
    """Check the world log: the session, the call and the operation of each entry."""
    columns = ("external_session_id", "seq", "invocation_id", "action", "operation_id")
    for row in check.read(*(WORLD_LOG.c[name] for name in columns)):
        name = f"world_log {row.external_session_id}/{row.seq}"
        check.require_existing(name, "session", row.external_session_id, check.current_branches)
        check.require_existing(name, "call", row.invocation_id, check.call_ids)
        check.require_existing(name, "operation", row.operation_id, check.operation_ids)
        check.require_known(name, "action", row.action, LOGGED_STATUSES)


def _check_last_logged(check: RowCheck) -> None:
    """Compare the status of each call with its last entry in the world log. Both are written in one transaction."""
    key_columns = (WORLD_LOG.c.external_session_id, WORLD_LOG.c.invocation_id)
    last_entries = select(*key_columns, func.max(WORLD_LOG.c.seq).label("seq")).group_by(*key_columns).subquery()
    entry_join: Any = and_(*(WORLD_LOG.c[name] == last_entries.c[name] for name in ("external_session_id", "seq")))
    call_join = TOOL_INVOCATION.c.id == WORLD_LOG.c.invocation_id
    query = (
        select(TOOL_INVOCATION.c.id, TOOL_INVOCATION.c.status, WORLD_LOG.c.action)
        .select_from(last_entries.join(WORLD_LOG, entry_join).join(TOOL_INVOCATION, call_join))
        .where(TOOL_INVOCATION.c.status != WORLD_LOG.c.action)
    )
    for id, status, action in check.connection.execute(query):
        if status in CALL_STATUSES and action in LOGGED_STATUSES and action not in LAST_LOGGED_STATUSES.get(status, ()):
            problem = f"its status is {status}, but its last entry in the world log is {action}"
            check.report.add(f"tool_invocation {id}", problem, RESTORE)


def _check_world_seen(check: RowCheck) -> None:
    """Check that no branch has seen more entries of the world log than exist."""
    last_seq = select(func.max(WORLD_LOG.c.seq)).where(WORLD_LOG.c.external_session_id == BRANCH.c.external_session_id)
    is_beyond_end = BRANCH.c.world_seen > func.coalesce(last_seq.correlate(BRANCH).scalar_subquery(), 0)
    query = select(BRANCH.c.id, BRANCH.c.world_seen).where(is_beyond_end)
    for id, seen_count in check.connection.execute(query):
        problem = f"it has seen {seen_count} entries of the world log, which has fewer"
        check.report.add(f"internal_session {id}", problem, RESTORE)


REFERENCES, HASHES, HEADS = 1, 2, 3
"""The levels of the check."""

MOST = 1000
"""The greatest number of findings that are listed. A damaged file could cause millions."""

COUNTED_TABLES = [table for name, table in METADATA.tables.items() if name not in ("user", "encryption_key")]


def fsck(store: Store, level: int, progress: OnProgress | None = None) -> Checked:
    """Check all rows."""
    start = time.perf_counter()
    uncached_store = Store(store.database, store.compression)  # so that no cache is used
    report = _FsckProgress(progress)
    try:
        with store.database.reading(repeatable_read=True) as connection, tolerate_invalid_text(connection):
            _run_checks(connection, uncached_store, level, report)
    except Corrupt as error:  # the database itself cannot read its file
        report.add(error.row or "the database", error.message.rstrip("."), RESTORE)
    return Checked(
        level=level,
        objects=report.objects,
        seconds=time.perf_counter() - start,
        findings=tuple(report.findings),
        more=report.more,
    )


def _run_checks(connection: Connection, store: Store, level: int, report: _FsckProgress) -> None:
    report.total = _count_rows(connection)
    if level >= HASHES and store.database.is_sqlite:
        for (message,) in connection.execute(text("PRAGMA quick_check(20)")):
            if message != "ok":
                report.add("the database file", f"SQLite reports: {message}", RESTORE)
    if level >= HASHES:
        for row_name, problem in Rotation(store.database).find_damaged(connection, store.database.seal):
            report.add(row_name, problem, RESTORE)
        report.attempt("the database", lambda: _check_cells(connection, store, report))
    for check in (_check_stored_values, _check_rows):
        # An unexpected error in one part must not prevent the checks of the others.
        report.attempt("the database", partial(check, connection, store, level, report))
    if level >= HEADS:
        report.attempt("the database", lambda: check_heads(connection, store, report))


def _check_cells(connection: Connection, store: Store, report: FsckReport) -> None:
    """Check that each cell of each table holds a value that is valid for its column."""
    for table in METADATA.sorted_tables:
        query = select_suspicious(table, is_sqlite=store.database.is_sqlite)
        for page in RowReader(connection, query, {}).pages():
            for checked_row in page:
                for problem in checked_row.problems:
                    report.add(checked_row.name, problem, RESTORE)


def _check_stored_values(connection: Connection, store: Store, level: int, report: FsckReport) -> None:
    """Check the stored values, and the graph checkpoints and writes that refer to them."""
    stored_hashes = check_values(connection, store, report, with_hashes=level >= HASHES)
    check_states(connection, stored_hashes, report, with_hashes=level >= HASHES)
    check_pending(connection, stored_hashes, report)


def _check_rows(connection: Connection, store: Store, level: int, report: FsckReport) -> None:
    """Check the rows of sessions, of tool calls and of access rights."""
    row_check = RowCheck(connection, store, report, with_hashes=level >= HASHES)
    for run_part in (row_check.check_rows, lambda: check_world(row_check), lambda: check_rights(row_check)):
        report.attempt("the database", run_part)


def _count_rows(connection: Connection) -> int:
    queries = (select(func.count()).select_from(table) for table in COUNTED_TABLES)
    return sum(int(connection.execute(query).scalar_one()) for query in queries)


class _FsckProgress(FsckReport):
    """Collects findings and reports progress."""

    def __init__(self, progress: OnProgress | None) -> None:
        self.findings: list[Finding] = []
        self._reported: set[tuple[str, str]] = set()
        self.more = 0
        self.objects = 0
        self.total = 0
        self._progress = progress
        self._callback_error: Exception | None = None

    def add(self, row: str, what: str, todo: str) -> None:
        if (row, what) in self._reported:  # two levels may check the same cell
            return
        if len(self.findings) < MOST:
            self._reported.add((row, what))
            self.findings.append(Finding(row=_printable(row), what=_printable(what), todo=todo))
        else:
            self.more += 1

    def advance(self, count: int) -> None:
        self.objects += count
        if self._progress is not None:
            try:
                self._progress(min(self.objects, self.total), self.total)
            except Exception as error:
                self._callback_error = error  # `attempt` must not report it as a finding
                raise

    def attempt(self, row: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as error:  # a damaged row may make anything raise; the others are still checked
            if error is self._callback_error or (_is_database_error(error) and not _is_conversion_error(error)):
                raise  # an error of the database itself is not a finding either
            text = error.message if isinstance(error, AgentGitError) else str(error)
            message = text.rstrip(".") or type(error).__name__
            self.add(row, f"it cannot be read: {message}", RESTORE)


def _is_database_error(error: Exception) -> bool:
    return isinstance(error, DBAPIError) or is_dbapi_error(error, "DatabaseError")


def _is_conversion_error(error: Exception) -> bool:
    """Return whether the driver could not convert a value that the server sent, like the time `-infinity`."""
    cause = getattr(error, "orig", error)
    return is_dbapi_error(cause, "DataError") and getattr(cause, "sqlstate", None) is None


def _printable(text: str) -> str:
    """Escape characters that a terminal cannot show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
