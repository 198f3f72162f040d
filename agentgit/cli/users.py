"""The commands for users and rights: users, keys, share, accept."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output
from agentgit.cli.completion import complete_session
from agentgit.cli.options import GROUP, ForceErase, PublicUrl, Yes, repository
from agentgit.errors import InvalidInput
from agentgit.render.records import record
from agentgit.render.text import clean
from agentgit.render.view import Span
from agentgit.render.views import lists
from agentgit.render.views.maintenance import erased as show_erased
from agentgit.values import parse_duration

if TYPE_CHECKING:
    from agentgit.auth import User
    from agentgit.repository import Repository

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", autocompletion=complete_session, help="The name or id of a session.")
]
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The name or id of a user.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the new user or key.")]
Id = Annotated[int, typer.Argument(metavar="ID", help="The id that the list shows.")]
OwnerOption = Annotated[str | None, typer.Option("--for", metavar="USER", help="The owner of the keys; for admins.")]
RoleOption = Annotated[str, typer.Option("--role", "-r", metavar="ROLE", help="The role: viewer, editor or owner.")]
Expires = Annotated[str | None, typer.Option("--expires", metavar="DURATION", help="The lifetime, like 12h, 7d or 2w.")]
KeyExpires = Annotated[
    str, typer.Option("--expires", metavar="DURATION", help="The lifetime, like 12h, 7d or 2w; or never.")
]

LOCAL_SERVER = "http://127.0.0.1:8700"
"""The address of `agentgit serve` without options."""

users, keys = typer.Typer(**GROUP), typer.Typer(**GROUP)


def parse_lifetime(text: str | None) -> timedelta | None:
    """Parse a lifetime; None never expires."""
    lifetime = parse_duration(text) if text is not None else None
    if text is not None and lifetime is None:
        raise InvalidInput(f"{text!r} is not a duration; write 30m, 12h, 7d or 2w.")
    return lifetime


def _print_value(value: Any, text: str) -> None:
    output.line(lambda: record(value), clean(text))


def _print_sign_in_link(repo: Repository, user: User, public_url: str | None, text: str) -> None:
    address = f"{(public_url or LOCAL_SERVER).rstrip('/')}/sign-in?token={repo.users.create_link(user).secret}"
    text = f"{text}. This link signs a browser in once, within 24 hours:"
    output.emit(lambda: {**record(user), "sign_in_link": address}, lambda: [(Span(clean(text)),), (Span(address),)])


# -- sessions


def share(
    session: SessionArgument,
    user: Annotated[str | None, typer.Argument(metavar="USER", help="The name or id of a user.")] = None,
    role: RoleOption = "viewer",
    expires: Expires = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all roles of the user at once.")] = False,
    link: Annotated[
        bool,
        typer.Option("--link", help="Create a link to join, valid for a week; its token is shown only once."),
    ] = False,
    links: Annotated[bool, typer.Option("--links", help="List the links.")] = False,
    revoke: Annotated[
        int | None,
        typer.Option("--revoke", metavar="ID", help="Revoke a link, and all roles got with it."),
    ] = None,
) -> None:
    if sum([user is not None, link, links, revoke is not None]) > 1 or (remove and user is None):
        raise InvalidInput("Write a user, --link, --links or --revoke; and --remove only with a user.")
    with repository() as repo:
        sharing = repo.session(session).sharing
        if link:
            new_link = sharing.create_link(role, parse_lifetime(expires or "7d"))
            _print_value(new_link, f"{new_link.token}")
        elif links:
            output.emit_list(sharing.links(), lists.links)
        elif revoke is not None:
            _print_value(sharing.revoke_link(revoke), f"link {revoke} is revoked")
        elif user is None:
            output.emit_list(sharing.members(), lists.members)
        elif remove:
            sharing.unshare(user)
            data = {"session": session, "user": user}
            _print_value(data, f"{user} no longer has a role in {session}")
        else:
            member = sharing.share(user, role, parse_lifetime(expires))
            _print_value(member, f"{member.user_name} is {member.role} of {session}")


def accept(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that `agentgit share --link` printed.")],
) -> None:
    with repository() as repo:
        session = repo.accept(token).info
        _print_value(session, f"you are {session.role} of {session.reference}")


# -- users


@users.command("add")
def users_add(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Make the user an admin.")] = False,
    public_url: PublicUrl = None,
) -> None:
    """Create a user with a sign-in link; for the local owner, also the database if it does not exist."""
    with repository(create=True) as repo:
        user = repo.users.add(name, is_admin=admin)
        _print_sign_in_link(repo, user, public_url, f"user {user.name} is created")


@users.command("link")
def users_link(
    user: UserArgument,
    public_url: PublicUrl = None,
) -> None:
    """Create a link that signs a user's browser in, once within 24 hours."""
    with repository() as repo:
        found = repo.users.find(user)
        _print_sign_in_link(repo, found, public_url, f"{found.name} can sign in")


@users.command("list")
def users_list() -> None:
    """List the users."""
    with repository() as repo:
        output.emit_list(repo.users.list(), lists.users)


@users.command("disable")
def users_disable(user: UserArgument) -> None:
    """Disable a user with immediate effect."""
    with repository() as repo:
        _print_value(repo.users.disable(user), f"{user} is disabled")


@users.command("enable")
def users_enable(user: UserArgument) -> None:
    """Enable a disabled user again."""
    with repository() as repo:
        _print_value(repo.users.enable(user), f"{user} is enabled")


@users.command("delete")
def users_delete(
    user: UserArgument,
    yes: Yes = False,
    force: ForceErase = False,
) -> None:
    """Erase a user and all their sessions permanently."""
    with repository() as repo:
        target = repo.users.find(user)
        output.confirm(f"Permanently delete {clean(target.name)} and all their sessions?", yes=yes)
        erased = repo.users.delete(target, force=force)
    output.emit(erased.to_dict, lambda: show_erased(f"user {target.name}", erased))


# -- keys


@keys.command("create")
def keys_create(
    name: Name,
    scope: Annotated[
        str, typer.Option("--scope", "-s", metavar="SCOPE", help="The scope: read, write or admin.")
    ] = "read",
    expires: KeyExpires = "90d",
    of: OwnerOption = None,
) -> None:
    """Create an API key; it is shown only once."""
    with repository() as repo:
        new_key = repo.keys.create(name, scope, parse_lifetime(expires if expires != "never" else None), of)
        output.line(lambda: {**record(new_key.key), "secret": new_key.secret}, new_key.secret)


@keys.command("list")
def keys_list(of: OwnerOption = None) -> None:
    """List API keys."""
    with repository() as repo:
        output.emit_list(repo.keys.list(of), lists.keys)


@keys.command("revoke")
def keys_revoke(id: Id) -> None:
    """Revoke an API key with immediate effect."""
    with repository() as repo:
        _print_value(repo.keys.revoke(id), f"key {id} is revoked")
