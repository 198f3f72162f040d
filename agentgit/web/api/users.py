"""Routes for the user's own account, for users (by admins), and for API keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from agentgit.auth import User
from agentgit.auth.credentials import ApiKey, NewKey
from agentgit.values import portable
from agentgit.web.api.dependencies import Caller, Id, RequestBody, failures
from agentgit.web.api.responses import ErasedAnswer, JsonResponse, Me, create_list_model, model_of_dataclass
from agentgit.web.api.sharing import Seconds, to_timedelta

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
UserList = create_list_model("Users", UserAnswer, "The users of the tenant, by name.")
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


def plain(value: User | ApiKey) -> dict[str, Any]:
    """Return a user or a key as JSON-like data."""
    data: dict[str, Any] = portable(value)
    return {**data, "scopes": sorted(data["scopes"])} if "scopes" in data else data


def plain_secret(new: NewKey) -> dict[str, Any]:
    """Return a new key or sign-in link as JSON-like data, with its secret."""
    return {"key": plain(new.key), "secret": new.secret}


@router.get("/users", response_model=UserList, responses=failures())
def list_users(caller: Caller) -> JsonResponse:
    """List the users. Admins only."""
    return JsonResponse({"items": [plain(user) for user in caller.users.list()]})


@router.post("/users", status_code=201, response_model=UserAnswer, responses=failures(409))
def add_user(caller: Caller, wanted: NewUser) -> JsonResponse:
    """Create a user. Admins only."""
    return JsonResponse(plain(caller.users.add(wanted.name, is_admin=wanted.is_admin)), 201)


@router.patch("/users/{user_id}", response_model=UserAnswer, responses=failures())
def change_user(caller: Caller, user_id: Id, wanted: UserChange) -> JsonResponse:
    """Disable or enable a user. Admins only."""
    return JsonResponse(plain((caller.users.disable if wanted.disabled else caller.users.enable)(user_id)))


@router.post("/users/{user_id}/link", status_code=201, response_model=MadeKey, responses=failures())
def create_sign_in_link(caller: Caller, user_id: Id) -> JsonResponse:
    """Create a sign-in link. Its secret is the `token` of the address `/sign-in?token=…`. Admins only."""
    return JsonResponse(plain_secret(caller.users.create_link(user_id)), 201)


@router.delete("/users/{user_id}", response_model=ErasedAnswer, responses=failures(409))
def delete_user(caller: Caller, user_id: Id) -> JsonResponse:
    """Permanently delete a user with all their sessions. Returns what was deleted. Admins only, except for yourself."""
    return JsonResponse(caller.users.delete(user_id).to_dict())


@router.get("/keys", response_model=KeyList, responses=failures())
def list_keys(
    caller: Caller, user: Annotated[str | None, Query(max_length=300, description="The owner; for admins.")] = None
) -> JsonResponse:
    """List your API keys, or those of another user."""
    return JsonResponse({"items": [plain(key) for key in caller.keys.list(user)]})


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
