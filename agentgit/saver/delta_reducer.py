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
from agentgit.store.threads.graph_rows import Earlier, Fold, FoldedValue
from agentgit.store.threads.lifecycle import DELTA_COUNTERS

Channels = Mapping[str, Any]
"""The channels of a graph by name; only those that are a DeltaChannel matter."""

_MESSAGES: DeltaChannel[Any] = DeltaChannel(cast(Any, messages_delta_reducer), list)
"""The channel of messages to use if the graph is not known."""


LEAF_BYTES = 256
"""The approximate overhead of a leaf in memory, in bytes."""


class DecodedValue(NamedTuple):
    """A decoded value, from which the next value can be computed.

    Args:
        value: The value that the reducer returned; it must not be changed.
        ends: For a list, the number of items before the end of each leaf.
        parts: For a dict, the stored form of each value and its approximate size in bytes.
        ids: For a conversation, the ids of its messages. Values with the same beginning share the set, so it may also
            contain ids of their messages.
    """

    value: Any
    ends: Sequence[int] = ()
    parts: Mapping[str, tuple[Part, int]] = {}
    ids: set[str | None] | None = None


def folds(codec: Codec, channels: Channels, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> dict[str, Fold]:
    """Return a fold function for each channel whose value is spread over the writes of earlier graph checkpoints.

    Args:
        codec: The codec that stores values.
        channels: The channels of the graph, if it is known.
        checkpoint: LangGraph's checkpoint.
        metadata: LangGraph's metadata.
    """
    counted: Any = metadata.get(DELTA_COUNTERS)
    if not counted:
        return {}
    return {
        name: _fold(codec, channels.get(name))
        for name in counted
        if name not in checkpoint["channel_values"] and name in checkpoint["channel_versions"]
    }


def _fold(codec: Codec, known: Any) -> Fold:
    """Return the fold function of one channel, which uses the channel's reducer or else LangGraph's for messages."""
    channel = known if isinstance(known, DeltaChannel) else _MESSAGES

    def fold(before: FoldedValue | None, new: Sequence[Body], earlier: Earlier) -> FoldedValue | None:
        made_of = (None, ()) if before is not None else earlier()
        if made_of is None:
            return None
        seed, old = made_of
        try:
            writes = [codec.decode(body) for body in (*old, *new)]
            if before is None:
                start = channel.typ() if seed is None else unwrap_snapshot(codec.decode(seed))
            elif channel.reducer is messages_delta_reducer and (longer := _append(codec, before, writes)) is not None:
                return longer
            else:
                start = copy.copy(before.live.value)
            if channel is _MESSAGES and not _are_messages(start if before is None else [], writes):
                return None
            made = channel.from_checkpoint(DeltaSnapshot(start))
            made.replay_writes([("", "", write) for write in writes])
            return encode(codec, made.value, before)
        except Exception:  # noqa: BLE001  # any error of the user's reducer or types; a value that is only shown must not break the run
            return None

    return fold


def _append(codec: Codec, before: FoldedValue, writes: Sequence[Any]) -> FoldedValue | None:
    """Append messages without looking at the old ones; None if LangGraph's reducer might not treat them as new."""
    value, ids = before.live.value, before.live.ids
    new = [message for write in writes for message in (write if isinstance(write, list) else [write])]
    fresh = {one.id for one in new if isinstance(one, BaseMessage) and one.id and not isinstance(one, RemoveMessage)}
    encoded = codec.encode(new)
    kept = before.encoded.body
    if not (isinstance(kept, list) and isinstance(encoded.body, list)) or encoded.messages is None:
        return None
    if ids is None or len(fresh) < len(new) or not ids.isdisjoint(fresh):
        return None
    ids.update(fresh)
    body, longer = [*kept, *encoded.body], [*value, *new]
    live = DecodedValue(longer, range(1, len(longer) + 1), ids=ids)
    return FoldedValue(Encoded(body, len(longer)), live, before.weight + _size(encoded.body))


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


def encode(codec: Codec, value: Any, before: FoldedValue | None = None) -> FoldedValue:
    """Encode the value of a DeltaChannel. Equal values are stored under the same hash.

    Args:
        codec: The codec that stores values.
        value: The value that a reducer made, or LangGraph's full value.
        before: An earlier value that may share parts with this one.
    """
    if before is not None and type(before.live.value) is not type(value):
        before = None
    if type(value) is dict and all(type(name) is str for name in value):
        return _encode_dict(codec, value, before)
    return (_encode_list(codec, value, before) if type(value) is list else None) or _encode_whole(codec, value)


def _encode_whole(codec: Codec, value: Any) -> FoldedValue:
    encoded = codec.encode(value)
    ends = _ends(encoded.body, 0) if isinstance(encoded.body, list) else ()
    return FoldedValue(encoded, DecodedValue(value, ends, ids=_ids(encoded, value)), _size(encoded.body))


def _encode_list(codec: Codec, value: list[Any], before: FoldedValue | None) -> FoldedValue | None:
    """Encode only the items after the beginning that a list shares with an earlier one; None if that is impossible."""
    if before is None or not isinstance(before.encoded.body, list):
        return None
    same = list(map(is_, before.live.value, value))
    kept = same.index(False) if False in same else len(same)
    # A leaf may be a run of small items. Its end depends on the item after it, which must be the same, too.
    leaves = bisect_left(before.live.ends, kept)
    start = before.live.ends[leaves - 1] if leaves else 0
    rest = codec.encode(value[start:])
    if not isinstance(rest.body, list) or (leaves and (before.encoded.messages is None) is not (rest.messages is None)):
        return None
    body = [*before.encoded.body[:leaves], *rest.body]
    ends = [*before.live.ends[:leaves], *_ends(rest.body, start)]
    encoded = Encoded(body, None if rest.messages is None else len(value))
    return FoldedValue(encoded, DecodedValue(value, ends, ids=_ids(encoded, value)), before.weight + _size(rest.body))


def _ids(encoded: Encoded, value: Any) -> set[str | None] | None:
    return {message.id for message in value} if encoded.messages is not None and type(value) is list else None


def _ends(leaves: Sequence[Leaf], start: int) -> list[int]:
    sizes = [len(READERS[one.type](one.data)) if one.type in RUNS else 1 for one in leaves]
    return list(accumulate(sizes, initial=start))[1:]


def _encode_dict(codec: Codec, value: dict[str, Any], before: FoldedValue | None) -> FoldedValue:
    """Encode a dict. With large values (such as an agent's files) it becomes a record, so each is stored only once."""
    held, old = (before.live.parts, before.live.value) if before is not None else ({}, {})
    parts = {
        name: held[name] if name in held and old[name] is one else _part(codec, one) for name, one in value.items()
    }
    weight = sum(size for _, size in parts.values())
    if weight < len(parts) * (ALONE_BYTES + LEAF_BYTES) or not parts:
        return FoldedValue(codec.encode(value), DecodedValue(value, parts=parts), weight)
    return FoldedValue(
        Encoded({name: part for name, (part, _) in parts.items()}), DecodedValue(value, parts=parts), weight
    )


def _part(codec: Codec, value: Any) -> tuple[Part, int]:
    body = codec.encode(value).body
    part = codec.leaf(value) if isinstance(body, dict) else body
    return part, _size(part)


def _size(body: Body) -> int:
    if isinstance(body, Leaf):
        return len(body.data) + LEAF_BYTES
    return sum(map(_size, body.values() if isinstance(body, dict) else body))
