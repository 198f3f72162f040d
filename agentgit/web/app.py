"""The application: the pages, the API below them, and the guard before both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from agentgit.web import api, health, pages
from agentgit.web.authentication import Accounts, OwnerLink
from agentgit.web.proxies import Proxies, public_address
from agentgit.web.security import Guard
from agentgit.web.site import Limits, Site, name_of

if TYPE_CHECKING:
    from agentgit.repository import Repository

STATIC = Path(__file__).parent / "static"


def app(
    repo: Repository,
    *,
    link: OwnerLink | None = None,
    hosts: Iterable[str] | None = None,
    insecure: bool = False,
    trusted_proxies: Iterable[str] = (),
    public_url: str | None = None,
    metrics_token: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Make an ASGI application of a repository: pages, and an HTTP API under `/api/v1`.

    Args:
        repo: Of whoever runs it; each request is served as the user who makes it. It stays open as long as the
            application is used, and is closed by whoever opened it.
        link: Let in by a link, as the owner of `repo`; None asks for names and passwords. Both take API keys.
        hosts: The names under which it may be asked for, besides that of the public URL; None is any if there is none.
        insecure: True to let people log in over plain http from other machines.
        trusted_proxies: Addresses and networks of the proxies before it, which say who asks, by which scheme and host.
        public_url: The address at which browsers find it; None is the scheme and host of each request.
        metrics_token: The token that lets a program read `/metrics`; None lets admins only, with an API key.
        limits: The limits of one request.

    Raises:
        InvalidInput: A proxy or the public URL is none.

    Example:
        >>> import agentgit
        >>> from fastapi.testclient import TestClient
        >>> site = app(agentgit.open(":memory:"))
        >>> TestClient(site).get("/api/v1/sessions").json()["status"]
        401
    """
    public = public_address(public_url) if public_url is not None else None
    names = [*(hosts or ()), *([name_of(public.host)] if public else [])]
    site = Site(
        entrance=link or Accounts(repo),
        hosts=frozenset(name.lower() for name in names) if names or hosts is not None else None,
        insecure=insecure,
        proxies=Proxies(trusted_proxies),
        public=public,
        metrics_token=metrics_token or None,
        limits=limits or Limits(),
    )
    made = FastAPI(
        title="agentgit",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(Guard, site=site, failed=pages.unexpected)],
    )
    made.state.site = site
    made.mount("/api/v1", api.make())
    made.mount("/static", Static(directory=STATIC))
    made.include_router(health.router)
    pages.add_to(made)
    return made


class Static(StaticFiles):
    """Style and script, which browsers may keep; they ask each time whether there are new ones."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "no-cache"
        return answer
