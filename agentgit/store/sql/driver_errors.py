"""Meanings of the failures of a database driver, and what to do next."""

from __future__ import annotations

import re

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, NotAllowed, NotFound, SchemaMismatch, Unavailable
from agentgit.store.sql.sqlite import BUSY_SECONDS

AGAIN = {"40001", "40P01", "55P03", "CR000"}
"""States for "run the transaction again": it was not serializable, in a deadlock, or waited too long for a lock.

CockroachDB and YugabyteDB say 40001 too; CR000 was CockroachDB's own.
"""

BROKEN = {"57P01", "57P02", "57P03", "25P03", "40003"}
"""States of a connection that the server has ended; so are those of class 08, and failures without any state."""

RACES = {"23505", "23503", "23P01"}
"""States of a row that a unique key, a foreign key or an exclusion refused: another transaction may have come first.

On SQLite writers take turns, so there only a unique key can be somebody else's: of an id that two processes made.
"""

TAKEN = "UNIQUE constraint failed"
"""SQLite's message for a unique key, and that of the triggers that keep REPLACE from the trail."""

UNKNOWN_NAMES = {"42P01", "42703", "3F000"}
"""States for a table, a column or a schema that does not exist."""

BAD_VALUES = {"22", "54"}
"""Classes of states for a value that the database cannot store, like a text with a NUL or one beyond its limits."""

DAMAGED = {"XX001", "XX002"}
"""States of a table or an index that the server cannot read."""

FULL = {"53100", "53200"}
"""States of a server that has no disk space or memory left."""

READ_ONLY = "25006"
"""The state of a write to a standby, or in a database that was made read-only."""

TOO_SLOW = "57014"
"""The state of a statement that the server has broken off."""

DENIED = "42501"
"""The state of what a role may not do, and of what row-level security keeps out."""

SHOWN = {"08", "25", "28", "3D", "40", "53", "55", "57", "58", "XX"}
"""Classes of states whose messages are the server's own words, without values and without SQL."""

_NAMES_ONLY = re.compile(r"[A-Z ]+ constraint failed(: [\w., ]+)?|no such (table|column): [\w.]+")
"""SQLite's messages that name tables and columns, and nothing of their contents."""

REFUSED = "The audit trail cannot be changed"
"""The message of the triggers of the audit trail."""


class Again(Unavailable):
    """Another transaction was in the way; the same work may succeed now."""


class Broken(Again):
    """The connection broke before the commit, so that nothing was stored; on another one the same work may succeed."""


class Raced(Again):
    """A key refused a row, so another transaction may have come first.

    The next attempt sees what that one stored. If it is refused for the same row, nobody was in the way: `refused`
    says so.

    Args:
        where: The database.
        text: The text that everybody may read.
        words: All of the driver's words, which name the row.
    """

    def __init__(self, where: str, text: str, words: str) -> None:
        super().__init__(f"Another writer interfered in {where}: {text}. Try again.")
        self.refused = _refused(where, text)
        self.words = words


def meaning(error: Exception, where: str, *, committing: bool | None = None) -> AgentGitError:
    """Return what a driver's failure means.

    Args:
        error: The driver's own error.
        where: The database, without its password.
        committing: True if the commit was on its way, False if a transaction that writes had not come so far; None if
            nothing was to be written.
    """
    full = str(error).strip()
    state: str | None = getattr(error, "sqlstate", None)
    text = _shown(error, full, state)
    if REFUSED in full:
        return NotAllowed(f"{REFUSED} in {where}: it is append-only. agentgit adds its events by itself.")
    if state in AGAIN:
        return Again(f"Another writer interfered in {where}: {text}. Try again.")
    if state in RACES or (is_a(error, "IntegrityError") and state is None and full.startswith(TAKEN)):
        return Raced(where, text, full)
    known = _by_state(state, text, where) if state is not None else _of_a_file(error, text, where)
    if known is not None:
        return known
    if not is_a(error, "OperationalError") or getattr(error, "sqlite_errorcode", None) is not None:
        return _refused(where, text)
    if "too many clients" in full or "connection slots" in full:
        return Unavailable(
            f"{where} accepts no more connections. Open it with a smaller pool_size, put a pooler in front of it, or "
            "raise its max_connections."
        )
    if committing is None or not is_broken(error):
        return Unavailable(f"{where} cannot be reached: {text}")
    if committing:
        return Unavailable(
            f"The connection to {where} broke during a commit, which may or may not be stored. It was not retried. "
            "Check what is stored before you continue."
        )
    return Broken(f"{where} cannot be reached: {text}")


def _shown(error: Exception, text: str, state: str | None) -> str:
    """Return what everybody may read of a driver's words; all of them are those of the failure's `__cause__`.

    They can hold the statement, its parameters and the row that a constraint refused, which may be another user's.
    """
    kind = type(error).__name__
    if (name := getattr(error, "sqlite_errorname", None)) is not None:
        is_own = name.startswith(("SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM"))
        return text if is_own or _NAMES_ONLY.fullmatch(text) else f"{kind} {name}"
    if state is None:
        return text if is_a(error, "OperationalError") else kind
    facts = getattr(error, "diag", None)
    if state[:2] in SHOWN or state in UNKNOWN_NAMES or state == DENIED:
        return getattr(facts, "message_primary", None) or kind
    names = [getattr(facts, f"{one}_name", None) for one in ("constraint", "table", "column")]
    found = ", ".join(filter(None, names))
    return f"{kind} {state} ({found})" if found else f"{kind} {state}"


def _refused(where: str, text: str) -> AgentGitError:
    """Return the error for a statement that fails each time, because of what it says."""
    return AgentGitError(
        f"{where} refused a statement of agentgit: {text}. Retrying does not help. Run agentgit fsck; if it finds "
        "nothing, this is a bug: please report it."
    )


def _by_state(state: str, text: str, where: str) -> AgentGitError | None:
    """Return what a server's state means; None if that depends on the connection."""
    if state == DENIED:
        return NotAllowed(f"{where} denied permission: {text}. Ask its owner to run: agentgit db grant ROLE")
    if state == TOO_SLOW:
        return Unavailable(f"{where} canceled a statement: {text}. Raise its statement_timeout, then try again.")
    if state in FULL:
        return Unavailable(f"{where} could not be written: {text}. Free some space, then try again.")
    if state == READ_ONLY:
        return Unavailable(f"{where} cannot be written: {text}. Connect to the primary server, or make it writable.")
    if state in DAMAGED:
        return Corrupt(f"{where} is damaged: {text}. Restore it from a backup.", row="the database")
    if state in UNKNOWN_NAMES:
        return _other_schema(where, text)
    if state[:2] in BAD_VALUES:
        return _bad_value(where, text)
    return _refused(where, text) if state[:2] == "23" else None


def _bad_value(where: str, text: str) -> AgentGitError:
    return InvalidInput(f"{where} cannot store a value: {text}. Use a smaller one, or one without NUL characters.")


def _other_schema(where: str, text: str) -> AgentGitError:
    return SchemaMismatch(f"{where} lacks something that agentgit needs: {text}. Run: agentgit db check")


def _of_a_file(error: Exception, text: str, where: str) -> AgentGitError | None:
    """Return what a failure of SQLite means; None if it is none of SQLite itself."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        # Not again: SQLite has waited for that long already.
        return Unavailable(f"{where} was locked for {BUSY_SECONDS} s. Close the program that uses it, then try again.")
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return Unavailable(f"{where} cannot be written. Give this user write permission for the file and its folder.")
    if name.startswith("SQLITE_CANTOPEN"):
        return Unavailable(f"{where} cannot be opened. Check that its folder exists and this user can write to it.")
    if name.startswith("SQLITE_CORRUPT"):
        return Corrupt(
            f"{where} is damaged: {text}. Restore it from a backup. Details: agentgit fsck", row="the database file"
        )
    if name == "SQLITE_NOTADB":
        return SchemaMismatch(f"{where} is not a SQLite database. Use another path; this file was not changed.")
    if name.startswith(("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM")):
        return Unavailable(f"{where} could not be written: {text}. Free some space, then try again.")
    if name in ("SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_RANGE"):
        return _bad_value(where, text)
    if str(error).startswith(("no such table", "no such column")):
        return _other_schema(where, text)
    return None


def missing_row(kind: str, row_id: object) -> NotFound:
    """Return the error for a row that other rows name, or that a caller still holds, and that does not exist.

    Args:
        kind: The kind of the row, in a user's words.
        row_id: The id of the row.
    """
    return NotFound(
        f"There is no {kind} {row_id} in this database. If its session was not deleted, the row is lost. To find the "
        "rows that need it, run: agentgit fsck"
    )


def is_broken(error: Exception) -> bool:
    """Return whether a failure of a server's driver ended its connection."""
    state: str | None = getattr(error, "sqlstate", None)
    return is_a(error, "OperationalError") and (state is None or state[:2] == "08" or state in BROKEN)


def is_a(error: Exception, name: str) -> bool:
    """Return whether a driver's error is of a class that PEP 249 names; psycopg has subclasses of them."""
    return any(kind.__name__ == name for kind in type(error).__mro__)
