"""The database check: references between rows, hashes of values, and the state of every head.

There are three levels, each of which includes those before it: 1 references, 2 hashes, 3 heads. The check changes
nothing. It sees the database at one moment, so it may run beside turns and other processes.
"""

from __future__ import annotations

import time
from functools import partial

from sqlalchemy import func, select, text

from agentgit.errors import Corrupt
from agentgit.sessions.reports import Checked, Finding, OnProgress
from agentgit.store.maintenance.fsck.reading import (
    HASHES,
    HEADS,
    RESTORE,
    FsckReport,
    read_rows,
)
from agentgit.store.maintenance.fsck.rows import RowCheck
from agentgit.store.maintenance.fsck.states import check_heads, check_pending, check_states
from agentgit.store.maintenance.fsck.values import check_values
from agentgit.store.objects.blobs import FAMILY_LOCKS
from agentgit.store.sql.columns import bound_columns
from agentgit.store.sql.tables import BLOB, METADATA
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store

COUNTED_TABLES = (
    "blob graph_checkpoint graph_write external_session event workspace_snapshot internal_session checkpoint operation "
    "session_member"
)
"""The tables whose rows the checks of all levels read once."""


def fsck(store: Store, level: int, progress: OnProgress | None = None, session_id: int | None = None) -> Checked:
    start = time.perf_counter()
    uncached_store = Store(store.database, store.compression)  # so that no cache is used
    report = FsckReport(progress, level, session_id)
    try:
        with store.database.reading(repeatable_read=True) as transaction:
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


def check_session(transaction: Reading, store: Store, session_id: int) -> list[Finding]:
    """Check the rows of one session at all levels, in the transaction that has written them."""
    report = FsckReport(None, HEADS, session_id)
    _check_rows(transaction, Store(store.database, store.compression), HEADS, report)
    return report.findings


def _run_checks(transaction: Reading, store: Store, level: int, report: FsckReport) -> None:
    is_whole = report.of_session is None
    report.total = _count_rows(transaction) if is_whole else 0
    if is_whole and store.database.is_sqlite:
        _check_file(transaction, level, report)
    elif is_whole:
        locks = select(func.count()).where(BLOB.c.external_session_id.between(-FAMILY_LOCKS, -1))
        if transaction.execute(locks).scalar_one() < FAMILY_LOCKS:
            report.add("blob", "rows that writers lock are missing", "Run agentgit db upgrade.")
    if is_whole and level >= HASHES and transaction.seal is not None:
        _check_encrypted_columns(transaction, report)
    _check_rows(transaction, store, level, report)


def _check_encrypted_columns(transaction: Reading, report: FsckReport) -> None:
    """Decrypt the values that are bound to their rows. Those of `blob` are decrypted with their hashes."""
    for table in METADATA.sorted_tables:
        if columns := bound_columns(table):
            query = select(*table.primary_key, *(table.c[name] for name in columns))
            for _ in read_rows(transaction, query, report, counted=False):
                pass


def _check_rows(transaction: Reading, store: Store, level: int, report: FsckReport) -> None:
    """Check the rows. An unexpected error in one part must not prevent the other checks."""
    report.attempt("the database", partial(_check_values, transaction, store, report))
    report.attempt("the database", lambda: RowCheck(transaction, report).run())
    if level >= HEADS:
        report.attempt("the database", partial(check_heads, transaction, store, report))


def _check_file(transaction: Reading, level: int, report: FsckReport) -> None:
    """Let SQLite check the constraints, which somebody who writes to the file can leave aside."""
    for table, row, target, _ in transaction.execute(text("PRAGMA foreign_key_check")):
        report.add(f"{table} {row}", f"a row of {target} that it refers to is missing", RESTORE)
    if level >= HASHES:
        for (message,) in transaction.execute(text("PRAGMA quick_check(20)")):
            if message != "ok":
                report.add("the database file", f"SQLite reports: {message}", RESTORE)


def _check_values(transaction: Reading, store: Store, report: FsckReport) -> None:
    stored_hashes = check_values(transaction, store, report)
    check_states(transaction, stored_hashes, report)
    check_pending(transaction, stored_hashes, report)


def _count_rows(transaction: Reading) -> int:
    queries = (select(func.count()).select_from(METADATA.tables[name]) for name in COUNTED_TABLES.split())
    return sum(int(transaction.execute(query).scalar_one()) for query in queries)
