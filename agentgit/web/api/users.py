"""Routes for people: one's own account, users (by admins), API keys, and the members and links of a session."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from agentgit.auth import Member, ShareLink, User
from agentgit.auth.credentials import ApiKey, NewKey
from agentgit.render.records import record
from agentgit.web.api import responses
from agentgit.web.api.dependencies import Caller, Id, RequestBody, failures
from agentgit.web.api.responses import ErasedAnswer, JsonResponse, Me, create_list_model, model_of_dataclass

MAX_SECONDS = 100 * 366 * 86_400
Seconds = Annotated[int | None, Field(ge=1, le=MAX_SECONDS, description="Seconds until expiry; null is never.")]
Role = Literal["viewer", "editor", "owner"]


def to_timedelta(seconds: int | None) -> timedelta | None:
    """Convert seconds to a `timedelta`; None means without end."""
    return timedelta(seconds=seconds) if seconds is not None else None


account_router = APIRouter(tags=["account"])


@account_router.get("/me", response_model=Me, responses=failures())
def me(caller: Caller) -> JsonResponse:
    """Return the user who is signed in."""
    user = caller.user
    scopes = sorted(caller.context.principal.scopes)
    return JsonResponse({"id": user.id, "name": user.name, "is_admin": user.is_admin, "scopes": scopes})


router = APIRouter(tags=["people"])

KeyScope = Literal["read", "write", "admin"]


UserAnswer = model_of_dataclass("User", User)
UserList = create_list_model("Users", UserAnswer, "The users, by name.")
Key = model_of_dataclass("Key", ApiKey, overrides={"scopes": list[str]})
KeyList = create_list_model("Keys", Key, "API keys.")
MadeKey = model_of_dataclass("MadeKey", NewKey, overrides={"key": Key})


class NewUser(RequestBody):
    """A user to create."""

    name: str = Field(min_length=1, max_length=200)
    is_admin: bool = False


class UserChange(RequestBody):
    """The change to a user."""

    disabled: bool


class WantedKey(RequestBody):
    """An API key to create."""

    name: str = Field(min_length=1, max_length=200)
    scopes: list[KeyScope] = Field(["read"], min_length=1, max_length=3)
    expires_in: Seconds = 90 * 86_400


def plain_secret(new: NewKey) -> dict[str, Any]:
    """Return a new key or sign-in link as JSON-like data, with its secret."""
    return {"key": record(new.key), "secret": new.secret}


@router.get("/users", response_model=UserList, responses=failures())
def list_users(caller: Caller) -> JsonResponse:
    """List the users. Admins only."""
    return JsonResponse({"items": [record(user) for user in caller.users.list()]})


@router.post("/users", status_code=201, response_model=UserAnswer, responses=failures(409))
def add_user(caller: Caller, wanted: NewUser) -> JsonResponse:
    """Create a user. Admins only."""
    return JsonResponse(record(caller.users.add(wanted.name, is_admin=wanted.is_admin)), 201)


@router.patch("/users/{user_id}", response_model=UserAnswer, responses=failures())
def change_user(caller: Caller, user_id: Id, wanted: UserChange) -> JsonResponse:
    """Disable or enable a user. Admins only."""
    return JsonResponse(record((caller.users.disable if wanted.disabled else caller.users.enable)(user_id)))


@router.post("/users/{user_id}/link", status_code=201, response_model=MadeKey, responses=failures())
def create_sign_in_link(caller: Caller, user_id: Id) -> JsonResponse:
    """Create a sign-in link. Its secret is the `token` of the address `/sign-in?token=…`. Admins only."""
    return JsonResponse(plain_secret(caller.users.create_link(user_id)), 201)


@router.delete("/users/{user_id}", response_model=ErasedAnswer, responses=failures(409))
def delete_user(caller: Caller, user_id: Id, force: bool = False) -> JsonResponse:
    """Permanently delete a user with all their sessions. Returns what was deleted. Admins only, except for yourself."""
    return JsonResponse(caller.users.delete(user_id, force=force).to_dict())


@router.get("/keys", response_model=KeyList, responses=failures())
def list_keys(
    caller: Caller, user: Annotated[str | None, Query(max_length=300, description="The owner; for admins.")] = None
) -> JsonResponse:
    """List your API keys, or those of another user."""
    return JsonResponse({"items": [record(key) for key in caller.keys.list(user)]})


@router.post("/keys", status_code=201, response_model=MadeKey, responses=failures())
def create_key(caller: Caller, wanted: WantedKey) -> JsonResponse:
    """Create an API key for yourself. It cannot have more rights than the key that you use."""
    new_key = caller.keys.create(wanted.name, scopes=wanted.scopes, expires_in=to_timedelta(wanted.expires_in))
    return JsonResponse(plain_secret(new_key), 201)


@router.delete("/keys/{key_id}", status_code=204, response_class=Response, responses=failures())
def revoke_key(caller: Caller, key_id: Id) -> Response:
    """Revoke an API key."""
    caller.keys.revoke(key_id)
    return Response(status_code=204)


# -- members and links of a session

sharing_router = APIRouter(tags=["sharing"])

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


@sharing_router.get("/sessions/{session_id}/members", response_model=Members, responses=failures())
def members(caller: Caller, session_id: Id) -> JsonResponse:
    """List the users who have a role in a session, besides its owner."""
    return JsonResponse({"items": [record(member) for member in caller.session(session_id).sharing.members()]})


@sharing_router.post(
    "/sessions/{session_id}/members", status_code=201, response_model=MemberAnswer, responses=failures(409)
)
def share(caller: Caller, session_id: Id, wanted: Share) -> JsonResponse:
    """Grant a user a role in the session. It replaces the role that you granted before. Owners only."""
    return JsonResponse(
        record(caller.session(session_id).sharing.share(wanted.user, wanted.role, to_timedelta(wanted.expires_in))), 201
    )


@sharing_router.delete("/sessions/{session_id}/members", status_code=204, response_class=Response, responses=failures())
def unshare(caller: Caller, session_id: Id, user: Annotated[str, Query(min_length=1, max_length=300)]) -> Response:
    """Revoke all roles of a user in the session at once. With your own name, leave the session."""
    caller.session(session_id).sharing.unshare(user)
    return Response(status_code=204)


@sharing_router.get("/sessions/{session_id}/links", response_model=Links, responses=failures())
def links(caller: Caller, session_id: Id) -> JsonResponse:
    """List the links of a session. Owners only."""
    return JsonResponse({"items": [record(link) for link in caller.session(session_id).sharing.links()]})


@sharing_router.post("/sessions/{session_id}/links", status_code=201, response_model=LinkAnswer, responses=failures())
def create_link(caller: Caller, session_id: Id, wanted: NewLink) -> JsonResponse:
    """Create a link. Each user with its token, which only this answer contains, can join the session. Owners only."""
    return JsonResponse(
        record(caller.session(session_id).sharing.create_link(wanted.role, to_timedelta(wanted.expires_in))), 201
    )


@sharing_router.delete("/links/{link_id}", response_model=LinkAnswer, responses=failures())
def revoke_link(caller: Caller, link_id: Id) -> JsonResponse:
    """Revoke a link and the roles of all who joined with it, at once. Owners only."""
    return JsonResponse(record(caller.revoke_link(link_id)))


@sharing_router.post("/links/accept", response_model=responses.SessionAnswer, responses=failures())
def accept(caller: Caller, wanted: Join) -> JsonResponse:
    """Join a session with the token of a link."""
    return JsonResponse(record(caller.accept(wanted.token).info))
