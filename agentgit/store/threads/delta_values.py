"""Delta values: values that LangGraph's DeltaChannel stores as writes on earlier graph checkpoints.

LangGraph stores such a value in full only now and then; in between, a graph checkpoint contains nothing of it. Every
graph checkpoint needs a count, a hash and a conversation, so the value is computed from its writes when the checkpoint
is stored. It is kept beside LangGraph's own values (`Found.folded`), where LangGraph never sees it. Only other packages
know how to compute a value from its writes (`Fold`). If that is unknown, a digest of the writes replaces the value in
the hash of the state, and the value is not shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Integer, String, bindparam, cast, literal, select

from agentgit.store.objects.content import Body, Content, Encoded
from agentgit.store.objects.lru import LRUCache
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads.graph_rows import (
    WRITES,
    Draft,
    FoldedValue,
    GraphCheckpoint,
    GraphKey,
    Pending,
    parse_graph_checkpoint,
    pending,
    where,
)

STEPS = 64
"""The number of ancestors that one statement reads."""

_SAME = ("tenant_id", "thread_id", "ns")


def ancestors(connection: Connection, tenant_id: int, start: GraphCheckpoint) -> Iterator[GraphCheckpoint]:
    """Yield the ancestors of a graph checkpoint up to the root of its namespace, nearest first.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        start: The graph checkpoint to start from.
    """
    seen = {start.place.checkpoint_id}
    at = start
    while at.parent_id is not None:
        page = _WALK.all(connection, {**_space(tenant_id, at), "first": at.parent_id, "steps": STEPS})
        for row in page:
            at = parse_graph_checkpoint(row)
            if at.place.checkpoint_id in seen:  # damaged rows form a cycle
                return
            seen.add(at.place.checkpoint_id)
            yield at
        if len(page) < STEPS:
            return


def writes_of(
    connection: Connection, tenant_id: int, checkpoints: Sequence[GraphCheckpoint], channels: Iterable[str]
) -> Mapping[str, list[Pending]]:
    """Read the writes to some channels on some checkpoints of one namespace. Return them in order, by checkpoint id.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        checkpoints: The graph checkpoints.
        channels: The names of the channels.
    """
    by_id: dict[str, list[Any]] = {at.place.checkpoint_id: [] for at in checkpoints}
    ids, names = list(by_id), list(channels)
    for some in slices(ids, STEPS):
        part = {**_space(tenant_id, checkpoints[0]), "ids": some, "names": names}
        for row in row_codes.authentic(connection, GRAPH_WRITE, connection.execute(_WRITES_OF, part)):
            by_id[row.checkpoint_id].append(row)
    return {key: pending(rows) for key, rows in by_id.items()}


def _space(tenant_id: int, at: GraphCheckpoint) -> dict[str, Any]:
    return dict(zip(_SAME, (tenant_id, at.place.thread, at.place.ns), strict=True))


def _walk_query() -> Any:
    first = cast(bindparam("first"), String)
    walk = select(first.label("id"), literal(1, Integer).label("distance")).cte("walk", recursive=True)
    older = GRAPH_CHECKPOINT.alias("older")
    step = select(older.c.parent_id, walk.c.distance + 1).where(
        *(older.c[name] == bindparam(name) for name in _SAME),
        older.c.checkpoint_id == walk.c.id,
        older.c.parent_id.is_not(None),
        walk.c.distance < bindparam("steps", type_=Integer),
    )
    walk = walk.union_all(step)
    joined = select(GRAPH_CHECKPOINT).where(
        *where(GRAPH_CHECKPOINT, *_SAME), GRAPH_CHECKPOINT.c.checkpoint_id == walk.c.id
    )
    return joined.order_by(walk.c.distance)


_WALK = row_codes.AuthenticQuery(_walk_query(), GRAPH_CHECKPOINT)
_WRITES_OF = select(GRAPH_WRITE).where(
    *where(GRAPH_WRITE, *_SAME),
    GRAPH_WRITE.c.checkpoint_id.in_(bindparam("ids", expanding=True)),
    GRAPH_WRITE.c.channel.in_(bindparam("names", expanding=True)),
)


LIVE_BYTES = 128 * 2**20
"""The maximum total size, in bytes, of the recent values in memory from which later ones are computed."""


@dataclass
class DeltaValues:
    """The delta values of one graph checkpoint.

    Args:
        made: The values that were computed from their writes.
        digests: The digests that replace the other values.
        names: The names of all delta values, including those that the parent already has.
    """

    made: dict[str, FoldedValue] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)

    names: Sequence[str] = ()

    @property
    def encoded(self) -> dict[str, Encoded]:
        """The computed values in their stored form."""
        return {name: made.encoded for name, made in self.made.items()}

    def header(self, stored: Container[str]) -> dict[str, Any]:
        """Return the header fields of the graph checkpoint for its delta values; empty if it has none.

        Args:
            stored: The channels whose value is stored.
        """
        if not self.names:
            return {}
        digests = {name: digest.hex() for name, digest in self.digests.items()}
        return {"folded": [name for name in self.names if name in stored], "digests": digests}


NOTHING = DeltaValues()
"""The value for a graph checkpoint without delta values."""


class SpreadValues:
    """The delta values of one tenant.

    Args:
        content: The store of the tenant's values.
    """

    def __init__(self, content: Content) -> None:
        self.content = content
        self.tenant_id = content.blobs.tenant_id
        # By the hash of a value, which never changes. An entry does not mean that the value is still stored.
        self._live: LRUCache[bytes, FoldedValue] = LRUCache(LIVE_BYTES, attrgetter("weight"))

    def make(
        self,
        connection: Connection,
        place: GraphKey,
        draft: Draft,
        parent: GraphCheckpoint | None,
        names: AbstractSet[str],
        same: AbstractSet[str],
    ) -> DeltaValues:
        """Compute the values that the parent does not have. The cost depends only on the writes since the parent.

        Args:
            connection: Any open connection.
            place: The key that the graph checkpoint is stored under.
            draft: The graph checkpoint.
            parent: The graph checkpoint that it was made from.
            names: The channels whose value the parent does not have.
            same: The channels that are unchanged since the parent.
        """
        spread = DeltaValues(names=sorted(draft.folds))
        if parent is not None:
            spread.digests = {name: digest for name, digest in parent.digests.items() if name in names & same}
            names = names - spread.digests.keys()
        written = self._written(connection, place, parent) if names else []
        bodies = self.content.get(connection, {write.value for write in written if write.channel in names})
        for name in sorted(names):
            keys = [write.value for write in written if write.channel == name]
            made = None
            if parent is not None or draft.parent_id is None:
                before = self._live.get(parent.values[name]) if parent and name in parent.values else None
                made = draft.folds[name](
                    before, [bodies[key] for key in keys], partial(self._earlier, connection, parent, name)
                )
            if made is not None:
                spread.made[name] = made
            else:
                spread.digests[name] = sha256(_standing(parent, name) + b"".join(keys)).digest()
        return spread

    def remember(self, spread: DeltaValues, hashes: Mapping[str, bytes]) -> None:
        """Cache the computed values by the hashes under which they were stored."""
        if spread.made:
            self._live.add((hashes[name], made) for name, made in spread.made.items())

    def _written(self, connection: Connection, place: GraphKey, parent: GraphCheckpoint | None) -> list[Pending]:
        if parent is None:
            return []
        # On the new thread, even if the parent is on another one, because a late write exists only here.
        at = GraphKey(place.thread, place.ns, parent.place.checkpoint_id)
        return pending(WRITES.all(connection, at.columns(self.tenant_id)))

    def _earlier(
        self, connection: Connection, parent: GraphCheckpoint | None, name: str
    ) -> tuple[Body | None, list[Body]] | None:
        """Return a value before the newest writes: its last full value, if there is one, and the writes after that.

        None if some of them are gone.
        """
        if parent is None:
            return None, []
        if name in parent.values:
            key = parent.values[name]
            return self.content.get(connection, [key])[key], []
        writes, seeds = self.history(connection, parent, [name])
        if not seeds and not self._is_whole(connection, parent):
            return None
        keys = [write.value for write in writes[name]]
        seed = [seeds[name].channels[name]] if seeds else []
        bodies = self.content.get(connection, [*keys, *seed])
        return (bodies[seed[0]] if seed else None), [bodies[key] for key in keys]

    def _is_whole(self, connection: Connection, start: GraphCheckpoint) -> bool:
        """Return whether all ancestors up to the root exist."""
        way = [start, *ancestors(connection, self.tenant_id, start)]
        return way[-1].parent_id is None

    def history(
        self, connection: Connection, start: GraphCheckpoint, channels: Sequence[str]
    ) -> tuple[dict[str, list[Pending]], dict[str, GraphCheckpoint]]:
        """Read the writes on earlier checkpoints that make up the delta values of channels.

        Args:
            connection: Any open connection.
            start: The checkpoint.
            channels: The names of the channels.

        Returns:
            For each channel, the writes since its last full value, oldest first, and the graph checkpoint that has
            that value, if there is one.
        """
        wanted, chain, ends = set(channels), list[GraphCheckpoint](), dict[str, int]()
        seeds: dict[str, GraphCheckpoint] = {}
        for at in ancestors(connection, self.tenant_id, start) if wanted else ():
            chain.append(at)
            for name in wanted & at.channels.keys():
                seeds[name], ends[name] = at, len(chain)
            wanted -= at.channels.keys()
            if not wanted:
                break
        written = writes_of(connection, self.tenant_id, chain, channels)
        return {
            name: [
                write
                for at in reversed(chain[: ends.get(name)])
                for write in written[at.place.checkpoint_id]
                if write.channel == name
            ]
            for name in channels
        }, seeds


def _standing(parent: GraphCheckpoint | None, name: str) -> bytes:
    """Return the digest or the hash of a channel in the parent; empty if it has neither."""
    if parent is None:
        return b""
    return parent.digests.get(name) or parent.values.get(name, b"")
