"""Delta values: values that LangGraph's DeltaChannel stores as writes on earlier graph checkpoints.

LangGraph stores such a value in full only now and then; in between, a graph checkpoint contains nothing of it. Every
graph checkpoint needs a count, a hash and a conversation, so the value is computed from its writes when the checkpoint
is stored. It is kept beside LangGraph's own values (`GraphCheckpoint.folded`), where LangGraph never sees it. Only
other packages know how to compute a value from its writes (`Fold`). If that is unknown, a digest of the writes replaces
the value in the hash of the state, and the value is not shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any

from sqlalchemy import Integer, String, bindparam, cast, literal, select

from agentgit.store.objects.blobs import BlobStore
from agentgit.store.objects.content import Body, Encoded, read_values
from agentgit.store.objects.lru import LRUCache
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import (
    NAMESPACE_COLUMNS,
    WRITES,
    Draft,
    FoldedValue,
    GraphCheckpoint,
    GraphKey,
    PendingWrite,
    parameter_conditions,
    parse_graph_checkpoint,
    parse_pending_writes,
    parse_writes_by_checkpoint,
)

ANCESTORS_PER_QUERY = 64
"""The number of ancestors that one statement reads."""


def ancestors(transaction: Reading, start: GraphCheckpoint) -> Iterator[GraphCheckpoint]:
    """Yield the ancestors of a graph checkpoint up to the root of its namespace, nearest first."""
    seen_ids = {start.key.checkpoint_id}
    checkpoint = start
    while checkpoint.parent_id is not None:
        parameters = {**start.key.columns(), "first": checkpoint.parent_id, "steps": ANCESTORS_PER_QUERY}
        rows = _ANCESTORS.all(transaction, parameters)
        for row in rows:
            checkpoint = parse_graph_checkpoint(row)
            if checkpoint.key.checkpoint_id in seen_ids:  # damaged rows form a cycle
                return
            seen_ids.add(checkpoint.key.checkpoint_id)
            yield checkpoint
        if len(rows) < ANCESTORS_PER_QUERY:
            return


def ancestors_with(
    transaction: Reading, start: GraphCheckpoint, channels: AbstractSet[str]
) -> Iterator[GraphCheckpoint]:
    """Yield the ancestors of a graph checkpoint until each of some channels had its value in one of them."""
    for ancestor in ancestors(transaction, start) if channels else ():
        yield ancestor
        channels = channels - ancestor.channels.keys()
        if not channels:
            return


def _ancestors_query() -> Any:
    first = cast(bindparam("first"), String)
    walk = select(first.label("id"), literal(1, Integer).label("distance")).cte("walk", recursive=True)
    older = GRAPH_CHECKPOINT.alias("older")
    step = select(older.c.parent_id, walk.c.distance + 1).where(
        *(older.c[name] == bindparam(name) for name in NAMESPACE_COLUMNS),
        older.c.checkpoint_id == walk.c.id,
        older.c.parent_id.is_not(None),
        walk.c.distance < bindparam("steps", type_=Integer),
    )
    walk = walk.union_all(step)
    query = select(GRAPH_CHECKPOINT).where(
        *parameter_conditions(GRAPH_CHECKPOINT, *NAMESPACE_COLUMNS), GRAPH_CHECKPOINT.c.checkpoint_id == walk.c.id
    )
    return query.order_by(walk.c.distance)


_ANCESTORS = CompiledStatement(_ancestors_query())
_WRITES_QUERY = select(GRAPH_WRITE).where(
    *parameter_conditions(GRAPH_WRITE, *NAMESPACE_COLUMNS),
    GRAPH_WRITE.c.checkpoint_id.in_(bindparam("ids", expanding=True)),
    GRAPH_WRITE.c.channel.in_(bindparam("names", expanding=True)),
)


MAX_LIVE_BYTES = 128 * 2**20
"""The maximum total size, in bytes, of the recent values in memory from which later ones are computed."""


@dataclass
class DeltaValues:
    computed: dict[str, FoldedValue] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)

    names: Sequence[str] = ()

    @property
    def encoded(self) -> dict[str, Encoded]:
        return {name: value.encoded for name, value in self.computed.items()}

    def header(self, stored_channels: Container[str]) -> dict[str, Any]:
        """Return the header fields of the graph checkpoint for its delta values; empty if it has none."""
        if not self.names:
            return {}
        digests = {name: digest.hex() for name, digest in self.digests.items()}
        return {"folded": [name for name in self.names if name in stored_channels], "digests": digests}


NO_DELTA_VALUES = DeltaValues()
"""The value for a graph checkpoint without delta values."""


class DeltaValueStore:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        # By the owner and the hash of a value, which never changes. An entry does not mean that it is still stored.
        self._by_hash: LRUCache[tuple[int, bytes], FoldedValue] = LRUCache(MAX_LIVE_BYTES, attrgetter("weight"))

    def compute(
        self,
        transaction: Reading,
        graph_key: GraphKey,
        draft: Draft,
        parent: GraphCheckpoint | None,
        names: AbstractSet[str],
        unchanged: AbstractSet[str],
    ) -> DeltaValues:
        """Compute the values that the parent does not have. The cost depends only on the writes since the parent."""
        delta_values = DeltaValues(names=sorted(draft.folds))
        parent_writes: list[PendingWrite] = []
        if parent is not None:
            known = parent.digests.items()
            delta_values.digests = {name: digest for name, digest in known if name in names & unchanged}
            names = names - delta_values.digests.keys()
            # On the new thread, even if the parent is on another one, because a late write exists only here.
            parent_key = graph_key._replace(checkpoint_id=parent.key.checkpoint_id)
            parent_writes = parse_pending_writes(WRITES.all(transaction, parent_key.columns())) if names else []
        bodies = read_values(
            transaction,
            self._blobs,
            ((write.session_id, write.value) for write in parent_writes if write.channel in names),
        )
        for name in sorted(names):
            hashes = [write.value for write in parent_writes if write.channel == name]
            value = None
            if parent is not None or draft.parent_id is None:
                known_key = (parent.session_id, parent.values[name]) if parent and name in parent.values else None
                parent_value = self._by_hash.get(known_key) if known_key is not None else None
                value = draft.folds[name](
                    parent_value,
                    [bodies[key] for key in hashes],
                    partial(self._read_earlier, transaction, parent, name),
                )
            if value is not None:
                delta_values.computed[name] = value
            else:
                known_hash = (parent.digests.get(name) or parent.values.get(name, b"")) if parent is not None else b""
                delta_values.digests[name] = sha256(known_hash + b"".join(hashes)).digest()
        return delta_values

    def cache(self, delta_values: DeltaValues, session_id: int, hashes: Mapping[str, bytes]) -> None:
        """Cache the computed values by the session and the hashes under which they were stored."""
        if delta_values.computed:
            self._by_hash.add(((session_id, hashes[name]), value) for name, value in delta_values.computed.items())

    def _read_earlier(
        self, transaction: Reading, parent: GraphCheckpoint | None, name: str
    ) -> tuple[Body | None, list[Body]] | None:
        """Return the last full value before the newest writes, and the writes since; None if some of them are gone."""
        if parent is None:
            return None, []
        if name in parent.values:
            key = parent.values[name]
            return read_values(transaction, self._blobs, [(parent.session_id, key)])[key], []
        writes, seeds = self.history(transaction, parent, [name])
        if not seeds and [parent, *ancestors(transaction, parent)][-1].parent_id is not None:
            return None
        write_keys = [(write.session_id, write.value) for write in writes[name]]
        seed_keys = [(seeds[name].session_id, seeds[name].channels[name])] if seeds else []
        bodies = read_values(transaction, self._blobs, [*write_keys, *seed_keys])
        return (bodies[seed_keys[0][1]] if seed_keys else None), [bodies[key] for _, key in write_keys]

    def history(
        self, transaction: Reading, start: GraphCheckpoint, channels: Sequence[str]
    ) -> tuple[dict[str, list[PendingWrite]], dict[str, GraphCheckpoint]]:
        """Read the writes on earlier checkpoints that make up the delta values of channels."""
        chain = [*ancestors_with(transaction, start, {*channels})]
        seeds = {name: one for one in reversed(chain) for name in channels if name in one.channels}
        chain_lengths = {name: chain.index(one) + 1 for name, one in seeds.items()}
        rows = [
            row
            for ids in slices([ancestor.key.checkpoint_id for ancestor in chain], ANCESTORS_PER_QUERY)
            for row in transaction.execute(_WRITES_QUERY, {**start.key.columns(), "ids": ids, "names": list(channels)})
        ]
        writes_by_id = parse_writes_by_checkpoint(rows)
        return {
            name: [
                write
                for ancestor in reversed(chain[: chain_lengths.get(name)])
                for write in writes_by_id.get(ancestor.key.checkpoint_id, ())
                if write.channel == name
            ]
            for name in channels
        }, seeds
