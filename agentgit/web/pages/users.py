"""The pages of people: signing in and out, users for admins, API keys, sharing of a session, and help."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentgit.auth import User
from agentgit.auth.principal import OWNER, allows
from agentgit.errors import InvalidInput, NotAllowed
from agentgit.web.api.dependencies import MAX_ID, Id
from agentgit.web.api.users import to_timedelta
from agentgit.web.pages.dependencies import MAX_URL_LENGTH, Checkbox, Name, Visit, Visitor, local_path_or_home
from agentgit.web.pages.rendering import render_page
from agentgit.web.security import (
    address_of,
    cookie_name,
    delete_sign_in_cookie,
    require_same_site,
    require_secure_connection,
    set_sign_in_cookie,
)
from agentgit.web.site import site_of

router = APIRouter()

Next = Annotated[str, Query(max_length=MAX_URL_LENGTH)]


@router.get("/sign-in", dependencies=[Depends(require_secure_connection)])
def sign_in_page(request: Request, next: Next = "/", token: Annotated[str, Query(max_length=300)] = "") -> Response:
    """Show the form that takes a key, filled in by a sign-in link. The link of `agentgit serve` signs in at once.

    Only the form uses up a link, so that a preview of the link does not.
    """
    link = site_of(request).authenticator.link
    return _signed_in(request, token, next) if link is not None and token in link else _show_form(request, next, token)


def _show_form(request: Request, next: str, key: str, error: NotAllowed | None = None) -> Response:
    context = {
        "is_local": site_of(request).authenticator.link is not None,
        "key": key,
        "wrong": error.worded("page") if error else None,
        "next": local_path_or_home(next, request.scope.get("root_path", "")),
    }
    return render_page(request, "sign_in", context, status=200 if error is None else 401)


def _signed_in(request: Request, credential: str, next: str) -> Response:
    target = local_path_or_home(next, request.scope.get("root_path", ""))
    return set_sign_in_cookie(request, RedirectResponse(target, 303), credential)


@router.post("/sign-in", dependencies=[Depends(require_secure_connection), Depends(require_same_site)])
def sign_in(request: Request, key: Name, next: Annotated[str, Form(max_length=MAX_URL_LENGTH)] = "/") -> Response:
    """Sign in with an API key or a sign-in link. It signs out first, so that no key of the browser is left behind."""
    authenticator = site_of(request).authenticator
    try:
        credential = authenticator.credential_for(key)
    except NotAllowed as error:
        return _show_form(request, next, "", error)
    with suppress(NotAllowed):
        authenticator.sign_out(request.cookies.get(cookie_name(request), ""))
    return _signed_in(request, credential, next)


@router.post("/sign-out", dependencies=[Depends(require_same_site)])
def sign_out(request: Request, visit: Visit) -> Response:
    if not visit.by_proxy:
        site_of(request).authenticator.sign_out(request.cookies[cookie_name(request)])
    return delete_sign_in_cookie(request, visit.redirect("/sign-in"))


@router.get("/help")
def help_page(visit: Visit) -> Response:
    return visit.page("help")


RecordId = Annotated[int, Form(ge=1, le=MAX_ID)]


@router.get("/users")
def users(visit: Visit) -> Response:
    return _render_users(visit)


def _render_users(visit: Visitor, user: User | None = None) -> Response:
    link = ""
    if user is not None and (address := address_of(visit.request)) is not None:
        root = visit.request.scope.get("root_path", "")
        link = f"{address.origin}{root}/sign-in?token={visit.repo.users.create_link(user).secret}"
    return visit.page("users", users=visit.repo.users.list(), user=user, link=link)


@router.post("/users", dependencies=[Depends(require_same_site)])
def add_user(visit: Visit, name: Name, is_admin: Annotated[bool, Form()] = False) -> Response:
    return _render_users(visit, visit.repo.users.add(name, is_admin=is_admin))


@router.post("/users/change", dependencies=[Depends(require_same_site)])
def change_user(
    visit: Visit, user: RecordId, what: Annotated[Literal["disable", "enable", "link"], Form()]
) -> Response:
    if what == "link":
        return _render_users(visit, visit.repo.users.find(user))
    (visit.repo.users.disable if what == "disable" else visit.repo.users.enable)(user)
    return visit.redirect("/users")


@router.post("/users/delete", dependencies=[Depends(require_same_site)])
def delete_user(visit: Visit, user: RecordId, name: Name = "", force: Checkbox = False) -> Response:
    target = visit.repo.users.find(user)
    if name != target.name:
        raise InvalidInput(f"Nothing was deleted. Type the name of the user, {target.name}, to delete them.")
    return visit.page("erased", name=target.name, erased=visit.repo.users.delete(user, force=force))


@router.get("/keys")
def keys(visit: Visit) -> Response:
    return _render_keys(visit)


def _render_keys(visit: Visitor, secret: str | None = None) -> Response:
    return visit.page("keys", keys=visit.repo.keys.list(), secret=secret)


@router.post("/keys", dependencies=[Depends(require_same_site)])
def create_key(
    visit: Visit,
    name: Name,
    scope: Annotated[Literal["read", "write", "admin"], Form()] = "read",
    days: Annotated[int, Form(ge=0, le=36_500)] = 90,
) -> Response:
    new_key = visit.repo.keys.create(name, scopes=(scope,), expires_in=to_timedelta(days * 86_400 if days else None))
    return _render_keys(visit, new_key.secret)


@router.post("/keys/revoke", dependencies=[Depends(require_same_site)])
def revoke_key(visit: Visit, key: RecordId) -> Response:
    visit.repo.keys.revoke(key)
    return visit.redirect("/keys")


# -- sharing of a session

Role = Annotated[Literal["viewer", "editor", "owner"], Form()]
Days = Annotated[int | None, Form(ge=0, le=36_500)]


@router.get("/sessions/{session_id}/sharing")
def sharing(visit: Visit, session_id: Id) -> Response:
    return _render_sharing(visit, session_id)


def _render_sharing(visit: Visitor, session_id: int, token: str | None = None) -> Response:
    session = visit.repo.session(session_id)
    info = session.info
    is_owner = allows(info.role, OWNER)
    links = session.sharing.links() if is_owner else []
    return visit.page(
        "sharing",
        session=info,
        is_owner=is_owner,
        members=session.sharing.members(),
        links=links,
        token=token,
    )


@router.post("/sessions/{session_id}/members", dependencies=[Depends(require_same_site)])
def share(visit: Visit, session_id: Id, user: Name, role: Role = "viewer", days: Days = None) -> Response:
    visit.repo.session(session_id).sharing.share(user, role, to_timedelta(days * 86_400 if days else None))
    return visit.redirect(f"/sessions/{session_id}/sharing")


@router.post("/sessions/{session_id}/members/delete", dependencies=[Depends(require_same_site)])
def unshare(visit: Visit, session_id: Id, user: Name) -> Response:
    visit.repo.session(session_id).sharing.unshare(user)
    has_left = user == visit.repo.user.name
    return visit.redirect("/sessions" if has_left else f"/sessions/{session_id}/sharing")


@router.post("/sessions/{session_id}/links", dependencies=[Depends(require_same_site)])
def create_link(visit: Visit, session_id: Id, role: Role = "viewer", days: Days = 7) -> Response:
    new_link = visit.repo.session(session_id).sharing.create_link(role, to_timedelta(days * 86_400 if days else None))
    return _render_sharing(visit, session_id, new_link.token)


@router.post("/sessions/{session_id}/links/revoke", dependencies=[Depends(require_same_site)])
def revoke_link(visit: Visit, session_id: Id, link: Annotated[int, Form(ge=1, le=MAX_ID)]) -> Response:
    visit.repo.revoke_link(link)
    return visit.redirect(f"/sessions/{session_id}/sharing")


@router.get("/join")
def join_page(visit: Visit, token: str = "") -> Response:
    return visit.page("join", token=token[:300])


@router.post("/join", dependencies=[Depends(require_same_site)])
def join(visit: Visit, token: Name) -> Response:
    return visit.redirect(f"/sessions/{visit.repo.accept(token).id}")
