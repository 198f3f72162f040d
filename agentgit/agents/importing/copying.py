"""Copies of graph checkpoints of another saver: their encoding, and the comparison with their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointMetadata, CheckpointTuple

from agentgit.agents.importing.readers import ThreadEntry, UnknownTypeSerializer
from agentgit.auth.secret_names import is_secret_name
from agentgit.errors import Corrupt
from agentgit.saver.codec import Codec
from agentgit.saver.config import config_of
from agentgit.saver.delta_reducer import Channels
from agentgit.saver.saver import SQLModelSaver
from agentgit.store.objects.blobs import compact
from agentgit.store.objects.content import Encoded
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import Draft, GraphKey, NewCheckpoint, NewWrites
from agentgit.store.threads.graph_store import GraphStore
from agentgit.values import from_json

NumberedWrites = list[tuple[str, str, list[tuple[int, str, Any]]]]
"""The pending writes of each task with its id and path: the index, the channel and the value of each."""


class _Checker(SQLModelSaver):
    """Reads the imported copy like a source: unknown types stay bytes, so that both sides can be compared."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database, graphs=store.graphs, sessions=True)
        self._source_codec = Codec(UnknownTypeSerializer())

    @property
    def codec(self) -> Codec:
        return self._source_codec


class CheckpointCopier:
    """Encodes graph checkpoints of another saver, and compares copies with them."""

    def __init__(self, store: Store, channels: Channels) -> None:
        self.saver = SQLModelSaver(store.database, graphs=store.graphs, sessions=True)
        self.saver.channels = channels
        self._checker = _Checker(store)
        self._excluded_names = store.exclude_metadata - CheckpointMetadata.__annotations__.keys()
        self._versions: dict[str, Any] = {}
        self.hidden_names: set[str] = set()
        """The names of metadata that was left out."""

    def draft(self, entry: ThreadEntry, checkpoint_tuple: CheckpointTuple, parent_thread: str | None = None) -> Draft:
        """Encode the values that differ from the parent, by the versions of the channels."""
        current_versions = checkpoint_tuple.checkpoint["channel_versions"]
        previous = self._versions.pop(entry.ns, (None, {}))
        parent_versions = previous[1] if previous[0] == entry.parent and entry.parent else {}
        values = checkpoint_tuple.checkpoint["channel_values"]
        changed_versions = {
            name: current_versions.get(name, 0)
            for name in values
            if name not in current_versions or parent_versions.get(name) != current_versions[name]
        }
        self._versions[entry.ns] = (entry.id, current_versions)
        draft = self.saver.draft(
            {"configurable": {}},
            checkpoint_tuple.checkpoint,
            cast(CheckpointMetadata, self.metadata(checkpoint_tuple)),
            changed_versions,
            entry.parent,
        )
        return replace(draft, parent_thread=parent_thread)

    def metadata(self, checkpoint_tuple: CheckpointTuple) -> dict[str, Any]:
        """Return the metadata to store, without secrets and excluded names."""
        # LangGraph's savers store a program's `configurable` here, with its secrets.
        metadata = checkpoint_tuple.metadata
        hidden = {name for name in metadata if name in self._excluded_names or is_secret_name(str(name))}
        self.hidden_names |= hidden
        return {name: value for name, value in metadata.items() if name not in hidden}

    def numbered_writes(self, checkpoint_tuple: CheckpointTuple) -> NumberedWrites:
        """Number the pending writes of each task as the original saver did. The order of the tasks is kept."""
        tasks: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in checkpoint_tuple.pending_writes or ():
            tasks.setdefault(task_id, []).append((channel, value))
        numbered = []
        for task_index, (task_id, writes) in enumerate(tasks.items()):
            plain_writes = [one for one in writes if one[0] not in WRITES_IDX_MAP]
            special_writes = [one for one in writes if one[0] in WRITES_IDX_MAP]
            rows = [
                (WRITES_IDX_MAP[channel], channel, self.saver.codec.encode(value).body)
                for channel, value in special_writes
            ]
            rows += [
                (n, channel, self.saver.codec.encode(value).body) for n, (channel, value) in enumerate(plain_writes)
            ]
            numbered.append((task_id, f"{task_index:08}", rows))
        return numbered

    def differences(self, copy: GraphKey, theirs: CheckpointTuple) -> list[str]:
        """Return the parts in which a copy differs from its source."""
        ours = self._checker.get_tuple(config_of(copy))
        if ours is None:
            return ["everything"]
        our_values, their_values = ours.checkpoint["channel_values"], theirs.checkpoint["channel_values"]
        differences = [
            f"channel {name!r}"
            for name in sorted(our_values.keys() | their_values.keys())
            if not self._is_same_channel(our_values, their_values, name)
        ]
        heads = ("ts", "channel_versions", "versions_seen")
        differences += [name for name in heads if not _is_same_json(ours.checkpoint[name], theirs.checkpoint[name])]  # type: ignore[literal-required]  # `heads` lists keys of the TypedDict
        if not _is_same_json(ours.metadata, self.metadata(theirs)):
            differences.append("metadata")
        if not self._are_same_writes(ours, theirs):
            differences.append("pending writes")
        return differences

    def _is_same_channel(self, ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> bool:
        return name in ours and name in theirs and self._is_same_value(ours[name], theirs[name])

    def _is_same_value(self, ours: Any, theirs: Any) -> bool:
        return _leaf_hashes(self.saver.codec.encode(ours)) == _leaf_hashes(self.saver.codec.encode(theirs)) or bool(
            type(ours) in (set, frozenset, dict) and ours == theirs
        )

    def has_same_writes(self, copy: GraphKey, theirs: CheckpointTuple) -> bool:
        ours = self._checker.get_tuple(config_of(copy))
        return ours is not None and self._are_same_writes(ours, theirs)

    def _are_same_writes(self, ours: CheckpointTuple, theirs: CheckpointTuple) -> bool:
        def by_task(checkpoint_tuple: CheckpointTuple) -> list[tuple[str, str, Any]]:
            order = {
                task: n
                for n, task in enumerate(dict.fromkeys(task for task, _, _ in checkpoint_tuple.pending_writes or ()))
            }
            return sorted(
                checkpoint_tuple.pending_writes or (), key=lambda one: (order[one[0]], one[1] not in WRITES_IDX_MAP)
            )

        our_writes, their_writes = by_task(ours), by_task(theirs)
        return [one[:2] for one in our_writes] == [one[:2] for one in their_writes] and all(
            self._is_same_value(x[2], y[2]) for x, y in zip(our_writes, their_writes, strict=True)
        )


def _leaf_hashes(encoded: Encoded) -> Any:
    body = encoded.body
    parts = body.items() if isinstance(body, dict) else [("", body)]
    return [(name, [leaf.hash for leaf in (part if isinstance(part, list) else [part])]) for name, part in parts]


def _is_same_json(ours: Any, theirs: Any) -> bool:
    return bool(from_json(compact(ours)) == from_json(compact(theirs)))


def put_copies(
    graphs: GraphStore,
    thread: str,
    copies: Sequence[tuple[ThreadEntry, Draft | None, NumberedWrites]],
    transaction: Writing,
) -> None:
    for entry, draft, writes in copies:
        graph_key = GraphKey(thread, entry.ns, entry.id)
        if draft is not None:
            graphs.put(transaction, NewCheckpoint(graph_key, draft))
        for numbered in writes:
            graphs.put_writes(transaction, NewWrites(graph_key, *numbered))


def differing_copy(name: str, differences: Sequence[str]) -> Corrupt:
    return Corrupt(
        f"{name} was not imported: the stored copy differs from it in {', '.join(differences)}. If it is still "
        "running, import it again when it has stopped; otherwise report a bug.",
        row=name,
    )
