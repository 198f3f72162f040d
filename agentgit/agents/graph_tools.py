"""The tools of a graph: which there are, their effects, and how each is called again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

from agentgit.agents.checkpoint_tools import CHECKPOINT_TOOLS, is_checkpoint_tool
from agentgit.agents.instrumentation import referenced_tools, tools_of
from agentgit.agents.tools import ToolsByName, argument_normalizers, profile_effects, resolve_effects, tool_caller
from agentgit.effects import Effect
from agentgit.effects.declarations import ToolEffects
from agentgit.effects.effects import declared_on
from agentgit.effects.known_tools import Holds


class GraphTools:
    """The tools of a graph."""

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        user_effects: Mapping[str, Effect],
        defaults: Mapping[str, Effect],
        holds: Holds = lambda path: False,
        *,
        check: bool = False,
    ) -> None:
        tools = _tools_by_name(graph)
        # If the graph does not list its tools, a tool with one of agentgit's names counts as agentgit's own, unless the
        # user declares its effect.
        self.own_names = (
            frozenset(name for name in tools if all(map(is_checkpoint_tool, tools[name])))
            if tools
            else CHECKPOINT_TOOLS - set(user_effects)
        )
        """The names of agentgit's own tools, which are not recorded."""
        user_tools = {name: same for name, same in tools.items() if name not in self.own_names}
        known_effects = profile_effects(user_tools, holds)
        effects_by_tool = resolve_effects(user_tools, user_effects, defaults, known_effects, check=check)
        self.effects = ToolEffects(
            effects_by_tool,
            defaults,
            argument_normalizers(user_tools, effects_by_tool),
            profiled=known_effects.keys() - user_effects.keys(),
        )
        """The effects of all tools, by name."""
        self.declared = [(name, effect) for name, effect in effects_by_tool.items() if effect is not None]
        """The declared effects, with those of the tools that the functions of nodes refer to."""
        self.declared += [
            (tool.name, own_effect)
            for tool in referenced_tools(graph)
            if tool.name not in effects_by_tool and (own_effect := declared_on(tool)) is not None
        ]
        self.runners = {name: tool_caller(namesakes) for name, namesakes in user_tools.items()}
        """The functions that call the tools again, or the reasons why they cannot be called."""


def _tools_by_name(graph: Pregel[Any, Any, Any, Any]) -> ToolsByName:
    tools: dict[str, list[BaseTool]] = {}
    for tool in tools_of(graph):
        tools.setdefault(tool.name, []).append(tool)
    return tools
