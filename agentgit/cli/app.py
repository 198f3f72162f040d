"""The `agentgit` command-line application: its options, and the commands, which are loaded when they run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentgit.cli import output
from agentgit.cli.commands import COMMANDS, AllCommands
from agentgit.cli.options import GLOBAL_OPTIONS, GlobalOptions, repeat_options
from agentgit.cli.output import HOST, MERGED, REPORT, Host
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.next_steps import NAMED_PLACE, NOWHERE, Worded
from agentgit.version import VERSION

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.effects import RollbackReport
    from agentgit.sessions import InternalSession

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
    output.JSON.set("--json" in sys.argv)  # not yet parsed if the error is in the options
    try:
        return app(prog_name="agentgit", standalone_mode=not output.as_json()) or 0
    except AgentGitError as error:
        return output.fail(error)
    except typer.Abort:
        return output.fail(AgentGitError("Interrupted."))
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer exports no base class of its errors
            raise
        return output.fail(InvalidInput(error.format_message()))


TERMINAL_ONLY = ("chat", "demo", "mcp", "serve")
"""The commands that hold a terminal until they end."""

INTERRUPTED = 130
"""The exit code that typer gives to Ctrl-C."""


def run_in(host: Host, words: Sequence[str], prog_name: str) -> None:
    """Run a command in this process, for a notebook or a chat, whose agents follow it to another branch."""
    command = next((word for word in words if word in COMMANDS), "")  # after the options before it
    if command in TERMINAL_ONLY:
        raise InvalidInput(f"Run it in a terminal: agentgit {command}")
    if any(word.partition("=")[0] == "--user" for word in words):
        raise InvalidInput("The database is open already, for one user.")

    def run_command() -> Any:
        HOST.set(host)
        REPORT.set(None)
        MERGED.set(None)
        return typer.main.get_command(app).main(list(words), prog_name=prog_name, standalone_mode=False)

    context = copy_context()  # the options before a command are context variables
    try:
        code = context.run(run_command)
    except Exception as error:
        if isinstance(error, Worded):  # the host words it outside of this context
            error.place = context.get(NAMED_PLACE, NOWHERE)
        if hasattr(error, "format_message"):  # typer exports no base class of its errors
            raise InvalidInput(error.format_message()) from error
        raise
    finally:
        report = context.run(lambda: REPORT.get() if GLOBAL_OPTIONS.get().db is None else None)  # of this database
        for agent in host.agents():
            if agent.branch_id == context.get(MERGED):
                host.move(agent, agent.branch)
            elif (branch := _branch_after(host, agent, report)) is not None:
                host.move(agent, branch)
    if code == INTERRUPTED:
        raise KeyboardInterrupt


def _branch_after(host: Host, agent: RollbackAgent, report: RollbackReport | None) -> InternalSession | None:
    """Return the branch to which a command has led an agent or its session; None if it has not moved them."""
    from agentgit.effects.plan import ROLLBACK
    from agentgit.sessions.session import DONE

    if report is None or report.status != DONE:
        return None
    try:
        if report.session_name != agent.session.reference:
            return None
        branch = agent.session.branch(report.branch)
        is_led = report.kind == ROLLBACK and host.repository().operation(report.operation_id).source_session_id
        return branch if branch.is_current or is_led == agent.branch_id else None
    except AgentGitError:  # the repository of the agent is closed
        return None


def complete_in(host: Host, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the completions of a word, each in quotes if it needs them."""
    from typer._completion_classes import BashComplete  # typer exports no other way to complete in this process

    def find() -> list[str]:
        HOST.set(host)
        items = BashComplete(typer.main.get_command(app), {}, "agentgit", "").get_completions(list(words), incomplete)
        return [item.value for item in items]

    return [quote_word(word) for word in copy_context().run(find)]


def quote_word(text: str) -> str:
    """Quote a name that is empty or contains spaces, quotes or backslashes."""
    return text if text and not set(text) & set(" \t\n\\\"'") else shlex.quote(text)


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"agentgit {VERSION}")
        raise typer.Exit


@app.callback()
def before(
    db: Annotated[str | None, typer.Option("--db", metavar="PATH|URL", help="The database: a path or a URL.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", envvar="AGENTGIT_USER", help="The user to act as; by default the local owner."
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
    GLOBAL_OPTIONS.set(GlobalOptions(user, db))
    repeat_options(user, db)
    output.SETTINGS.set(output.Settings(dates, has_pager=not no_pager))
