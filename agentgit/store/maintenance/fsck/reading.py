"""Reads rows for the check: one whose values cannot be read is a finding, and the others are still checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.exc import DBAPIError

from agentgit.errors import AgentGitError, Corrupt, KeyMissing
from agentgit.sessions.reports import Finding, OnProgress
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import is_dbapi_error
from agentgit.store.sql.tables import BRANCH, SESSION, TAG, USER
from agentgit.store.sql.transaction import Reading

REFERENCES, HASHES, HEADS = 1, 2, 3
"""The levels of the check."""

MOST = 1000
"""The greatest number of findings that are listed. A damaged file could cause millions."""

RESTORE = "Restore the database from a backup."

SHOWN_CHARACTERS = 40
"""The number of characters of a wrong value that a finding shows."""


class FsckReport:
    """Collects the findings of a check and reports its progress; says what is to be checked."""

    def __init__(self, progress: OnProgress | None, level: int, of_session: int | None = None) -> None:
        self.with_hashes, self.of_session = level >= HASHES, of_session
        self.findings: list[Finding] = []
        self.more = 0
        self.objects = 0
        self.total = 0
        self._progress = progress
        self._callback_error: Exception | None = None

    def add(self, row: str, what: str, todo: str) -> None:
        finding = Finding(row=_printable(row), what=_printable(what), todo=todo)
        if len(self.findings) >= MOST:
            self.more += 1
        elif finding not in self.findings:  # several checks may read the same value
            self.findings.append(finding)

    def add_unreadable(self, row: str, error: Exception) -> None:
        text = error.message if isinstance(error, AgentGitError) else str(error)
        self.add(row, f"it cannot be read: {text.rstrip('.') or type(error).__name__}", RESTORE)

    def add_missing(self, row: str, part: str, hashes: Iterable[bytes], stored: Set[bytes]) -> None:
        """Add a finding if values that a row refers to are not stored. `part` is what they are of it."""
        if missing := {*hashes} - stored:
            others = f", and so are {len(missing) - 1} others" if len(missing) > 1 else ""
            self.add(row, f"{part} {min(missing).hex()} is missing{others}", RESTORE)

    def advance(self, count: int) -> None:
        self.objects += count
        if self._progress is not None:
            try:
                self._progress(min(self.objects, self.total), self.total)
            except Exception as error:
                self._callback_error = error  # `attempt` must not report it as a finding
                raise

    def attempt(self, row: str, check: Callable[[], None]) -> None:
        """Run a check, and report what it raises as a finding."""
        try:
            check()
        except Exception as error:  # a damaged row may make anything raise; the others are still checked
            if error is self._callback_error or (_is_database_error(error) and not _is_conversion_error(error)):
                raise  # an error of the database itself is not a finding either
            self.add_unreadable(row, error)


def _is_database_error(error: Exception) -> bool:
    return isinstance(error, DBAPIError) or is_dbapi_error(error, "DatabaseError")


def _is_conversion_error(error: Exception) -> bool:
    """Return whether a value cannot be converted, like `-infinity` or a text that is not UTF-8."""
    cause = getattr(error, "orig", error)
    if isinstance(cause, sqlite3.OperationalError):
        return not hasattr(cause, "sqlite_errorcode")
    return is_dbapi_error(cause, "DataError") and getattr(cause, "sqlstate", None) is None


def _printable(text: str) -> str:
    """Escape characters that a terminal cannot show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def checked(report: FsckReport, *columns: Any) -> Any:
    """Select columns of the rows of a table: of all sessions, or of the one that is checked."""
    table, session_id, query = columns[0].table, report.of_session, select(*columns)
    if session_id is None or table is USER:
        return query
    owner = SESSION.c.id if table is SESSION else table.c.get("external_session_id")
    branches = select(BRANCH.c.id).where(BRANCH.c.external_session_id == session_id)
    return query.where(owner == session_id if owner is not None else table.c.internal_session_id.in_(branches))


def read_rows(transaction: Reading, query: Any, report: FsckReport, *, counted: bool = True) -> Iterator[Any]:
    columns = list(query.selected_columns)
    table = columns[0].table
    keys = [n for n, one in enumerate(columns) if getattr(one, "primary_key", False) and one.table is table]
    statement = CompiledStatement(query)
    convert = statement.row_converter(transaction)
    for page in statement.pages(transaction, raw=True):
        for raw in page:
            try:
                row = convert(raw)
            except (ValueError, TypeError, LookupError, ArithmeticError, KeyMissing, Corrupt) as error:
                report.add_unreadable(row_name(table, [raw[n] for n in keys]), error)
            else:
                yield row
        report.advance(len(page) if counted else 0)


def read_raw_rows(transaction: Reading, query: Any, report: FsckReport) -> Iterator[Any]:
    """Yield the rows of a query as the driver returns them, and count them. See `CompiledStatement.pages`."""
    for page in CompiledStatement(query).pages(transaction, raw=True):
        yield from page
        report.advance(len(page))


def row_name(table: Table, key: Sequence[Any]) -> str:
    """Return the name that a finding gives to a row with a primary key."""
    return f"tag {key[1]!r}" if table is TAG else f"{table.name} {'/'.join(map(format_value, key))}"


def format_value(value: Any) -> str:
    """Format a value so that any terminal can show it."""
    if isinstance(value, bytes | memoryview):
        text = bytes(value[:SHOWN_CHARACTERS]).hex() or "b''"
    else:
        text = str(value)
        text = text if text.isprintable() and text.isascii() and text else ascii(value)
    return text if len(text) <= 2 * SHOWN_CHARACTERS else text[: 2 * SHOWN_CHARACTERS] + "…"
