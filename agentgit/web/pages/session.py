"""The page of a session: its conversation in turns, the tree beside it, and what can be done at a checkpoint."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from agentgit.checkpoints import Checkpoint
from agentgit.errors import NotFound
from agentgit.handles.session import Session
from agentgit.sessions import InternalSession
from agentgit.web.api.dependencies import MAX_ID, BranchName, CheckpointId, Id, Offset
from agentgit.web.pages.dependencies import Visit
from agentgit.web.pages.tree import State, tree_context
from agentgit.web.pages.turns import IMAGE_TYPES, Turn, counts_at, image_source, kind_of, last_entries, turns_of

router = APIRouter(prefix="/sessions/{session_id}")

MAX_POINTS = 60
"""The maximum number of checkpoints whose turns are on one page."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    branch: InternalSession
    at: Checkpoint | None
    turns: list[Turn]
    earlier: dict[str, int | None] | None
    holder: int | None


def read_conversation(
    session: Session, branch: str | None, at: int | None, before: int | None, until: int | None
) -> Conversation:
    point = session.get_checkpoint(at) if at is not None else None
    line = session.branch(point.metadata["branch"] if point is not None else branch)
    log = session.log(branch=line)
    end = session.get_checkpoint(before) if before is not None else None
    page = log.page(MAX_POINTS, after=end or point)
    points = [*page.items[::-1], *([point] if point is not None and end is None else [])]
    is_start = page.next is None
    if not is_start:
        # Begin with a whole turn, unless there is none.
        points = points[next((i for i, one in enumerate(points) if kind_of(one) == "before"), 0) :]
    holder, track = end or point, session.tool_track(branch=line)
    messages = (holder or line).conversation_history
    if holder is not None:
        track = track[: holder.get_tool_track_position()]
    kept = {item["invocation"] for operation in session.operations() for item in operation.report.get("kept", ())}
    counts = counts_at(points, messages, is_start=is_start)
    turns = turns_of(points, messages, track, kept=kept, is_start=is_start, counts=counts)
    turns, first = last_entries(turns, until)
    earlier = {"before": before, "until": first} if first is not None else None
    if first is None and not is_start:
        earlier = {"before": points[0].id, "until": None}
    return Conversation(
        branch=line,
        at=point,
        turns=turns,
        earlier=earlier,
        holder=holder.id if holder is not None else None,
    )


@router.get("")
def session(
    visit: Visit,
    session_id: Id,
    state: State,
    branch: BranchName = None,
    at: CheckpointId = None,
    before: CheckpointId = None,
    until: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
) -> Response:
    handle = visit.repo.session(session_id)
    conversation = read_conversation(handle, branch, at, before, until)
    return visit.page(
        "session",
        session=handle.info,
        talk=conversation,
        is_end=before is None and until is None,
        tags=handle.tags(),
        unfinished=[operation for operation in handle.operations() if operation.status != "done"],
        **tree_context(visit.request, handle, state, at),
    )


@router.get("/image")
def image(
    visit: Visit,
    session_id: Id,
    branch: BranchName = None,
    at: CheckpointId = None,
    number: Offset = 0,
    block: Offset = 0,
) -> Response:
    handle = visit.repo.session(session_id)
    messages = (handle.branch(branch) if at is None else handle.get_checkpoint(at)).conversation_history
    content = messages[number].get("content") if number < len(messages) else None
    source = image_source(content[block]) if isinstance(content, list) and block < len(content) else None
    if not isinstance(source, tuple) or source[0] not in IMAGE_TYPES:
        raise NotFound("There is no such image.")
    try:
        data = base64.b64decode(source[1])
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise NotFound("The image is damaged.")
    return Response(data, media_type=source[0])
