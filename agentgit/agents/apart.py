"""Running an agent apart from what it is called in: another graph, another agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgit.agents.recorder import Recorder

OF_A_RUN = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"})
"""What LangGraph's own keys say about the run that a config comes from."""


def alone(config: RunnableConfig | None) -> RunnableConfig:
    """Take from a config what belongs to a graph that is running: its place, and the recorder of its agent.

    A graph that is called inside of another one takes itself for its subgraph, and keeps its state there.

    Args:
        config: as a user gave it, or as a node of another graph got it.
    """
    outer = var_child_runnable_config.get() or {}
    made: RunnableConfig = {**(config or {})}
    if made.get("callbacks") is None and outer.get("callbacks") is not None:
        made["callbacks"] = outer["callbacks"]
    if isinstance(manager := made.get("callbacks"), BaseCallbackManager):
        made["callbacks"] = _without_recorders(manager)
    given = made.get("configurable", {})
    if any(key.startswith("__pregel_") for key in given):
        given = {k: v for k, v in given.items() if not k.startswith("__pregel_") and k not in OF_A_RUN}
    made["configurable"] = dict(given)
    return made


def _without_recorders(manager: BaseCallbackManager) -> BaseCallbackManager:
    copy = manager.copy()
    for handler in [*copy.handlers, *copy.inheritable_handlers]:
        if isinstance(handler, Recorder):
            copy.remove_handler(handler)
    return copy


@contextmanager
def by_itself() -> Iterator[None]:
    """Hide the running graph, if there is one, from the graph that is called in this block."""
    token = var_child_runnable_config.set(None)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
