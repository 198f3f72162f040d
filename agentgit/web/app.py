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

from agentgit.web import api, pages
from agentgit.web.entrance import Accounts, Link
from agentgit.web.security import Guard
from agentgit.web.site import Limits, Site

if TYPE_CHECKING:
    from agentgit.repository import Repository

STATIC = Path(__file__).parent / "static"


def app(
    repo: Repository, *, link: Link | None = None, hosts: Iterable[str] | None = None, insecure: bool = False,
    limits: Limits | None = None,
) -> FastAPI:  # fmt: skip
    """Make an ASGI application of a repository: pages, and an HTTP API under `/api/v1`.

    Args:
        repo: of whoever runs it; each request is served as the user who makes it. It stays open as long as the
            application is used, and is closed by whoever opened it.
        link: let in by a link, as the owner of `repo`; None asks for names and passwords. Both take API keys.
        hosts: the names under which it may be asked for; None is any.
        insecure: True to let people log in over plain http from other machines.
        limits: how much one request may ask for.

    Example:
        >>> import agentgit
        >>> from fastapi.testclient import TestClient
        >>> site = app(agentgit.open(":memory:"))
        >>> TestClient(site).get("/api/v1/sessions").json()["status"]
        401
    """
    site = Site(
        entrance=link or Accounts(repo),
        hosts=frozenset(name.lower() for name in hosts) if hosts is not None else None,
        insecure=insecure, limits=limits or Limits(),
    )  # fmt: skip
    made = FastAPI(
        title="agentgit", openapi_url=None, docs_url=None, redoc_url=None,
        middleware=[Middleware(Guard, site=site, failed=pages.unexpected)],
    )  # fmt: skip
    made.state.site = site
    made.mount("/api/v1", api.make())
    made.mount("/static", Static(directory=STATIC))
    pages.add_to(made)
    return made


class Static(StaticFiles):
    """Style and script, which browsers may keep; they ask each time whether there are new ones."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Give a file."""
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "no-cache"
        return answer
