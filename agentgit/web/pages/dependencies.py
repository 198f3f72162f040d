"""The logged-in user of a page, and the redirect to the login page for everyone else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Form
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from agentgit.errors import NotAllowed
from agentgit.repository import Repository
from agentgit.web.pages.rendering import render_page
from agentgit.web.problems import Unauthenticated
from agentgit.web.security import SAFE_METHODS, cookie_name
from agentgit.web.site import record_user, site_of

MAX_URL_LENGTH = 2_000
"""The maximum length of the URL to return to after a login."""


@dataclass(frozen=True)
class Visitor:
    """The user who requests a page."""

    request: Request
    repo: Repository
    by_password: bool

    def page(self, template: str, /, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Render a page for this user."""
        return render_page(self.request, template, {**context, "visitor": self}, status=status)

    def redirect(self, path: str) -> RedirectResponse:
        """Redirect to another page, with status 303 so that a form is not sent again."""
        return RedirectResponse(self.request.scope.get("root_path", "") + path, 303)


def visitor_of(request: Request) -> Visitor:
    """Return the user who requests a page."""
    authenticator, credential = site_of(request).authenticator, request.cookies.get(cookie_name(request))
    if credential is None:
        raise Unauthenticated("Not logged in.")
    try:
        repo = authenticator.repository(credential)
    except NotAllowed as error:
        raise Unauthenticated(str(error)) from error
    record_user(request, repo.user.id)
    return Visitor(request, repo, authenticator.by_password)


Visit = Annotated[Visitor, Depends(visitor_of)]

Text = Annotated[str, Form(max_length=300)]
"""A field of a form."""

Name = Annotated[Text, AfterValidator(str.strip)]
"""A field of a form in which a user types a name or a token; outer spaces are removed."""


def redirect_to_login(request: Request) -> RedirectResponse:
    """Redirect to the login page, with the requested URL to return to."""
    requested_url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = (
        f"?next={quote(requested_url)}"
        if request.method in SAFE_METHODS and requested_url != "/" and len(requested_url) <= MAX_URL_LENGTH
        else ""
    )
    return RedirectResponse(f"{request.scope.get('root_path', '')}/login{query}", 303)


def local_path_or_home(path: str, root: str = "") -> str:
    """Return a path to go to after a login; the home page if the path leads to another site.

    Example:
        >>> local_path_or_home("/sessions?name=a"), local_path_or_home("//evil.example"), local_path_or_home("https://evil.example")
        ('/sessions?name=a', '/', '/')
    """
    is_local = path.startswith(f"{root}/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_local else f"{root}/"


def parse_checkpoint_ref(text: str) -> str | int:
    """Parse a reference to a checkpoint: a number is always an id, even if something has it as its name."""
    return int(text) if text.isascii() and text.isdigit() else text
