"""The page for sharing a session: members, links, and joining."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form
from starlette.responses import Response

from agentgit.auth.principal import OWNER, allows
from agentgit.web.api.dependencies import MAX_ID, Id
from agentgit.web.api.sharing import to_timedelta
from agentgit.web.pages.dependencies import Name, Visit, Visitor
from agentgit.web.security import require_same_site

router = APIRouter()

Role = Annotated[Literal["viewer", "editor", "owner"], Form()]
Days = Annotated[int | None, Form(ge=0, le=36_500)]


@router.get("/sessions/{session_id}/sharing")
def sharing(visit: Visit, session_id: Id) -> Response:
    """Show the members of a session, and its links."""
    return _render_sharing(visit, session_id)


def _render_sharing(visit: Visitor, session_id: int, token: str | None = None) -> Response:
    session = visit.repo.session(session_id)
    info = session.info
    is_owner = allows(info.role, OWNER)
    links = session.sharing.links() if is_owner else []
    return visit.page(
        "sharing",
        session=info,
        is_owner=is_owner,
        members=session.sharing.members(),
        links=links,
        token=token,
    )


@router.post("/sessions/{session_id}/members", dependencies=[Depends(require_same_site)])
def share(visit: Visit, session_id: Id, user: Name, role: Role = "viewer", days: Days = None) -> Response:
    """Grant a user a role."""
    visit.repo.session(session_id).sharing.share(user, role, to_timedelta(days * 86_400 if days else None))
    return visit.redirect(f"/sessions/{session_id}/sharing")


@router.post("/sessions/{session_id}/members/delete", dependencies=[Depends(require_same_site)])
def unshare(visit: Visit, session_id: Id, user: Name) -> Response:
    """Revoke the roles of a user, or leave the session."""
    visit.repo.session(session_id).sharing.unshare(user)
    has_left = user == visit.repo.user.name
    return visit.redirect("/sessions" if has_left else f"/sessions/{session_id}/sharing")


@router.post("/sessions/{session_id}/links", dependencies=[Depends(require_same_site)])
def create_link(visit: Visit, session_id: Id, role: Role = "viewer", days: Days = 7) -> Response:
    """Create a link, and show its token once."""
    new_link = visit.repo.session(session_id).sharing.create_link(role, to_timedelta(days * 86_400 if days else None))
    return _render_sharing(visit, session_id, new_link.token)


@router.post("/sessions/{session_id}/links/revoke", dependencies=[Depends(require_same_site)])
def revoke_link(visit: Visit, session_id: Id, link: Annotated[int, Form(ge=1, le=MAX_ID)]) -> Response:
    """Revoke a link."""
    visit.repo.revoke_link(link)
    return visit.redirect(f"/sessions/{session_id}/sharing")


@router.get("/join")
def join_page(visit: Visit, token: str = "") -> Response:
    """Show the form for the token of a link."""
    return visit.page("join", token=token[:300])


@router.post("/join", dependencies=[Depends(require_same_site)])
def join(visit: Visit, token: Name) -> Response:
    """Join a session."""
    return visit.redirect(f"/sessions/{visit.repo.accept(token).id}")
