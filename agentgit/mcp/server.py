"""MCP server over standard input and output, with the tool descriptions for clients."""

from __future__ import annotations

import inspect
import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import anyio
from anyio import to_thread
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

import agentgit
from agentgit.checkpoints import references
from agentgit.errors import AgentGitError, InvalidInput, NotFound, PlanChanged, RollbackBlocked, RollbackIncomplete
from agentgit.mcp.read_tools import MEDIUM, ReadTools, ToolAnswer, to_confirm
from agentgit.mcp.write_tools import WriteTools
from agentgit.next_steps import NAMED_PLACE, NOWHERE
from agentgit.render.views.rollback import outcome
from agentgit.values import is_database_error, portable

if TYPE_CHECKING:
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

READ_TOOLS = (
    ReadTools.sessions,
    ReadTools.list_checkpoints,
    ReadTools.get_checkpoint_info,
    ReadTools.tool_track,
    ReadTools.branches,
    ReadTools.tree,
    ReadTools.diff,
    ReadTools.search,
    ReadTools.operations,
    ReadTools.plan_rollback,
    ReadTools.plan_switch,
)
"""The read-only tools."""

WRITE_TOOLS: Mapping[Callable[..., ToolAnswer], Mapping[str, bool]] = {
    WriteTools.create_checkpoint: {"destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
    WriteTools.fork: {"destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
    WriteTools.delete_checkpoint: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    WriteTools.cleanup_auto_checkpoints: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    # These run undo functions, which change the outside world and may delete things there.
    WriteTools.rollback_to_checkpoint: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    WriteTools.switch: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    WriteTools.resume: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
}
"""The tools that change data, each with its MCP annotations."""


@dataclass(frozen=True)
class ToolSchema:
    """One tool, as a client sees it."""

    tool: types.Tool
    model: type[BaseModel]

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the arguments of a call."""
        try:
            validated = self.model.model_validate(arguments)
        except ValidationError as error:
            issues = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidInput(f"Invalid arguments for {self.tool.name}: {issues}.") from error
        return {name: getattr(validated, name) for name in self.model.model_fields}


def tool_schemas(*, bound: bool, read_only: bool) -> dict[str, ToolSchema]:
    """Return the tools by name."""
    reads = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    hints_by_tool: dict[Callable[..., ToolAnswer], Mapping[str, bool]] = dict.fromkeys(READ_TOOLS, reads)
    hints_by_tool |= {} if read_only else WRITE_TOOLS
    schemas = [_create_schema(function, hints, bound=bound) for function, hints in hints_by_tool.items()]
    return {
        schema.tool.name: schema
        for schema in schemas
        if not (bound and schema.tool.name == ReadTools.sessions.__name__)
    }


def _create_schema(function: Callable[..., ToolAnswer], hints: Mapping[str, bool], *, bound: bool) -> ToolSchema:
    annotations, name = get_type_hints(function, include_extras=True), function.__name__
    skipped = {"self", "session"} if bound else {"self"}
    fields: dict[str, Any] = {
        parameter.name: (
            annotations[parameter.name],
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in skipped
    }
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return ToolSchema(
        types.Tool(
            name=name,
            title=name.replace("_", " ").capitalize(),
            description=inspect.getdoc(function),
            inputSchema=model.model_json_schema(),
            annotations=types.ToolAnnotations.model_validate({"readOnlyHint": False, **hints}),
        ),
        model,
    )


LOG = logging.getLogger("agentgit.mcp")

READ_ONLY_INSTRUCTIONS = """This server shows the checkpoints (saved points) of agent sessions. It is read-only:
plan_rollback and plan_switch show what a rollback or a switch would do, but only a person can do it."""

INSTRUCTIONS = """This server shows the checkpoints (saved points) of agent sessions, and can go back to them.
A rollback creates a new branch, undoes what tools did after the checkpoint, newest first, and restores files. The old
branch stays readable. First call plan_rollback. It shows what can be undone and what cannot, and returns the identity
that rollback_to_checkpoint needs as `plan`. A rollback changes the real world: call it only if the user wants it."""


def serve(
    repo: Repository,
    session: Session | None = None,
    *,
    read_only: bool = False,
    may_force: bool = False,
    trust: Sequence[str] = (),
) -> None:
    """Serve MCP clients until standard input ends."""
    streams = _reserve_streams()  # before the imports: what modules print must not reach the client
    repo.trust(*trust)
    tools = WriteTools(repo, session, may_force=may_force)
    anyio.run(_run_server, create_server(tools, bound=session is not None, read_only=read_only), *streams)


def create_server(tools: WriteTools, *, bound: bool, read_only: bool) -> Server[Any, Any]:
    """Create the MCP server for a set of tools."""
    instructions = READ_ONLY_INSTRUCTIONS if read_only else INSTRUCTIONS
    server: Server[Any, Any] = Server("agentgit", version=agentgit.__version__, instructions=instructions)
    schemas = tool_schemas(bound=bound, read_only=read_only)

    @server.list_tools()  # type: ignore[no-untyped-call, untyped-decorator]  # untyped in mcp
    async def list_tools() -> list[types.Tool]:
        return [schema.tool for schema in schemas.values()]

    @server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]  # untyped in mcp
    async def call_tool(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        # In a thread, so that the server keeps reading requests. A call that has started is never abandoned.
        return await to_thread.run_sync(answer, name, arguments)

    def answer(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        NAMED_PLACE.set(NOWHERE)
        try:
            if (schema := schemas.get(name)) is None:
                raise NotFound(f"There is no tool {name}.", near=references.similar_names(name, schemas))
            validated = schema.validate(arguments)
            return _result(getattr(tools, name)(**validated))
        except AgentGitError as error:
            if is_database_error(error.__cause__):
                LOG.warning("The database refused something.", exc_info=error)
            return _failure(error)
        except Exception:  # otherwise mcp sends the text of the exception to the client
            LOG.exception("A tool failed.")
            return _failure(AgentGitError("Internal error. The server log has the details."))

    return server


def _result(answer: ToolAnswer) -> types.CallToolResult:
    return types.CallToolResult(content=[_text_content(answer.text)], structuredContent=portable(answer.data))


def _failure(error: AgentGitError) -> types.CallToolResult:
    """Return the result for an error, with its name and message as text and its details as structured data."""
    message = error.worded("mcp")
    details: dict[str, Any] = {"error": type(error).__name__, "message": message, "exit_code": error.exit_code}
    details["next"] = [step.to_dict() for step in error.next]
    text = f"{type(error).__name__}: {message}"
    if isinstance(error, PlanChanged | RollbackBlocked):
        details["plan"] = error.plan.to_dict()
        text += f"\n{MEDIUM.text(outcome(error.plan))}"
        if any(step.verb in ("confirm", "resume_planned") for step in error.next):
            text += f"\n{to_confirm(error.plan)}"
        else:
            del details["plan"]["identity"]
    elif isinstance(error, RollbackIncomplete):
        details |= {"operation": error.operation, "report": error.report.to_dict()}
        text += f"\n{MEDIUM.text(outcome(error.report))}"
    return types.CallToolResult(content=[_text_content(text)], structuredContent=portable(details), isError=True)


def _text_content(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


async def _run_server(server: Server[Any, Any], stdin: io.TextIOWrapper, stdout: io.TextIOWrapper) -> None:
    async with stdio_server(anyio.wrap_file(stdin), anyio.wrap_file(stdout)) as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def _reserve_streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper]:
    """Reserve standard input and output for the protocol.

    Undo functions then print to standard error and read an empty standard input. A single stray line from them would
    break the connection to the client.
    """
    sys.stdout.flush()
    stdin_fd, stdout_fd = os.dup(0), os.dup(1)
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)
    os.dup2(2, 1)
    stdin = io.TextIOWrapper(os.fdopen(stdin_fd, "rb"), encoding="utf-8", errors="replace")
    return stdin, io.TextIOWrapper(os.fdopen(stdout_fd, "wb"), encoding="utf-8")
