"""Parts that all requests to the API share: the caller, and the limits of their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from agentgit.errors import NotAllowed
from agentgit.repository import Repository
from agentgit.web.problems import MEDIA_TYPE, Unknown
from agentgit.web.security import SAFE, cookie_name
from agentgit.web.site import note_user, site_of

T = TypeVar("T")

LARGEST_ID = 2**53 - 1

BEARER = HTTPBearer(auto_error=False, description="An API key (`agit_…`) or a JWT.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]

HOW_TO_COME_IN = "Send the header Authorization: Bearer agit_… with an API key. agentgit keys create NAME makes one."

Id = Annotated[int, Path(ge=1, le=LARGEST_ID)]
Limit = Annotated[int, Query(ge=1, le=1_000, description="How many at most.")]
Offset = Annotated[int, Query(ge=0, le=LARGEST_ID, description="How many to leave out.")]
After = Annotated[
    str | None, Query(max_length=100, description="The `next` of the page before.", pattern=r"^[0-9A-Za-z_-]+$")
]
Place = Annotated[
    str, Query(min_length=1, max_length=300, description="A checkpoint: like `main#3`, `HEAD~1`, a name, a tag, an id.")
]
BranchName = Annotated[str | None, Query(max_length=300, description="Its name; the current one if left out.")]


def bearer_of(request: Request, bearer: Bearer) -> str:
    """Return the credential of a request: of its header; where nothing is changed, also of a browser's cookie.

    Raises:
        Unknown: It has none.
    """
    if bearer is not None:
        return bearer.credentials
    cookie = request.cookies.get(cookie_name(request)) if request.method in SAFE else None
    if cookie is None:
        raise Unknown(f"Nobody knows who asks. {HOW_TO_COME_IN}")
    return cookie


Credential = Annotated[str, Depends(bearer_of)]


def caller_of(request: Request, credential: Credential) -> Repository:
    """Return the repository of whoever asks.

    Raises:
        Unknown: The credential is nobody's.
    """
    try:
        found = site_of(request).entrance.repository(credential)
    except NotAllowed as error:
        if hasattr(error, "retry_after"):
            raise
        raise Unknown(str(error)) from error
    note_user(request, found.user.id)
    return found


Caller = Annotated[Repository, Depends(caller_of)]


class RequestBody(BaseModel):
    """The body of a request. Unknown fields are refused, so that a misspelled field is not taken for a default."""

    model_config = ConfigDict(extra="forbid")


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the problems that an operation may answer with, besides those of all of them."""
    said = {
        400: "The request cannot be read.",
        401: "Nobody knows who asks.",
        403: "You may not.",
        404: "Nothing that you can see is called so.",
        408: "The request took too long to come.",
        409: "Something stands in the way; nothing was changed unless there is a report.",
        413: "The request is too large.",
        422: "Something in the request cannot be meant.",
        429: "Too many at once; try again later.",
        500: "Something is damaged, or went wrong here.",
        503: "The database is out of reach.",
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    every = (400, 401, 403, 404, 408, 413, 422, 500, 503)
    return {status: {"description": said[status], "content": content} for status in sorted({*every, *statuses})}


def part(items: Sequence[T], offset: int, limit: int) -> dict[str, Any]:
    """Return a part of a list.

    Example:
        >>> part(["a", "b", "c"], 1, 1)
        {'items': ['b'], 'total': 3, 'next': 2}
    """
    end = offset + limit
    return {"items": list(items[offset:end]), "total": len(items), "next": end if end < len(items) else None}
