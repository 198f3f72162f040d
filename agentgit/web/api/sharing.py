"""Routes for sharing a session: members, links, and joining with a link."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from agentgit.auth import Member, ShareLink
from agentgit.render import records
from agentgit.values import portable
from agentgit.web.api import responses
from agentgit.web.api.dependencies import Caller, Id, RequestBody, failures
from agentgit.web.api.responses import JsonResponse, create_list_model, model_of_dataclass

router = APIRouter(tags=["sharing"])

MAX_SECONDS = 100 * 366 * 86_400
Seconds = Annotated[int | None, Field(ge=1, le=MAX_SECONDS, description="Seconds until expiry; null is never.")]
Role = Literal["viewer", "editor", "owner"]


MemberAnswer = model_of_dataclass("Member", Member)
Members = create_list_model("Members", MemberAnswer, "The users who have a role in a session, besides its owner.")
LinkAnswer = model_of_dataclass("Link", ShareLink)
Links = create_list_model("Links", LinkAnswer, "The links of a session, including those that have ended.")


class Share(RequestBody):
    """A role to grant to a user."""

    user: str = Field(min_length=1, max_length=300, description="The name of the user.")
    role: Role = "viewer"
    expires_in: Seconds = None


class NewLink(RequestBody):
    """A share link to create."""

    role: Literal["viewer", "editor"] = "viewer"
    expires_in: Seconds = 7 * 86_400


class Join(RequestBody):
    """The token of a share link."""

    token: str = Field(min_length=1, max_length=300)


def to_timedelta(seconds: int | None) -> timedelta | None:
    """Convert seconds to a `timedelta`; None means without end."""
    return timedelta(seconds=seconds) if seconds is not None else None


def plain(value: Member | ShareLink) -> dict[str, Any]:
    """Return a member or a link as JSON-like data."""
    data: dict[str, Any] = portable(value)
    return data


@router.get("/sessions/{session_id}/members", response_model=Members, responses=failures())
def members(caller: Caller, session_id: Id) -> JsonResponse:
    """List the users who have a role in a session, besides its owner."""
    return JsonResponse({"items": [plain(member) for member in caller.session(session_id).sharing.members()]})


@router.post("/sessions/{session_id}/members", status_code=201, response_model=MemberAnswer, responses=failures(409))
def share(caller: Caller, session_id: Id, wanted: Share) -> JsonResponse:
    """Grant a user a role in the session. It replaces the role that you granted before. Owners only."""
    return JsonResponse(
        plain(caller.session(session_id).sharing.share(wanted.user, wanted.role, to_timedelta(wanted.expires_in))), 201
    )


@router.delete("/sessions/{session_id}/members", status_code=204, response_class=Response, responses=failures())
def unshare(caller: Caller, session_id: Id, user: Annotated[str, Query(min_length=1, max_length=300)]) -> Response:
    """Revoke all roles of a user in the session at once. With your own name, leave the session."""
    caller.session(session_id).sharing.unshare(user)
    return Response(status_code=204)


@router.get("/sessions/{session_id}/links", response_model=Links, responses=failures())
def links(caller: Caller, session_id: Id) -> JsonResponse:
    """List the links of a session. Owners only."""
    return JsonResponse({"items": [plain(link) for link in caller.session(session_id).sharing.links()]})


@router.post("/sessions/{session_id}/links", status_code=201, response_model=LinkAnswer, responses=failures())
def create_link(caller: Caller, session_id: Id, wanted: NewLink) -> JsonResponse:
    """Create a link. Each user with its token, which only this answer contains, can join the session. Owners only."""
    return JsonResponse(
        plain(caller.session(session_id).sharing.create_link(wanted.role, to_timedelta(wanted.expires_in))), 201
    )


@router.delete("/links/{link_id}", response_model=LinkAnswer, responses=failures())
def revoke_link(caller: Caller, link_id: Id) -> JsonResponse:
    """Revoke a link and the roles of all who joined with it, at once. Owners only."""
    return JsonResponse(plain(caller.revoke_link(link_id)))


@router.post("/links/accept", response_model=responses.SessionAnswer, responses=failures())
def accept(caller: Caller, wanted: Join) -> JsonResponse:
    """Join a session with the token of a link."""
    return JsonResponse(records.of_session(caller.accept(wanted.token).info))
