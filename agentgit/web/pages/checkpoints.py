"""The pages of checkpoints: one with its messages, calls, state and files; two side by side; tags."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import Response

from agentgit.render.views.diff import patch
from agentgit.web.api.asking import Id, Offset
from agentgit.web.api.checkpoints import before_of, files_of
from agentgit.web.pages.drawing import LONGEST
from agentgit.web.pages.visiting import Visit, place_of
from agentgit.web.security import same_site

router = APIRouter(prefix="/sessions/{session_id}")

MESSAGES = 30
"""The number of messages, calls or values of the state on a page."""

Text = Annotated[str, Form(max_length=300)]
Ref = Annotated[str, Query(max_length=300)]


@router.get("/checkpoints/{checkpoint_id}")
def checkpoint(visit: Visit, session_id: Id, checkpoint_id: Id, earlier: Offset = 0, values: Offset = 0) -> Response:
    """Show a checkpoint: the end of its conversation first, and what came earlier by pages."""
    session = visit.repo.session(session_id)
    point = session.get_checkpoint(checkpoint_id)
    messages, state = point.conversation_history, point.session_state
    end = max(0, len(messages) - earlier)
    keys = sorted(state)
    return visit.page(
        "checkpoint",
        session=session.info,
        point=point,
        facts=point.metadata,
        messages=messages[max(0, end - MESSAGES) : end],
        first=max(0, end - MESSAGES),
        total=len(messages),
        earlier=earlier + MESSAGES if end > MESSAGES else None,
        later=max(0, earlier - MESSAGES) if earlier else None,
        state=[(key, state[key]) for key in keys[values : values + MESSAGES]],
        state_total=len(keys),
        more_values=values + MESSAGES if values + MESSAGES < len(keys) else None,
        calls=point.tool_invocations[-MESSAGES:],
        calls_total=len(point.tool_invocations),
        before=before_of(visit.repo, session_id, point),
        restorable=MESSAGES,
    )


@router.get("/checkpoints/{checkpoint_id}/files")
def files(visit: Visit, session_id: Id, checkpoint_id: Id) -> Response:
    """Show what changed in the files, and what bringing them back would do."""
    session = visit.repo.session(session_id)
    point = session.get_checkpoint(checkpoint_id)
    found = files_of(visit.repo, session_id, point)
    return visit.page(
        "files",
        session=session.info,
        point=point,
        facts=point.metadata,
        files=found,
        patch=patch(found["diff_content"][:LONGEST]),
        rest=max(0, len(found["diff_content"]) - LONGEST),
    )


@router.get("/diff")
def diff(visit: Visit, session_id: Id, a: Ref = "", b: Ref = "") -> Response:
    """Put two checkpoints side by side."""
    session = visit.repo.session(session_id)
    found = session.diff(place_of(a), place_of(b)) if a and b else None
    content = found.diff_content if found is not None else ""
    return visit.page(
        "diff",
        session=session.info,
        a=a,
        b=b,
        diff=found,
        patch=patch(content[:LONGEST]),
        rest=max(0, len(content) - LONGEST),
        branches=session.branches(),
    )


@router.post("/tags", dependencies=[Depends(same_site)])
def tag(visit: Visit, session_id: Id, ref: Text, name: Text, description: Text = "") -> Response:
    """Tag a checkpoint."""
    made = visit.repo.session(session_id).tag(place_of(ref), name.strip(), description=description or None)
    return visit.go(f"/sessions/{session_id}/checkpoints/{made.checkpoint_id}")


@router.post("/tags/delete", dependencies=[Depends(same_site)])
def untag(visit: Visit, session_id: Id, name: Text) -> Response:
    """Take a tag away."""
    gone = visit.repo.session(session_id).untag(name)
    return visit.go(f"/sessions/{session_id}/checkpoints/{gone.checkpoint_id}")
