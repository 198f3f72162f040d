"""The signed-in user of a page, and the redirect to the sign-in page for everyone else."""

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
from agentgit.web.site import site_of

MAX_URL_LENGTH = 2_000
"""The maximum length of the URL to return to after a sign-in."""


@dataclass(frozen=True)
class Visitor:
    request: Request
    repo: Repository
    by_proxy: bool
    """True if a proxy has signed the user in, so that the user cannot sign out here."""

    def page(self, template: str, /, *, status: int = 200, **context: Any) -> HTMLResponse:
        return render_page(self.request, template, {**context, "visitor": self}, status=status)

    def redirect(self, path: str) -> RedirectResponse:
        """Redirect to another page, with status 303 so that a form is not sent again."""
        return RedirectResponse(self.request.scope.get("root_path", "") + path, 303)


def visitor_of(request: Request) -> Visitor:
    authenticator = site_of(request).authenticator
    if (repo := authenticator.by_proxy(request)) is not None:
        return Visitor(request, repo, by_proxy=True)
    if (credential := request.cookies.get(cookie_name(request))) is None:
        raise Unauthenticated("Not signed in.")
    try:
        return Visitor(request, authenticator.by_credential(credential), by_proxy=False)
    except NotAllowed as error:
        raise Unauthenticated(error.message, *error.next) from error


Visit = Annotated[Visitor, Depends(visitor_of)]

Text = Annotated[str, Form(max_length=300)]
"""A field of a form."""

Checkbox = Annotated[bool, Form()]
Name = Annotated[Text, AfterValidator(str.strip)]
"""A field of a form in which a user types a name or a token; outer spaces are removed."""


def redirect_to_sign_in(request: Request) -> RedirectResponse:
    """Redirect to the sign-in page, with the requested URL to return to."""
    requested_url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = (
        f"?next={quote(requested_url)}"
        if request.method in SAFE_METHODS and requested_url != "/" and len(requested_url) <= MAX_URL_LENGTH
        else ""
    )
    return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in{query}", 303)


def local_path_or_home(path: str, root: str = "") -> str:
    """Return a path to go to after a sign-in; the home page if the path leads to another site.

    Example:
        >>> local_path_or_home("/sessions?name=a"), local_path_or_home("//evil.example"), local_path_or_home("https://evil.example")
        ('/sessions?name=a', '/', '/')
    """
    is_local = path.startswith(f"{root}/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_local else f"{root}/"


def parse_checkpoint_ref(text: str) -> str | int:
    """Parse a reference to a checkpoint: a number is always an id, even if something has it as its name."""
    return int(text) if text.isascii() and text.isdigit() else text
