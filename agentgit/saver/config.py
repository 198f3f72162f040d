"""LangGraph's configs and checkpoints: the keys that they contain, and the parts that are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.constants import START

from agentgit.auth.secret_names import is_secret_name
from agentgit.errors import Corrupt, InvalidInput
from agentgit.langgraph_internals import TASKS, DeltaSnapshot
from agentgit.next_steps import Next
from agentgit.saver.codec import Codec
from agentgit.saver.delta_reducer import Channels, encode, folds
from agentgit.saver.leaf_codec import is_plain
from agentgit.store.objects.content import Encoded
from agentgit.store.threads.graph_rows import BRANCH_TO, Draft, GraphKey, GraphScope
from agentgit.store.threads.lifecycle import DELTA_COUNTERS


def address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint id of a config."""
    configurable = config.get("configurable", {})
    if configurable.get("thread_id") is None:
        raise InvalidInput('The config has no thread_id. Pass {"configurable": {"thread_id": …}}.')
    checkpoint_id = require_checkpoint_id(get_checkpoint_id(config))
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns") or ""), checkpoint_id


def require_checkpoint_id(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value.isprintable()):
        return value
    raise InvalidInput(f"A checkpoint_id is a text, as get_state returns it, not {repr(value)[:100]}.")


def scope(config: RunnableConfig | None) -> GraphScope:
    """Return the checkpoints that a config selects; a missing field matches any value."""
    if config is None:
        return GraphScope()
    thread, _, checkpoint_id = address(config)
    return GraphScope(thread, config["configurable"].get("checkpoint_ns"), checkpoint_id)


def config_of(graph_key: GraphKey) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": graph_key.thread,
            "checkpoint_ns": graph_key.ns,
            "checkpoint_id": graph_key.checkpoint_id,
        }
    }


RESTORE_POINT = "agentgit_restore_point"
"""The key in the metadata of a run for the id of the user's message; the run's checkpoints do not repeat it."""


def stored_metadata(
    config: RunnableConfig, metadata: CheckpointMetadata, excluded: Collection[str]
) -> CheckpointMetadata:
    """Return the metadata to store: as LangGraph's savers do, but of the config without secrets and excluded names."""

    def allowed(settings: Mapping[str, Any] | None) -> dict[str, Any]:
        left_out = {RESTORE_POINT, *excluded}
        return {k: v for k, v in (settings or {}).items() if k not in left_out and not is_secret_name(k)}

    harmless: RunnableConfig = {
        "metadata": allowed(config.get("metadata")),
        "configurable": allowed(config.get("configurable")),
    }
    return get_checkpoint_metadata(harmless, metadata)


def is_continuation(config: RunnableConfig, metadata: CheckpointMetadata) -> bool:
    """Return whether a checkpoint comes from a run that continues the newest checkpoint of its thread."""
    # LangGraph copies the thread and the checkpoint of the config that started a run into its metadata.
    thread, ns, parent_id = address(config)
    run_metadata = config.get("metadata") or {}
    if ns or str(run_metadata.get("thread_id")) != thread or metadata.get("source") == "fork":
        return False
    # A replay from a subgraph's checkpoint names that one; the map has the checkpoint of the whole graph above it.
    ids_by_ns = config["configurable"].get("checkpoint_map") or {}
    return parent_id is None or parent_id not in (run_metadata.get("checkpoint_id"), ids_by_ns.get(""))


def would_go_on(found: CheckpointTuple) -> bool:
    """Return whether a graph has something to go on with at a checkpoint."""
    values = found.checkpoint["channel_values"]
    return bool(found.pending_writes) or any(
        name == START or name.startswith(BRANCH_TO) or (name.startswith((TASKS, "join:")) and value)
        for name, value in values.items()
    )


HEADER_FIELDS = {
    "v": "v",
    "ts": "ts",
    "channel_versions": "versions",
    "versions_seen": "seen",
    "updated_channels": "updated",
}
"""The fields of a checkpoint that are stored in the header, with their names there."""

_OWN_FIELDS = frozenset({"id", "channel_values", *HEADER_FIELDS})
"""The fields of a checkpoint that have a place of their own in a row."""

OTHER_FIELDS = "others"
"""The key in the header for fields that only some versions of LangGraph know, such as `pending_sends`."""

TYPED_FIELDS = "__typed_fields__"
"""The key among the channels for the fields, of the checkpoint and of its metadata, that JSON would change."""

SNAPSHOTS = "snapshots"
"""The key in the header for the channels that were saved with the full value of a DeltaChannel."""


def make_draft(
    codec: Codec,
    channels: Channels | None,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    parent_id: str | None,
) -> Draft:
    """Encode a checkpoint: changed channels now, to keep the transaction short, and the others on demand."""
    values = dict(checkpoint["channel_values"])
    snapshot_channels = [name for name, value in values.items() if isinstance(value, DeltaSnapshot)]
    header: dict[str, Any] = {short: checkpoint[name] for name, short in HEADER_FIELDS.items() if name in checkpoint}  # type: ignore[literal-required]  # HEADER_FIELDS has keys of the TypedDict
    if snapshot_channels:
        header[SNAPSHOTS] = snapshot_channels
    others = {name: value for name, value in checkpoint.items() if name not in _OWN_FIELDS}
    typed_fields = {"checkpoint": _not_plain(others), "metadata": _not_plain(metadata)}
    if others := {name: value for name, value in others.items() if name not in typed_fields["checkpoint"]}:
        header[OTHER_FIELDS] = others
    if any(typed_fields.values()):
        values[TYPED_FIELDS] = typed_fields
    encoded: dict[str, Encoded] = {}

    def encode_channel(name: str) -> Encoded:
        if name not in encoded:
            value = values[name]
            encoded[name] = encode(codec, value.value).encoded if name in snapshot_channels else codec.encode(value)
        return encoded[name]

    changed = frozenset(new_versions)
    for name in values.keys() & {*changed, TYPED_FIELDS}:
        encode_channel(name)
    return Draft(
        parent_id=parent_id,
        meta={**metadata},
        header=header,
        channels=list(values),
        changed_channels=changed,
        encode=encode_channel,
        folds=folds(codec, channels, checkpoint, metadata) if channels is not None else {},
    )


def _not_plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that JSON would change, without the counters of DeltaChannels, read back as lists."""
    return {name: value for name, value in fields.items() if name != DELTA_COUNTERS and not is_plain(value)}


def read_typed_fields(graph_key: GraphKey, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a checkpoint and of its metadata that are stored among the channels."""
    match value:
        case None:
            return {}, {}
        case {"checkpoint": dict() as checkpoint, "metadata": dict() as metadata}:
            return checkpoint, metadata
    row = f"graph_checkpoint {'/'.join(graph_key)}"
    raise Corrupt(f"{row} has damaged metadata.", Next("fsck"), row=row)
