"""`agentgit mcp`: the checkpoint tools of a session for clients that speak the Model Context Protocol."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Annotated

import typer

from agentgit.cli.options import Session, Trust, Where, repository, to_trust
from agentgit.errors import Unavailable


def mcp(
    session: Session = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only tools that change nothing.")] = False,
    allow_force: Annotated[
        bool, typer.Option("--allow-force", help="Let clients roll back past effects that cannot be undone.")
    ] = False,
    trust: Trust = None,
    db: Where = None,
) -> None:
    """Serve the checkpoints of one session or all as MCP tools, over standard input and output."""
    server = _server()
    modules = to_trust(trust)
    with repository(db) as repo:
        bound = repo.session(session) if session is not None else None
        server.serve(repo, bound, read_only=read_only, may_force=allow_force, trust=modules)


def _server() -> ModuleType:
    try:
        return importlib.import_module("agentgit.mcp.server")  # a face knows no other face
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise Unavailable('The MCP server needs the package mcp. Run: pip install "agentgit[mcp]"') from error
