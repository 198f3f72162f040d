"""Descriptions of the tools for clients: names, schemas of the arguments, and effects on the outside world."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from mcp import types
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentgit.errors import InvalidInput
from agentgit.mcp.read_tools import ReadTools, ToolAnswer
from agentgit.mcp.write_tools import WriteTools

LOOKS = (
    ReadTools.list_sessions,
    ReadTools.list_checkpoints,
    ReadTools.get_checkpoint_info,
    ReadTools.list_tool_calls,
    ReadTools.list_branches,
    ReadTools.show_tree,
    ReadTools.diff_checkpoints,
    ReadTools.search,
    ReadTools.list_operations,
    ReadTools.plan_rollback,
    ReadTools.plan_switch,
)
"""The tools that change nothing."""

MOVES: Mapping[Callable[..., ToolAnswer], Mapping[str, bool]] = {
    WriteTools.create_checkpoint: {"destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
    WriteTools.create_branch: {"destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
    WriteTools.delete_checkpoint: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    WriteTools.cleanup_auto_checkpoints: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    # Undo functions act on the world, and what they take away is gone from there.
    WriteTools.rollback_to_checkpoint: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    WriteTools.switch_branch: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    WriteTools.resume_operation: {"destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
}
"""The tools that change something, each with its MCP annotations."""


@dataclass(frozen=True)
class ToolSchema:
    """One tool, as a client sees it.

    Args:
        tool: The name, description, schema and annotations of the tool.
        model: The model that reads its arguments.
    """

    tool: types.Tool
    model: type[BaseModel]

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Read the arguments of a call.

        Raises:
            InvalidInput: They are not those of the tool.
        """
        try:
            given = self.model.model_validate(arguments)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidInput(f"{self.tool.name} cannot be called so. {wrong}.") from error
        return {name: getattr(given, name) for name in self.model.model_fields}


def forms(*, bound: bool, read_only: bool) -> dict[str, ToolSchema]:
    """Return the tools by their names.

    Args:
        bound: True if the server is of one session, which no call names then.
        read_only: True to give only those that change nothing.
    """
    reads = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    said: dict[Callable[..., ToolAnswer], Mapping[str, bool]] = dict.fromkeys(LOOKS, reads)
    said |= {} if read_only else MOVES
    made = [_form(function, hints, bound=bound) for function, hints in said.items()]
    return {form.tool.name: form for form in made if not (bound and form.tool.name == ReadTools.list_sessions.__name__)}


def _form(function: Callable[..., ToolAnswer], hints: Mapping[str, bool], *, bound: bool) -> ToolSchema:
    types_of, name = get_type_hints(function, include_extras=True), function.__name__
    left_out = {"self", "session"} if bound else {"self"}
    fields: dict[str, Any] = {
        one.name: (types_of[one.name], ... if one.default is one.empty else one.default)
        for one in inspect.signature(function).parameters.values()
        if one.name not in left_out
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
