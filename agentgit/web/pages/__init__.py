"""The HTML pages, rendered on the server. Every page works without scripts."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgit.errors import AgentGitError, PlanChanged, RollbackBlocked
from agentgit.next_steps import NamedPlace
from agentgit.web import problems
from agentgit.web.pages import actions, rollbacks, session, sessions, tree, users
from agentgit.web.pages.dependencies import redirect_to_sign_in, visitor_of
from agentgit.web.pages.rendering import render_page


def add_to(app: FastAPI) -> None:
    for router in (
        users.router,
        sessions.router,
        sessions.checkpoint_router,
        session.router,
        tree.router,
        actions.router,
        rollbacks.router,
    ):
        app.include_router(router)
    app.add_exception_handler(AgentGitError, _render_error)
    app.add_exception_handler(RequestValidationError, _render_invalid_request)
    app.add_exception_handler(HTTPException, _render_http_error)


def _render_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentGitError)  # noqa: S101  # registered for this class only
    if isinstance(error, problems.Unauthenticated):
        return redirect_to_sign_in(request)
    error.place = _place_of(request)
    plan = error.plan if isinstance(error, PlanChanged | RollbackBlocked) else None
    return _render_problem(request, problems.problem_of_error(error, "page"), problems.headers_of(error), plan)


def _place_of(request: Request) -> NamedPlace | None:
    """Return the session and the branch of a page, for the commands that an error proposes; a switch leaves another."""
    session, path = request.path_params.get("session_id"), request.url.path
    branch = "" if path.endswith("/switch") else request.query_params.get("branch", "")
    return NamedPlace(str(session), branch) if session is not None else None


def _render_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for this class only
    issues = error.errors()[:5]
    if issues[0]["loc"][0] == "path":  # the address has a name where an id belongs
        detail = f"This page does not exist: “{issues[0]['input']}” is not an id. Start from the list of sessions."
        return _render_problem(request, problems.problem(404, detail))
    detail = "; ".join(f"{issue['loc'][-1]}: {issue['msg']}" for issue in issues)
    return _render_problem(request, problems.problem(422, f"{detail}. Go back and correct it."))


def _render_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class only
    detail = "This page does not exist." if error.status_code == 404 else str(error.detail)
    return _render_problem(request, problems.problem(error.status_code, detail), dict(error.headers or {}))


def render_unexpected_error(request: Request, error: Exception) -> Response:
    return _render_problem(request, problems.unexpected_problem(error))


def _render_problem(
    request: Request, details: dict[str, object], headers: dict[str, str] | None = None, plan: object = None
) -> Response:
    """Render an error as a page, with the navigation if the user is signed in."""
    try:
        visitor = visitor_of(request)
    except AgentGitError:
        visitor = None
    status, path = int(str(details["status"])), request.url.path.removeprefix(request.scope.get("root_path", ""))
    # The form of a plan is sent to the address of its page.
    back = f"{path}?{request.url.query}" if request.method == "POST" and request.url.query else None
    context = {"problem": details, "plan": plan, "back": back, "visitor": visitor}
    page = render_page(request, "problem", context, status=status)
    page.headers.update(headers or {})
    return page
