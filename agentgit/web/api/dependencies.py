"""Dependencies and parameter types that the routes of the API share: the caller, ids, limits and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from agentgit.errors import NotAllowed
from agentgit.repository import Repository
from agentgit.web.problems import MEDIA_TYPE, Unauthenticated
from agentgit.web.security import SAFE_METHODS, cookie_name
from agentgit.web.site import site_of

T = TypeVar("T")

MAX_ID = 2**53 - 1

BEARER = HTTPBearer(auto_error=False, description="An API key (`agit_…`).")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]

AUTHENTICATION_HELP = (
    "Send the header Authorization: Bearer agit_… with an API key. agentgit keys create NAME makes one."
)

Id = Annotated[int, Path(ge=1, le=MAX_ID)]
Limit = Annotated[int, Query(ge=1, le=1_000, description="The maximum number of results.")]
Offset = Annotated[int, Query(ge=0, le=MAX_ID, description="The number of results to skip.")]
After = Annotated[
    str | None, Query(max_length=100, description="The `next` of the previous page.", pattern=r"^[0-9A-Za-z_-]+$")
]
ReferenceParameter = Annotated[
    str, Query(min_length=1, max_length=300, description="A checkpoint: `main#3`, `HEAD~1`, a name, a tag or an id.")
]
CheckpointId = Annotated[int | None, Query(ge=1, le=MAX_ID, description="The id of a checkpoint.")]
BranchName = Annotated[str | None, Query(max_length=300, description="The branch; by default the current one.")]


def caller_of(request: Request, bearer: Bearer) -> Repository:
    """Return the repository, bound to the user of the key, or for safe methods to that of the proxy or the cookie."""
    authenticator = site_of(request).authenticator
    credential = bearer.credentials if bearer is not None else None
    if credential is None and request.method in SAFE_METHODS:  # other sites can make a browser send the rest
        if (repo := authenticator.by_proxy(request)) is not None:
            return repo
        credential = request.cookies.get(cookie_name(request))
    if credential is None:
        raise Unauthenticated(f"Not authenticated. {AUTHENTICATION_HELP}")
    try:
        return authenticator.by_credential(credential)
    except NotAllowed as error:
        raise Unauthenticated(error.message, *error.next) from error


Caller = Annotated[Repository, Depends(caller_of)]


class RequestBody(BaseModel):
    """The body of a request. Unknown fields are refused, so that a misspelled field does not get its default."""

    model_config = ConfigDict(extra="forbid")


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of the error statuses that every route has, and of the given ones."""
    descriptions = {
        400: "The request cannot be read.",
        401: "Not authenticated.",
        403: "Not allowed.",
        404: "Not found, or not visible to you.",
        409: "A conflict. Nothing was changed, unless the problem has a report.",
        413: "The request is too large.",
        422: "The request is not valid.",
        429: "Too many requests; try again later.",
        500: "An internal error, or damaged data.",
        503: "The database is unavailable.",
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    common_statuses = (400, 401, 403, 404, 413, 422, 500, 503)
    return {
        status: {"description": descriptions[status], "content": content}
        for status in sorted({*common_statuses, *statuses})
    }


def part(items: Sequence[T], offset: int, limit: int) -> dict[str, Any]:
    """Return a part of a list, the total, and the offset of the next part.

    Example:
        >>> part(["a", "b", "c"], 1, 1)
        {'items': ['b'], 'total': 3, 'next': 2}
    """
    end = offset + limit
    return {"items": list(items[offset:end]), "total": len(items), "next": end if end < len(items) else None}
