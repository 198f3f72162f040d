"""Reading of LangGraph's configs: the place that they point to, and the part of them that may be stored."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_id

from agentgit.errors import InvalidInput
from agentgit.store.threads.graph_store import GraphKey, GraphScope

RECORDED_KEYS = frozenset({"run_id", "graph_id", "assistant_id", "user_id"})
"""The keys of `configurable` that may go into the metadata; the others can be secrets."""


def address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Read thread, namespace and checkpoint id from a config.

    Raises:
        InvalidInput: It names no thread.
    """
    configurable = config.get("configurable", {})
    if configurable.get("thread_id") is None:
        raise InvalidInput('The config names no thread; give {"configurable": {"thread_id": …}}.')
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", get_checkpoint_id(config)


def scope(config: RunnableConfig | None) -> GraphScope:
    """Read which checkpoints a config means; where it says nothing, any."""
    if config is None:
        return GraphScope()
    thread, _, checkpoint_id = address(config)
    return GraphScope(thread, config["configurable"].get("checkpoint_ns"), checkpoint_id)


def config_of(place: GraphKey) -> RunnableConfig:
    """Write the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": place.thread,
            "checkpoint_ns": place.ns,
            "checkpoint_id": place.checkpoint_id,
        }
    }


def without_secrets(config: RunnableConfig) -> RunnableConfig:
    """Leave out what came from `configurable` and is not known to be harmless; LangChain copies it into `metadata`."""
    configurable = config.get("configurable") or {}
    metadata = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if key not in configurable or key in RECORDED_KEYS
    }
    return {"metadata": metadata, "configurable": {k: v for k, v in configurable.items() if k in RECORDED_KEYS}}


def continues(config: RunnableConfig, metadata: CheckpointMetadata) -> bool:
    """Return whether a checkpoint comes from a run that goes on from the newest one, and from no older one.

    LangGraph copies thread and checkpoint of the config that a run was called with into `metadata`; where it did not,
    or where a checkpoint is copied on purpose, nothing is expected.

    Args:
        config: As `put` gets it.
        metadata: As `put` gets it.
    """
    thread, ns, parent_id = address(config)
    called = config.get("metadata") or {}
    if ns or str(called.get("thread_id")) != thread or metadata.get("source") == "fork":
        return False
    asked = called.get("checkpoint_id")
    return asked is None or asked != parent_id
