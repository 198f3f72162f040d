"""The tools that change something: points, branches, and rollbacks that somebody has planned before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentgit.errors import InvalidInput, NotAllowed
from agentgit.mcp import read_tools
from agentgit.mcp.read_tools import (
    WIDTH,
    Branch,
    Conversation,
    Files,
    Force,
    Place,
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
    """All the tools.

    Args:
        repo: Bound to one user.
        session: The only session that can be reached; None for all of the user's.
        may_force: True if a client may keep in the world what cannot be undone.
    """

    def __init__(self, repo: Repository, session: Session | None, *, may_force: bool) -> None:
        super().__init__(repo, session)
        self.may_force = may_force

    # -- points and branches

    def create_checkpoint(
        self, name: str, description: str | None = None, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Save the point where a branch stands under a name, with its files, to be able to come back to it."""
        made = self.of(session).checkpoint(name, branch=branch, description=description)
        return ToolAnswer(logs.lines([made], width=WIDTH, zone=None), records.of_checkpoint(made))

    def delete_checkpoint(self, checkpoint: Place, session: SessionName = None, branch: Branch = None) -> ToolAnswer:
        """Delete one saved point. The conversation stays, and so do points that a branch or a rollback needs."""
        gone = self.of(session).delete_checkpoint(checkpoint, branch=branch)
        return _said(f"Deleted {gone.metadata['reference']}.")

    def cleanup_auto_checkpoints(
        self, keep_latest: Annotated[int, Field(ge=0)] = 5, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Delete automatic saved points but the newest ones. Named points, and those that are needed, stay."""
        count = self.of(session).cleanup_auto_checkpoints(branch=branch, keep=keep_latest)
        return _said(f"Deleted {count} automatic checkpoint{'' if count == 1 else 's'}.")

    def create_branch(
        self,
        name: str | None = None,
        checkpoint: Place | None = None,
        session: SessionName = None,
        branch: Branch = None,
    ) -> ToolAnswer:
        """Make a branch at a point, or where a branch stands now. World and session stay as and where they are."""
        of = self.of(session)
        made = of.branch(of.fork(checkpoint, branch=branch, name=name).branch)
        return ToolAnswer(branch_lines([made], of.tree(), width=WIDTH, zone=None), records.of_branch(made))

    # -- the world

    def rollback_to_checkpoint(
        self,
        checkpoint: Place,
        confirm: Confirm,
        session: SessionName = None,
        branch: Branch = None,
        tools: Tools = "reverse",
        files: Files = True,
        conversation: Conversation = True,
        force: Force = False,
    ) -> ToolAnswer:
        """Go back to a point as planned: on a new branch, undoing what came after it. Ask plan_rollback first."""
        of = self.of(session)
        if (before := read_tools.done_before(self.repo, of, confirm)) is not None:
            return _report(self.repo.resume(before))
        self._require_force(force=force)
        how: dict[str, Any] = {"tools": tools, "files": files, "conversation": conversation}
        plan = of.plan_rollback(checkpoint, branch=branch, **how)
        if force or plan.is_admissible:  # else the rollback says what blocks
            read_tools.require_code(
                confirm, read_tools.code_of_rollback(self.repo, of, branch, plan, force=force, **how), plan
            )
        report = of.rollback(
            plan.checkpoint_id, branch=branch, force=force, request_id=read_tools.PREFIX + confirm, **how
        )
        return _report(report)

    def switch_branch(
        self, branch: str, sync: Sync = None, confirm: Confirm = "", session: SessionName = None, force: Force = False
    ) -> ToolAnswer:
        """Continue on another branch. The world stays as it is unless `sync` says `world`; ask plan_switch for that."""
        of = self.of(session)
        if sync == "world":
            self._require_force(force=force)
            plan = of.plan_switch(branch)
            if force or plan.is_admissible:
                read_tools.require_code(
                    confirm, read_tools.code_of_switch(self.repo, of, branch, plan, force=force), plan
                )
        elif confirm or force:
            raise InvalidInput("confirm and force are for sync='world'; leave them out.")
        report = of.switch(branch, sync=sync, force=force)
        return _said(f"{branch} is the current branch; the world is unchanged.") if sync is None else _report(report)

    def resume_operation(self, operation: int, session: SessionName = None, force: Force = False) -> ToolAnswer:
        """Finish a rollback or a switch that stopped half way; what was done is not done again."""
        of = self.of(session)
        self._require_force(force=force)
        found = self.repo.operation(operation)
        if found.external_session_id != of.id:
            raise InvalidInput(f"Operation {operation} does not belong to session {of.name}.")
        return _report(self.repo.resume(found, force=force))

    def _require_force(self, *, force: bool) -> None:
        if force and not self.may_force:
            raise NotAllowed(
                "This server does not allow force. A person can run agentgit rollback --force, or start "
                "the server with --allow-force."
            )


def _said(text: str) -> ToolAnswer:
    return ToolAnswer([(Span(text),)])


def _report(report: RollbackReport) -> ToolAnswer:
    data = {name: value for name, value in report.to_dict().items() if name != "replayed"}
    return ToolAnswer(rollbacks.lines(report, width=WIDTH), data)
