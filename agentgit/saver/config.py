"""LangGraph's configs and checkpoints: the keys that they contain, and the parts that are stored."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import DeltaSnapshot
from agentgit.saver.codec import Codec
from agentgit.saver.delta_reducer import Channels, encode, folds
from agentgit.store.objects.content import Encoded
from agentgit.store.threads.graph_store import Draft, GraphKey, GraphScope

RECORDED_KEYS = frozenset({"run_id", "graph_id", "assistant_id", "user_id"})
"""The keys of `configurable` that may be stored in the metadata; others may be secrets."""


def address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint id of a config.

    Raises:
        InvalidInput: The config has no thread id.
    """
    configurable = config.get("configurable", {})
    if configurable.get("thread_id") is None:
        raise InvalidInput('The config has no thread_id. Pass {"configurable": {"thread_id": …}}.')
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", get_checkpoint_id(config)


def scope(config: RunnableConfig | None) -> GraphScope:
    """Return the checkpoints that a config selects; a missing field matches any value."""
    if config is None:
        return GraphScope()
    thread, _, checkpoint_id = address(config)
    return GraphScope(thread, config["configurable"].get("checkpoint_ns"), checkpoint_id)


def config_of(graph_key: GraphKey) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": graph_key.thread,
            "checkpoint_ns": graph_key.ns,
            "checkpoint_id": graph_key.checkpoint_id,
        }
    }


def without_secrets(config: RunnableConfig) -> RunnableConfig:
    """Remove the keys of `configurable` that may be secrets, also from `metadata`, into which LangChain copies them."""
    configurable = config.get("configurable") or {}
    metadata = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if key not in configurable or key in RECORDED_KEYS
    }
    return {"metadata": metadata, "configurable": {k: v for k, v in configurable.items() if k in RECORDED_KEYS}}


def is_continuation(config: RunnableConfig, metadata: CheckpointMetadata) -> bool:
    """Return whether a checkpoint comes from a run that continues the newest checkpoint of its thread.

    LangGraph copies the thread and the checkpoint of the config that started a run into `metadata`. The result is False
    if it did not, or if a checkpoint is copied on purpose.

    Args:
        config: The config that `put` received.
        metadata: The metadata that `put` received.
    """
    thread, ns, parent_id = address(config)
    run_metadata = config.get("metadata") or {}
    if ns or str(run_metadata.get("thread_id")) != thread or metadata.get("source") == "fork":
        return False
    requested_id = run_metadata.get("checkpoint_id")
    return requested_id is None or requested_id != parent_id


PENDING_SENDS = "__pending_sends__"
"""The key for the field `pending_sends` of checkpoints of old LangGraph versions."""

SNAPSHOTS = "snapshots"
"""The key in the header for the channels that were saved with the full value of a DeltaChannel."""


def make_draft(
    codec: Codec,
    channels: Channels,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    parent_id: str | None,
) -> Draft:
    """Encode a checkpoint: changed channels now, to keep the transaction short, and the others on demand."""
    values = dict(checkpoint["channel_values"])
    if sends := checkpoint.get("pending_sends"):
        values[PENDING_SENDS] = sends
    snapshot_channels = [name for name, value in values.items() if isinstance(value, DeltaSnapshot)]
    encoded: dict[str, Encoded] = {}

    def encode_channel(name: str) -> Encoded:
        if name not in encoded:
            value = values[name]
            encoded[name] = encode(codec, value.value).encoded if name in snapshot_channels else codec.encode(value)
        return encoded[name]

    changed = frozenset(new_versions)
    for name in values.keys() & changed:
        encode_channel(name)
    header = {
        "v": checkpoint["v"],
        "ts": checkpoint["ts"],
        "versions": checkpoint["channel_versions"],
        "seen": checkpoint["versions_seen"],
        "updated": checkpoint.get("updated_channels"),
    }
    if snapshot_channels:
        header[SNAPSHOTS] = snapshot_channels
    return Draft(
        parent_id=parent_id,
        meta={**get_checkpoint_metadata(without_secrets(config), metadata)},
        header=header,
        channels=list(values),
        changed_channels=changed,
        encode=encode_channel,
        folds=folds(codec, channels, checkpoint, metadata),
    )
