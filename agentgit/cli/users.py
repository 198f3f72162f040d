"""The commands for users and rights: users, keys, share, unshare, members, link, accept, whoami."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from getpass import getpass
from typing import Annotated, Any

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, CommandGroup, DatabaseOption, Yes, complete_session, repository
from agentgit.errors import InvalidInput
from agentgit.render.records import of_value
from agentgit.render.text import Line, Span, clean
from agentgit.render.views import lists as drawn
from agentgit.render.views.maintenance import erased_lines

Named = Annotated[
    str, typer.Argument(metavar="SESSION", autocompletion=complete_session, help="The name or id of a session.")
]
Who = Annotated[str, typer.Argument(metavar="USER", help="The name or id of a user.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the new user or key.")]
Id = Annotated[int, typer.Argument(metavar="ID", help="The id that the list shows.")]
Whom = Annotated[str | None, typer.Option("--for", metavar="USER", help="The owner of the keys; for admins.")]
RoleOf = Annotated[str, typer.Option("--role", "-r", help="The role: viewer, forker, editor or owner.")]
Expires = Annotated[str | None, typer.Option("--expires", metavar="TIME", help="The lifetime, like 12h, 7d or 2w.")]
KeyExpires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="The lifetime, like 12h, 7d or 2w; or never.")
]

PLAIN: dict[str, Any] = {"no_args_is_help": True, "cls": CommandGroup, "rich_markup_mode": None}
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

users = typer.Typer(
    name="users",
    help="Manage the users of the database; for admins.",
    no_args_is_help=True,
    cls=CommandGroup,
    rich_markup_mode=None,
)
keys = typer.Typer(name="keys", help="Manage API keys.", **PLAIN)
link = typer.Typer(
    name="link",
    help="Manage links by which others join a session.",
    no_args_is_help=True,
    cls=CommandGroup,
    rich_markup_mode=None,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (share, unshare, members, accept, whoami):
        app.command()(command)
    for group in (users, keys, link):
        app.add_typer(group)


def parse_lifetime(text: str | None) -> timedelta | None:
    """Parse a lifetime; None never expires.

    Raises:
        InvalidInput: It is not a lifetime.

    Example:
        >>> parse_lifetime("36h")
        datetime.timedelta(days=1, seconds=43200)
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a duration; write 30m, 12h, 7d or 2w.")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def _emit(as_json: bool, found: Sequence[Any], lines: Callable[..., list[Line]], nothing: str) -> None:
    output.emit(
        as_json, lambda: [of_value(one) for one in found], lambda width: lines(found, width=width) or [(Span(nothing),)]
    )


def _one(as_json: bool, found: Any, said: str) -> None:
    output.line(as_json, lambda: of_value(found), clean(said))


def _password() -> str:
    """Ask for a password, or read it from a pipe.

    It is never a command-line argument, because other users of the machine can see those.
    """
    return getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")


# -- sessions


def share(
    session: Named,
    user: Who,
    role: RoleOf = "viewer",
    expires: Expires = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Share a session with a user in a role."""
    with repository(db) as repo:
        found = repo.session(session).sharing.share(user, role, parse_lifetime(expires))
        _one(as_json, found, f"{found.user_name} is {found.role} of {session}")


def unshare(session: Named, user: Who, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Remove all roles of a user in a session, with immediate effect."""
    with repository(db) as repo:
        repo.session(session).sharing.unshare(user)
        data = {"session": session, "user": user}
        _one(as_json, data, f"{user} no longer has a role in {session}")


def members(session: Named, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the users who have a role in a session."""
    with repository(db) as repo:
        _emit(as_json, repo.session(session).sharing.members(), drawn.member_lines, "not shared")


def accept(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that `agentgit link create` printed.")],
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Join a session by a link."""
    with repository(db) as repo:
        found = repo.accept(token).info
        _one(as_json, found, f"you are {found.role} of {found.reference}")


def whoami(db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Show which user you are; --user or $AGENTGIT_USER selects one."""
    with repository(db) as repo:
        _one(as_json, repo.user, f"{repo.user.name}{', an admin' if repo.user.is_admin else ''}")


# -- links


@link.command("create")
def link_create(
    session: Named, role: RoleOf = "viewer", expires: Expires = "7d", db: DatabaseOption = None, as_json: AsJson = False
) -> None:
    """Create a link; its token is shown only once."""
    with repository(db) as repo:
        made = repo.session(session).sharing.create_link(role, parse_lifetime(expires))
        _one(as_json, made, f"{made.token}")


@link.command("list")
def link_list(session: Named, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the links of a session."""
    with repository(db) as repo:
        _emit(as_json, repo.session(session).sharing.links(), drawn.link_lines, "no links")


@link.command("revoke")
def link_revoke(id: Id, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Revoke a link, and the roles of all who joined by it."""
    with repository(db) as repo:
        _one(as_json, repo.revoke_link(id), f"link {id} is revoked")


# -- users


@users.command("add")
def users_add(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Make the user an admin.")] = False,
    password: Annotated[bool, typer.Option("--password", help="Ask for a password, or read it from a pipe.")] = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a user; for the local owner, also the database or tenant if it does not exist."""
    with repository(db, create=True) as repo:
        made = repo.users.add(name, _password() if password else None, is_admin=admin)
        _one(as_json, made, f"user {made.name} is created")


@users.command("list")
def users_list(db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the users."""
    with repository(db) as repo:
        _emit(as_json, repo.users.all(), drawn.user_lines, "no users")


@users.command("password")
def users_password(user: Who, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Set the password of a user, read from a prompt or a pipe; all their logins end."""
    with repository(db) as repo:
        _one(as_json, repo.users.set_password(user, _password()), f"{user} has a new password")


@users.command("disable")
def users_disable(user: Who, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Disable a user with immediate effect."""
    with repository(db) as repo:
        _one(as_json, repo.users.disable(user), f"{user} is disabled")


@users.command("enable")
def users_enable(user: Who, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Enable a disabled user again."""
    with repository(db) as repo:
        _one(as_json, repo.users.enable(user), f"{user} is enabled")


@users.command("delete")
def users_delete(user: Who, yes: Yes = False, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Erase a user and all their sessions permanently."""
    with repository(db) as repo:
        found = repo.users.find(user)
        if not yes:
            output.confirm(f"Permanently delete {clean(found.name)} and all their sessions?", as_json)
        done = repo.users.delete(found)
    output.emit(as_json, done.to_dict, lambda _: erased_lines(f"user {found.name}", done))


@users.command("revoke-tokens")
def users_revoke_tokens(
    user: Annotated[str | None, typer.Argument(metavar="USER", help="The user; by default all users.")] = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke all logins and tokens that were issued before now."""
    with repository(db) as repo:
        repo.users.revoke_tokens(user)
        _one(as_json, {"user": user}, f"logins and tokens of {user or 'all users'} are revoked")


# -- keys


@keys.command("create")
def keys_create(
    name: Name,
    scope: Annotated[str, typer.Option("--scope", "-s", help="The scope: read, fork, write or admin.")] = "read",
    expires: KeyExpires = "90d",
    of: Whom = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key; it is shown only once."""
    with repository(db) as repo:
        made = repo.keys.create(name, scope, parse_lifetime(expires if expires != "never" else None), of)
        output.line(as_json, lambda: {**of_value(made.key), "secret": made.secret}, made.secret)


@keys.command("list")
def keys_list(of: Whom = None, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List API keys."""
    with repository(db) as repo:
        _emit(as_json, repo.keys.all(of), drawn.key_lines, "no keys")


@keys.command("revoke")
def keys_revoke(id: Id, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Revoke an API key with immediate effect."""
    with repository(db) as repo:
        _one(as_json, repo.keys.revoke(id), f"key {id} is revoked")
