"""Effects of tools on the outside world, recorded calls, and the plans and reports of rollbacks. Pure: no I/O."""

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
