"""Tools with which an agent manages its own history. They are not part of the tool track.

Inside a turn they act on the branch of that turn. A checkpoint never lies between a tool call and its result.
Therefore a checkpoint that a tool requests is made when the batch of calls is complete, and a rollback when the turn
has ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from agentgit.agents.turn.recorder import Recorder
from agentgit.effects import RollbackReport
from agentgit.effects.invocation import INTENDED
from agentgit.errors import AgentGitError, RollbackBlocked
from agentgit.handles.session import Session
from agentgit.store.records.checkpoints import named_label

CHECKPOINT_TOOLS = frozenset(
    {
        "create_checkpoint",
        "list_checkpoints",
        "get_checkpoint_info",
        "rollback_to_checkpoint",
        "delete_checkpoint",
        "cleanup_auto_checkpoints",
    }
)
"""The names of the tools, whose calls are never recorded, reversed or replayed."""

CHECKPOINT_TOOL_MARK = "__agentgit_checkpoint_tool__"


def _find_recorder(config: RunnableConfig) -> Recorder | None:
    """Find the recorder of the turn that a tool runs in, among the callbacks; None outside a turn."""
    manager: Any = config.get("callbacks")
    handlers = getattr(manager, "handlers", None) or (manager if isinstance(manager, list) else [])
    return next((handler for handler in handlers if isinstance(handler, Recorder)), None)


def _current_run_id() -> UUID:
    """Return the run id of the tool that is running."""
    manager: Any = (var_child_runnable_config.get() or {}).get("callbacks")
    run_id: UUID = manager.parent_run_id
    return run_id


def checkpoint_tools(default_session: Session, branch_id: int) -> list[BaseTool]:
    """Create the six tools."""

    def target(config: RunnableConfig) -> tuple[Session, int]:
        recorder = _find_recorder(config)
        if recorder is None:
            return default_session, branch_id
        branch = recorder.turn.context
        return Session(branch.context, branch.session_id), branch.branch_id

    def create_checkpoint(name: str, config: RunnableConfig, description: str | None = None) -> str:
        """Save this point of the conversation under a name, so that you can roll back to it later."""
        recorder = _find_recorder(config)
        if recorder is None:
            return f"Saved: {default_session.checkpoint(name, branch=branch_id, description=description).get_summary()}"
        turn = recorder.turn
        turn.request_checkpoint(
            recorder.batch_of_run(_current_run_id()), named_label(turn.context.settings.user_id, name, description)
        )
        return f"Checkpoint {name!r} will be saved as soon as the tool calls of this message are done."

    def list_checkpoints(config: RunnableConfig) -> str:
        """List the saved points of this conversation, oldest first."""
        session, branch = target(config)
        points = session.checkpoints(branch=branch)
        lines = [f"{point.metadata['reference']}: {point.get_summary()}" for point in points]
        return "\n".join(lines) or "There is no checkpoint yet."

    def get_checkpoint_info(checkpoint: str, config: RunnableConfig) -> str:
        """Return the details of one saved point, given its name, its id or a reference like main#7."""
        session, branch = target(config)
        point = session.get_checkpoint(checkpoint, branch=branch)
        calls = ", ".join(call["tool_name"] for call in point.tool_invocations) or "none"
        return f"{point.metadata['reference']}: {point.get_summary()}\nTool calls up to there: {calls}"

    def rollback_to_checkpoint(checkpoint: str, config: RunnableConfig) -> str:
        """Roll back to a saved point and undo what tools did after it. Takes effect when this turn ends."""
        recorder, (session, branch) = _find_recorder(config), target(config)
        plan = session.plan_rollback(checkpoint, branch=branch)
        # Calls that run in parallel with this one have ended when the rollback starts, at the end of the turn.
        if any(recorder is None or step.invocation.status != INTENDED for step in plan.blockers):
            raise RollbackBlocked(f"A rollback to that checkpoint is blocked. {plan}", plan)

        def roll_back() -> RollbackReport:
            report = session.rollback(plan.checkpoint_id, branch=branch)
            session.switch(report.branch)
            return report

        if recorder is None:
            nonlocal branch_id
            report, branch_id = roll_back(), session.branch().id
            return f"Done. {report}"
        recorder.turn.after_turn = roll_back
        return f"This will happen when your turn has ended. {plan}"

    def delete_checkpoint(checkpoint: str, config: RunnableConfig) -> str:
        """Delete one saved point. Fails if a branch, a tag, a rollback or a merge still needs it."""
        session, branch = target(config)
        return f"Deleted {session.delete_checkpoint(checkpoint, branch=branch).metadata['reference']}."

    def cleanup_auto_checkpoints(config: RunnableConfig, keep: int = 5) -> str:
        """Delete all automatic saved points except the newest. Keeps named points and points that are still needed."""
        session, branch = target(config)
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


def is_checkpoint_tool(tool: BaseTool) -> bool:
    """Return whether a tool is one of these, and not a user's tool of the same name."""
    return hasattr(getattr(tool, "func", None), CHECKPOINT_TOOL_MARK)
