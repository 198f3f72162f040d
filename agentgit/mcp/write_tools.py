"""The MCP tools that change data: checkpoints, branches, rollbacks and switches."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentgit.errors import InvalidInput, NotAllowed
from agentgit.mcp.read_tools import (
    Branch,
    ChangedSession,
    CheckpointParameter,
    Conversation,
    Files,
    Force,
    NewBranch,
    ReadTools,
    ToolAnswer,
    Tools,
)
from agentgit.render.records import record
from agentgit.render.text import place
from agentgit.render.view import Span, View
from agentgit.render.views import lists
from agentgit.render.views.checkpoints import log
from agentgit.render.views.rollback import outcome
from agentgit.values import count

if TYPE_CHECKING:
    from agentgit.effects import RollbackReport
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

CheckpointName = Annotated[str, Field(description="The name of the checkpoint.")]
Description = Annotated[str | None, Field(description="A sentence about the checkpoint.")]
BranchName = Annotated[
    str | None, Field(description="The name of the new branch. By default, a free name like main-2.")
]
ForkPoint = Annotated[
    CheckpointParameter | None,
    Field(description="The checkpoint at which the new branch starts. By default, the head of `branch`."),
]
Keep = Annotated[int, Field(description="The number of automatic checkpoints to keep, the newest ones.", ge=0)]
OperationId = Annotated[int, Field(description="The id of the operation. The failure and the tool operations have it.")]
Plan = Annotated[str, Field(description="The `identity` of the plan of this operation.", max_length=64)]
Sync = Annotated[
    str | None,
    Field(
        description="What to do if another branch has changed the world. By default, nothing. world: undo the tool "
        "calls of that branch, and run those of this branch again; needs `plan`. note: tell the model with the next "
        "message. ignore: accept the difference."
    ),
]


class WriteTools(ReadTools):
    """All MCP tools: the read-only ones, and those that change data."""

    def __init__(self, repo: Repository, session: Session | None, *, may_force: bool) -> None:
        super().__init__(repo, session)
        self.may_force = may_force

    # -- checkpoints and branches

    def create_checkpoint(
        self,
        name: CheckpointName,
        *,
        session: ChangedSession = None,
        branch: Branch = None,
        description: Description = None,
    ) -> ToolAnswer:
        """Save the current point of a branch, with its files, as a checkpoint. You can go back to it later."""
        handle = self.find_changed_session(session, branch)
        checkpoint = handle.checkpoint(name, branch=branch, description=description)
        return _change_answer(handle, log([checkpoint]), record(checkpoint))

    def delete_checkpoint(
        self, checkpoint: CheckpointParameter, *, session: ChangedSession = None, branch: Branch = None
    ) -> ToolAnswer:
        """Delete one checkpoint. The conversation is kept. The tool fails if a branch, tag or rollback needs it."""
        handle = self.find_changed_session(session, branch)
        deleted = handle.delete_checkpoint(checkpoint, branch=branch)
        return _text_answer(f"Deleted {deleted.metadata['reference']} of {place(handle.reference)}.")

    def cleanup_auto_checkpoints(
        self, *, session: ChangedSession = None, branch: Branch = None, keep: Keep = 5
    ) -> ToolAnswer:
        """Delete old automatic checkpoints of a branch. Named checkpoints, and those that something needs, are kept."""
        handle = self.find_changed_session(session, branch)
        where = place(handle.reference, handle.branch(branch).name)
        number = handle.cleanup_auto_checkpoints(branch=branch, keep=keep)
        return _text_answer(f"Deleted {count(number, 'automatic checkpoint')} of {where}.")

    def fork(
        self,
        checkpoint: ForkPoint = None,
        *,
        session: ChangedSession = None,
        branch: Branch = None,
        name: BranchName = None,
    ) -> ToolAnswer:
        """Create a branch that starts at a checkpoint; by default, at the head of a branch.

        The current branch stays the same, and nothing is undone.
        """
        handle = self.find_changed_session(session, branch)
        new_branch = handle.branch(handle.fork(checkpoint, branch=branch, name=name).branch)
        return _change_answer(handle, lists.branches([new_branch], handle.tree()), record(new_branch))

    # -- rollbacks and switches

    def rollback_to_checkpoint(
        self,
        checkpoint: CheckpointParameter,
        *,
        session: ChangedSession = None,
        branch: Branch = None,
        tools: Tools = "reverse",
        files: Files = True,
        conversation: Conversation = True,
        force: Force = False,
        plan: Plan,
    ) -> ToolAnswer:
        """Go back to a checkpoint on a new branch, and undo what tools did after it. Call plan_rollback first."""
        handle = self.find_changed_session(session, branch)
        request = (plan, checkpoint, branch, tools, files, conversation, force)
        request_id = f"mcp-{sha256(repr(request).encode()).hexdigest()[:32]}"
        if previous := [one for one in handle.operations() if one.request_id == request_id]:
            return _report_answer(self.repo.resume(previous[0], plan=plan))
        self._require_force(force=force)
        report = handle.rollback(
            checkpoint,
            branch=branch,
            tools=tools,
            files=files,
            conversation=conversation,
            force=force,
            request_id=request_id,
            plan=plan,
        )
        return _report_answer(report)

    def switch(
        self,
        branch: NewBranch,
        sync: Sync = None,
        *,
        session: ChangedSession = None,
        force: Force = False,
        plan: Plan = "",
    ) -> ToolAnswer:
        """Switch to another branch. Only sync=world undoes tool calls or runs them again: call plan_switch first."""
        handle = self.find_changed_session(session)
        if sync == "world":
            self._require_force(force=force)
        elif plan or force:
            raise InvalidInput("plan and force are for sync=world; leave them out.")
        report = handle.switch(branch, sync=sync, force=force, plan=plan if sync == "world" else None)
        return (
            _text_answer(f"{place(handle.reference, branch)} is current now; the world is unchanged.")
            if sync is None
            else _report_answer(report)
        )

    def resume(
        self, operation: OperationId, *, session: ChangedSession = None, force: Force = False, plan: Plan = ""
    ) -> ToolAnswer:
        """Finish a rollback or switch that stopped before its end. Finished steps do not run again.

        If it would do more than was planned, it fails with the plan of that: pass its identity as `plan`.
        """
        self._require_force(force=force)
        target = self.repo.operation(operation)
        handle = self.bound_session or self.repo.session(target.external_session_id if session is None else session)
        if target.external_session_id != handle.id:
            raise InvalidInput(f"Operation {operation} does not belong to session {handle.name}.")
        return _report_answer(self.repo.resume(target, force=force, plan=plan or None))

    def _require_force(self, *, force: bool) -> None:
        if force and not self.may_force:
            raise NotAllowed(
                "This server does not allow force. A person can run agentgit rollback --force, or start "
                "the server with --allow-force."
            )


def _change_answer(session: Session, view: View, data: dict[str, Any]) -> ToolAnswer:
    """Return the answer of a tool that has changed a session, which begins with the name of the session."""
    name = session.reference
    return ToolAnswer([(Span(place(name)),), *view], {"session_name": name, **data})


def _text_answer(text: str) -> ToolAnswer:
    return ToolAnswer([(Span(text),)])


def _report_answer(report: RollbackReport) -> ToolAnswer:
    data = report.to_dict()
    del data["replayed"]
    return ToolAnswer(outcome(report), data)
