"""The ASGI application: the pages, the API, routes for probes, and the guard in front of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from agentgit.errors import AgentGitError, InvalidInput
from agentgit.next_steps import Next
from agentgit.store.schema import schema
from agentgit.web import api, pages
from agentgit.web.authentication import Authenticator, OwnerLink
from agentgit.web.problems import LOG
from agentgit.web.proxies import public_address
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


STATIC_FOLDER = Path(__file__).parent / "static"


def app(
    repo: Repository,
    *,
    graph: RollbackGraph | None = None,
    link: OwnerLink | None = None,
    hosts: Iterable[str] | None = None,
    insecure: bool = False,
    public_url: str | None = None,
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
        serve_graph(graph)
    authenticator = Authenticator(repo=repo, link=link)
    return create_app(authenticator, hosts=hosts, insecure=insecure, public_url=public_url, limits=limits)


def create_app(
    authenticator: Authenticator,
    *,
    hosts: Iterable[str] | None = None,
    insecure: bool = False,
    public_url: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Create the application with a given authentication. Only a server that knows the peer may take a header."""
    address = public_address(public_url) if public_url is not None else None
    host_names = [*(hosts or ()), *([name_of(address.host)] if address else [])]
    site = Site(
        authenticator=authenticator,
        hosts=frozenset(name.lower() for name in host_names) if host_names or hosts is not None else None,
        insecure=insecure,
        public=address,
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


def serve_graph(graph: RollbackGraph) -> None:
    """Let a graph run the sessions that no other one runs in this process."""
    served = graph.agentgit_threads.wrapped
    if served.settings.workspace is not None:
        raise InvalidInput(
            "The graph has a workspace, which would be that of all sessions. Leave it out.", Next("keep_files")
        )
    graph.agentgit_threads.graphs.of_all = served


class StaticFolder(StaticFiles):
    """Style sheets and scripts. Browsers may cache them, but revalidate them on each use."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response
