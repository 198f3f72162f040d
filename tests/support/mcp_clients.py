"""MCP clients connected to a server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_connected_server_and_client_session
from mcp.types import Tool

from agentgit import Repository, Session
from agentgit.mcp.server import create_server
from agentgit.mcp.write_tools import WriteTools


def server(repo: Repository, session: Session | None = None, *, read_only: bool, may_force: bool) -> Server[Any, Any]:
    """Make the server that `agentgit mcp` runs."""
    return create_server(WriteTools(repo, session, may_force=may_force), bound=session is not None, read_only=read_only)


@asynccontextmanager
async def connected(
    repo: Repository, session: Session | None = None, *, read_only: bool = False, may_force: bool = False
) -> AsyncIterator[ClientSession]:
    """Connect a real client to a server of a repository; the options are those of `agentgit mcp`."""
    made = server(repo, session, read_only=read_only, may_force=may_force)
    async with create_connected_server_and_client_session(made) as client:
        yield client


async def offered(repo: Repository, **how: Any) -> dict[str, Tool]:
    """Return the tools that a server offers, by their names; the arguments are those of `connected`."""
    async with connected(repo, **how) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}
