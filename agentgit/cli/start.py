"""The commands to start with: `agentgit demo`, rollbacks in a small shop, and `agentgit chat`, a talk with a graph."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import (
    Effects,
    Folder,
    Graph,
    OnBranch,
    SessionToContinue,
    address,
    import_from_here,
    repository,
)
from agentgit.cli.references import wrap_graph


def demo(
    shop: Annotated[str, typer.Option(metavar="PATH", help="The database of the demo shop.")] = "shop.db",
) -> None:
    """Run a demo of rollbacks in a small shop, without an API key or network."""
    from agentgit.demo import run_story

    story_lines: list[str] = []
    with repository(create=True) as repo:
        run_story(repo, shop, story_lines.append if output.as_json() else output.say, database=address())
    if output.as_json():
        output.emit(lambda: {"database": address(), "shop": shop, "said": story_lines}, list)


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
) -> None:
    """Talk with your graph; every turn is recorded, and /help lists the commands for going back."""
    from agentgit.cli.chat.conversation import Chat  # late, because `--help` does not need it

    import_from_here()
    with repository(create=True, trust=None) as repo:
        agent = wrap_graph(repo, graph, session, branch=branch, effects=effects, workspace=workspace, template=template)
        with Chat(repo, agent, yes=yes) as chat_loop:
            exit_code = chat_loop.run()
    raise typer.Exit(exit_code)
