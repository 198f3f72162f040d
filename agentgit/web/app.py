"""The ASGI application: the pages, the API, routes for probes and metrics, and the guard in front of them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from agentgit.errors import AgentGitError, InvalidInput, NotAllowed
from agentgit.store.schema import schema
from agentgit.web import api, pages
from agentgit.web.api.dependencies import Bearer
from agentgit.web.authentication import Accounts, OwnerLink
from agentgit.web.metrics import MEDIA_TYPE
from agentgit.web.problems import LOG
from agentgit.web.proxies import Proxies, public_address
from agentgit.web.security import Guard
from agentgit.web.site import Limits, Site, name_of, site_of

if TYPE_CHECKING:
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.repository import Repository

router = APIRouter()


@router.get("/healthz", include_in_schema=False)
async def healthz() -> Response:
    """Report that the process is alive, without a database query."""
    return PlainTextResponse("alive\n")


@router.get("/readyz", include_in_schema=False)
def readyz(request: Request) -> Response:
    """Report whether requests can be served: the database is available with the right schema; no shutdown has begun."""
    site = site_of(request)
    try:
        schema.check(site.repo.context.store.database)
    except AgentGitError as error:
        LOG.warning("Not ready: %s", error)
        return PlainTextResponse("not ready\n", 503)
    return PlainTextResponse("stopping\n", 503) if site.is_closing else PlainTextResponse("ready\n")


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request, bearer: Bearer) -> Response:
    """Return the metrics to a caller with the metrics token or with the API key of an admin."""
    site, credential = site_of(request), bearer.credentials if bearer is not None else ""
    is_token = site.metrics_token is not None and hmac.compare_digest(credential.encode(), site.metrics_token.encode())
    try:
        is_admin = not is_token and bool(credential) and site.authenticator.repository(credential).user.is_admin
    except NotAllowed:
        is_admin = False
    if not is_token and not is_admin:
        message = "Send the header Authorization: Bearer with the key of an admin, or the token of --metrics-token.\n"
        return PlainTextResponse(message, 401, {"www-authenticate": 'Bearer realm="agentgit"'})
    gauges = {"open_feeds": len(site.feed_counter)}
    if site.connections is not None:
        gauges["open_connections"] = site.connections()
    return Response(site.metrics.text(gauges), media_type=MEDIA_TYPE)


STATIC_FOLDER = Path(__file__).parent / "static"


def app(
    repo: Repository,
    *,
    graph: RollbackGraph | None = None,
    link: OwnerLink | None = None,
    hosts: Iterable[str] | None = None,
    insecure: bool = False,
    trusted_proxies: Iterable[str] = (),
    public_url: str | None = None,
    metrics_token: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Create an ASGI application that serves a repository: pages, and an HTTP API under `/api/v1`.

    Example:
        >>> import agentgit
        >>> from fastapi.testclient import TestClient
        >>> site = app(agentgit.open(":memory:"))
        >>> TestClient(site).get("/api/v1/sessions").json()["status"]
        401
    """
    if graph is not None:
        _serve_graph(repo, graph)
    address = public_address(public_url) if public_url is not None else None
    host_names = [*(hosts or ()), *([name_of(address.host)] if address else [])]
    site = Site(
        authenticator=link or Accounts(repo),
        hosts=frozenset(name.lower() for name in host_names) if host_names or hosts is not None else None,
        insecure=insecure,
        proxies=Proxies(trusted_proxies),
        public=address,
        metrics_token=metrics_token or None,
        limits=limits or Limits(),
    )
    application = FastAPI(
        title="agentgit",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(Guard, site=site, failed=pages.render_unexpected_error)],
    )
    application.state.site = site
    application.mount("/api/v1", api.create_api())
    application.mount("/static", StaticFolder(directory=STATIC_FOLDER))
    application.include_router(router)
    pages.add_to(application)
    return application


def _serve_graph(repo: Repository, graph: RollbackGraph) -> None:
    """Let a graph run the sessions that no other one runs in this process."""
    served = graph.agentgit_threads.wrapped
    if served.settings.workspace is not None:
        raise InvalidInput(
            "The graph has a workspace, which would be that of all sessions. Leave it out, or wrap the graph for one "
            "session: repo.wrap(graph, session, workspace=...)"
        )
    repo.context.registry.graph_of_all = served


class StaticFolder(StaticFiles):
    """Style sheets and scripts. Browsers may cache them, but revalidate them on each use."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file with a `Cache-Control` header."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response
