"""Checkpoints: what is known of one, its messages, tool calls, state and files."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from agentgit.checkpoints import Checkpoint
from agentgit.render import records
from agentgit.repository import Repository
from agentgit.values import portable
from agentgit.web.api import answers
from agentgit.web.api.answers import Answer
from agentgit.web.api.asking import Caller, Id, Limit, Offset, failures, part

router = APIRouter(prefix="/sessions/{session_id}/checkpoints/{checkpoint_id}", tags=["checkpoints"])


@router.get("", response_model=answers.CheckpointAnswer, responses=failures())
def get_checkpoint(caller: Caller, session_id: Id, checkpoint_id: Id) -> Answer:
    """Return a checkpoint, without its content."""
    return Answer(records.of_checkpoint(caller.session(session_id).get_checkpoint(checkpoint_id)))


@router.delete("", response_model=answers.CheckpointAnswer, responses=failures(409))
def delete_checkpoint(caller: Caller, session_id: Id, checkpoint_id: Id) -> Answer:
    """Delete a checkpoint; the conversation and the tool track stay."""
    return Answer(records.of_checkpoint(caller.session(session_id).delete_checkpoint(checkpoint_id)))


@router.get("/messages", response_model=answers.Messages, responses=failures())
def list_messages(caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100) -> Answer:
    """Read the conversation at a checkpoint, oldest first."""
    return Answer(part(caller.session(session_id).get_checkpoint(checkpoint_id).conversation_history, offset, limit))


@router.get("/calls", response_model=answers.Calls, responses=failures())
def list_calls_before(
    caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100
) -> Answer:
    """List the tool calls on the way to a checkpoint, the first one first."""
    return Answer(part(caller.session(session_id).get_checkpoint(checkpoint_id).tool_invocations, offset, limit))


@router.get("/state", response_model=answers.State, responses=failures())
def get_state(caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100) -> Answer:
    """Read the values of the graph's state at a checkpoint, without the messages."""
    state = caller.session(session_id).get_checkpoint(checkpoint_id).session_state
    found = part(sorted(state), offset, limit)
    return Answer({**found, "items": [{"key": key, "value": portable(state[key])} for key in found["items"]]})


@router.get("/files", response_model=answers.CheckpointFiles, responses=failures(409))
def get_files(caller: Caller, session_id: Id, checkpoint_id: Id) -> Answer:
    """Return what changed in the files since the checkpoint before, and what bringing them back now would do."""
    return Answer(files_of(caller, session_id, caller.session(session_id).get_checkpoint(checkpoint_id)))


def before_of(repo: Repository, session_id: int, point: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint before another one on its way; None if it is the first."""
    page = repo.session(session_id).log(branch=point.metadata["branch"]).page(1, after=point)
    return next(iter(page), None)


def files_of(repo: Repository, session_id: int, point: Checkpoint) -> dict[str, Any]:
    """Return what is known of a checkpoint's files, as `answers.CheckpointFiles` has it."""
    session = repo.session(session_id)
    snapshot = point.metadata["workspace_snapshot"]
    known: dict[str, Any] = {"snapshot": snapshot, "before": None, "rewind": None, "diff_content": ""}
    known |= {"added_files": [], "modified_files": [], "deleted_files": []}
    if snapshot is None:
        return known
    before = before_of(repo, session_id, point)
    if before is not None:
        changed = session.diff(before, point)
        known |= {name: getattr(changed, name) for name in ("added_files", "modified_files", "deleted_files")}
        known |= {"before": before.metadata["reference"], "diff_content": changed.diff_content}
    plan = session.plan_rewind(point, branch=point.metadata["branch"])
    return {**known, "rewind": plan.files.to_dict() if plan.files is not None else None}
