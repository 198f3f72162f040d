"""Error responses as problem details (RFC 9457). They reveal nothing about the internals of the server."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from agentgit.errors import (
    AgentGitError,
    Ambiguous,
    Conflict,
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotFound,
    RollbackBlocked,
    RollbackIncomplete,
    SchemaMismatch,
    Unavailable,
    WorkspaceChanged,
    WorldDiverged,
)
from agentgit.next_steps import Face
from agentgit.values import is_database_error, to_json

LOG = logging.getLogger("agentgit.web")

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[AgentGitError], int] = {
    InvalidInput: 422,
    NotFound: 404,
    Ambiguous: 409,
    NotAllowed: 403,
    Conflict: 409,
    RollbackBlocked: 409,
    RollbackIncomplete: 409,
    WorldDiverged: 409,
    WorkspaceChanged: 409,
    SchemaMismatch: 503,
    Corrupt: 500,
    Unavailable: 503,
}
"""The HTTP status of each error; an error that is not listed has the status of its base class."""


class Problem(BaseModel):
    """An error, and what to do next."""

    type: str = Field(description="The kind of error: `urn:agentgit:error:` and the name of the Python class.")
    title: str
    status: int
    detail: str = Field(description="What happened, and what to do next.")
    next: list[dict[str, Any]] = Field([], description="The next steps: each a verb, and its arguments.")


class Unauthenticated(NotAllowed):
    """The request has no credential, or one that is not valid."""


def status_of(error: AgentGitError) -> int:
    """Return the HTTP status of an error.

    Example:
        >>> status_of(NotFound("gone")), status_of(Unauthenticated("who?"))
        (404, 401)
    """
    if isinstance(error, Unauthenticated):
        return 401
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def headers_of(error: AgentGitError) -> dict[str, str]:
    """Return the headers for an error: how to authenticate, or when to try again."""
    status = status_of(error)
    if status == 401:
        return {"www-authenticate": 'Bearer realm="agentgit"'}
    return {"retry-after": "5"} if status == 503 else {}


def problem(status: int, detail: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Return problem details.

    Example:
        >>> problem(404, "There is no session 7.", "NotFound")["type"]
        'urn:agentgit:error:NotFound'
    """
    type_uri = f"urn:agentgit:error:{name}" if name else "about:blank"
    return {"type": type_uri, "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}


DATABASE_MESSAGES: dict[type[AgentGitError], str] = {
    InvalidInput: "The database cannot store a value. Give a smaller one, or one without NUL characters.",
    Unavailable: "The database of this server is busy or unavailable. Try again in a few seconds.",
    SchemaMismatch: "The database schema does not match this server. Contact its administrator.",
    Corrupt: "The database of this server is damaged. Contact its administrator.",
    AgentGitError: "The database of this server refused the request. Contact its administrator.",
}
"""What web users read about a database error. Its own message, which may name internals, goes to the log."""


def problem_of_error(error: AgentGitError, face: Face | None = None) -> dict[str, Any]:
    """Return the problem details of an error, with its data, such as the blocked plan, and its steps worded for a face.

    For a database error they name only its kind; the rest goes to the log.
    """
    if is_database_error(error.__cause__) or isinstance(error, SchemaMismatch | Corrupt):
        LOG.warning("The database failed.", exc_info=error)
        kind = next(kind for kind in type(error).__mro__ if kind in DATABASE_MESSAGES)
        return problem(status_of(error), DATABASE_MESSAGES[kind], kind.__name__)
    details: dict[str, Any] = {"next": [step.to_dict() for step in error.next]}
    for name in ("near", "candidates", "head", "invocation", "nearest", "operation"):
        if (value := getattr(error, name, None)) not in (None, ()):
            details[name] = value
    for name in ("plan", "report"):
        if (value := getattr(error, name, None)) is not None and hasattr(value, "to_dict"):
            details[name] = value.to_dict()
    name = "NotAllowed" if isinstance(error, Unauthenticated) else type(error).__name__
    return problem(status_of(error), error.worded(face) if face else error.message, name, **details)


def problem_response(details: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(details), details["status"], headers, MEDIA_TYPE)


def unexpected_problem(error: Exception) -> dict[str, Any]:
    """Log an unexpected error; return problem details that reveal nothing about it."""
    LOG.error("A request failed.", exc_info=error)
    return problem(500, "Internal error. The server log has the details.")
