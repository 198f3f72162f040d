"""From LangGraph's checkpoint to what is stored of it."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, get_checkpoint_metadata

from agentgit.langgraph_internals import DeltaSnapshot
from agentgit.saver.codec import Codec
from agentgit.saver.config import without_secrets
from agentgit.saver.delta_reducer import Channels, encode, folds
from agentgit.store.objects.content import Encoded
from agentgit.store.threads.graph_store import Draft

PENDING_SENDS = "__pending_sends__"
"""The key for the field `pending_sends` of LangGraph's old checkpoints."""

SNAPSHOTS = "snapshots"
"""The key in the header for the channels whose value came as the full value of a DeltaChannel."""


def make_draft(
    codec: Codec,
    channels: Channels,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    parent_id: str | None,
) -> Draft:
    """Encode a checkpoint; what changed at once, so that the transaction is short, the rest when it is asked for."""
    values = dict(checkpoint["channel_values"])
    if sends := checkpoint.get("pending_sends"):
        values[PENDING_SENDS] = sends
    snapshots = [name for name, value in values.items() if isinstance(value, DeltaSnapshot)]
    encoded: dict[str, Encoded] = {}

    def encoded_of(name: str) -> Encoded:
        if name not in encoded:
            value = values[name]
            encoded[name] = encode(codec, value.value).encoded if name in snapshots else codec.encode(value)
        return encoded[name]

    changed = frozenset(new_versions)
    for name in values.keys() & changed:
        encoded_of(name)
    header = {
        "v": checkpoint["v"],
        "ts": checkpoint["ts"],
        "versions": checkpoint["channel_versions"],
        "seen": checkpoint["versions_seen"],
        "updated": checkpoint.get("updated_channels"),
    }
    if snapshots:
        header[SNAPSHOTS] = snapshots
    return Draft(
        parent_id=parent_id,
        meta=cast("dict[str, Any]", get_checkpoint_metadata(without_secrets(config), metadata)),
        header=header,
        names=list(values),
        changed=changed,
        encode=encoded_of,
        folds=folds(codec, channels, checkpoint, metadata),
    )
