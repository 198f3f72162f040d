"""The turn that a context belongs to, and the isolation of an agent from the graph or the agent that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgit.langgraph_internals import is_internal_key

RUN_KEYS = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"})
"""The keys with which LangGraph describes the run that a config belongs to."""


CURRENT: ContextVar[Any] = ContextVar("agentgit_call", default=None)
"""The calls of the turn that this context belongs to, and the call whose tool runs in it, as a pair."""


def is_detached() -> bool:
    """Return whether this context was taken out of all turns, as when a rollback makes a call again."""
    return CURRENT.get() is None and CURRENT in copy_context()


@contextmanager
def turn_context(calls: Any) -> Iterator[None]:
    """Let the contexts that begin in the block belong to the turn of some calls."""
    token = CURRENT.set((calls, None))
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def detached() -> Iterator[None]:
    """Take the block out of the turn and the graph run that surround it, if any."""
    token, config_token = CURRENT.set(None), var_child_runnable_config.set(None)
    try:
        yield
    finally:
        var_child_runnable_config.reset(config_token)
        CURRENT.reset(token)


def detached_config(config: RunnableConfig | None) -> RunnableConfig:
    """Remove from a config what would make a graph run, and keep its state, as a subgraph of the one around it."""
    outer_config = var_child_runnable_config.get() or {}
    result: RunnableConfig = {**(config or {})}
    if result.get("callbacks") is None and outer_config.get("callbacks") is not None:
        result["callbacks"] = outer_config["callbacks"]
    configurable = result.get("configurable", {})
    if any(map(is_internal_key, configurable)):
        configurable = {k: v for k, v in configurable.items() if not is_internal_key(k) and k not in RUN_KEYS}
    result["configurable"] = dict(configurable)
    return result
