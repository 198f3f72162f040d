"""`agentgit chat`: talk with a graph line by line; lines that start with a slash are commands."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgit.cli.options import (
    DatabaseOption,
    Effects,
    Folder,
    Graph,
    OnBranch,
    SessionToContinue,
    import_from_here,
    repository,
)
from agentgit.cli.references import wrap_graph


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(chat)


def chat(
    graph: Graph,
    session: SessionToContinue = None,
    branch: OnBranch = None,
    effects: Effects = None,
    workspace: Folder = None,
    template: Annotated[
        str | None,
        typer.Option("--template", metavar="SESSION[@REF]", help="The checkpoint that a new session starts from."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before effects are reversed or files change.")
    ] = False,
    db: DatabaseOption = None,
) -> None:
    """Talk with your graph; every turn is recorded, and /help lists the commands for going back."""
    from agentgit.cli.chat.conversation import Chat  # late, because `--help` does not need it

    import_from_here()
    with repository(db, create=True, trust=None) as repo:
        agent = wrap_graph(repo, graph, session, branch=branch, effects=effects, workspace=workspace, template=template)
        with Chat(repo, agent, yes=yes) as chat_loop:
            exit_code = chat_loop.run()
    raise typer.Exit(exit_code)
