"""Routes of sessions and checkpoints: branches, tree, log, tags, search, messages, calls, state and files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from agentgit.checkpoints import Checkpoint
from agentgit.render.records import record
from agentgit.repository import Repository
from agentgit.sessions import ExternalSession
from agentgit.values import portable
from agentgit.web.api import responses
from agentgit.web.api.dependencies import (
    After,
    BranchName,
    Caller,
    Id,
    Limit,
    Offset,
    ReferenceParameter,
    RequestBody,
    failures,
    part,
)
from agentgit.web.api.responses import JsonResponse

checkpoint_router = APIRouter(prefix="/sessions/{session_id}/checkpoints/{checkpoint_id}", tags=["checkpoints"])


@checkpoint_router.get("", response_model=responses.CheckpointAnswer, responses=failures())
def get_checkpoint_by_id(caller: Caller, session_id: Id, checkpoint_id: Id) -> JsonResponse:
    """Return a checkpoint, without its content."""
    return JsonResponse(record(caller.session(session_id).get_checkpoint(checkpoint_id)))


@checkpoint_router.delete("", response_model=responses.CheckpointAnswer, responses=failures(409))
def delete_checkpoint(caller: Caller, session_id: Id, checkpoint_id: Id) -> JsonResponse:
    """Delete a checkpoint. The conversation and the tool track are kept."""
    return JsonResponse(record(caller.session(session_id).delete_checkpoint(checkpoint_id)))


@checkpoint_router.get("/messages", response_model=responses.MessagesAnswer, responses=failures())
def list_messages(
    caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100
) -> JsonResponse:
    """List the messages of the conversation at a checkpoint, oldest first."""
    return JsonResponse(
        part(caller.session(session_id).get_checkpoint(checkpoint_id).conversation_history, offset, limit)
    )


@checkpoint_router.get("/calls", response_model=responses.CallsAnswer, responses=failures())
def list_tool_invocations(
    caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100
) -> JsonResponse:
    """List the tool calls from the root of the session to a checkpoint, in order."""
    return JsonResponse(part(caller.session(session_id).get_checkpoint(checkpoint_id).tool_invocations, offset, limit))


@checkpoint_router.get("/state", response_model=responses.StateAnswer, responses=failures())
def get_state(
    caller: Caller, session_id: Id, checkpoint_id: Id, offset: Offset = 0, limit: Limit = 100
) -> JsonResponse:
    """List the values of the graph's state at a checkpoint, without the messages."""
    state = caller.session(session_id).get_checkpoint(checkpoint_id).session_state
    page = part(sorted(state), offset, limit)
    return JsonResponse({**page, "items": [{"key": key, "value": portable(state[key])} for key in page["items"]]})


@checkpoint_router.get("/files", response_model=responses.CheckpointFilesAnswer, responses=failures(409))
def get_files(caller: Caller, session_id: Id, checkpoint_id: Id) -> JsonResponse:
    """Return the changes to the files since the previous checkpoint, and what restoring the files now would do."""
    return JsonResponse(files_of(caller, session_id, caller.session(session_id).get_checkpoint(checkpoint_id)))


def previous_checkpoint(repo: Repository, session_id: int, checkpoint: Checkpoint) -> Checkpoint | None:
    """Return the previous checkpoint on the path of a checkpoint; None for the first one."""
    page = repo.session(session_id).log(branch=checkpoint.metadata["branch"]).page(1, after=checkpoint)
    return next(iter(page), None)


def files_of(repo: Repository, session_id: int, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the file changes of a checkpoint in the form of `responses.CheckpointFilesAnswer`."""
    session = repo.session(session_id)
    snapshot = checkpoint.metadata["workspace_snapshot"]
    result: dict[str, Any] = {"snapshot": snapshot, "before": None, "rewind": None, "diff_content": ""}
    result |= {"added_files": [], "modified_files": [], "deleted_files": []}
    if snapshot is None:
        return result
    previous = previous_checkpoint(repo, session_id, checkpoint)
    if previous is not None:
        difference = session.diff(previous, checkpoint)
        result |= {name: getattr(difference, name) for name in ("added_files", "modified_files", "deleted_files")}
        result |= {"before": previous.metadata["reference"], "diff_content": difference.diff_content}
    plan = session.plan_rewind(checkpoint, branch=checkpoint.metadata["branch"])
    return {**result, "rewind": plan.files.to_dict() if plan.files is not None else None}


router = APIRouter(tags=["sessions"])

IN_MEMORY = 1_000_000
"""The size in bytes up to which an export is held in memory; a larger one is written to a temporary file."""

CHUNK_BYTES = 64 * 1024


class NewSession(RequestBody):
    """A session to create."""

    name: str = Field(min_length=1, max_length=200)
    template: str | int | None = Field(None, description="The checkpoint to start from, like `support-42@main#3`.")


class NewTag(RequestBody):
    """A tag to create."""

    ref: str = Field(min_length=1, max_length=300)
    name: str = Field(min_length=1, max_length=200)
    description: str | None = Field(None, max_length=10_000)


@router.get("/sessions", response_model=responses.SessionsAnswer, responses=failures())
def sessions(
    caller: Caller,
    limit: Limit = 50,
    after: After = None,
    name: Annotated[str | None, Query(max_length=200, description="Only sessions whose name contains this.")] = None,
) -> JsonResponse:
    """List the sessions that you can see, the most recently updated first."""
    page, next_cursor = read_session_page(caller, limit, after, name)
    return JsonResponse({"items": [record(session) for session in page], "next": next_cursor})


def read_session_page(
    repo: Repository, limit: int, after: str | None, name: str | None
) -> tuple[list[ExternalSession], str | None]:
    """Return a page of sessions, and the cursor of the next page; None on the last page."""
    sessions = repo.sessions(limit + 1, after, name=name or None)
    return sessions[:limit], sessions[limit - 1].cursor if len(sessions) > limit else None


@router.post("/sessions", status_code=201, response_model=responses.SessionAnswer, responses=failures(409))
def create_session(caller: Caller, wanted: NewSession) -> JsonResponse:
    """Create a session. If you already have a session of this name, it is returned instead."""
    return JsonResponse(record(caller.session(wanted.name, create=True, template=wanted.template).info), 201)


@router.get("/sessions/{session_id}", response_model=responses.SessionAnswer, responses=failures())
def get_session(caller: Caller, session_id: Id) -> JsonResponse:
    """Return a session."""
    return JsonResponse(record(caller.session(session_id).info))


@router.delete("/sessions/{session_id}", response_model=responses.ErasedAnswer, responses=failures(409))
def delete_session(caller: Caller, session_id: Id, force: bool = False) -> JsonResponse:
    """Permanently delete a session, with `force` also if effects stand in the world. Returns what was deleted."""
    return JsonResponse(caller.session(session_id).delete(force=force).to_dict())


@router.get("/sessions/{session_id}/branches", response_model=responses.BranchesAnswer, responses=failures())
def branches(caller: Caller, session_id: Id) -> JsonResponse:
    """List the branches of a session, oldest first."""
    return JsonResponse({"items": [record(branch) for branch in caller.session(session_id).branches()]})


@router.get("/sessions/{session_id}/tree", response_model=responses.TreeAnswer, responses=failures())
def tree(caller: Caller, session_id: Id) -> JsonResponse:
    """Return the branches of a session as a tree, with all their checkpoints."""
    return JsonResponse(record(caller.session(session_id).tree()))


@router.get("/sessions/{session_id}/log", response_model=responses.CheckpointsAnswer, responses=failures())
def log(
    caller: Caller,
    session_id: Id,
    branch: BranchName = None,
    which: Annotated[
        Literal["path", "branch", "all"],
        Query(description="`path`: back to the root of the session; `branch`: only the branch; `all`: all branches."),
    ] = "path",
    name: Annotated[str | None, Query(max_length=300)] = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tag: Annotated[str | None, Query(max_length=200)] = None,
    author: Annotated[str | None, Query(max_length=200)] = None,
    auto: bool | None = None,
    limit: Limit = 50,
    after: After = None,
) -> JsonResponse:
    """List checkpoints, newest first. All conditions must hold. Times must have a time zone."""
    log = caller.session(session_id).log(
        branch=branch, which=which, name=name, since=since, until=until, tag=tag, author=author, auto=auto
    )
    page = log.page(limit, after=after)
    return JsonResponse({"items": [record(checkpoint) for checkpoint in page], "next": page.next})


@router.get("/sessions/{session_id}/search", response_model=responses.HitsPage, responses=failures())
def search(
    caller: Caller,
    session_id: Id,
    text: Annotated[str, Query(max_length=1_000)],
    branch: BranchName = None,
    all_branches: bool = False,
    limit: Limit = 20,
    after: After = None,
) -> JsonResponse:
    """Search the messages, tool calls and named checkpoints of a session for words."""
    return JsonResponse(
        caller.session(session_id)
        .search(text, branch=branch, all_branches=all_branches, limit=limit, after=after)
        .to_dict()
    )


@router.get("/sessions/{session_id}/tool-track", response_model=responses.CallsAnswer, responses=failures())
def tool_track(
    caller: Caller, session_id: Id, branch: BranchName = None, offset: Offset = 0, limit: Limit = 100
) -> JsonResponse:
    """List the tool calls along a branch, from the root of the session, in order."""
    page = part(caller.session(session_id).tool_track(branch=branch), offset, limit)
    return JsonResponse({**page, "items": [call.to_dict() for call in page["items"]]})


@router.get("/sessions/{session_id}/checkpoint", response_model=responses.CheckpointAnswer, responses=failures(409))
def get_checkpoint(caller: Caller, session_id: Id, ref: ReferenceParameter, branch: BranchName = None) -> JsonResponse:
    """Return the checkpoint that a reference names."""
    return JsonResponse(record(caller.session(session_id).get_checkpoint(ref, branch=branch)))


@router.get("/sessions/{session_id}/diff", response_model=responses.DiffAnswer, responses=failures(409))
def diff(caller: Caller, session_id: Id, a: ReferenceParameter, b: ReferenceParameter) -> JsonResponse:
    """Compare two checkpoints: what the second one adds to the first, and what it removes."""
    return JsonResponse(caller.session(session_id).diff(a, b).to_dict())


@router.get("/sessions/{session_id}/compare", response_model=responses.ComparisonAnswer, responses=failures(409))
def compare(caller: Caller, session_id: Id, a: ReferenceParameter, b: ReferenceParameter) -> JsonResponse:
    """Compare two branches: what each did since they diverged, and how they differ now."""
    return JsonResponse(caller.session(session_id).compare(a, b).to_dict())


# -- tags


@router.get("/sessions/{session_id}/tags", response_model=responses.TagsAnswer, responses=failures())
def tags(caller: Caller, session_id: Id) -> JsonResponse:
    """List the tags of a session, newest first."""
    return JsonResponse({"items": [tag.to_dict() for tag in caller.session(session_id).tags()]})


@router.post(
    "/sessions/{session_id}/tags", status_code=201, response_model=responses.TagAnswer, responses=failures(409)
)
def tag(caller: Caller, session_id: Id, wanted: NewTag) -> JsonResponse:
    """Tag a checkpoint. A tagged checkpoint is kept."""
    return JsonResponse(
        caller.session(session_id).tag(wanted.ref, wanted.name, description=wanted.description).to_dict(), 201
    )


@router.delete("/sessions/{session_id}/tags", response_model=responses.TagAnswer, responses=failures())
def untag(caller: Caller, session_id: Id, name: Annotated[str, Query(min_length=1, max_length=200)]) -> JsonResponse:
    """Remove a tag. The checkpoint is kept."""
    return JsonResponse(caller.session(session_id).untag(name).to_dict())


# -- export


@router.get(
    "/sessions/{session_id}/export",
    response_class=Response,
    responses={**failures(409), 200: {"description": "JSON lines.", "content": {"application/jsonl": {}}}},
)
def export(caller: Caller, session_id: Id, branch: BranchName = None, files: bool = False) -> Response:
    """Download a session, or one branch of it, as JSON lines. `agentgit import` reads this file."""
    return download(caller, session_id, branch, files=files)


def download(caller: Caller, session_id: int, branch: str | None, *, files: bool) -> Response:
    """Return an export as a file download. It is complete before the first byte is sent."""
    file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  # stays open until the last byte is sent
    try:
        caller.session(session_id).export(file, branch=branch, files=files)
    except BaseException:
        file.close()
        raise
    file.seek(0)

    def chunks() -> Iterator[bytes]:
        with file:
            while data := file.read(CHUNK_BYTES):
                yield data

    name = f"agentgit-session-{session_id}.jsonl"
    return StreamingResponse(
        chunks(), media_type="application/jsonl", headers={"content-disposition": f'attachment; filename="{name}"'}
    )
