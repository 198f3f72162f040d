"""The operation: one rollback, switch or fork, whether running, done or partial."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

RUNNING = "running"
DONE = "done"
PARTIAL = "partial"


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
