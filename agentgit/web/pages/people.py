"""The pages of users, for admins, and of API keys."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form
from starlette.responses import Response

from agentgit.errors import InvalidInput
from agentgit.web.api.asking import LARGEST_ID
from agentgit.web.api.sharing import lasting
from agentgit.web.pages.visiting import Visit, Visitor
from agentgit.web.security import same_site

router = APIRouter()

Text = Annotated[str, Form(max_length=300)]
Password = Annotated[str, Form(max_length=2_000)]
Of = Annotated[int, Form(ge=1, le=LARGEST_ID)]


@router.get("/users")
def users(visit: Visit) -> Response:
    """List the users."""
    return visit.page("users", users=visit.repo.users.all())


@router.post("/users", dependencies=[Depends(same_site)])
def make_user(visit: Visit, name: Text, password: Password = "", is_admin: Annotated[bool, Form()] = False) -> Response:
    """Make a user."""
    visit.repo.users.add(name.strip(), password or None, is_admin=is_admin)
    return visit.go("/users")


@router.post("/users/change", dependencies=[Depends(same_site)])
def change_user(
    visit: Visit, user: Of, what: Annotated[Literal["disable", "enable", "password"], Form()], password: Password = ""
) -> Response:
    """Shut a user out, let them in again, or give them another password."""
    if what == "password":
        visit.repo.users.set_password(user, password)
    else:
        (visit.repo.users.disable if what == "disable" else visit.repo.users.enable)(user)
    return visit.go("/users")


@router.post("/users/delete", dependencies=[Depends(same_site)])
def delete_user(visit: Visit, user: Of, name: Text = "") -> Response:
    """Erase a user with all of their sessions, if their name was typed, and tell what went."""
    found = visit.repo.users.find(user)
    if name.strip() != found.name:
        raise InvalidInput(f"Nothing was deleted. Type the name of the user, {found.name}, to delete them.")
    return visit.page("erased", name=found.name, erased=visit.repo.users.delete(user))


@router.get("/keys")
def keys(visit: Visit) -> Response:
    """List one's own API keys."""
    return _keys(visit)


def _keys(visit: Visitor, secret: str | None = None) -> Response:
    return visit.page("keys", keys=visit.repo.keys.all(), secret=secret)


@router.post("/keys", dependencies=[Depends(same_site)])
def make_key(
    visit: Visit,
    name: Text,
    scope: Annotated[Literal["read", "fork", "write", "admin"], Form()] = "read",
    days: Annotated[int, Form(ge=0, le=36_500)] = 90,
) -> Response:
    """Make an API key, and show it this once."""
    made = visit.repo.keys.create(name.strip(), scopes=(scope,), expires_in=lasting(days * 86_400 if days else None))
    return _keys(visit, made.secret)


@router.post("/keys/revoke", dependencies=[Depends(same_site)])
def revoke_key(visit: Visit, key: Of) -> Response:
    """Let a key be worth nothing from now on."""
    visit.repo.keys.revoke(key)
    return visit.go("/keys")


@router.post("/account/password", dependencies=[Depends(same_site)])
def own_password(visit: Visit, password: Password, current: Password = "") -> Response:
    """Set another password for oneself."""
    visit.repo.users.set_password(visit.repo.user.id, password, current=current)
    return visit.go("/keys")
