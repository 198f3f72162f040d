"""Routes for the user's own account, for users (by admins), and for API keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from agentgit.auth import User
from agentgit.auth.credentials import ApiKey, NewKey
from agentgit.errors import NotAllowed
from agentgit.values import portable
from agentgit.web.api.dependencies import Caller, Credential, Id, RequestBody, failures
from agentgit.web.api.responses import ErasedAnswer, JsonResponse, Me, create_list_model, model_of_dataclass
from agentgit.web.api.sharing import Seconds, to_timedelta
from agentgit.web.authentication import Accounts
from agentgit.web.problems import Unauthenticated, status_of
from agentgit.web.security import log_in, require_secure_connection
from agentgit.web.site import site_of

account_router = APIRouter(tags=["account"])


class Login(RequestBody):
    """A name and a password."""

    name: str = Field(min_length=1, max_length=300)
    password: str = Field(min_length=1, max_length=2_000)


class LoggedIn(BaseModel):
    """The key of a login."""

    key: str = Field(description="Send it as `Authorization: Bearer …`; it is valid for 12 hours.")


@account_router.get("/me", response_model=Me, responses=failures())
def me(caller: Caller) -> JsonResponse:
    """Return the user who is logged in."""
    user = caller.user
    scopes = sorted(caller.context.principal.scopes)
    return JsonResponse({"id": user.id, "name": user.name, "is_admin": user.is_admin, "scopes": scopes})


@account_router.post(
    "/login",
    status_code=201,
    response_model=LoggedIn,
    responses=failures(429),
    dependencies=[Depends(require_secure_connection)],
)
def login(request: Request, wanted: Login) -> JsonResponse:
    """Log in with a name and a password. Returns a key for further requests."""
    authenticator = site_of(request).authenticator
    if not isinstance(authenticator, Accounts):
        raise NotAllowed("This server has no passwords. Create an API key instead: agentgit keys create NAME")
    try:
        key = log_in(request, authenticator, wanted.name, wanted.password).key
    except NotAllowed as error:
        raise Unauthenticated(str(error)) if status_of(error) == 403 else error from error
    return JsonResponse({"key": key}, 201)


@account_router.post("/logout", status_code=204, response_class=Response, responses=failures())
def logout(request: Request, caller: Caller, credential: Credential) -> Response:
    """Log out: revoke the key that this request is sent with."""
    site_of(request).authenticator.revoke(credential)
    return Response(status_code=204)


router = APIRouter(tags=["people"])

KeyScope = Literal["read", "fork", "write", "admin"]


UserAnswer = model_of_dataclass("User", User)
UserList = create_list_model("Users", UserAnswer, "The users of the tenant, by name.")
Key = model_of_dataclass("Key", ApiKey, overrides={"scopes": list[str]})
KeyList = create_list_model("Keys", Key, "API keys.")
MadeKey = model_of_dataclass("MadeKey", NewKey, overrides={"key": Key})


class NewUser(RequestBody):
    """A user to create."""

    name: str = Field(min_length=1, max_length=200)
    password: str | None = Field(
        None, max_length=1_000, description="With null, the account can be used only with API keys."
    )
    is_admin: bool = False


class UserChange(RequestBody):
    """The changes to a user. Omitted fields are unchanged."""

    password: str | None = Field(None, max_length=1_000, description="The new password; null leaves it unchanged.")
    current_password: str | None = Field(None, max_length=1_000, description="Needed to change your own password.")
    disabled: bool | None = None


class WantedKey(RequestBody):
    """An API key to create."""

    name: str = Field(min_length=1, max_length=200)
    scopes: list[KeyScope] = Field(["read"], min_length=1, max_length=4)
    expires_in: Seconds = 90 * 86_400


def plain(value: User | ApiKey) -> dict[str, Any]:
    """Return a user or a key as JSON-like data."""
    data: dict[str, Any] = portable(value)
    return {**data, "scopes": sorted(data["scopes"])} if "scopes" in data else data


@router.get("/users", response_model=UserList, responses=failures())
def list_users(caller: Caller) -> JsonResponse:
    """List the users. Admins only."""
    return JsonResponse({"items": [plain(user) for user in caller.users.list()]})


@router.post("/users", status_code=201, response_model=UserAnswer, responses=failures(409))
def add_user(caller: Caller, wanted: NewUser) -> JsonResponse:
    """Create a user. Admins only."""
    return JsonResponse(plain(caller.users.add(wanted.name, wanted.password, is_admin=wanted.is_admin)), 201)


@router.patch("/users/{user_id}", response_model=UserAnswer, responses=failures(409))
def change_user(caller: Caller, user_id: Id, wanted: UserChange) -> JsonResponse:
    """Change a user's password, or disable or enable the user. Admins only, except for changing your own password."""
    if wanted.password is not None:
        caller.users.set_password(user_id, wanted.password, current=wanted.current_password)
    if wanted.disabled is not None:
        (caller.users.disable if wanted.disabled else caller.users.enable)(user_id)
    return JsonResponse(plain(caller.users.find(user_id)))


@router.post("/users/{user_id}/revoke-tokens", status_code=204, response_class=Response, responses=failures())
def revoke_tokens(caller: Caller, user_id: Id) -> Response:
    """Revoke all logins and tokens of a user that were issued before now. Admins only, except for yourself."""
    caller.users.revoke_tokens(user_id)
    return Response(status_code=204)


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
    return JsonResponse({"key": plain(new_key.key), "secret": new_key.secret}, 201)


@router.delete("/keys/{key_id}", status_code=204, response_class=Response, responses=failures())
def revoke_key(caller: Caller, key_id: Id) -> Response:
    """Revoke an API key."""
    caller.keys.revoke(key_id)
    return Response(status_code=204)
