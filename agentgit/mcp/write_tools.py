"""The MCP tools that change data: checkpoints, branches, rollbacks and switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentgit.errors import InvalidInput, NotAllowed
from agentgit.mcp import read_tools
from agentgit.mcp.read_tools import (
    WIDTH,
    Branch,
    CheckpointRef,
    Conversation,
    Files,
    Force,
    ReadTools,
    SessionName,
    ToolAnswer,
    Tools,
)
from agentgit.render import records
from agentgit.render.text import Span
from agentgit.render.views import log as logs
from agentgit.render.views import rollback as rollbacks
from agentgit.render.views.lists import branch_lines

if TYPE_CHECKING:
    from agentgit.effects import RollbackReport
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

Confirm = Annotated[str, Field(description="The code that the plan of exactly this operation returned.", max_length=64)]
Sync = Annotated[
    str | None,
    Field(description="world: undo and redo, needs `confirm`. note: tell the model. ignore: ignore the difference."),
]


class WriteTools(ReadTools):
    """All MCP tools: the read-only ones, and those that change data.

    Args:
        repo: The repository, bound to one user.
        session: The only session that clients can access; None for all sessions of the user.
        may_force: True to let clients pass `force`, which keeps effects that cannot be undone.
    """

    def __init__(self, repo: Repository, session: Session | None, *, may_force: bool) -> None:
        super().__init__(repo, session)
        self.may_force = may_force

    # -- checkpoints and branches

    def create_checkpoint(
        self, name: str, description: str | None = None, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Save the current point of a branch under a name, with its files, so that you can go back to it later."""
        checkpoint = self.find_session(session).checkpoint(name, branch=branch, description=description)
        return ToolAnswer(logs.lines([checkpoint], width=WIDTH, zone=None), records.of_checkpoint(checkpoint))

    def delete_checkpoint(
        self, checkpoint: CheckpointRef, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Delete one saved point. The conversation is kept. Fails if a branch, tag or rollback needs the point."""
        deleted = self.find_session(session).delete_checkpoint(checkpoint, branch=branch)
        return _text_answer(f"Deleted {deleted.metadata['reference']}.")

    def cleanup_auto_checkpoints(
        self, keep_latest: Annotated[int, Field(ge=0)] = 5, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Delete all automatic saved points except the newest. Named points and points that are needed are kept."""
        count = self.find_session(session).cleanup_auto_checkpoints(branch=branch, keep=keep_latest)
        return _text_answer(f"Deleted {count} automatic checkpoint{'' if count == 1 else 's'}.")

    def create_branch(
        self,
        name: str | None = None,
        checkpoint: CheckpointRef | None = None,
        session: SessionName = None,
        branch: Branch = None,
    ) -> ToolAnswer:
        """Create a branch at a saved point or the head of a branch, without switching to it or undoing anything."""
        handle = self.find_session(session)
        new_branch = handle.branch(handle.fork(checkpoint, branch=branch, name=name).branch)
        return ToolAnswer(
            branch_lines([new_branch], handle.tree(), width=WIDTH, zone=None), records.of_branch(new_branch)
        )

    # -- rollbacks and switches

    def rollback_to_checkpoint(
        self,
        checkpoint: CheckpointRef,
        confirm: Confirm,
        session: SessionName = None,
        branch: Branch = None,
        tools: Tools = "reverse",
        files: Files = True,
        conversation: Conversation = True,
        force: Force = False,
    ) -> ToolAnswer:
        """Go back to a saved point on a new branch, undoing what tools did after it. Call plan_rollback first."""
        handle = self.find_session(session)
        if (previous := read_tools.find_confirmed(handle, confirm)) is not None:
            return _report_answer(self.repo.resume(previous))
        self._require_force(force=force)
        options: dict[str, Any] = {"tools": tools, "files": files, "conversation": conversation}
        plan = handle.plan_rollback(checkpoint, branch=branch, **options)
        if force or plan.is_admissible:  # otherwise the rollback raises and lists what blocks it
            read_tools.require_code(
                confirm, read_tools.confirmation_code(handle, branch, plan, force=force, **options), plan
            )
        report = handle.rollback(
            plan.checkpoint_id, branch=branch, force=force, request_id=read_tools.PREFIX + confirm, **options
        )
        return _report_answer(report)

    def switch_branch(
        self, branch: str, sync: Sync = None, confirm: Confirm = "", session: SessionName = None, force: Force = False
    ) -> ToolAnswer:
        """Continue on another branch. The world is unchanged unless `sync` is `world`; call plan_switch before that."""
        handle = self.find_session(session)
        if sync == "world":
            self._require_force(force=force)
            plan = handle.plan_switch(branch)
            if force or plan.is_admissible:
                read_tools.require_code(confirm, read_tools.confirmation_code(handle, branch, plan, force=force), plan)
        elif confirm or force:
            raise InvalidInput("confirm and force are for sync='world'; leave them out.")
        report = handle.switch(branch, sync=sync, force=force)
        return (
            _text_answer(f"{branch} is the current branch; the world is unchanged.")
            if sync is None
            else _report_answer(report)
        )

    def resume_operation(self, operation: int, session: SessionName = None, force: Force = False) -> ToolAnswer:
        """Finish a rollback or switch that stopped halfway. Completed steps are not repeated."""
        handle = self.find_session(session)
        self._require_force(force=force)
        target = self.repo.operation(operation)
        if target.external_session_id != handle.id:
            raise InvalidInput(f"Operation {operation} does not belong to session {handle.name}.")
        return _report_answer(self.repo.resume(target, force=force))

    def _require_force(self, *, force: bool) -> None:
        if force and not self.may_force:
            raise NotAllowed(
                "This server does not allow force. A person can run agentgit rollback --force, or start "
                "the server with --allow-force."
            )


def _text_answer(text: str) -> ToolAnswer:
    return ToolAnswer([(Span(text),)])


def _report_answer(report: RollbackReport) -> ToolAnswer:
    data = {name: value for name, value in report.to_dict().items() if name != "replayed"}
    return ToolAnswer(rollbacks.lines(report, width=WIDTH), data)
