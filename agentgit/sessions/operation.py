"""The operation: one rollback or fork, in progress, done or half done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

RUNNING = "running"
DONE = "done"
PARTIAL = "partial"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One rollback or fork.

    Args:
        id: The identity in the database; `repo.resume` takes it.
        kind: `rollback` or `fork`.
        status: `running`, `done`, or `partial` if a reversal failed or was never tried.
        request_id: The caller's own name for it.
        created_at: The time at which it was made, aware UTC.
        ended_at: Aware UTC; None while it runs.
        external_session_id: The session.
        source_session_id: The branch that was left.
        checkpoint_id: The id of the checkpoint that it goes to.
        internal_session_id: The branch that it makes.
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
