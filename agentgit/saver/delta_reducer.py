"""Reduction of the writes to a DeltaChannel: run its reducer as LangGraph does, and encode the value.

Apart from copying pointers, both cost only as much as was written since the last known value. A part that the reducer
takes over as the same object is not encoded again, so a reducer must not change the items of the old value in place.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import is_
from typing import Any, NamedTuple, cast

from langchain_core.messages import BaseMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.types import Overwrite

from agentgit.langgraph_internals import DeltaSnapshot, messages_delta_reducer
from agentgit.saver.codec import Codec
from agentgit.saver.leaf_codec import ALONE_BYTES
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Body, Encoded, Part
from agentgit.store.objects.plain_values import READERS, RUNS
from agentgit.store.threads.graph_rows import Fold, FoldedValue, ReadEarlier
from agentgit.store.threads.lifecycle import DELTA_COUNTERS

Channels = Mapping[str, Any]
"""The channels of a graph by name; only those that are a DeltaChannel matter."""

_MESSAGES_CHANNEL: DeltaChannel[Any] = DeltaChannel(cast(Any, messages_delta_reducer), list)
"""The channel of messages to use if the graph is not known."""


LEAF_BYTES = 256
"""The approximate overhead of a leaf in memory, in bytes."""


class DecodedValue(NamedTuple):
    """A decoded value, from which the next value can be computed."""

    value: Any
    ends: Sequence[int] = ()
    parts: Mapping[str, tuple[Part, int]] = {}
    ids: set[str | None] | None = None


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
            elif (
                channel.reducer is messages_delta_reducer
                and (appended := _append_messages(codec, previous, writes)) is not None
            ):
                return appended
            else:
                start = copy.copy(previous.decoded.value)
            if channel is _MESSAGES_CHANNEL and not _are_messages(start if previous is None else [], writes):
                return None
            updated_channel = channel.from_checkpoint(DeltaSnapshot(start))
            updated_channel.replay_writes([("", "", write) for write in writes])
            return encode(codec, updated_channel.value, previous)
        except Exception:  # noqa: BLE001  # any error of the user's reducer or types; a value that is only shown must not break the run
            return None

    return fold


def _append_messages(codec: Codec, previous: FoldedValue, writes: Sequence[Any]) -> FoldedValue | None:
    """Append messages without looking at the old ones; None if LangGraph's reducer might not treat them as new."""
    value, ids = previous.decoded.value, previous.decoded.ids
    messages = [message for write in writes for message in (write if isinstance(write, list) else [write])]
    new_ids = {
        one.id for one in messages if isinstance(one, BaseMessage) and one.id and not isinstance(one, RemoveMessage)
    }
    encoded = codec.encode(messages)
    previous_body = previous.encoded.body
    if not (isinstance(previous_body, list) and isinstance(encoded.body, list)) or encoded.messages is None:
        return None
    if ids is None or len(new_ids) < len(messages) or not ids.isdisjoint(new_ids):
        return None
    ids.update(new_ids)
    body, new_value = [*previous_body, *encoded.body], [*value, *messages]
    decoded = DecodedValue(new_value, range(1, len(new_value) + 1), ids=ids)
    return FoldedValue(Encoded(body, len(new_value)), decoded, previous.weight + _size(encoded.body))


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
    if previous is not None and type(previous.decoded.value) is not type(value):
        previous = None
    if type(value) is dict and all(type(name) is str for name in value):
        return _encode_dict(codec, value, previous)
    return (_encode_list(codec, value, previous) if type(value) is list else None) or _encode_whole(codec, value)


def _encode_whole(codec: Codec, value: Any) -> FoldedValue:
    encoded = codec.encode(value)
    ends = _leaf_ends(encoded.body, 0) if isinstance(encoded.body, list) else ()
    return FoldedValue(encoded, DecodedValue(value, ends, ids=_message_ids(encoded, value)), _size(encoded.body))


def _encode_list(codec: Codec, value: list[Any], previous: FoldedValue | None) -> FoldedValue | None:
    """Encode only the items after the beginning that a list shares with an earlier one; None if that is impossible."""
    if previous is None or not isinstance(previous.encoded.body, list):
        return None
    is_same = list(map(is_, previous.decoded.value, value))
    shared_count = is_same.index(False) if False in is_same else len(is_same)
    # A leaf may be a run of small items. Its end depends on the item after it, which must be the same, too.
    leaf_count = bisect_left(previous.decoded.ends, shared_count)
    start = previous.decoded.ends[leaf_count - 1] if leaf_count else 0
    encoded_rest = codec.encode(value[start:])
    if not isinstance(encoded_rest.body, list) or (
        leaf_count and (previous.encoded.messages is None) is not (encoded_rest.messages is None)
    ):
        return None
    body = [*previous.encoded.body[:leaf_count], *encoded_rest.body]
    ends = [*previous.decoded.ends[:leaf_count], *_leaf_ends(encoded_rest.body, start)]
    encoded = Encoded(body, None if encoded_rest.messages is None else len(value))
    return FoldedValue(
        encoded, DecodedValue(value, ends, ids=_message_ids(encoded, value)), previous.weight + _size(encoded_rest.body)
    )


def _message_ids(encoded: Encoded, value: Any) -> set[str | None] | None:
    return {message.id for message in value} if encoded.messages is not None and type(value) is list else None


def _leaf_ends(leaves: Sequence[Leaf], start: int) -> list[int]:
    sizes = [len(READERS[leaf.type](leaf.data)) if leaf.type in RUNS else 1 for leaf in leaves]
    return list(accumulate(sizes, initial=start))[1:]


def _encode_dict(codec: Codec, value: dict[str, Any], previous: FoldedValue | None) -> FoldedValue:
    """Encode a dict. With large values (such as an agent's files) it becomes a record, so each is stored only once."""
    previous_parts, previous_value = (
        (previous.decoded.parts, previous.decoded.value) if previous is not None else ({}, {})
    )
    parts = {
        name: previous_parts[name]
        if name in previous_parts and previous_value[name] is item
        else _encode_part(codec, item)
        for name, item in value.items()
    }
    weight = sum(size for _, size in parts.values())
    if weight < len(parts) * (ALONE_BYTES + LEAF_BYTES) or not parts:
        return FoldedValue(codec.encode(value), DecodedValue(value, parts=parts), weight)
    return FoldedValue(
        Encoded({name: part for name, (part, _) in parts.items()}), DecodedValue(value, parts=parts), weight
    )


def _encode_part(codec: Codec, value: Any) -> tuple[Part, int]:
    body = codec.encode(value).body
    part = codec.encode_leaf(value) if isinstance(body, dict) else body
    return part, _size(part)


def _size(body: Body) -> int:
    if isinstance(body, Leaf):
        return len(body.data) + LEAF_BYTES
    return sum(map(_size, body.values() if isinstance(body, dict) else body))
