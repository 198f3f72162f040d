"""The options that commands share, the class of their groups, and how a command opens a database.

Nothing heavy is imported before a command runs, so that `agentgit --help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from agentgit.cli import output
from agentgit.cli.completion import complete_checkpoint, complete_session
from agentgit.cli.output import HOST
from agentgit.errors import AgentGitError, InvalidInput, NotFound
from agentgit.location import default_location
from agentgit.next_steps import NAMED_PLACE, NOWHERE

if TYPE_CHECKING:
    from agentgit.repository import Repository
    from agentgit.store.database import Database


def shorten(text: str, width: int) -> str:
    """Shorten a sentence at a punctuation mark so that it fits.

    Example:
        >>> shorten("Roll back to a checkpoint, on a new branch: show the plan, ask.", 48)
        'Roll back to a checkpoint, on a new branch'
    """
    sentence = text.partition("\n")[0].rstrip(".")
    for pattern in ("$", "[:;]", ","):
        if cut_points := [match.start() for match in re.finditer(pattern, sentence) if match.start() <= width]:
            return sentence[: cut_points[-1]]
    return sentence[: width - 1].rstrip() + "…"


COMMAND_PATH: ContextVar[str] = ContextVar("agentgit_command", default="agentgit")
"""The command that runs, like `agentgit checkpoint create` or `agentgit merge MODULE:GRAPH`, for error messages."""


class CommandGroup(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found: Any = super().resolve_command(ctx, args)
        name, command, _ = found
        needs_graph = any(one.name == "graph" and one.param_type_name == "argument" for one in command.params)
        if ctx.parent is None:
            NAMED_PLACE.set(NOWHERE)
        COMMAND_PATH.set(f"{ctx.command_path} {name}" + " MODULE:GRAPH" * needs_graph)
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
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


GROUP: dict[str, Any] = {"no_args_is_help": True, "cls": CommandGroup, "rich_markup_mode": None}
"""The options of a group of commands."""


DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="The database; by default $AGENTGIT_DATABASE_URL, then ./agentgit.db.",
    ),
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        "--public-url",
        metavar="URL",
        envvar="AGENTGIT_PUBLIC_URL",
        help="The address of the server as browsers know it; by default $AGENTGIT_PUBLIC_URL.",
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

Changed = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION[@BRANCH]",
        autocompletion=complete_session,
        help="A session, or one of its branches; needed if there are several sessions.",
    ),
]

Target = Annotated[
    list[str],
    typer.Argument(
        metavar="[SESSION[@BRANCH]] REF",
        autocompletion=complete_checkpoint,
        help="A checkpoint, like main#3, HEAD~1 or a name; and its session, if there are several.",
    ),
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required with --json.")]

ForceErase = Annotated[bool, typer.Option("--force", help="Erase although effects stand in the world; they stay.")]

TIME_HELP = "like 2026-11-21 or '2026-11-21 14:30' in this machine's zone, or 5m, 2h or 3d ago."
"""The end of the help of an option whose value `parse_time` parses."""

Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="MODEL=IN,OUT",
        help="The price of a million tokens, as IN,OUT or IN,OUT,CACHED,INTO_CACHE; repeatable.",
    ),
]

Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="N", min=1, help="The number of newest results to show; by default all."),
]

Graph = Annotated[
    str, typer.Argument(metavar="MODULE:GRAPH", help="Your compiled graph, or a function that returns it.")
]
SessionToContinue = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION[@BRANCH]", help="The session, created if it does not exist; needed if there are several."
    ),
]
Effects = Annotated[
    str | None,
    typer.Option("--effects", metavar="MODULE:NAME", help="The effects of the tools, by their names."),
]
Folder = Annotated[
    Path | None, typer.Option("--workspace", metavar="DIR", help="The folder whose files are rolled back too.")
]


def parse_prices(texts: Sequence[str] | None) -> dict[str, list[float]] | None:
    """Parse the values of `--price`; None if there are none.

    Example:
        >>> parse_prices(["m=1.25,10"])
        {'m': [1.25, 10.0]}
    """
    return dict(map(_parse_price, texts)) if texts else None


def _parse_price(text: str) -> tuple[str, list[float]]:
    model, _, numbers = text.rpartition("=")
    try:
        price = [float(number) for number in numbers.split(",")]
    except ValueError:
        price = []
    if not model or len(price) < 2:
        raise InvalidInput(f"{text!r} is not a price. Give the price of a million tokens: --price m=1.25,10")
    return model, price


def usage(*pieces: str) -> type[TyperCommand]:
    """Return a command class with its own usage line, for commands that parse their words themselves.

    The parser cannot declare an optional argument before a required one.
    """

    class Command(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return ["[OPTIONS]", *pieces]

    return Command


def address() -> str:
    """Return the database to use: the named one, else the environment's, else the default in this directory."""
    return GLOBAL_OPTIONS.get().db or default_location()


def import_from_here() -> None:
    """Make modules in the current directory importable, as `python -m agentgit` does."""
    cwd = os.getcwd()
    if cwd not in sys.path and "" not in sys.path:
        sys.path.insert(0, cwd)


def import_function(path: str | None, does: str) -> Any:
    """Import the function that an option names, if it does; `does` tells what it is to do."""
    if path is None:
        return None
    from agentgit.agents import user_modules

    import_from_here()
    function = user_modules.value_in(path)
    if not callable(function):
        raise InvalidInput(f"{path} is not a function. Name a function that {does}.")
    return function


def trusted_modules(named: Sequence[str] | None) -> list[str]:
    """Return the named modules, else the environment's, and make the current directory importable."""
    from agentgit.repository import modules_to_trust

    if modules := modules_to_trust(named):
        import_from_here()
    return modules


class GlobalOptions(NamedTuple):
    """The user and the database, from options or from the environment."""

    user: str | None = None
    db: str | None = None


GLOBAL_OPTIONS: ContextVar[GlobalOptions] = ContextVar("agentgit_who", default=GlobalOptions())  # noqa: B039  # the default is immutable


def shown_database(db: str) -> str:
    """Return a database as it was given, but a URL without its passwords.

    Example:
        >>> shown_database("notes.db"), shown_database("postgresql://me:secret@db/notes")
        ('notes.db', 'postgresql+psycopg://me:***@db/notes')
    """
    if "://" not in db and "=" not in db:  # a path
        return db
    from agentgit.store.sql.url import parse_url, redacted_url  # imported late: it needs SQLAlchemy

    return redacted_url(parse_url(db))


def repeat_options(user: str | None, db: str | None) -> None:
    """Let the commands that an error proposes name the user and the database, if the command line names them."""
    shown = {"--db": db and shown_database(db), "--user": user if user != os.environ.get("AGENTGIT_USER") else ""}
    options = "".join(f"{name} {shlex.quote(value)} " for name, value in shown.items() if value)
    NAMED_PLACE.set(NAMED_PLACE.get()._replace(options=options))


def name_database(db: str | None) -> None:
    if db is not None:
        GLOBAL_OPTIONS.set(GLOBAL_OPTIONS.get()._replace(db=db))
        repeat_options(*GLOBAL_OPTIONS.get())


def add_shared_options(app: typer.Typer) -> None:
    """Add `--db` and `--json` to commands, for which their values are kept."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_shared_options(group.typer_instance)
    for command in app.registered_commands:
        if command.callback is not None and not hasattr(command.callback, "__wrapped__"):
            command.callback = _with_shared_options(command.callback)


WITHOUT_JSON = ("chat", "mcp", "serve")


def _with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)
    shared = {"db": (DatabaseOption, None), "as_json": (AsJson, False)}
    if function.__module__.endswith(".workspace"):  # it opens no database
        del shared["db"]
    if function.__name__ in WITHOUT_JSON:
        del shared["as_json"]

    @wraps(function)
    def run(*, db: str | None = None, as_json: bool = False, **given: Any) -> None:
        name_database(db)
        output.JSON.set(as_json)
        function(**given)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {**function.__annotations__, **{name: kind for name, (kind, _) in shared.items()}}
    return run


@contextmanager
def repository(*, create: bool = False, trust: Sequence[str] | None = ()) -> Iterator[Repository]:
    """Open an existing database for one command, as the given user or the local owner."""
    from agentgit.repository import open

    user, db = GLOBAL_OPTIONS.get()
    modules = trusted_modules(trust)
    host = HOST.get()
    if host is not None and db is None:
        repo = host.repository()
        repo.trust(*modules)
        yield repo
        return
    with open(address(), create=create and user is None, user=user, trust=modules) as repo:
        yield repo


SchemaName = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="A schema of PostgreSQL, by default that of the connection."),
]
AllSchemas = Annotated[
    bool, typer.Option("--all-schemas", help="Do it in each schema whose tables the role owns, one after another.")
]


def each_schema(name: str | None, every: bool) -> Iterator[AbstractContextManager[None]]:
    """Yield a block for the work in each schema that a command is for, with the database to use in that schema.

    If the command fails in one of all schemas, it still runs in the others, and ends with the first exit code.
    """
    from agentgit.store.schema import schema
    from agentgit.store.sql.url import in_schema

    if name is not None and every:
        raise InvalidInput("--all-schemas is every schema. Leave out --schema.")
    names, location = [name] if name is not None else [], address()
    if every:
        with database() as target_db:
            names = schema.own_schemas(target_db)
        if not names:
            raise NotFound("You own no schema with the tables of agentgit. Run this with the role of their owner.")
    elif not names:
        yield nullcontext()
    exit_codes: list[int] = []

    @contextmanager
    def collect_failure() -> Iterator[None]:
        try:
            yield
        except AgentGitError as error:
            exit_codes.append(output.fail(error))

    for one in names:
        if every and not output.as_json():
            output.say(f"{one}:")
        address_there = in_schema(location, one).render_as_string(hide_password=False)
        GLOBAL_OPTIONS.set(GLOBAL_OPTIONS.get()._replace(db=address_there))
        repeat_options(GLOBAL_OPTIONS.get().user, address_there)
        yield collect_failure() if every else nullcontext()
    if exit_codes:
        raise typer.Exit(exit_codes[0])


@contextmanager
def database(*, create: bool = False) -> Iterator[Database]:
    """Open a database for one command without checking its schema."""
    from agentgit.store.database import Database
    from agentgit.store.schema import schema

    target_db = Database(address())
    try:
        if not create:
            target_db.require_file()
        schema.require_wanted(target_db)
        yield target_db
    finally:
        target_db.close()
