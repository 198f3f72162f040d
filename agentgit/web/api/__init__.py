"""The HTTP API, version 1: JSON resources, problem details for errors, and an OpenAPI description."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import agentgit
from agentgit.errors import AgentGitError
from agentgit.web import problems
from agentgit.web.api import events, sessions, sharing, users, world

MOST = 10
"""The maximum number of validation errors that one answer reports."""


def make() -> FastAPI:
    """Create the application of the API, which is mounted below the application of the pages."""
    api = FastAPI(
        title="agentgit",
        version=agentgit.__version__,
        summary="Git for LangGraph sessions.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        generate_unique_id_function=_name,
    )
    for router in (
        users.account_router,
        sessions.router,
        sessions.checkpoint_router,
        world.router,
        events.router,
        sharing.router,
        users.router,
    ):
        api.include_router(router)
    api.add_exception_handler(AgentGitError, _failed)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _refused)
    api.add_exception_handler(Exception, _unexpected)
    _describe(api)
    return api


def _name(route: APIRoute) -> str:
    return route.name


def _describe(api: FastAPI) -> None:
    """Add the `Problem` schema to the OpenAPI description."""
    plain = api.openapi

    def described() -> dict[str, Any]:
        found = plain()
        found["components"]["schemas"].setdefault("Problem", problems.Problem.model_json_schema())
        return found

    api.openapi = described  # type: ignore[method-assign]  # the way that FastAPI documents


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentGitError)  # noqa: S101  # registered for this class only
    return problems.answer(problems.problem_of_error(error), problems.headers_of(error))


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for this class only
    wrong = [{"where": "/".join(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()[:MOST]]
    told = "; ".join(f"{one['where']}: {one['what']}" for one in wrong)
    return problems.answer(problems.problem(422, f"{told}.", "InvalidInput", wrong=wrong))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class only
    told = str(error.detail)
    if told == HTTPStatus(error.status_code).phrase:  # the default text: no route gave a detail
        described = f"{request.scope.get('root_path', '')}/openapi.json"
        told = f"There is no endpoint {request.method} {request.url.path}. {described} lists the endpoints."
    return problems.answer(problems.problem(error.status_code, told), dict(error.headers or {}))


def _unexpected(request: Request, error: Exception) -> Response:
    return problems.answer(problems.unexpected(error))
