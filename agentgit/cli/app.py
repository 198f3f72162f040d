"""The `agentgit` command-line application: its options, and the commands, which are loaded when they run."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from agentgit.cli import output
from agentgit.cli.commands import AllCommands
from agentgit.cli.options import GLOBAL_OPTIONS, GlobalOptions
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.version import VERSION

Dates = Literal["auto", "relative", "exact"]

app = typer.Typer(
    name="agentgit",
    cls=AllCommands,
    help="Git for LangGraph sessions: look at what was recorded, roll back, and undo what the tools did.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help reads the same in a terminal, a pipe and a page
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> int:
    """Run the application, and return its exit code. With `--json`, an error is a JSON object."""
    as_json = "--json" in sys.argv  # not yet parsed if the error is in the options
    try:
        return app(prog_name="agentgit", standalone_mode=not as_json) or 0
    except AgentGitError as error:
        return output.fail(error, as_json=as_json)
    except typer.Abort:
        return output.fail(AgentGitError("Interrupted."), as_json=as_json)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer exports no base class of its errors
            raise
        return output.fail(InvalidInput(error.format_message()), as_json=as_json)


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"agentgit {VERSION}")
        raise typer.Exit


@app.callback()
def before(
    context: typer.Context,
    db: Annotated[str | None, typer.Option("--db", metavar="PATH|URL", help="The database: a path or a URL.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", envvar="AGENTGIT_USER", help="The user to act as; by default the local owner."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", envvar="AGENTGIT_TENANT", help="The tenant to use; by default the first one."
        ),
    ] = None,
    dates: Annotated[
        Dates,
        typer.Option(
            "--date",
            envvar="AGENTGIT_DATE",
            help="Show times relative to now, or exact; by default relative in a terminal. JSON is always exact.",
        ),
    ] = "auto",
    no_pager: Annotated[
        bool,
        typer.Option(
            "--no-pager", help="Do not show long results in a pager; $AGENTGIT_PAGER or $PAGER name it, else less."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Store the options that are given before the command."""
    context.obj = db
    GLOBAL_OPTIONS.set(GlobalOptions(user, tenant))
    output.SETTINGS.set(output.Settings(dates, has_pager=not no_pager))
