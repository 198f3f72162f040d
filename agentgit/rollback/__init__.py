"""Rollback and switch: plan, execute the plan step by step, publish."""

from agentgit.rollback.engine import RollbackEngine
from agentgit.rollback.planner import Planner
from agentgit.rollback.request import Request, SwitchRequest
from agentgit.rollback.verification import Awaiter, awaiter_for_current_loop, wait

__all__ = ["Awaiter", "Planner", "Request", "RollbackEngine", "SwitchRequest", "awaiter_for_current_loop", "wait"]
