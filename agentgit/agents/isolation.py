"""Isolates an agent from the graph or the agent that calls it."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgit.agents.turn.fence_errors import as_bubble_up
from agentgit.agents.turn.recorder import Recorder
from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import is_internal_key

RUN_KEYS = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"})
"""The keys with which LangGraph describes the run that a config belongs to."""


def require_not_nested(config: RunnableConfig | None) -> None:
    """Check that a turn does not begin inside a turn of another wrapped graph."""
    if recorders_in(var_child_runnable_config.get()) or recorders_in(config):
        raise as_bubble_up(
            InvalidInput(
                "This agent was called inside a turn of another wrapped graph, so nothing was run: its effects would "
                "be recorded only in its own session, and a rollback of that turn would miss them. Call agent.graph "
                "instead: its calls are then recorded with that turn. Or leave one of the two graphs unwrapped."
            )
        )


def recorders_in(config: RunnableConfig | None) -> list[Recorder]:
    """Return the recorders of the turns that a config belongs to."""
    callbacks: Any = (config or {}).get("callbacks")
    return [one for one in getattr(callbacks, "handlers", callbacks or ()) if isinstance(one, Recorder)]


def detached_config(config: RunnableConfig | None) -> RunnableConfig:
    """Remove from a config what identifies a position in a running graph.

    With these keys, a graph that is called inside another one would run as its subgraph and keep its state there.
    """
    outer_config = var_child_runnable_config.get() or {}
    result: RunnableConfig = {**(config or {})}
    if result.get("callbacks") is None and outer_config.get("callbacks") is not None:
        result["callbacks"] = outer_config["callbacks"]
    configurable = result.get("configurable", {})
    if any(map(is_internal_key, configurable)):
        configurable = {k: v for k, v in configurable.items() if not is_internal_key(k) and k not in RUN_KEYS}
    result["configurable"] = dict(configurable)
    return result
