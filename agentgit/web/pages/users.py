"""The pages of accounts: login and logout, users for admins, API keys, and help."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentgit.auth.credentials import DEVICE_TOKEN_LIFETIME
from agentgit.errors import InvalidInput, NotAllowed
from agentgit.web.api.dependencies import MAX_ID
from agentgit.web.api.sharing import to_timedelta
from agentgit.web.authentication import Accounts, OwnerLink
from agentgit.web.pages.dependencies import MAX_URL_LENGTH, Name, Visit, Visitor, local_path_or_home
from agentgit.web.pages.rendering import render_page
from agentgit.web.problems import Unauthenticated, headers_of, status_of
from agentgit.web.security import (
    FORM_COOKIE,
    cookie_name,
    delete_login_cookie,
    device_cookie,
    log_in,
    new_form_cookie,
    require_same_site,
    require_secure_connection,
    set_cookie,
    set_login_cookie,
)
from agentgit.web.site import site_of

router = APIRouter()

Next = Annotated[str, Query(max_length=MAX_URL_LENGTH)]


@router.get("/enter", dependencies=[Depends(require_secure_connection)])
def enter(request: Request, token: Annotated[str, Query(max_length=200)]) -> Response:
    """Log in with the link that `agentgit serve` printed."""
    authenticator = site_of(request).authenticator
    if not isinstance(authenticator, OwnerLink):
        raise NotAllowed("Log in with a name and a password.")
    root = request.scope.get("root_path", "")
    return set_login_cookie(request, RedirectResponse(f"{root}/", 303), authenticator.log_in(token))


@router.get("/login", dependencies=[Depends(require_secure_connection)])
def login_page(request: Request, next: Next = "/") -> Response:
    """Show the login form, or where to find the login link."""
    return _render_login(request, next)


def _render_login(request: Request, next: str, error: NotAllowed | None = None, name: str = "") -> Response:
    form_cookie = None if request.cookies.get(FORM_COOKIE) else new_form_cookie()
    context = {
        "by_password": site_of(request).authenticator.by_password,
        "name": name,
        "wrong": error,
        "next": local_path_or_home(next, request.scope.get("root_path", "")),
    }
    page = render_page(
        request, "login", context, status=status_of(error) if error is not None else 200, form_cookie=form_cookie
    )
    if error is not None:
        page.headers.update({k: v for k, v in headers_of(error).items() if k == "retry-after"})
    if form_cookie is not None:
        set_cookie(request, page, FORM_COOKIE, form_cookie)
    return page


@router.post("/login", dependencies=[Depends(require_secure_connection), Depends(require_same_site)])
def login(
    request: Request,
    name: Name,
    password: Annotated[str, Form(max_length=2_000)],
    next: Annotated[str, Form(max_length=MAX_URL_LENGTH)] = "/",
) -> Response:
    """Log in with a name and a password."""
    authenticator = site_of(request).authenticator
    if not isinstance(authenticator, Accounts):
        raise NotAllowed("Log in with the link that agentgit serve printed.")
    try:
        device = request.cookies.get(device_cookie(request, name))
        result = log_in(request, authenticator, name, password, device)
    except NotAllowed as error:
        return _render_login(request, next, Unauthenticated(str(error)) if status_of(error) == 403 else error, name)
    response = set_login_cookie(
        request, RedirectResponse(local_path_or_home(next, request.scope.get("root_path", "")), 303), result.key
    )
    set_cookie(
        request, response, device_cookie(request, name), result.device, int(DEVICE_TOKEN_LIFETIME.total_seconds())
    )
    return response


@router.post("/logout", dependencies=[Depends(require_same_site)])
def logout(request: Request, visit: Visit) -> Response:
    """Log out, and revoke the credential of this browser."""
    site_of(request).authenticator.revoke(request.cookies[cookie_name(request)])
    return delete_login_cookie(request, visit.redirect("/login"))


@router.get("/help")
def help_page(visit: Visit) -> Response:
    """Show the help page."""
    return visit.page("help")


Password = Annotated[str, Form(max_length=2_000)]
RecordId = Annotated[int, Form(ge=1, le=MAX_ID)]


@router.get("/users")
def users(visit: Visit) -> Response:
    """List the users."""
    return visit.page("users", users=visit.repo.users.list())


@router.post("/users", dependencies=[Depends(require_same_site)])
def add_user(visit: Visit, name: Name, password: Password = "", is_admin: Annotated[bool, Form()] = False) -> Response:
    """Create a user."""
    visit.repo.users.add(name, password or None, is_admin=is_admin)
    return visit.redirect("/users")


@router.post("/users/change", dependencies=[Depends(require_same_site)])
def change_user(
    visit: Visit,
    user: RecordId,
    what: Annotated[Literal["disable", "enable", "password"], Form()],
    password: Password = "",
) -> Response:
    """Disable or enable a user, or change the user's password."""
    if what == "password":
        visit.repo.users.set_password(user, password)
    else:
        (visit.repo.users.disable if what == "disable" else visit.repo.users.enable)(user)
    return visit.redirect("/users")


@router.post("/users/delete", dependencies=[Depends(require_same_site)])
def delete_user(visit: Visit, user: RecordId, name: Name = "") -> Response:
    """Permanently delete a user with all their sessions if the name was typed, and show what was deleted."""
    target = visit.repo.users.find(user)
    if name != target.name:
        raise InvalidInput(f"Nothing was deleted. Type the name of the user, {target.name}, to delete them.")
    return visit.page("erased", name=target.name, erased=visit.repo.users.delete(user))


@router.get("/keys")
def keys(visit: Visit) -> Response:
    """List the user's own API keys."""
    return _render_keys(visit)


def _render_keys(visit: Visitor, secret: str | None = None) -> Response:
    return visit.page("keys", keys=visit.repo.keys.list(), secret=secret)


@router.post("/keys", dependencies=[Depends(require_same_site)])
def create_key(
    visit: Visit,
    name: Name,
    scope: Annotated[Literal["read", "fork", "write", "admin"], Form()] = "read",
    days: Annotated[int, Form(ge=0, le=36_500)] = 90,
) -> Response:
    """Create an API key, and show its secret once."""
    new_key = visit.repo.keys.create(name, scopes=(scope,), expires_in=to_timedelta(days * 86_400 if days else None))
    return _render_keys(visit, new_key.secret)


@router.post("/keys/revoke", dependencies=[Depends(require_same_site)])
def revoke_key(visit: Visit, key: RecordId) -> Response:
    """Revoke an API key."""
    visit.repo.keys.revoke(key)
    return visit.redirect("/keys")


@router.post("/account/password", dependencies=[Depends(require_same_site)])
def own_password(visit: Visit, password: Password, current: Password = "") -> Response:
    """Change the user's own password."""
    visit.repo.users.set_password(visit.repo.user.id, password, current=current)
    return visit.redirect("/keys")
