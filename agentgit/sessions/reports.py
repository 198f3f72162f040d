"""Operations, and the results of imports and of database maintenance. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeAlias

from agentgit.errors import AgentGitError


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One rollback, switch or fork.

    Args:
        id: The id in the database; pass it to `repo.resume`.
        kind: `rollback`, `switch` or `fork`.
        status: `running`, `done`, or `partial` if a step failed or was never tried.
        request_id: The caller's idempotency key.
        created_at: The time of creation, aware UTC.
        ended_at: The time at which it ended, aware UTC; None while it runs.
        external_session_id: The session.
        source_session_id: The branch that was left.
        checkpoint_id: The id of the checkpoint that it goes to.
        internal_session_id: The branch that it creates or switches to.
        report: The report as JSON-like data; empty while it runs.
    """

    id: int
    kind: str
    status: str
    request_id: str
    created_at: datetime
    ended_at: datetime | None = None
    external_session_id: int
    source_session_id: int
    checkpoint_id: int
    internal_session_id: int
    report: dict[str, Any] = field(default_factory=dict)


IMPORTED, EXTENDED, UNCHANGED, FAILED = "imported", "extended", "unchanged", "failed"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of an import.

    Args:
        thread_id: The thread that is being read.
        number: The number of the thread, from 1.
        threads: The number of threads.
        done: The number of graph checkpoints of the thread that were read.
        total: The number of graph checkpoints of the thread that are to be read.
    """

    thread_id: str
    number: int
    threads: int
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class ThreadReport:
    """The result for one thread.

    Args:
        thread_id: The id of the thread in the source.
        session_name: The name of the session that it became; None if it became a thread of `SQLModelSaver`.
        status: `imported`, `extended` (it had grown), `unchanged` or `failed`.
        graph_checkpoints: The number of graph checkpoints that were added.
        checkpoints: The number of agentgit's checkpoints that were created.
        tool_calls: The number of past calls that were added to the tool track.
        left_out: The number of graph checkpoints that were left out because they are not on the newest line.
        hidden: The names of metadata that was left out because it looked like secrets or is excluded.
        error: The error, if the status is `failed`.
    """

    thread_id: str
    session_name: str | None
    status: str
    graph_checkpoints: int = 0
    checkpoints: int = 0
    tool_calls: int = 0
    left_out: int = 0
    hidden: tuple[str, ...] = ()
    error: AgentGitError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        return data | {"hidden": list(self.hidden), "error": str(self.error) if self.error else None}


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Args:
        threads: One report for each thread, in the order in which they were read.

    Example:
        >>> report = ImportReport([ThreadReport(thread_id="t", session_name="t", status="imported")])
        >>> report.count("imported"), report.failed
        (1, [])
    """

    threads: Sequence[ThreadReport]

    @property
    def failed(self) -> list[ThreadReport]:
        """The reports of the threads that failed. Nothing of these threads was imported."""
        return [report for report in self.threads if report.status == FAILED]

    def count(self, status: str) -> int:
        """Return the number of threads with a status."""
        return sum(report.status == status for report in self.threads)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-like data."""
        return {"threads": [report.to_dict() for report in self.threads]}


OnProgress: TypeAlias = Callable[[int, int], None]
"""A progress callback. It receives the number of items that are done, and the total number."""


@dataclass(frozen=True, kw_only=True)
class Reclaimed:
    """The result of a garbage collection, or of a dry run.

    Args:
        checkpoints: The number of checkpoints that retention removed.
        steps: The number of removed graph checkpoints between checkpoints.
        values: The number of removed values that nothing refers to.
        bytes: The stored size of these values.
        writes: The number of removed pending writes whose graph checkpoint was never stored or is deleted.
        lists: The number of lists that were rewritten because a list that they continued is removed.
        snapshots: The number of released workspace snapshots that no checkpoint uses.
        disk_before: The size of the database in bytes before the collection.
        disk_after: The size of the database in bytes after the collection; in a dry run, the same as before.
        dry_run: True if nothing was done.
        problem: Why the free space of the database was not returned to the file system; empty if it was.
    """

    checkpoints: int = 0
    steps: int = 0
    values: int = 0
    bytes: int = 0
    writes: int = 0
    lists: int = 0
    snapshots: int = 0
    disk_before: int = 0
    disk_after: int = 0
    dry_run: bool = False
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem that a check found.

    Args:
        row: The table and the key of the row.
        what: The fault, as a sentence.
        todo: The remedy, as a sentence.
    """

    row: str
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.row}: {self.what}. {self.todo}"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check of a database.

    Args:
        level: The depth of the check: 1 for references, 2 also for hashes, 3 also for the state of every head.
        objects: The number of rows that were checked.
        seconds: The duration in seconds.
        findings: The problems, in the order in which they were found.
        more: The number of further findings that are not listed.
    """

    level: int
    objects: int
    seconds: float
    findings: Sequence[Finding] = field(default_factory=tuple)
    more: int = 0

    @property
    def is_sound(self) -> bool:
        """True if no problem was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return {**vars(self), "is_sound": self.is_sound, "findings": [vars(finding) for finding in self.findings]}


@dataclass(frozen=True, kw_only=True)
class Rotated:
    """The result of re-encrypting the values of a database.

    Args:
        changed: The number of values that were stored again.
        keys: The number of values that each key encrypts now; the empty name stands for unencrypted values.
        problem: Why the database's files still contain the old data; empty if they do not.
    """

    changed: int
    keys: Mapping[str, int]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return vars(self) | {"keys": dict(self.keys)}


@dataclass(frozen=True, kw_only=True)
class Erased:
    """The result of an erasure.

    Args:
        sessions: The number of erased sessions.
        rows: The number of erased rows, by table.
        values: The number of erased values that nothing else needs.
        bytes: The stored size of these values.
        events: The number of erased events of the audit trail.
        snapshots: The number of released workspace snapshots.
        left: What could not be reached from here, as sentences.
    """

    sessions: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    values: int = 0
    bytes: int = 0
    events: int = 0
    snapshots: int = 0
    left: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return vars(self) | {"rows": dict(self.rows), "left": list(self.left)}
