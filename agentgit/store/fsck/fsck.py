"""Checking a database: what refers to what, what the hashes say, and whether the state of every head can be made.

Three levels, each with those before it: 1 references, 2 hashes, 3 heads. Nothing is changed. It sees one moment of the
database, so it may run beside turns and other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, Table, func, select, text

from agentgit.errors import AgentGitError, Corrupt
from agentgit.sessions.events import Tip, Verified
from agentgit.sessions.upkeep import Checked, Finding, Progress
from agentgit.store.fsck.heads import check_heads
from agentgit.store.fsck.rights import check_rights
from agentgit.store.fsck.rows import Rows
from agentgit.store.fsck.states import check_states
from agentgit.store.fsck.trail import ERASURE, check_outbox, check_trail, erased_sessions
from agentgit.store.fsck.values import RESTORE, Report, check_dictionaries, check_values
from agentgit.store.fsck.world import check_world
from agentgit.store.rotation import Rotation
from agentgit.store.store import Store
from agentgit.store.tables import METADATA
from agentgit.store.telling.trail import EVENT

REFERENCES, HASHES, HEADS = 1, 2, 3
"""How deep to look."""

MOST = 1000
"""How many findings are told one by one; a database whose file is torn could have millions."""

TABLES = [table for name, table in METADATA.tables.items() if name not in ("tenant", "user", "encryption_key")]


def fsck(store: Store, level: int, progress: Progress | None = None) -> Checked:
    """Check all rows of a tenant.

    Args:
        store: which tenant, in which database.
        level: 1 to 3.
        progress: told how many rows are done, and of how many.
    """
    began = time.perf_counter()
    fresh = Store(store.database, store.tenant_id, store.compression)  # what is read is read anew, from no cache
    report = _Counting(progress)
    try:
        with store.database.reading(one_moment=True) as connection:
            _check(connection, fresh, level, report)
    except Corrupt as error:  # the database itself cannot read its file
        report.add(error.row or "the database", str(error).split(". ")[0], RESTORE)
    return Checked(
        level=level,
        objects=report.objects,
        seconds=time.perf_counter() - began,
        findings=tuple(report.findings),
        more=report.more,
    )


def _check(connection: Connection, store: Store, level: int, report: _Counting) -> None:
    report.total = _count(connection, store.tenant_id)
    if level >= HASHES and store.database.is_sqlite:
        for (said,) in connection.execute(text("PRAGMA quick_check(20)")):
            if said != "ok":
                report.add("the database file", f"SQLite says: {said}", RESTORE)
    if level >= HASHES:
        for row, column in Rotation(store.database, store.tenant_id).damaged(connection, store.database.seal):
            report.add(row, f"its {column} does not open with its key", RESTORE)
    dictionaries = check_dictionaries(connection, store, report)
    there = check_values(connection, store, dictionaries, report, hashes=level >= HASHES)
    check_states(connection, store.tenant_id, there, report, hashes=level >= HASHES)
    del there
    rows = Rows(connection, store, report, hashes=level >= HASHES)
    rows.check()
    check_world(rows)
    check_rights(rows)
    check_trail(connection, store.tenant_id, report, hashes=level >= HASHES)
    check_outbox(connection, store.tenant_id, report)
    if level >= HEADS:
        check_heads(connection, store, report)


def verify_trail(store: Store, known: Mapping[int, Tip] | None = None, progress: Progress | None = None) -> Verified:
    """Check the audit trail alone.

    Args:
        store: which tenant, in which database.
        known: the ends of the trails, as an earlier look has given them.
        progress: told how many rows are done, and of how many.
    """
    report, tips = _Counting(progress), {}
    with store.database.reading() as connection:
        report.total = _count(connection, store.tenant_id, [EVENT, ERASURE])
        tips = check_trail(connection, store.tenant_id, report, known, hashes=True)
        erased = erased_sessions(connection, store.tenant_id)
    more = [Finding(row="audit_event", what=f"and {report.more} more", todo=RESTORE)] if report.more else []
    return Verified(events=report.objects, tips=tips, findings=(*report.findings, *more), erased=erased)


def _count(connection: Connection, tenant_id: int, tables: Sequence[Table] = TABLES) -> int:
    counts = (select(func.count()).select_from(table).where(table.c.tenant_id == tenant_id) for table in tables)
    return sum(int(connection.execute(query).scalar_one()) for query in counts)


class _Counting(Report):
    """Takes what is found, and tells how far it is."""

    def __init__(self, progress: Progress | None) -> None:
        self.findings: list[Finding] = []
        self.more = 0
        self.objects = 0
        self.total = 0
        self._progress = progress

    def add(self, row: str, what: str, todo: str) -> None:
        if len(self.findings) < MOST:
            self.findings.append(Finding(row=row, what=what, todo=todo))
        else:
            self.more += 1

    def did(self, count: int) -> None:
        self.objects += count
        if self._progress is not None:
            self._progress(min(self.objects, self.total), self.total)

    def attempt(self, row: str, look: Callable[[], None]) -> None:
        try:
            look()
        except (AgentGitError, ValueError, KeyError, TypeError, LookupError, ArithmeticError) as error:
            said = str(error).split(" Run: ")[0].rstrip(".") or type(error).__name__
            self.add(row, f"it cannot be read: {said}", RESTORE)
