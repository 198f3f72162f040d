"""The `agentgit` command-line application: its basic commands, and the registration of all others.

A command only parses its arguments, calls the repository and writes the result.
"""

from __future__ import annotations

from typing import Annotated

import typer

import agentgit
from agentgit.cli import (
    branches as branch_commands,
)
from agentgit.cli import (
    chat,
    database,
    events,
    history,
    maintenance,
    merge,
    output,
    references,
    rollback,
    serve,
    transfer,
    users,
    workspace,
)
from agentgit.cli.options import (
    GLOBAL_OPTIONS,
    AsJson,
    DatabaseOption,
    GlobalOptions,
    GroupedCommands,
    Limit,
    OfBranch,
    Session,
    address,
    complete_checkpoint,
    repository,
    usage,
)
from agentgit.errors import AgentGitError
from agentgit.render import records
from agentgit.render import show as shows
from agentgit.render.text import Span
from agentgit.render.views import conversation
from agentgit.render.views import lists as standing
from agentgit.render.views import tree as trees
from agentgit.render.views.lists import branch_lines, session_lines
from agentgit.sessions.operation import DONE

app = typer.Typer(
    name="agentgit",
    cls=GroupedCommands,
    help="Git for LangGraph sessions: look at what was recorded, roll back, and undo what the tools did.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help reads the same in a terminal, a pipe and a page
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(database.app)
app.add_typer(workspace.app)
app.command("import-langgraph")(transfer.import_langgraph)


def run() -> int:
    """Run the application; return the exit code of an `AgentGitError`, or 0."""
    try:
        app(prog_name="agentgit")
    except AgentGitError as error:
        return output.fail(error)
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"agentgit {agentgit.__version__}")
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Store the database, the user and the tenant that are given before the command."""
    context.obj = db
    GLOBAL_OPTIONS.set(GlobalOptions(user, tenant))


@app.command()
def demo(
    db: DatabaseOption = None,
    shop: Annotated[str, typer.Option(metavar="PATH", help="The database of the demo shop.")] = "shop.db",
    as_json: AsJson = False,
) -> None:
    """Run a demo of rollbacks in a small shop, without an API key or network."""
    from agentgit.demo import run_story

    story_lines: list[str] = []
    with repository(db, create=True) as repo:
        run_story(repo, shop, story_lines.append if as_json else output.say, database=address(db))
    if as_json:
        output.emit(True, lambda: {"database": address(db), "shop": shop, "said": story_lines}, lambda _: [])


@app.command()
def sessions(db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the sessions, most recently updated first."""
    with repository(db) as repo:
        all_sessions = repo.sessions()
        placeholder = [
            (Span("no sessions yet; wrap a graph with repo.wrap(graph, session=...), or run `agentgit demo`"),)
        ]
        output.emit(
            as_json,
            lambda: [records.of_session(session) for session in all_sessions],
            lambda width: session_lines(all_sessions, width=width, zone=None) or placeholder,
        )


@app.command()
def status(session_ref: OfBranch = None, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Show a session's branch, head and unfinished operations."""
    with repository(db) as repo:
        session, branch_name = references.parse_session(repo, session_ref)
        branch = session.branch(branch_name)
        head = session.get_checkpoint("HEAD", branch=branch) if branch.checkpoint_count else None
        unfinished = [operation for operation in session.operations() if operation.status != DONE]
        output.emit(
            as_json,
            lambda: {
                "session": records.of_session(session.info),
                "branch": records.of_branch(branch),
                "head": records.of_checkpoint(head) if head is not None else None,
                "stopped": [records.of_operation(operation) for operation in unfinished],
            },
            lambda _: [*standing.status_lines(session.info, branch, head), *map(standing.unfinished_line, unfinished)],
        )


@app.command()
def branches(session: Session = None, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the branches of a session; * marks the current one."""
    with repository(db) as repo:
        all_branches = repo.session(session).branches()
        output.emit(
            as_json,
            lambda: [records.of_branch(branch) for branch in all_branches],
            lambda width: branch_lines(all_branches, repo.session(session).tree(), width=width, zone=None),
        )


@app.command()
def tree(
    session: Session = None,
    every: Annotated[bool, typer.Option("--all", help="Show each checkpoint on its own line.")] = False,
    times: Annotated[bool, typer.Option("--times", help="Show when each checkpoint was created.")] = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Draw the branches of a session as a tree."""
    with repository(db) as repo:
        session_tree = repo.session(session).tree()
        output.emit(
            as_json,
            lambda: records.of_tree(session_tree),
            lambda width: trees.lines(session_tree, width=width, every=every, times=times, zone=None),
        )


@app.command()
def tool_track(
    session_ref: OfBranch = None, limit: Limit = None, db: DatabaseOption = None, as_json: AsJson = False
) -> None:
    """List the tool calls of a branch, oldest first, with their effects and statuses."""
    with repository(db) as repo:
        session, branch = references.parse_session(repo, session_ref)
        invocations = session.tool_track(branch=branch)[-(limit or 0) :]
        output.emit(
            as_json,
            lambda: [call.to_dict() for call in invocations],
            lambda width: conversation.call_lines(invocations, width=width) or [(Span("no tool calls yet"),)],
        )


@app.command()
def show(
    first: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            autocompletion=complete_checkpoint,
            help="The name or id of a session; by default the most recently updated one.",
        ),
    ] = None,
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="REF",
            autocompletion=complete_checkpoint,
            help="A checkpoint, like main#7, HEAD~1, a name or an id; by default HEAD.",
        ),
    ] = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint: its state, messages and tool calls."""
    with repository(db) as repo:
        checkpoint = references.checkpoint(repo, first, second)
        output.emit(as_json, checkpoint.to_dict, lambda width: shows.lines(checkpoint, width=width, zone=None))


app.command(cls=usage("[SESSION]", "A", "B"))(history.diff)
app.command(cls=usage("[SESSION]", "A", "B"))(history.compare)
app.command()(history.start)
merge.add_to(app)
branch_commands.add_to(app)
history.add_to(app)
rollback.add_to(app)
transfer.add_to(app)
users.add_to(app)
maintenance.add_to(app)
events.add_to(app)
app.command()(chat.chat)
app.command()(serve.mcp)
app.command()(serve.serve)
