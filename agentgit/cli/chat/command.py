"""`agentgit chat`: talk with a graph line by line; lines that start with a slash are commands. And `agentgit demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.options import AsJson, DatabaseOption, address, import_from_here, repository
from agentgit.errors import NotFound

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.repository import Repository

FIRST_SESSION = "chat"
"""The name of the session that is created if none is named and none exists."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(demo)
    app.command()(chat)


Graph = Annotated[
    str, typer.Argument(metavar="MODULE:GRAPH", help="Your compiled graph, or a function that returns it.")
]
Continued = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION[@BRANCH]", help="The session, created if it does not exist; needed if there are several."
    ),
]
OnBranch = Annotated[
    str | None, typer.Option("--branch", metavar="NAME", help="The branch to continue on; by default the current one.")
]
Effects = Annotated[
    str | None,
    typer.Option("--effects", metavar="MODULE:NAME", help="The effects of the tools, by their names."),
]
Folder = Annotated[
    Path | None, typer.Option("--workspace", metavar="DIR", help="The folder whose files are rolled back too.")
]


def chat(
    graph: Graph,
    session: Continued = None,
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


def wrap_graph(
    repo: Repository,
    graph: str,
    session: str | None,
    *,
    branch: str | None,
    effects: str | None,
    workspace: Path | None,
    template: str | None = None,
) -> RollbackAgent:
    """Wrap the named graph in the session to continue or to create."""
    from agentgit.agents import user_modules

    options: dict[str, Any] = {"workspace": workspace} if workspace is not None else {}
    name, branch = _session_and_branch(repo, session, branch)
    return repo.wrap(
        user_modules.graph_in(graph),
        name,
        effects=user_modules.value_in(effects) if effects else None,
        branch=branch,
        template=template,
        **options,
    )


def _session_and_branch(repo: Repository, ref: str | None, branch: str | None) -> tuple[str, str | None]:
    """Return the name of the session to continue or to create, and the branch.

    Text like `support@example.com` is the name of a new session, unless `support` has a branch of that name.
    """
    try:
        session, named = references.split(repo, ref)
        session = session or references.only_session(repo)
        if named is not None:
            session.branch(named)
    except NotFound:
        return FIRST_SESSION if ref is None else ref, branch
    return session.reference, references.one_branch(named, branch)


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
