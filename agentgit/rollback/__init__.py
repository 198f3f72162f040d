"""Rollback and switch: plan, work the plan off step by step, publish. See record 11 in docs/decisions."""

from agentgit.rollback.awaiting import Settle, on_this_loop, wait
from agentgit.rollback.engine import Rollback
from agentgit.rollback.planner import Planner
from agentgit.rollback.request import Request, SwitchRequest

__all__ = ["Planner", "Request", "Rollback", "Settle", "SwitchRequest", "on_this_loop", "wait"]
