"""Turns that run at the same time: which graphs may."""

from __future__ import annotations

from agentgit.agents.branch_context import Graph, TurnSettings
from agentgit.agents.memory import is_wrappable
from agentgit.effects.effects import NEUTRAL, UNDECLARED
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import InvalidInput


def acting_tools(settings: TurnSettings) -> list[str]:
    """Return the names of the tools that change the world, and words for the tools that write files."""
    kinds = settings.effects.kinds()
    names = [name for name, kind in kinds.items() if kind not in (*NEUTRAL, UNDECLARED)]
    return [*names, "those that write files"] if settings.workspace is not None else names


def require_parallel(graph: Graph, settings: TurnSettings) -> None:
    """Refuse to run branches at the same time if they would affect each other."""
    declared = settings.effects.tools
    shares_memory = is_wrappable(graph.store) and not all(declared.get(name) for name in MEMORY_TOOLS)
    writers = [*acting_tools(settings), *(["those that write to memory"] if shares_memory else [])]
    if writers:
        raise InvalidInput(
            f"These tools change the world: {', '.join(writers)}. Branches that run in parallel would affect "
            "each other. Leave parallel and executor out, so that they run one after the other, each in its own world."
        )
