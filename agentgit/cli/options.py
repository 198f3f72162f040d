"""The options that commands share, and how a database is opened for one command.

Nothing heavy is imported before a command runs, so that `agentgit --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from agentgit.errors import AgentGitError, NotFound

if TYPE_CHECKING:
    from agentgit.repository import Repository
    from agentgit.store.database import Database


def _from_before(context: typer.Context, value: str | None) -> str | None:
    """Take the database that was named before the command, if none was named after it."""
    return value or context.obj


Where = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        callback=_from_before,
        help="The database; else $AGENTGIT_DATABASE_URL, else ./agentgit.db.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def names(context: typer.Context, incomplete: str) -> list[str]:
    """Offer a shell the names of sessions, and behind an @ those of the branches of one.

    Where there is no database, or none that can be read, nothing is offered: a prompt is no place for a failure.

    Args:
        context: the command, with the options that stand before the word.
        incomplete: what was typed of the word.
    """
    above = context.parent.params if context.parent is not None else {}
    session = incomplete.rpartition("@")[0]
    try:
        with repository(context.params.get("db") or above.get("db")) as repo:
            found = [one.session_name for one in repo.sessions()]
            if session in found:
                found += [f"{session}@{branch.name}" for branch in repo.branches(session)]
    except AgentGitError:
        return []
    return [name for name in found if name.startswith(incomplete)]


Session = Annotated[
    str | None,
    typer.Argument(metavar="SESSION", autocompletion=names, help="A session's name or id; else the most recent one."),
]

OfBranch = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION[@BRANCH]", autocompletion=names, help="Else the current branch of the most recent one."
    ),
]

Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Show the newest ones only.")]


def usage(*pieces: str) -> type[TyperCommand]:
    """Make the kind of command whose optional argument comes first, which the parser has no word for.

    Args:
        pieces: what its help shows after the options.
    """

    class Command(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return ["[OPTIONS]", *pieces]

    return Command


def address(where: str | None) -> str:
    """Give the database to use: the one that was named, the environment's, or the one of this directory."""
    from agentgit.repository import DEFAULT, ENVIRONMENT

    return where or os.environ.get(ENVIRONMENT) or DEFAULT


def import_from_here() -> None:
    """Make modules in this folder importable, as for `python -m agentgit`."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


@contextmanager
def repository(where: str | None) -> Iterator[Repository]:
    """Open a database that is there, as its local owner, for one command.

    Raises:
        NotFound: there is no such file.
    """
    from agentgit.repository import open

    with open(where, create=False) as repo:
        yield repo


@contextmanager
def database(where: str | None, *, create: bool = False) -> Iterator[Database]:
    """Open a database without looking at its schema, for one command.

    Args:
        where: as the command line names it.
        create: True if a file that is not there may be made.

    Raises:
        NotFound: there is no such file.
    """
    from agentgit.store.database import Database

    found = Database(address(where))
    try:
        path = found.url.database or ""
        if found.is_sqlite and not (create or found.in_memory or Path(path).exists()):
            raise NotFound(f"There is no database {path}. Make one with: agentgit demo; or name another one: --db PATH")
        yield found
    finally:
        found.close()
