"""What the failures of a database's driver mean, and what to do next."""

from __future__ import annotations

from agentgit.errors import AgentGitError, Corrupt, NotAllowed, SchemaMismatch, Unavailable
from agentgit.store.lite import BUSY_SECONDS

AGAIN = {"40001", "40P01", "55P03", "CR000"}
"""States for "run the transaction again": it was not serializable, in a deadlock, or waited too long for a lock.

CockroachDB and YugabyteDB say 40001 too; CR000 was CockroachDB's own.
"""

BROKEN = {"57P01", "57P02", "57P03", "25P03", "40003"}
"""States of a connection that the server has ended; so are those of class 08, and failures without any state."""

TOO_SLOW = "57014"
"""The state of a statement that the server has broken off."""

DENIED = "42501"
"""The state of what a role may not do, and of what row-level security keeps out."""

REFUSED = "The audit trail cannot be changed"
"""What the triggers of the audit trail say; see migration 0007."""


class Again(Unavailable):
    """Another transaction was in the way; the same work may succeed now."""


class Broken(Again):
    """The connection broke before the commit, so that nothing was stored; on another one the same work may succeed."""


def meaning(error: Exception, where: str, *, committing: bool | None = None) -> AgentGitError:
    """Say what a failure of the driver means.

    Args:
        error: the driver's own.
        where: the database, without its password.
        committing: True if the commit was on its way, False if a transaction that writes had not come so far; None if
            nothing was to be written.
    """
    text = str(error)
    state: str | None = getattr(error, "sqlstate", None)
    if REFUSED in text:
        return NotAllowed(f"{REFUSED} in {where}. What happened has happened; new events are added by what is done.")
    if state == DENIED:
        return NotAllowed(f"{where} refused it: {text.strip()}. Ask its owner for: agentgit db grant ROLE")
    if state in AGAIN or is_a(error, "IntegrityError"):
        return Again(f"Another writer was in the way in {where}: {text}. Try again.")
    if state == TOO_SLOW:
        return Unavailable(f"{where} broke a statement off: {text}. Raise its statement_timeout, then try again.")
    if (known := _of_a_file(text, where)) is not None:
        return known
    if not is_a(error, "OperationalError"):
        return AgentGitError(f"{where} refused a statement: {text}")
    if "too many clients" in text or "connection slots" in text:
        return Unavailable(
            f"{where} takes no more connections. Open it with a smaller pool_size, put a pooler in front of it, or "
            "raise its max_connections."
        )
    if committing is None or not is_broken(error):
        return Unavailable(f"{where} is out of reach: {text}")
    if committing:
        return Unavailable(
            f"The connection to {where} broke while a commit was on its way, so it may be stored or not; it was not "
            "tried again. Look at what is there, then go on."
        )
    return Broken(f"{where} is out of reach: {text}")


def _of_a_file(text: str, where: str) -> AgentGitError | None:
    """Say what a failure of SQLite means, by its words."""
    if "locked" in text or "busy" in text:
        # Not again: SQLite has waited for that long already.
        return Unavailable(f"{where} stayed locked for {BUSY_SECONDS} s. Close what holds it, then try again.")
    if "readonly" in text or "read-only" in text:
        return Unavailable(f"{where} cannot be written. Give this user the right to write the file and its folder.")
    if "unable to open database file" in text:
        return Unavailable(f"{where} cannot be opened. Does its folder exist, and may this user write there?")
    if "malformed" in text:
        return Corrupt(
            f"{where} is damaged: {text}. Restore it from a copy; agentgit fsck tells more.", row="the database file"
        )
    if "not a database" in text:
        return SchemaMismatch(f"{where} is not a SQLite database. Give another path; this file was not touched.")
    if "disk I/O error" in text or "is full" in text:
        return Unavailable(f"{where} could not be written: {text}. Free some space, then try again.")
    return None


def is_broken(error: Exception) -> bool:
    """Tell whether a failure of a server's driver ended its connection."""
    state: str | None = getattr(error, "sqlstate", None)
    return is_a(error, "OperationalError") and (state is None or state[:2] == "08" or state in BROKEN)


def is_a(error: Exception, name: str) -> bool:
    """Tell whether a driver's error is of a class that PEP 249 names; psycopg has subclasses of them."""
    return any(kind.__name__ == name for kind in type(error).__mro__)
