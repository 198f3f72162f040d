"""The HTTP API, version 1: JSON resources, problem details for errors, and an OpenAPI description."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import agentgit
from agentgit.errors import AgentGitError
from agentgit.web import problems
from agentgit.web.api import events, rollbacks, sessions, users

MAX_ERRORS = 10
"""The maximum number of validation errors that one answer reports."""


def create_api() -> FastAPI:
    """Create the application of the API, which is mounted below the application of the pages."""
    api = FastAPI(
        title="agentgit",
        version=agentgit.__version__,
        summary="Git for LangGraph sessions.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,
    )
    for router in (
        users.account_router,
        sessions.router,
        sessions.checkpoint_router,
        rollbacks.router,
        events.router,
        users.sharing_router,
        users.router,
    ):
        api.include_router(router)
    api.add_exception_handler(AgentGitError, _answer_error)
    api.add_exception_handler(RequestValidationError, _answer_invalid_request)
    api.add_exception_handler(HTTPException, _answer_http_error)
    api.add_exception_handler(Exception, _answer_unexpected_error)
    _add_problem_schema(api)
    return api


def _add_problem_schema(api: FastAPI) -> None:
    original = api.openapi

    def describe() -> dict[str, Any]:
        schema = original()
        schema["components"]["schemas"].setdefault("Problem", problems.Problem.model_json_schema())
        return schema

    api.openapi = describe  # type: ignore[method-assign]  # the way that FastAPI documents


def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentGitError)  # noqa: S101  # registered for this class only
    return problems.problem_response(problems.problem_of_error(error), problems.headers_of(error))


def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for this class only
    issues = [{"where": "/".join(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()[:MAX_ERRORS]]
    detail = "; ".join(f"{one['where']}: {one['what']}" for one in issues)
    return problems.problem_response(problems.problem(422, f"{detail}.", "InvalidInput", wrong=issues))


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class only
    detail = str(error.detail)
    if detail == HTTPStatus(error.status_code).phrase:  # the default text: no route gave a detail
        schema_url = f"{request.scope.get('root_path', '')}/openapi.json"
        detail = f"There is no endpoint {request.method} {request.url.path}. {schema_url} lists the endpoints."
    return problems.problem_response(problems.problem(error.status_code, detail), dict(error.headers or {}))


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    return problems.problem_response(problems.unexpected_problem(error))
