"""The commands that hold a terminal until they end: the demo, the chat, and servers for browsers and MCP clients."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import (
    Effects,
    Folder,
    Graph,
    PublicUrl,
    Session,
    SessionToContinue,
    Trust,
    address,
    import_from_here,
    repository,
    trusted_modules,
)
from agentgit.cli.references import wrap_graph
from agentgit.errors import InvalidInput, Unavailable
from agentgit.next_steps import Next

if TYPE_CHECKING:
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.repository import Repository


SERVER_PACKAGES = ("fastapi", "jinja2", "markdown_it", "mcp", "python_multipart", "uvicorn")
"""The packages that the extras `server` and `mcp` install."""


def demo(
    shop: Annotated[str, typer.Option(metavar="PATH", help="The database of the demo shop.")] = "shop.db",
) -> None:
    from agentgit.demo import run_story

    story_lines: list[str] = []
    with repository(create=True) as repo:
        run_story(repo, shop, story_lines.append if output.as_json() else output.say, database=address())
    if output.as_json():
        output.emit(lambda: {"database": address(), "shop": shop, "said": story_lines}, list)


def chat(
    graph: Graph,
    session: SessionToContinue = None,
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
    from agentgit.cli.chat.conversation import Chat  # late, because `--help` does not need it

    import_from_here()
    with repository(create=True, trust=None) as repo:
        agent = wrap_graph(repo, graph, session, effects=effects, workspace=workspace, template=template)
        with Chat(repo, agent, yes=yes) as chat_loop:
            exit_code = chat_loop.run()
    raise typer.Exit(exit_code)


def serve(
    graph: Annotated[
        str | None,
        typer.Option(metavar="MODULE:GRAPH", help="Your compiled graph, to edit a message on a page and run it again."),
    ] = None,
    effects: Effects = None,
    workspace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SESSION=DIR", help="A session, and the folder whose files are rolled back with it; repeatable."
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port to listen on; 0 means any free port.")
    ] = 8700,
    open_: Annotated[bool, typer.Option("--open", help="Open the pages in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A host name that the server answers to; repeatable.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="The address or network of a proxy whose headers to trust; repeatable."),
    ] = None,
    no_proxy: Annotated[
        bool,
        typer.Option("--no-proxy", help="Serve other machines without a proxy; keys then pass over plain HTTP."),
    ] = False,
    user_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The header in which the trusted proxy names the user who has signed in."),
    ] = None,
    create_users: Annotated[
        bool, typer.Option("--create-users", help="Create users whom the proxy names and who do not exist.")
    ] = False,
    public_url: PublicUrl = None,
    trust: Trust = None,
) -> None:
    server_module = _import_server("agentgit.web.server", "server")
    with repository(trust=trust) as repo:
        server_module.serve(
            repo,
            graph=_served_graph(repo, graph, effects, workspace or ()),
            host=host,
            port=port,
            hosts=allow_host or (),
            trusted_proxies=trusted_proxy or (),
            no_proxy=no_proxy,
            user_header=user_header,
            create_users=create_users,
            public_url=public_url,
            say=output.print_notice,
            browser=open_,
        )


def _served_graph(
    repo: Repository, graph: str | None, effects: str | None, workspaces: Sequence[str]
) -> RollbackGraph | None:
    """Return the named graph for the sessions of a repository, after wrapping it for those that have a workspace."""
    if graph is None:
        for option, given in (("--effects", effects), ("--workspace", workspaces)):
            if given:
                raise InvalidInput(f"{option} is for the tools of a graph. Name it too: --graph MODULE:GRAPH")
        return None
    from agentgit.agents import user_modules  # imported late, because loading LangGraph takes a second

    import_from_here()
    loaded, declared = user_modules.graph_in(graph), user_modules.value_in(effects) if effects else None
    for text in workspaces:
        session, _, folder = text.partition("=")
        if not session or not folder:
            raise InvalidInput(f"--workspace names a session and its folder, like support-42=work, not {text!r}.")
        repo.wrap(loaded, repo.session(session).reference, effects=declared, workspace=folder)
    return repo.graph(loaded, effects=declared)


def mcp(
    session_ref: Session = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only tools that change nothing.")] = False,
    allow_force: Annotated[
        bool, typer.Option("--allow-force", help="Let clients roll back past effects that cannot be undone.")
    ] = False,
    trust: Trust = None,
) -> None:
    server_module = _import_server("agentgit.mcp.server", "mcp")
    modules = trusted_modules(trust)
    with repository() as repo:
        session = repo.session(session_ref) if session_ref is not None else None
        server_module.serve(repo, session, read_only=read_only, may_force=allow_force, trust=modules)


def _import_server(name: str, extra: str) -> ModuleType:
    """Import the module of a server, by name because `cli` must not import it, and works without its packages."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVER_PACKAGES:
            raise
        raise Unavailable("The server needs more packages.", Next("install", package=f"agentgit[{extra}]")) from error
