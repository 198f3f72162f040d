"""Tools with which an agent manages its own history. They are not part of the tool track.

Inside a turn they act on the branch of that turn. A checkpoint never lies between a tool call and its result.
Therefore a checkpoint that a tool requests is made when the batch of calls is complete, and a rollback when the turn
has ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from agentgit.agents.tools.graph_tools import CHECKPOINT_TOOL_MARK
from agentgit.agents.turn.calls import current_call, current_calls
from agentgit.effects import RollbackReport
from agentgit.effects.invocation import INTENDED
from agentgit.errors import AgentGitError, RollbackBlocked
from agentgit.handles.session import Session
from agentgit.store.records.checkpoints import named_label


def checkpoint_tools(default_session: Session, branch_id: int) -> list[BaseTool]:
    """Create the six tools."""

    def target() -> tuple[Session, int]:
        calls = current_calls()
        if calls is None:
            return default_session, branch_id
        branch = calls.turn.context
        return Session(branch.context, branch.session_id), branch.branch_id

    def create_checkpoint(name: str, description: str | None = None) -> str:
        """Save this point of the conversation under a name, so that you can roll back to it later."""
        call = current_call()
        if call is None:
            return f"Saved: {default_session.checkpoint(name, branch=branch_id, description=description).get_summary()}"
        turn = call.calls.turn
        turn.request_checkpoint(call.intent.batch, named_label(turn.context.settings.user_id, name, description))
        return f"Checkpoint {name!r} will be saved as soon as the tool calls of this message are done."

    def list_checkpoints() -> str:
        """List the saved points of this conversation, oldest first."""
        session, branch = target()
        points = session.checkpoints(branch=branch)
        lines = [f"{point.metadata['reference']}: {point.get_summary()}" for point in points]
        return "\n".join(lines) or "There is no checkpoint yet."

    def get_checkpoint_info(checkpoint: str) -> str:
        """Return the details of one saved point, given its name, its id or a reference like main#7."""
        session, branch = target()
        point = session.get_checkpoint(checkpoint, branch=branch)
        calls = ", ".join(call["tool_name"] for call in point.tool_invocations) or "none"
        return f"{point.metadata['reference']}: {point.get_summary()}\nTool calls up to there: {calls}"

    def rollback_to_checkpoint(checkpoint: str) -> str:
        """Roll back to a saved point and undo what tools did after it. Takes effect when this turn ends."""
        calls, (session, branch) = current_calls(), target()
        plan = session.plan_rollback(checkpoint, branch=branch)
        # Calls that run in parallel with this one have ended when the rollback starts, at the end of the turn.
        if any(calls is None or step.invocation.status != INTENDED for step in plan.blockers):
            raise RollbackBlocked(f"A rollback to that checkpoint is blocked. {plan}", plan=plan)

        def roll_back() -> RollbackReport:
            report = session.rollback(plan.checkpoint_id, branch=branch)
            session.switch(report.branch)
            return report

        if calls is None:
            nonlocal branch_id
            report, branch_id = roll_back(), session.branch().id
            return f"Done. {report}"
        calls.turn.after_turn = roll_back
        return f"This will happen when your turn has ended. {plan}"

    def delete_checkpoint(checkpoint: str) -> str:
        """Delete one saved point. Fails if a branch, a tag, a rollback or a merge still needs it."""
        session, branch = target()
        return f"Deleted {session.delete_checkpoint(checkpoint, branch=branch).metadata['reference']}."

    def cleanup_auto_checkpoints(keep: int = 5) -> str:
        """Delete all automatic saved points except the newest. Keeps named points and points that are still needed."""
        session, branch = target()
        count = session.cleanup_auto_checkpoints(branch=branch, keep=keep)
        return f"Deleted {count} automatic checkpoints."

    functions: list[Callable[..., str]] = [
        create_checkpoint,
        list_checkpoints,
        get_checkpoint_info,
        rollback_to_checkpoint,
        delete_checkpoint,
        cleanup_auto_checkpoints,
    ]
    return [_as_tool(function) for function in functions]


def _as_tool(function: Callable[..., str]) -> BaseTool:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> str:
        try:
            return function(*args, **kwargs)
        except AgentGitError as error:  # the message tells the model what it can do
            raise ToolException(str(error)) from error

    setattr(wrapper, CHECKPOINT_TOOL_MARK, True)
    return StructuredTool.from_function(wrapper, handle_tool_error=True)
