"""The ToolInvocation: one call of one tool, and its status in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

INTENDED = "intended"
PAUSED = "paused"
DONE = "done"
FAILED = "failed"
UNKNOWN = "unknown"
REVERSING = "reversing"
REVERSED = "reversed"
REVERSE_FAILED = "reverse_failed"
REVERSE_UNKNOWN = "reverse_unknown"

MOVES: dict[str, frozenset[str]] = {
    INTENDED: frozenset({DONE, FAILED, PAUSED, UNKNOWN}),
    UNKNOWN: frozenset({DONE, FAILED}),
    DONE: frozenset({REVERSING}),
    REVERSING: frozenset({REVERSED, REVERSE_FAILED, REVERSE_UNKNOWN}),
    REVERSE_FAILED: frozenset({REVERSING, REVERSED}),
    REVERSE_UNKNOWN: frozenset({REVERSED, REVERSE_FAILED}),
}
"""What may follow what. Out of `unknown` leads only the call's own late end or a person's word."""

STANDING = frozenset({INTENDED, DONE, UNKNOWN, FAILED, REVERSING, REVERSE_FAILED, REVERSE_UNKNOWN})
"""The statuses in which something of the call may be in the world."""

DECISIONS = {
    UNKNOWN: {"happened": DONE, "did_not_happen": FAILED},
    REVERSE_UNKNOWN: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
    REVERSE_FAILED: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
}
"""What a person's word makes of an invocation: the call, or its reversal, happened or did not."""


@dataclass(frozen=True, kw_only=True)
class ToolInvocation:
    """One call of one tool.

    Args:
        id: the identity in the database.
        internal_session_id: the branch whose track it is on.
        position: its place on the track from the root of the session, from 0.
        tool_name: which tool.
        args: what it was called with, JSON-like.
        result: what it returned, JSON-like; None unless it is done.
        error_message: what it raised, if it did.
        status: `intended`, `paused`, `done`, `failed`, `unknown`, `reversing`, `reversed`, `reverse_failed` or
            `reverse_unknown`.
        effect: what the tool does to the world, as declared when it was called.
        tool_call_id: the id of the call in the AI message; None if no message asked for it.
        started_at: aware UTC.
        ended_at: aware UTC; None while it runs, and where it was never learned.
        replay_of: the recorded invocation that this one stands for on another branch.
        idempotency_key: the same for every attempt at this call.
        undo: the import path of its undo function, if it has one.
    """

    id: int
    internal_session_id: int
    position: int
    tool_name: str
    args: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error_message: str | None = None
    status: str = INTENDED
    effect: str = "undeclared"
    tool_call_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    replay_of: int | None = None
    idempotency_key: str = ""
    undo: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give all fields as a JSON-like dict, times in ISO form."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("started_at", "ended_at"):
            data[name] = data[name].isoformat() if data[name] else None
        return data

    def __str__(self) -> str:
        args = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.tool_name}({args})"
