"""Tools: what they do to the world, what was called, and what a rollback would do about it. Pure, no IO."""

from agentgit.tools.effects import Effect, compensable, effect, reversible
from agentgit.tools.invocation import ToolInvocation
from agentgit.tools.plan import RollbackPlan
from agentgit.tools.report import RollbackReport
from agentgit.tools.running import idempotency_key

__all__ = [
    "Effect",
    "RollbackPlan",
    "RollbackReport",
    "ToolInvocation",
    "compensable",
    "effect",
    "idempotency_key",
    "reversible",
]
