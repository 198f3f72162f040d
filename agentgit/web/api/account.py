"""Routes of the account: the current user, login, logout."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from agentgit.errors import NotAllowed
from agentgit.web.api.answers import Answer, Me
from agentgit.web.api.asking import Caller, Credential, RequestBody, failures
from agentgit.web.authentication import Accounts
from agentgit.web.problems import Unknown, status_of
from agentgit.web.security import closed_line, log_in
from agentgit.web.site import site_of

router = APIRouter(tags=["account"])


class Login(RequestBody):
    """A name and a password."""

    name: str = Field(min_length=1, max_length=300)
    password: str = Field(min_length=1, max_length=2_000)


class LoggedIn(BaseModel):
    """A key to go on with."""

    key: str = Field(description="Send it as `Authorization: Bearer …`; it holds for 12 hours.")


@router.get("/me", response_model=Me, responses=failures())
def me(caller: Caller) -> Answer:
    """Return the user who is logged in."""
    user = caller.user
    scopes = sorted(caller.context.principal.scopes)
    return Answer({"id": user.id, "name": user.name, "is_admin": user.is_admin, "scopes": scopes})


@router.post(
    "/login", status_code=201, response_model=LoggedIn, responses=failures(429), dependencies=[Depends(closed_line)]
)
def login(request: Request, wanted: Login) -> Answer:
    """Return a key for a name and a password."""
    entrance = site_of(request).entrance
    if not isinstance(entrance, Accounts):
        raise NotAllowed("Here are no passwords. An API key lets a program in: agentgit keys create NAME")
    try:
        key = log_in(request, entrance, wanted.name, wanted.password).key
    except NotAllowed as error:
        raise Unknown(str(error)) if status_of(error) == 403 else error from error
    return Answer({"key": key}, 201)


@router.post("/logout", status_code=204, response_class=Response, responses=failures())
def logout(request: Request, caller: Caller, credential: Credential) -> Response:
    """Let the key that you send be worth nothing from now on."""
    site_of(request).entrance.leave(credential)
    return Response(status_code=204)
