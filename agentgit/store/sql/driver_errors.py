"""Translation of database driver errors into errors that say what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, NotAllowed, NotFound, SchemaMismatch, Unavailable
from agentgit.next_steps import Next
from agentgit.store.sql.sqlite import BUSY_SECONDS

T = TypeVar("T")

RETRYABLE_STATES = {"40001", "40P01", "55P03"}
"""SQLSTATEs of a transaction to run again: it was not serializable, in a deadlock, or waited too long for a lock."""

BROKEN_CONNECTION_STATES = {"57P01", "57P02", "57P03", "25P03", "40003"}
"""SQLSTATEs of a connection that the server ended. Class 08 and errors without a state mean the same."""

CONSTRAINT_RACE_STATES = {"23505", "23503", "23P01"}
"""SQLSTATEs of a unique, foreign key or exclusion violation, which another transaction may have caused.

On SQLite writers take turns, so only a unique violation can be a race: two processes made the same id.
"""

UNIQUE_VIOLATION = "UNIQUE constraint failed"
"""SQLite's message for a unique violation, also used by the triggers that block REPLACE in the audit trail."""

SAFE_MESSAGES = ("08", "25", "28", "3D", "3F000", "40", "42501", "42703", "42P01", "53", "55", "57", "58", "XX")
"""SQLSTATEs, and beginnings of them, whose messages contain no values and no SQL."""

_MISSING_NAME = re.compile(r"no such (table|column): [\w.]+|table \w+ has no column named \w+")
"""SQLite's messages about a table or a column that does not exist."""

_SAFE_SQLITE_MESSAGE = re.compile(rf"[A-Z ]+ constraint failed(: [\w., ]+)?|{_MISSING_NAME.pattern}")
"""SQLite's messages that contain names of tables and columns, but no values."""

APPEND_ONLY_MESSAGE = "The audit trail cannot be changed"
"""The message of the triggers of the audit trail."""


_PROBLEMS: Mapping[str, tuple[type[AgentGitError], str, *tuple[Next, ...]]] = {
    "42501": (NotAllowed, "denied permission: {}.", Next("grant")),
    "57014": (Unavailable, "canceled a statement: {}. Raise its statement_timeout, then try again."),
    "53100 53200 SQLITE_IOERR SQLITE_FULL SQLITE_NOMEM": (
        Unavailable,
        "could not be written: {}. Free some space, then try again.",
    ),
    "25006": (Unavailable, "cannot be written: {}. Connect to the primary server, or make it writable."),
    "XX001 XX002 SQLITE_CORRUPT": (Corrupt, "is damaged: {}.", Next("fsck")),
    "42P01 42703 3F000": (SchemaMismatch, "lacks something that agentgit needs: {}.", Next("check_schema")),
    "22 54 SQLITE_TOOBIG SQLITE_MISMATCH SQLITE_RANGE": (
        InvalidInput,
        "cannot store a value: {}. Use a smaller one, or one without NUL characters.",
    ),
    # Not `TransactionConflict`, because SQLite has already waited that long.
    "SQLITE_BUSY SQLITE_LOCKED": (
        Unavailable,
        f"was locked for {BUSY_SECONDS} s. Close the program that uses it, then try again.",
    ),
    "SQLITE_READONLY SQLITE_PERM SQLITE_AUTH": (
        Unavailable,
        "cannot be written. Give this user write permission for the file and its folder.",
    ),
    "SQLITE_CANTOPEN": (
        Unavailable,
        "cannot be opened. Check that its folder exists and this user can write to it.",
    ),
    "SQLITE_NOTADB": (
        SchemaMismatch,
        "is not a SQLite database. Use another path; this file was not changed.",
    ),
}
"""What an error of a driver becomes, by the beginnings of its SQLSTATE or of SQLite's name of it."""


class TransactionConflict(Unavailable):
    """Another transaction interfered. The same work may succeed on the next attempt."""


class ConnectionBroken(TransactionConflict):
    """The connection broke before the commit. Nothing was stored, and the work may succeed on another connection."""


class ConstraintRace(TransactionConflict):
    """A constraint refused a row, perhaps because another transaction came first.

    The next attempt sees what the other transaction stored. If the same row is refused again, it was no race, and
    `final_error` is the error to raise.
    """

    def __init__(self, database_name: str, text: str, driver_message: str) -> None:
        super().__init__(f"Another writer interfered in {database_name}: {text}. Try again.")
        self.final_error = _refused_statement(database_name, text)
        self.words = driver_message


def translate_error(error: Exception, database_name: str, *, committing: bool | None = None) -> AgentGitError:
    driver_message = str(error).strip()
    state: str | None = getattr(error, "sqlstate", None)
    text = _safe_message(error, driver_message, state)
    if APPEND_ONLY_MESSAGE in driver_message:
        return NotAllowed(
            f"{APPEND_ONLY_MESSAGE} in {database_name}: it is append-only. agentgit adds its events by itself."
        )
    if state in RETRYABLE_STATES:
        return TransactionConflict(f"Another writer interfered in {database_name}: {text}. Try again.")
    if state in CONSTRAINT_RACE_STATES or (
        is_dbapi_error(error, "IntegrityError") and state is None and driver_message.startswith(UNIQUE_VIOLATION)
    ):
        return ConstraintRace(database_name, text, driver_message)
    code = state or getattr(error, "sqlite_errorname", None) or ""
    if state is None and _MISSING_NAME.match(driver_message):
        code = "42P01"
    for beginnings, (kind, problem, *next_steps) in _PROBLEMS.items():
        if code.startswith(tuple(beginnings.split())):
            return kind(f"{database_name} {problem.format(text)}", *next_steps)
    if not is_dbapi_error(error, "OperationalError") or getattr(error, "sqlite_errorcode", None) is not None:
        return _refused_statement(database_name, text)
    if "too many clients" in driver_message or "connection slots" in driver_message:
        return Unavailable(
            f"{database_name} accepts no more connections. Open it with a smaller pool_size, put a pooler in front of "
            "it, or raise its max_connections."
        )
    if committing is None or not is_broken(error):
        return Unavailable(f"{database_name} cannot be reached: {text}")
    if committing:
        return Unavailable(
            f"The connection to {database_name} broke during a commit, which may or may not be stored. It was not "
            "retried. Check what is stored before you continue."
        )
    return ConnectionBroken(f"{database_name} cannot be reached: {text}")


def _safe_message(error: Exception, text: str, state: str | None) -> str:
    """Return the part of a driver's message without statements, parameters and rows, which may be another user's."""
    kind = type(error).__name__
    if (name := getattr(error, "sqlite_errorname", None)) is not None:
        is_own = name.startswith(("SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM"))
        return text if is_own or _SAFE_SQLITE_MESSAGE.fullmatch(text) else f"{kind} {name}"
    if state is None:
        return text if is_dbapi_error(error, "OperationalError") else kind
    diagnostics = getattr(error, "diag", None)
    if state.startswith(SAFE_MESSAGES):
        return getattr(diagnostics, "message_primary", None) or kind
    names = [getattr(diagnostics, f"{one}_name", None) for one in ("constraint", "table", "column")]
    location = ", ".join(filter(None, names))
    return f"{kind} {state} ({location})" if location else f"{kind} {state}"


def _refused_statement(database_name: str, text: str) -> AgentGitError:
    return AgentGitError(
        f"{database_name} refused a statement of agentgit: {text}. Retrying does not help. If fsck finds nothing, this "
        "is a bug: please report it.",
        Next("fsck"),
    )


def unreadable_row(table: str, key: object) -> Corrupt:
    return Corrupt(f"The row {key} in table {table} cannot be read.", Next("fsck"), row=f"{table} {key}")


def missing_row(kind: str, row_id: object) -> NotFound:
    """Return the error for a row that does not exist although other rows refer to it or a caller has its id."""
    return NotFound(
        f"There is no {kind} {row_id} in this database. If its session was not deleted, the row is lost.", Next("fsck")
    )


def require_row(row: T | None, kind: str, row_id: object) -> T:
    if row is None:
        raise missing_row(kind, row_id)
    return row


def is_broken(error: Exception) -> bool:
    """Return whether an error of a server's driver means that the connection has ended."""
    state: str | None = getattr(error, "sqlstate", None)
    return is_dbapi_error(error, "OperationalError") and (
        state is None or state[:2] == "08" or state in BROKEN_CONNECTION_STATES
    )


def is_dbapi_error(error: Exception, class_name: str) -> bool:
    """Return whether a driver's error is of a PEP 249 class or, as in psycopg, of a subclass."""
    return any(kind.__name__ == class_name for kind in type(error).__mro__)
