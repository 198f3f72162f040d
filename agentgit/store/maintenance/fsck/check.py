"""The database check: references between rows, hashes of values, and the state of every head.

There are three levels, each of which includes those before it: 1 references, 2 hashes, 3 heads. The check changes
nothing. It sees the database at one moment, so it may run beside turns and other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from agentgit.errors import AgentGitError, Corrupt
from agentgit.sessions.reports import Checked, Finding, OnProgress
from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, check_cells, tolerate_invalid_text
from agentgit.store.maintenance.fsck.rows import RowCheck
from agentgit.store.maintenance.fsck.states import check_heads, check_pending, check_states
from agentgit.store.maintenance.fsck.values import check_values
from agentgit.store.maintenance.key_rotation import Rotation
from agentgit.store.sql.driver_errors import is_dbapi_error
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store

REFERENCES, HASHES, HEADS = 1, 2, 3
"""The levels of the check."""

MOST = 1000
"""The greatest number of findings that are listed. A damaged file could cause millions."""

COUNTED_TABLES = (
    "blob graph_checkpoint graph_write external_session event workspace_snapshot internal_session checkpoint tag "
    "search_text operation session_member"
)
"""The tables whose rows the checks of all levels read once."""


def fsck(store: Store, level: int, progress: OnProgress | None = None) -> Checked:
    """Check all rows."""
    start = time.perf_counter()
    uncached_store = Store(store.database, store.compression)  # so that no cache is used
    report = _FsckProgress(progress)
    try:
        with store.database.reading(repeatable_read=True) as transaction, tolerate_invalid_text(transaction):
            _run_checks(transaction, uncached_store, level, report)
    except Corrupt as error:  # the database itself cannot read its file
        report.add(error.row or "the database", error.message.rstrip("."), RESTORE)
    return Checked(
        level=level,
        objects=report.objects,
        seconds=time.perf_counter() - start,
        findings=tuple(report.findings),
        more=report.more,
    )


def _run_checks(transaction: Reading, store: Store, level: int, report: _FsckProgress) -> None:
    report.total = _count_rows(transaction)
    if store.database.is_sqlite:
        _check_file(transaction, level, report)
    if level >= HASHES:
        for row_name, problem in Rotation(store.database).find_damaged(transaction, store.database.seal):
            report.add(row_name, problem, RESTORE)
        for table in METADATA.sorted_tables:
            report.attempt("the database", partial(check_cells, transaction, table, report))
    # An unexpected error in one part must not prevent the checks of the others.
    report.attempt("the database", partial(_check_stored_values, transaction, store, level, report))
    report.attempt("the database", lambda: RowCheck(transaction, report, with_hashes=level >= HASHES).run())
    if level >= HEADS:
        report.attempt("the database", lambda: check_heads(transaction, store, report))


def _check_file(transaction: Reading, level: int, report: FsckReport) -> None:
    """Let SQLite check the constraints, which somebody who writes to the file can leave aside."""
    for table, row, target, _ in transaction.execute(text("PRAGMA foreign_key_check")):
        report.add(f"{table} {row}", f"a row of {target} that it refers to is missing", RESTORE)
    if level >= HASHES:
        for (message,) in transaction.execute(text("PRAGMA quick_check(20)")):
            if message != "ok":
                report.add("the database file", f"SQLite reports: {message}", RESTORE)


def _check_stored_values(transaction: Reading, store: Store, level: int, report: FsckReport) -> None:
    """Check the stored values, and the graph checkpoints and writes that refer to them."""
    stored_hashes = check_values(transaction, store, report, with_hashes=level >= HASHES)
    check_states(transaction, stored_hashes, report, with_hashes=level >= HASHES)
    check_pending(transaction, stored_hashes, report)


def _count_rows(transaction: Reading) -> int:
    queries = (select(func.count()).select_from(METADATA.tables[name]) for name in COUNTED_TABLES.split())
    return sum(int(transaction.execute(query).scalar_one()) for query in queries)


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
