"""Results of reading the threads of another saver: one line for each thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from agentgit.errors import AgentGitError

IMPORTED, EXTENDED, UNCHANGED, FAILED = "imported", "extended", "unchanged", "failed"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of an import.

    Args:
        thread_id: The thread that is read.
        number: Its number, from 1.
        threads: The number of threads.
        done: The number of its graph checkpoints that were read.
        total: The number of them that are to be read.
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
        thread_id: The thread in the database that it comes from.
        session_name: The session that it is now.
        status: `imported`, `extended` (it had grown), `unchanged` or `failed`.
        graph_checkpoints: The number of graph checkpoints that were added.
        checkpoints: The number of checkpoints of agentgit that were made.
        tool_calls: The number of past calls that were put on the tool track.
        left_out: The number of graph checkpoints on other lines than the newest one, which were left out.
        hidden: Names of metadata that looked like secrets, and were left out.
        error: Why it failed.
    """

    thread_id: str
    session_name: str
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
        """The threads that could not be read; nothing of them is here."""
        return [one for one in self.threads if one.status == FAILED]

    def count(self, status: str) -> int:
        """Count the threads with that status."""
        return sum(one.status == status for one in self.threads)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-like data."""
        return {"threads": [one.to_dict() for one in self.threads]}
