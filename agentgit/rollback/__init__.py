"""Rollback and switch: plan, execute the plan step by step, publish. See record 11 in docs/decisions."""

from agentgit.rollback.engine import RollbackEngine
from agentgit.rollback.planner import Planner
from agentgit.rollback.request import Request, SwitchRequest
from agentgit.rollback.verification import Settle, settle_here, wait

__all__ = ["Planner", "Request", "RollbackEngine", "Settle", "SwitchRequest", "settle_here", "wait"]
