"""Reduction of the writes to a DeltaChannel: run its reducer as LangGraph does, and encode the value.

New messages are appended to the old ones, and a value of a dict that the reducer takes over as the same object is not
encoded again, so a reducer must not change the items of the old value in place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.types import Overwrite

from agentgit.langgraph_internals import DeltaSnapshot, messages_delta_reducer
from agentgit.saver.codec import Codec
from agentgit.saver.leaf_codec import ALONE_BYTES
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Body, Encoded, Part
from agentgit.store.threads.graph_rows import Fold, FoldedValue, ReadEarlier
from agentgit.store.threads.lifecycle import DELTA_COUNTERS

Channels = Mapping[str, Any]
"""The channels of a graph by name; only those that are a DeltaChannel matter."""

_MESSAGES_CHANNEL: DeltaChannel[Any] = DeltaChannel(cast(Any, messages_delta_reducer), list)
"""The channel of messages to use if the graph is not known."""


LEAF_BYTES = 256
"""The approximate overhead of a leaf in memory, in bytes."""


def folds(codec: Codec, channels: Channels, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> dict[str, Fold]:
    """Return a fold function for each channel whose value is spread over the writes of earlier graph checkpoints."""
    delta_channels: Any = metadata.get(DELTA_COUNTERS)
    if not delta_channels:
        return {}
    return {
        name: _make_fold(codec, channels.get(name))
        for name in delta_channels
        if name not in checkpoint["channel_values"] and name in checkpoint["channel_versions"]
    }


def _make_fold(codec: Codec, graph_channel: Any) -> Fold:
    """Return the fold function of one channel, which uses the channel's reducer or else LangGraph's for messages."""
    channel = graph_channel if isinstance(graph_channel, DeltaChannel) else _MESSAGES_CHANNEL

    def fold(previous: FoldedValue | None, new_bodies: Sequence[Body], read_earlier: ReadEarlier) -> FoldedValue | None:
        history = (None, ()) if previous is not None else read_earlier()
        if history is None:
            return None
        seed, earlier_bodies = history
        try:
            writes = [codec.decode(body) for body in (*earlier_bodies, *new_bodies)]
            if previous is None:
                start = channel.typ() if seed is None else unwrap_snapshot(codec.decode(seed))
            elif channel.reducer is messages_delta_reducer and (one := _append_messages(codec, previous, writes)):
                return one
            else:
                start = copy.copy(previous.decoded)
            if channel is _MESSAGES_CHANNEL and not _are_messages(start if previous is None else [], writes):
                return None
            updated_channel = channel.from_checkpoint(DeltaSnapshot(start))
            updated_channel.replay_writes([("", "", write) for write in writes])
            return encode(codec, updated_channel.value, previous)
        except Exception:  # noqa: BLE001  # any error of the user's reducer or types; a value that is only shown must not break the run
            return None

    return fold


def _append_messages(codec: Codec, previous: FoldedValue, writes: Sequence[Any]) -> FoldedValue | None:
    """Append messages without encoding the old ones; None if LangGraph's reducer might not treat them as new."""
    new = [message for write in writes for message in (write if isinstance(write, list) else [write])]
    new_ids = {one.id for one in new if isinstance(one, BaseMessage) and one.id and not isinstance(one, RemoveMessage)}
    known, encoded = previous.encoded, codec.encode(new)
    if known.messages is None or not isinstance(known.body, list) or not isinstance(encoded.body, list):
        return None
    if len(new_ids) < len(new) or any(one.id in new_ids for one in previous.decoded):
        return None
    value = [*previous.decoded, *new]
    return FoldedValue(Encoded([*known.body, *encoded.body], len(value)), value, previous.weight + _size(encoded.body))


def unwrap_snapshot(value: Any) -> Any:
    """Unwrap a `DeltaSnapshot`, in which LangGraph stores the full value of a DeltaChannel."""
    return value.value if isinstance(value, DeltaSnapshot) else value


def _are_messages(start: Any, writes: Sequence[Any]) -> bool:
    """Return whether all values are messages, so that LangGraph's message reducer can be used."""
    parts = [start, *(write.value if isinstance(write, Overwrite) else write for write in writes)]
    return all(
        isinstance(message, BaseMessage) for part in parts for message in (part if isinstance(part, list) else [part])
    )


# -- encoding


def encode(codec: Codec, value: Any, previous: FoldedValue | None = None) -> FoldedValue:
    """Encode the value of a DeltaChannel. Equal values are stored under the same hash."""
    encoded = _encode_record(codec, value, previous) or codec.encode(value)
    return FoldedValue(encoded, value, _size(encoded.body))


def _encode_record(codec: Codec, value: Any, previous: FoldedValue | None) -> Encoded | None:
    """Encode a dict with large values (such as an agent's files) as a record, so that each is stored only once."""
    if type(value) is not dict or not value or not all(type(name) is str for name in value):
        return None
    known = previous.encoded.body if previous is not None else None
    parts = {
        name: known[name]
        if previous is not None and isinstance(known, dict) and name in known and previous.decoded[name] is item
        else _encode_part(codec, item)
        for name, item in value.items()
    }
    return Encoded(parts) if _size(parts) >= len(parts) * (ALONE_BYTES + LEAF_BYTES) else None


def _encode_part(codec: Codec, value: Any) -> Part:
    body = codec.encode(value).body
    return codec.encode_leaf(value) if isinstance(body, dict) else body


def _size(body: Body) -> int:
    if isinstance(body, Leaf):
        return len(body.data) + LEAF_BYTES
    return sum(map(_size, body.values() if isinstance(body, dict) else body))
