"""The pages of sessions and checkpoints: the list, trees, logs, search, calls, diffs, and the audit trail."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import RedirectResponse, Response

from agentgit.errors import InvalidInput
from agentgit.render.views.diff import patch
from agentgit.render.views.reruns import divergence
from agentgit.sessions.events import KINDS
from agentgit.sessions.rerun import FUNCTION, LIVE, RECORD, TOLD, VALUE
from agentgit.web.api.dependencies import MAX_ID, After, BranchName, Id, Offset
from agentgit.web.api.sessions import download, files_of, previous_checkpoint, read_session_page
from agentgit.web.pages.dependencies import Checkbox, Name, Text, Visit, parse_checkpoint_ref
from agentgit.web.pages.rendering import MAX_TEXT_LENGTH
from agentgit.web.pages.tree import State, tree_context
from agentgit.web.security import require_same_site

router = APIRouter()

PAGE = 50
"""The number of rows on a page."""


@router.get("/")
def home(visit: Visit) -> RedirectResponse:
    return visit.redirect("/sessions")


@router.get("/sessions")
def sessions(visit: Visit, name: Annotated[str, Query(max_length=200)] = "", after: After = None) -> Response:
    page, next_cursor = read_session_page(visit.repo, PAGE, after, name)
    return visit.page("sessions", sessions=page, next=next_cursor, name=name, is_first=after is None)


@router.get("/sessions/{session_id}/search")
def search(
    visit: Visit,
    session_id: Id,
    text: Annotated[str, Query(max_length=1_000)] = "",
    branch_only: bool = False,
    after: After = None,
) -> Response:
    handle = visit.repo.session(session_id)
    error_text, hits = "", None
    if text.strip():
        try:
            hits = handle.search(text, all_branches=not branch_only, limit=PAGE, after=after)
        except InvalidInput as error:
            error_text = error.worded("page")
    return visit.page("search", session=handle.info, text=text, branch_only=branch_only, hits=hits, wrong=error_text)


@router.get("/sessions/{session_id}/tool-track")
def tool_track(visit: Visit, session_id: Id, branch: BranchName = None, offset: Offset = 0) -> Response:
    session = visit.repo.session(session_id)
    selected_branch = session.branch(branch)
    track = session.tool_track(branch=selected_branch)
    page = track[offset : offset + PAGE]
    next_offset = offset + PAGE if offset + PAGE < len(track) else None
    return visit.page(
        "tool_track",
        session=session.info,
        on=selected_branch,
        calls=page,
        total=len(track),
        more=next_offset,
        offset=offset,
    )


@router.get("/sessions/{session_id}/export")
def export(visit: Visit, session_id: Id, branch: BranchName = None, files: bool = False) -> Response:
    return download(visit.repo, session_id, branch, files=files)


@router.post("/sessions", dependencies=[Depends(require_same_site)])
def create_session(visit: Visit, name: Name, template: Text = "") -> Response:
    handle = visit.repo.session(name, create=True, template=parse_checkpoint_ref(template) if template else None)
    return visit.redirect(f"/sessions/{handle.id}")


@router.post("/sessions/{session_id}/delete", dependencies=[Depends(require_same_site)])
def delete(visit: Visit, session_id: Id, name: Name = "", force: Checkbox = False) -> Response:
    handle = visit.repo.session(session_id)
    if name != handle.name.strip():
        raise InvalidInput(f"Nothing was deleted. Type the name of the session, {handle.name}, to delete it.")
    return visit.page("erased", name=handle.name, erased=handle.delete(force=force))


MAX_EVENTS = 200
"""The maximum number of events on the page."""


@router.get("/audit")
def audit(
    visit: Visit,
    session: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    kind: Annotated[str, Query(max_length=100)] = "*",
) -> Response:
    events = visit.repo.events.newest(session=session, kinds=kind or "*", limit=MAX_EVENTS)
    session_info = visit.repo.session(session).info if session is not None else None
    me = visit.repo.user
    names = {user.id: user.name for user in (visit.repo.users.list() if me.is_admin else [me])}
    groups = sorted({name.partition(".")[0] for name in KINDS})
    return visit.page("audit", events=events[::-1], of=session_info, kind=kind, groups=groups, kinds=KINDS, names=names)


checkpoint_router = APIRouter(prefix="/sessions/{session_id}")

MAX_ITEMS = 30
"""The maximum number of messages, calls or values of the state on a page."""

Ref = Annotated[str, Query(max_length=300)]


@checkpoint_router.get("/checkpoints/{checkpoint_id}")
def checkpoint(visit: Visit, session_id: Id, checkpoint_id: Id, earlier: Offset = 0, values: Offset = 0) -> Response:
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
        messages=messages[max(0, end - MAX_ITEMS) : end],
        first=max(0, end - MAX_ITEMS),
        total=len(messages),
        earlier=earlier + MAX_ITEMS if end > MAX_ITEMS else None,
        later=max(0, earlier - MAX_ITEMS) if earlier else None,
        state=[(key, state[key]) for key in keys[values : values + MAX_ITEMS]],
        state_total=len(keys),
        more_values=values + MAX_ITEMS if values + MAX_ITEMS < len(keys) else None,
        calls=point.tool_invocations[-MAX_ITEMS:],
        calls_total=len(point.tool_invocations),
        before=previous_checkpoint(visit.repo, session_id, point),
    )


@checkpoint_router.get("/checkpoints/{checkpoint_id}/files")
def files(visit: Visit, session_id: Id, checkpoint_id: Id) -> Response:
    session = visit.repo.session(session_id)
    point = session.get_checkpoint(checkpoint_id)
    changes = files_of(visit.repo, session_id, point)
    return visit.page(
        "files",
        session=session.info,
        point=point,
        facts=point.metadata,
        files=changes,
        patch=patch(changes["diff_content"][:MAX_TEXT_LENGTH]),
        rest=max(0, len(changes["diff_content"]) - MAX_TEXT_LENGTH),
    )


ANSWERS = {
    RECORD: "the record",
    LIVE: "the tool, which changes nothing",
    VALUE: "a given value",
    FUNCTION: "a function",
    TOLD: "nobody: the model was told that the record has no such call",
}
"""The words for how the calls of a rerun are answered."""


@checkpoint_router.get("/rerun")
def rerun(visit: Visit, session_id: Id, branch: BranchName = None) -> Response:
    session = visit.repo.session(session_id)
    beside = session.compare_rerun(branch)
    return visit.page(
        "rerun",
        session=session.info,
        branch=session.branch(branch).name,
        beside=beside,
        report=beside.report,
        divergence=divergence(beside),
        answers=ANSWERS,
    )


@checkpoint_router.get("/diff")
def diff(
    visit: Visit,
    session_id: Id,
    state: State,
    a: Ref = "",
    b: Ref = "",
    point: Annotated[list[int], Query(max_length=20)] = [],  # noqa: B006  # FastAPI copies it
) -> Response:
    """Compare two checkpoints, `a` and `b` or the two that were chosen in the tree; without them, show the tree."""
    session = visit.repo.session(session_id)
    if point:
        if len(set(point)) != 2:
            raise InvalidInput(f"Choose two points in the tree, not {len(set(point))}, then press Compare two points.")
        a, b = map(str, sorted(set(point)))
    difference = session.diff(parse_checkpoint_ref(a), parse_checkpoint_ref(b)) if a and b else None
    if difference is None:
        return visit.page(
            "diff", session=session.info, a=a, b=b, diff=None, **tree_context(visit.request, session, state)
        )
    content = difference.diff_content
    return visit.page(
        "diff",
        session=session.info,
        a=difference.from_reference,
        b=difference.to_reference,
        diff=difference,
        patch=patch(content[:MAX_TEXT_LENGTH]),
        rest=max(0, len(content) - MAX_TEXT_LENGTH),
    )


@checkpoint_router.post("/tags", dependencies=[Depends(require_same_site)])
def tag(
    visit: Visit,
    session_id: Id,
    ref: Text,
    name: Name,
    description: Text = "",
    in_place: Annotated[bool, Form()] = False,
) -> Response:
    new_tag = visit.repo.session(session_id).tag(parse_checkpoint_ref(ref), name, description=description or None)
    return visit.redirect(_checkpoint_page(session_id, new_tag.checkpoint_id, in_place=in_place))


@checkpoint_router.post("/tags/delete", dependencies=[Depends(require_same_site)])
def untag(visit: Visit, session_id: Id, name: Text, in_place: Annotated[bool, Form()] = False) -> Response:
    removed_tag = visit.repo.session(session_id).untag(name)
    return visit.redirect(_checkpoint_page(session_id, removed_tag.checkpoint_id, in_place=in_place))


def _checkpoint_page(session_id: int, checkpoint_id: int, *, in_place: bool) -> str:
    at = f"/sessions/{session_id}"
    return f"{at}?at={checkpoint_id}" if in_place else f"{at}/checkpoints/{checkpoint_id}"
