"""The options that commands share, the help that groups commands by task, and how a command opens a database.

Nothing heavy is imported before a command runs, so that `agentgit --help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from agentgit.errors import AgentGitError, NotFound

if TYPE_CHECKING:
    from agentgit.repository import Repository
    from agentgit.store.database import Database

GROUPS = {
    "Get started": ("demo", "chat", "start"),
    "Look around": (
        "sessions",
        "status",
        "tree",
        "log",
        "show",
        "tool-track",
        "branches",
        "diff",
        "compare",
        "search",
        "events",
        "operations",
        "stats",
    ),
    "Roll back and branch": (
        "plan",
        "rollback",
        "undo",
        "redo",
        "rewind-files",
        "switch",
        "fork",
        "rename",
        "checkpoint",
        "tag",
        "merge",
        "cherry-pick",
        "explore",
        "promote",
    ),
    "Finish what stopped": ("resume", "resolve", "recover"),
    "Exchange and connect": ("export", "import", "import-langgraph", "trajectories", "mcp", "serve", "webhooks"),
    "Share": ("share", "unshare", "members", "link", "accept", "users", "keys", "whoami"),
    "Operate": ("workspace", "retention", "gc", "fsck", "delete", "audit", "db"),
}
"""The headings of the help, each with its commands."""

OTHER_COMMANDS = "Others"


def shorten(text: str, width: int) -> str:
    """Shorten a sentence at a punctuation mark so that it fits.

    Args:
        text: The help of a command; only its first line is used.
        width: The available width in terminal cells.

    Example:
        >>> shorten("Roll back to a checkpoint, on a new branch: show the plan, ask.", 48)
        'Roll back to a checkpoint, on a new branch'
    """
    sentence = text.partition("\n")[0].rstrip(".")
    for pattern in ("$", "[:;]", ","):
        if cut_points := [match.start() for match in re.finditer(pattern, sentence) if match.start() <= width]:
            return sentence[: cut_points[-1]]
    return sentence[: width - 1].rstrip() + "…"


class CommandGroup(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        self.write_section(formatter, "Commands", self.list_commands(ctx))

    def write_section(self, formatter: Any, heading: str, names: Iterable[str]) -> None:
        """Write the named commands under a heading, or nothing if none exists."""
        width = max(map(len, self.commands))
        rows = [
            (name.ljust(width), shorten(self.commands[name].help or "", formatter.width - width - 4))
            for name in names
            if name in self.commands and not self.commands[name].hidden
        ]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


class GroupedCommands(CommandGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each group under its heading."""
        known = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, OTHER_COMMANDS: tuple(name for name in self.list_commands(ctx) if name not in known)}
        for heading, names in groups.items():
            self.write_section(formatter, heading, names)


def _from_before(context: typer.Context, value: str | None) -> str | None:
    """Return the database given after the command, or else the one given before it."""
    return value or context.obj


DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        callback=_from_before,
        help="The database; by default $AGENTGIT_DATABASE_URL, then ./agentgit.db.",
    ),
]

Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="A module with your tools and undo functions, or MODULE:NAME; repeatable. By default $AGENTGIT_TRUST.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def complete_session(context: typer.Context, incomplete: str) -> list[str]:
    """Return shell completions: the names of sessions, and after `SESSION@` the branches of that session.

    If the database is missing or cannot be read, the list is empty, because an error must not disturb the prompt.

    Args:
        context: The command, with the options before the word.
        incomplete: The typed part of the word.
    """
    return _complete_names(context, incomplete, lambda repo: _session_names(repo, incomplete))


def complete_checkpoint(context: typer.Context, incomplete: str) -> list[str]:
    """Return shell completions: branches, tags and checkpoints of a session, and session names if none is given yet.

    The session is the one that an earlier word names, by default the most recently updated one.

    Args:
        context: As `complete_session` takes it.
        incomplete: The typed part of the word.
    """
    typed = next((context.params[name] for name in SESSION_PARAMETERS if context.params.get(name)), ())
    session = typed if isinstance(typed, str) else typed[0] if typed else None

    def list_candidates(repo: Repository) -> list[str]:
        return [*([] if session else _session_names(repo, incomplete)), *_checkpoint_refs(repo, session, incomplete)]

    return _complete_names(context, incomplete, list_candidates)


SESSION_PARAMETERS = ("target", "words", "first")
"""The names of the parameters whose first word may be a session."""


def _session_names(repo: Repository, incomplete: str) -> list[str]:
    names = [one.reference for one in repo.sessions()]
    session = incomplete.rpartition("@")[0]
    return (
        [*names, *(f"{session}@{branch.name}" for branch in repo.session(session).branches())]
        if session in names
        else names
    )


def _checkpoint_refs(repo: Repository, text: str | None, incomplete: str) -> list[str]:
    """List HEAD, branches, tags and checkpoint names; after `BRANCH#`, also the checkpoint numbers of that branch."""
    from agentgit.cli.references import parse_session

    session, _ = parse_session(repo, text)
    branches = list(session.tree().walk())
    branch_name = incomplete.partition("#")[0]
    names = [point.name for branch in branches for point in branch.points if point.name is not None]
    numbers = [f"{b.name}#{point.number}" for b in branches if b.name == branch_name for point in b.points]
    refs = ["HEAD", *(branch.name for branch in branches), *(tag.name for tag in session.tags()), *names]
    return list(dict.fromkeys([*refs, *(numbers if "#" in incomplete else [])]))


def _complete_names(
    context: typer.Context, incomplete: str, list_candidates: Callable[[Repository], list[str]]
) -> list[str]:
    parent = context.parent
    while parent is not None and parent.params.get("db") is None and parent.parent is not None:
        parent = parent.parent
    parent_db = parent.params.get("db") if parent is not None else None
    root = context.find_root().params
    GLOBAL_OPTIONS.set(GlobalOptions(root.get("user"), root.get("tenant")))
    try:
        with repository(context.params.get("db") or parent_db) as repo:
            return [name for name in list_candidates(repo) if name.startswith(incomplete)]
    except AgentGitError:
        return []


Session = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION",
        autocompletion=complete_session,
        help="The name or id of a session; by default the most recently updated one.",
    ),
]

OfBranch = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION[@BRANCH]",
        autocompletion=complete_session,
        help="A session, or one of its branches; by default the most recently updated session.",
    ),
]

Target = Annotated[
    list[str],
    typer.Argument(
        metavar="[SESSION[@BRANCH]] REF",
        autocompletion=complete_checkpoint,
        help="A checkpoint, like main#3, HEAD~1 or a name.",
    ),
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required with --json.")]

Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="The number of newest results to show; by default all.")
]


def usage(*pieces: str) -> type[TyperCommand]:
    """Return a command class with its own usage line, for commands that parse their words themselves.

    The parser cannot declare an optional argument before a required one.

    Args:
        pieces: The text of the usage line after `[OPTIONS]`.
    """

    class Command(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return ["[OPTIONS]", *pieces]

    return Command


def address(db: str | None) -> str:
    """Return the database to use: the named one, else the environment's, else the default in this directory."""
    from agentgit.repository import DEFAULT, ENVIRONMENT

    return db or os.environ.get(ENVIRONMENT) or DEFAULT


def import_from_here() -> None:
    """Make modules in the current directory importable, as `python -m agentgit` does."""
    cwd = os.getcwd()
    if cwd not in sys.path and "" not in sys.path:
        sys.path.insert(0, cwd)


def trusted_modules(named: Sequence[str] | None) -> list[str]:
    """Return the named modules, else the environment's, and make the current directory importable.

    Args:
        named: The modules to trust; None is the environment's.
    """
    from agentgit.repository import modules_to_trust

    if modules := modules_to_trust(named):
        import_from_here()
    return modules


class GlobalOptions(NamedTuple):
    """The user and the tenant, from the options before the command or from the environment."""

    user: str | None = None
    tenant: str | None = None


GLOBAL_OPTIONS: ContextVar[GlobalOptions] = ContextVar("agentgit_who", default=GlobalOptions())  # noqa: B039  # the default is immutable


@contextmanager
def repository(db: str | None, *, create: bool = False, trust: Sequence[str] | None = ()) -> Iterator[Repository]:
    """Open an existing database for one command, as the given user or the local owner.

    Args:
        db: The value of `--db`; None is the default.
        create: True to create a missing file or tenant, if no user is given. A given user must exist.
        trust: The modules with tools and undo functions, for commands that undo calls or run them again; None is the
            environment's.

    Raises:
        NotFound: The file, tenant, user or module does not exist.
    """
    from agentgit.repository import open

    user, tenant = GLOBAL_OPTIONS.get()
    modules = trusted_modules(trust)
    with open(address(db), create=create and user is None, user=user, tenant=tenant, trust=modules) as repo:
        yield repo


@contextmanager
def database(db: str | None, *, create: bool = False) -> Iterator[Database]:
    """Open a database for one command without checking its schema.

    Args:
        db: The value of `--db`; None is the default.
        create: True to allow a file that does not exist.

    Raises:
        NotFound: The file does not exist.
    """
    from agentgit.store.database import Database

    target_db = Database(address(db))
    try:
        path = target_db.url.database or ""
        if target_db.is_sqlite and not (create or target_db.in_memory or Path(path).exists()):
            raise NotFound(f"There is no database {path}. Create one with: agentgit demo; or name another: --db PATH")
        yield target_db
    finally:
        target_db.close()
