"""Effects: what tools do to the world, what was called, and what a rollback would do about it. Pure, no IO."""

from agentgit.effects.effects import Effect, compensable, effect, reversible
from agentgit.effects.invocation import ToolInvocation, idempotency_key
from agentgit.effects.plan import RollbackPlan
from agentgit.effects.report import RollbackReport

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
