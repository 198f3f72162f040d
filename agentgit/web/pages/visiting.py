"""Visitors of a page, and the redirect for those who are not logged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from agentgit.errors import NotAllowed
from agentgit.repository import Repository
from agentgit.web.pages.drawing import draw
from agentgit.web.problems import Unknown
from agentgit.web.security import SAFE, cookie_name
from agentgit.web.site import note_user, site_of

LONGEST = 2_000
"""The most characters of the address to which somebody comes back after logging in."""


@dataclass(frozen=True)
class Visitor:
    """Somebody who looks at a page.

    Args:
        request: The request of the user.
        repo: The repository as the user sees it.
        by_password: True if they came in with a password, and so have accounts.
    """

    request: Request
    repo: Repository
    by_password: bool

    def page(self, template: str, /, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Write a page for them."""
        return draw(self.request, template, {**context, "visitor": self}, status=status)

    def go(self, path: str) -> RedirectResponse:
        """Send them to another page, after a form."""
        return RedirectResponse(self.request.scope.get("root_path", "") + path, 303)


def visitor_of(request: Request) -> Visitor:
    """Return the principal that looks at a page.

    Raises:
        Unknown: They are not in.
    """
    entrance, credential = site_of(request).entrance, request.cookies.get(cookie_name(request))
    if credential is None:
        raise Unknown("Not logged in.")
    try:
        repo = entrance.repository(credential)
    except NotAllowed as error:
        raise Unknown(str(error)) from error
    note_user(request, repo.user.id)
    return Visitor(request, repo, entrance.by_password)


Visit = Annotated[Visitor, Depends(visitor_of)]


def to_the_door(request: Request) -> RedirectResponse:
    """Send somebody to where one comes in, and back to where they wanted to go."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = f"?next={quote(wanted)}" if request.method in SAFE and wanted != "/" and len(wanted) <= LONGEST else ""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/login{back}", 303)


def inside(path: str, root: str = "") -> str:
    """Return a path to go to after logging in; what leads elsewhere leads to the beginning.

    Args:
        path: The path that somebody wanted to open.
        root: The path at which the application is mounted.

    Example:
        >>> inside("/sessions?name=a"), inside("//evil.example"), inside("https://evil.example")
        ('/sessions?name=a', '/', '/')
    """
    is_ours = path.startswith(f"{root}/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_ours else f"{root}/"


def place_of(text: str) -> str | int:
    """Read a place: a number is the id of a checkpoint, whatever others may be called."""
    return int(text) if text.isascii() and text.isdigit() else text
