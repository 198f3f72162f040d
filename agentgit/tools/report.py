"""The report of a rollback: what was reversed, replayed, kept, and what failed, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentgit.tools.invocation import ToolInvocation


@dataclass(frozen=True, kw_only=True)
class ReportItem:
    """What became of one invocation.

    Args:
        invocation: the call.
        reason: why, as a sentence.
    """

    invocation: ToolInvocation
    reason: str

    def __str__(self) -> str:
        return f"{self.invocation}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class RollbackReport:
    """What a rollback did.

    Args:
        operation_id: the operation, for `repo.resume`.
        status: `done`, or `partial` if a reversal failed or was never tried.
        checkpoint_id: where it went back to.
        branch: the name of the new branch.
        reversed: effects taken back, in the order it happened.
        replayed: invocations that the new branch's track begins with.
        kept: effects that stay in the world.
        gone: effects that the conversation tells of, and that were reversed before.
        failed: reversals that raised.
        remaining: reversals that were not tried because an earlier one failed.
    """

    operation_id: int
    status: str
    checkpoint_id: int
    branch: str
    reversed: list[ReportItem] = field(default_factory=list)
    replayed: list[ReportItem] = field(default_factory=list)
    kept: list[ReportItem] = field(default_factory=list)
    gone: list[ReportItem] = field(default_factory=list)
    failed: list[ReportItem] = field(default_factory=list)
    remaining: list[ReportItem] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as JSON-like data."""
        groups = ("reversed", "replayed", "kept", "gone", "failed", "remaining")
        return {
            "operation_id": self.operation_id,
            "status": self.status,
            "checkpoint_id": self.checkpoint_id,
            "branch": self.branch,
            **{
                group: [{"invocation": item.invocation.id, "reason": item.reason} for item in getattr(self, group)]
                for group in groups
            },
        }

    def __str__(self) -> str:
        calls = f"{len(self.replayed)} tool call{'' if len(self.replayed) == 1 else 's'}"
        lines = [f"Rollback {self.status}: branch {self.branch}, {calls} replayed from the record."]
        for group in ("reversed", "kept", "gone", "failed", "remaining"):
            lines += [f"  {group:<9} {item}" for item in getattr(self, group)]
        return "\n".join(lines)
