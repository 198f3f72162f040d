"""The saver: a LangGraph checkpointer on SQL, sync and async in one class."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from sqlalchemy import URL, Connection

from agentgit.auth.keyring import Keyring
from agentgit.errors import Conflict, InvalidInput
from agentgit.langgraph_internals import DeltaSnapshot
from agentgit.saver.async_api import AsyncTwins
from agentgit.saver.codec import Codec, make_codec
from agentgit.saver.config import PENDING_SENDS, SNAPSHOTS, address, config_of, continues, make_draft, scope
from agentgit.saver.delta_reducer import Channels
from agentgit.saver.recorded_turn import NOTHING_ELSE, RecordedTurn
from agentgit.store.database import Database
from agentgit.store.objects.blobs import compact
from agentgit.store.objects.content import Body
from agentgit.store.objects.packing import Compression
from agentgit.store.records.encryption_keys import unlock
from agentgit.store.schema import schema
from agentgit.store.schema.tenants import ensure_tenant
from agentgit.store.sql.encryption import keyring_from
from agentgit.store.threads.append_if_head import BranchHold
from agentgit.store.threads.graph_store import Draft, GraphCheckpoint, GraphKey, GraphStore, Pending, Task
from agentgit.values import from_json

PAGE = 16
"""The number of checkpoints that `list` reads at once; each of them may hold large values."""


class _StoredCheckpoint(Checkpoint):
    """A checkpoint with a key that older versions of LangGraph also wrote."""

    pending_sends: list[Any]


class SQLModelSaver(AsyncTwins):
    """A LangGraph checkpointer that stores its data in agentgit's tables.

    It implements LangGraph's `BaseCheckpointSaver`. Sync and async methods can be mixed on one instance, from many
    threads. Values are addressed by content, so saving a conversation costs only what is new in it.

    Args:
        database: The database that stores the data.
        tenant_id: The id of the tenant; None for the first one of the database, which is created if there is none.
        graphs: The store of the tenant's graph checkpoints, to share its caches with other readers; None for a new one.
        serde: Your own serializer, such as an encrypting one, which then gets every value. None for LangGraph's
            serializer in its strict mode, which also rebuilds the data types (dataclasses, enums, named tuples,
            pydantic models) of the running program.
        compression: The compression of new values: `zstd`, `zlib` (bigger and slower) or `none`.
        sessions: True to allow access to the threads of sessions, too. Changing them here, and not through their
            session, breaks the session.

    Example:
        >>> from langgraph.graph import START, StateGraph
        >>> builder = StateGraph(int)
        >>> _ = builder.add_node("double", lambda n: 2 * n).add_edge(START, "double")
        >>> with SQLModelSaver.from_conn_string(":memory:") as saver:
        ...     graph = builder.compile(checkpointer=saver)
        ...     graph.invoke(21, {"configurable": {"thread_id": "t"}})
        42
    """

    def __init__(
        self,
        database: Database,
        *,
        tenant_id: int | None = None,
        graphs: GraphStore | None = None,
        serde: SerializerProtocol | None = None,
        compression: str = "zstd",
        sessions: bool = False,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self._shared = _Shared(database, tenant_id, graphs, Compression(compression).name)
        self.sessions = sessions
        self._own_serde = serde is None
        self._codec: Codec = make_codec(self.serde, own=self._own_serde)

    @classmethod
    def from_conn_string(
        cls,
        where: str | Path | URL,
        *,
        serde: SerializerProtocol | None = None,
        compression: str = "zstd",
        keyring: Keyring | None = None,
        sessions: bool = False,
    ) -> Self:
        """Open a database and return a saver, which is also a sync and async context manager that closes the database.

        Args:
            where: A path, `:memory:` or a URL. On SQLite the tables are created at once; on a server, call `setup()`
                once.
            serde: Your own serializer for every value; None for LangGraph's serializer in its strict mode.
            compression: The compression of new values: `zstd`, `zlib` (bigger and slower) or `none`.
            keyring: The keys that encrypt the contents; None is `$AGENTGIT_ENCRYPTION_KEYS`, else nothing is encrypted.
            sessions: True to allow access to the threads of sessions, too.

        Raises:
            InvalidInput: `where` is not a path, and not a URL of SQLite or PostgreSQL.
            SchemaMismatch: The database is not agentgit's, or is newer than this library.
        """
        database = Database(where, keyring=keyring_from(keyring))
        saver = cls(database, serde=serde, compression=compression, sessions=sessions)
        saver._shared.owns_database = True
        if saver.database.is_sqlite:
            saver.setup()
        return saver

    def setup(self) -> None:
        """Create the tables of the database, or bring them up to date. No-op if they are."""
        schema.upgrade(self.database)

    @property
    def database(self) -> Database:
        """The database of the saver; it reads and writes only the rows of its tenant."""
        return self._shared.database

    @property
    def store(self) -> GraphStore:
        """The graph checkpoints of this saver's tenant."""
        shared = self._shared
        if shared.store is None:
            if shared.tenant_id is None:
                schema.prepare(self.database)
                shared.tenant_id = ensure_tenant(self.database)
                shared.database = shared.database.bound(shared.tenant_id)
                unlock(self.database, shared.tenant_id)
            shared.store = GraphStore(shared.tenant_id, shared.compression)
        return shared.store

    @property
    def turn(self) -> RecordedTurn | None:
        """The turn that takes part in saves and reads; None outside of turns.

        It is shared with the copies of the saver that LangGraph makes when it compiles a graph.
        """
        return self._shared.turn

    @turn.setter
    def turn(self, turn: RecordedTurn | None) -> None:
        self._shared.turn = turn

    @property
    def channels(self) -> Channels:
        """The channels of the running graph, which contain the reducers of its DeltaChannels.

        LangGraph does not pass them to a saver. If nobody sets them, writes of messages are treated as a conversation.
        """
        return self._shared.channels

    @channels.setter
    def channels(self, channels: Channels) -> None:
        self._shared.channels = channels

    @property
    def codec(self) -> Codec:
        """The codec for stored values; it follows the serializer, which LangGraph replaces on copies of the saver."""
        if self._codec.serde is not self.serde:
            self._codec = make_codec(self.serde, own=self._own_serde)
        return self._codec

    def _address(self, config: RunnableConfig) -> tuple[str, str, str | None]:
        thread, ns, checkpoint_id = address(config)
        return self._require_access(thread), ns, checkpoint_id

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the checkpoint that the config names, or the newest of its namespace; None if there is none."""
        thread, ns, checkpoint_id = self._address(config)
        store = self.store
        with self.database.reading() as connection:
            read = store.with_writes(connection, thread, ns, checkpoint_id or None)
            turn = self.turn
            if turn is not None:
                turn.on_read(thread, ns, read[0].place if read else None)
            if read is None:
                return None
            store.seen.add(read[0].place)
            return next(self._tuples(connection, store, [read]))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first.

        Args:
            config: The thread and, optionally, the namespace and the checkpoint; None for all threads that this saver
                may access.
            filter: Metadata values that must all match.
            before: A config that names a checkpoint; only older ones are listed.
            limit: The maximum number of checkpoints; None for all.
        """
        which = scope(config)
        if which.thread is not None:
            self._require_access(which.thread)
        wanted = from_json(compact(filter or {}))
        older = get_checkpoint_id(before) if before else None
        last: GraphCheckpoint | None = None
        left = limit if limit is not None else -1
        store = self.store
        while left != 0:
            with self.database.reading() as connection:
                page = store.page(connection, which, before=older, after=last, limit=PAGE, sessions=self.sessions)
                chosen = [found for found in page if all(found.meta.get(k) == v for k, v in wanted.items())]
                chosen = chosen if left < 0 else chosen[:left]
                tuples = self._tuples(connection, store, [(one, store.writes(connection, one.place)) for one in chosen])
            yield from tuples
            left -= len(chosen) if left > 0 else 0
            if len(page) < PAGE:
                return
            last = page[-1]

    def _tuples(
        self, connection: Connection, store: GraphStore, chosen: Sequence[tuple[GraphCheckpoint, Sequence[Pending]]]
    ) -> Iterator[CheckpointTuple]:
        """Read all values at once, but build the tuples one by one: each contains a conversation as Python objects."""
        hashes = {key for found, _ in chosen for key in found.channels.values()}
        bodies = store.content.get(connection, hashes.union(write.value for _, each in chosen for write in each))
        return (self._tuple(found, writes, bodies) for found, writes in chosen)

    def _tuple(
        self, found: GraphCheckpoint, writes: Sequence[Pending], bodies: Mapping[bytes, Body]
    ) -> CheckpointTuple:
        values = {name: self._value(found, name, bodies[key]) for name, key in found.channels.items()}
        checkpoint: _StoredCheckpoint = {
            "v": found.header["v"],
            "id": found.place.checkpoint_id,
            "ts": found.header["ts"],
            "pending_sends": values.pop(PENDING_SENDS, []),
            "channel_values": values,
            "channel_versions": found.header["versions"],
            "versions_seen": found.header["seen"],
            "updated_channels": found.header["updated"],
        }
        parent = found.place._replace(checkpoint_id=found.parent_id) if found.parent_id else None
        return CheckpointTuple(
            config_of(found.place),
            checkpoint,
            cast(CheckpointMetadata, found.meta),
            config_of(parent) if parent else None,
            [self._pending(write, bodies[write.value]) for write in writes],
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes from which LangGraph rebuilds DeltaChannels, in a few statements for the whole history.

        Args:
            config: The config that names the checkpoint.
            channels: The names of the channels.

        Returns:
            For each channel, the writes since its last full value, oldest first, and that value as `seed` if there is
            one.
        """
        thread, ns, id = self._address(config)
        store = self.store
        with self.database.reading() as connection:
            at = store.find(connection, GraphKey(thread, ns, id)) if id else store.newest(connection, thread, ns)
            writes, seeds = store.spread.history(connection, at, channels) if at else ({}, {})
            hashes = {write.value for each in writes.values() for write in each}
            hashes.update(seed.channels[name] for name, seed in seeds.items())
            bodies = store.content.get(connection, hashes)
        found: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            found[name] = {"writes": [self._pending(write, bodies[write.value]) for write in writes.get(name, ())]}
            if name in seeds:
                found[name]["seed"] = self._value(seeds[name], name, bodies[seeds[name].channels[name]])
        return found

    def _value(self, found: GraphCheckpoint, name: str, body: Any) -> Any:
        value = self.codec.decode(body)
        return DeltaSnapshot(value) if name in found.header.get(SNAPSHOTS, ()) else value

    def _pending(self, write: Pending, body: Any) -> tuple[str, str, Any]:
        return write.task_id, write.channel, self.codec.decode(body)

    # -- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; the config names its parent.

        Args:
            config: The thread, the namespace and the parent's id.
            checkpoint: The checkpoint to store.
            metadata: The metadata to store. Of the config's `configurable`, only harmless keys are added to it.
            new_versions: The channels that changed since the parent.

        Returns:
            The config that names the stored checkpoint.

        Raises:
            InvalidInput: A value cannot be stored.
            Conflict: The thread was deleted meanwhile, or another run has moved it on.
        """
        thread, ns, parent_id = self._address(config)
        place = GraphKey(thread, ns, checkpoint["id"])
        store = self.store

        def work(connection: Connection) -> None:
            after = beside.before(connection)
            store.put(connection, place, draft)
            after()

        try:
            turn = self.turn
            with turn.on_put(place) if turn is not None else nullcontext(NOTHING_ELSE) as beside:
                draft = self.draft(config, checkpoint, metadata, new_versions, parent_id)
                draft = replace(draft, continues=continues(config, metadata))
                if not (
                    beside.is_alone and self._put_after_known(place, draft, beside.fence, carried=turn is not None)
                ):
                    self.database.write(work, carried=turn is not None)
        except Conflict:
            self.database.write(lambda connection: store.refuse(connection, place))
            raise
        store.seen.add(place)
        return config_of(place)

    def _put_after_known(self, place: GraphKey, draft: Draft, fence: BranchHold | None, *, carried: bool) -> bool:
        """Append a checkpoint to a known parent on a server, if that is still the newest; return whether it was."""
        store = self.store
        parent = store.newest_known.parent(place.thread, place.ns, draft.parent_id)
        if parent is None or self.database.is_sqlite:
            return False
        stored = self.database.write(
            lambda connection: store.put_after(connection, parent, place, draft, fence), carried=carried
        )
        return stored.count() == 1

    def draft(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        parent_id: str | None,
    ) -> Draft:
        """Encode a checkpoint, so that it can be stored in one transaction with other data; see `put`."""
        return make_draft(self.codec, self.channels, config, checkpoint, metadata, new_versions, parent_id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task on top of the checkpoint that the config names.

        Args:
            config: The thread, the namespace and the checkpoint id.
            writes: The channel and the value of each write, in order.
            task_id: The id of the task.
            task_path: The position of the task among the tasks of its step.

        Raises:
            InvalidInput: A value cannot be stored, or the config has no checkpoint id.
            Conflict: The checkpoint was deleted meanwhile.
        """
        thread, ns, checkpoint_id = self._address(config)
        if not checkpoint_id:
            raise InvalidInput(
                "put_writes needs a checkpoint_id in the config: the checkpoint that the task belongs to."
            )
        rows = [
            (WRITES_IDX_MAP.get(channel, index), channel, self.codec.encode(value).body)
            for index, (channel, value) in enumerate(writes)
        ]
        place, task, store = GraphKey(thread, ns, checkpoint_id), Task(task_id, task_path), self.store
        self.database.write(
            lambda connection: store.put_writes(connection, place, task, rows), carried=self.turn is not None
        )

    def get_next_version(self, current: float | str | None, channel: None) -> float:
        """Return the version after `current`: the next whole number, with a random fraction.

        The fraction distinguishes the versions of two checkpoints with the same parent. A thread that another saver
        started keeps that saver's format of versions.
        """
        if isinstance(current, str):
            number = int(current.split(".")[0]) + 1
            return cast(float, f"{number:032}.{random.random():016}")  # noqa: S311  # not a secret
        return int(current or 0) + 1 + random.randrange(1_000_000) / 1_000_000  # noqa: S311  # not a secret

    # -- closing

    def close(self) -> None:
        """Close the database if this saver opened it."""
        if self._shared.owns_database:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Shared:
    """The state that all copies of a saver share; LangGraph copies a saver when a graph is compiled."""

    def __init__(self, database: Database, tenant_id: int | None, store: GraphStore | None, compression: str) -> None:
        bound = tenant_id is None or database.tenant_id == tenant_id
        self.database = database if bound else database.bound(tenant_id)
        self.tenant_id, self.store, self.compression = tenant_id, store, compression
        self.turn: RecordedTurn | None = None
        self.channels: Channels = {}
        self.owns_database = False
