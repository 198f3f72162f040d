"""Routes for machines: whether the server is alive, whether it is ready, and its counts."""

from __future__ import annotations

import hmac

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from agentgit.errors import AgentGitError, NotAllowed
from agentgit.store.schema import schema
from agentgit.web.api.asking import Bearer
from agentgit.web.metrics import MEDIA_TYPE
from agentgit.web.problems import LOG
from agentgit.web.site import site_of

router = APIRouter()


@router.get("/healthz", include_in_schema=False)
async def healthz() -> Response:
    """Report that the process is alive; no database is asked."""
    return PlainTextResponse("alive\n")


@router.get("/readyz", include_in_schema=False)
def readyz(request: Request) -> Response:
    """Report whether requests can be served: the database answers, its schema is right, the server does not stop."""
    site = site_of(request)
    try:
        schema.check(site.repo.context.store.database)
    except AgentGitError as error:
        LOG.warning("Not ready: %s", error)
        return PlainTextResponse("not ready\n", 503)
    return PlainTextResponse("stopping\n", 503) if site.is_closing else PlainTextResponse("ready\n")


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request, bearer: Bearer) -> Response:
    """Return the counts to who has the token for them, or the key of an admin."""
    site, shown = site_of(request), bearer.credentials if bearer is not None else ""
    is_token = site.metrics_token is not None and hmac.compare_digest(shown.encode(), site.metrics_token.encode())
    try:
        is_admin = not is_token and bool(shown) and site.entrance.repository(shown).user.is_admin
    except NotAllowed:
        is_admin = False
    if not is_token and not is_admin:
        told = "Send the header Authorization: Bearer with the key of an admin, or with what --metrics-token says.\n"
        return PlainTextResponse(told, 401, {"www-authenticate": 'Bearer realm="agentgit"'})
    gauges = {"open_feeds": len(site.seats)}
    if site.connections is not None:
        gauges["open_connections"] = site.connections()
    return Response(site.metrics.text(gauges), media_type=MEDIA_TYPE)
