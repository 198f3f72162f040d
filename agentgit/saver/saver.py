"""The saver: a LangGraph checkpointer on SQL, sync and async in one class."""

from __future__ import annotations

import random
import warnings
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
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
from sqlalchemy import URL

from agentgit.auth.keyring import Keyring
from agentgit.auth.secret_names import excluded_names
from agentgit.errors import Conflict, InvalidInput, NotAllowed
from agentgit.langgraph_internals import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_TASK_ID,
    DeltaSnapshot,
)
from agentgit.saver.async_api import DONE, AsyncSaverMethods
from agentgit.saver.codec import Codec, make_codec
from agentgit.saver.config import (
    HEADER_FIELDS,
    OTHER_FIELDS,
    SNAPSHOTS,
    TYPED_FIELDS,
    address,
    config_of,
    is_continuation,
    make_draft,
    read_typed_fields,
    scope,
    stored_metadata,
    would_go_on,
)
from agentgit.saver.connections import open_database
from agentgit.saver.data_types import add_types
from agentgit.saver.delta_reducer import Channels
from agentgit.saver.recorded_turn import RecordedTurn
from agentgit.saver.serializer import StrictSerializer
from agentgit.store.database import Database
from agentgit.store.objects.blobs import compact
from agentgit.store.objects.content import Body, read_values
from agentgit.store.objects.packing import Compression
from agentgit.store.schema import schema
from agentgit.store.sql.encryption import load_keyring
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import (
    AS_NODE,
    ASKED,
    ASKED_INDEX,
    INTERRUPT,
    MAX_ASKED,
    NULL_TASK,
    RESUME,
    Draft,
    GraphCheckpoint,
    GraphKey,
    GraphScope,
    NewCheckpoint,
    NewWrites,
    PendingWrite,
)
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.lifecycle import count_unread_threads, has_langgraph_tables
from agentgit.values import from_json

PAGE = 16
"""The number of checkpoints that `list` reads at once; each of them may hold large values."""


class SQLModelSaver(AsyncSaverMethods):
    """A LangGraph checkpointer that stores its data in agentgit's tables.

    It implements LangGraph's `BaseCheckpointSaver`, and takes what `PostgresSaver`, `AsyncPostgresSaver` and
    `SqliteSaver` take. Sync and async methods can be mixed on one instance, from many threads. Values are addressed by
    content, so saving a conversation costs only what is new in it.

    Args:
        conn: The database that stores the data: a path, `:memory:`, a URL, a connection string of libpq, a connection
            or a pool of psycopg, a connection of sqlite3, or a sync engine of SQLAlchemy. The saver opens connections
            of its own to the same database, from a pool as many as the pool has at most, and leaves what it was given
            open.
        pipe: Ignored. Statements to PostgreSQL that belong together are always sent in one pipeline.
        serde: Your own serializer, such as an encrypting one, which then gets every value and decides what is rebuilt.
            None for LangGraph's serializer, which then rebuilds only LangGraph's own types and those of `types`.
        graphs: The store of the graph checkpoints, to share its caches with other readers; None for a new one.
        compression: The compression of new values: `auto`, `zstd`, `zlib` or `none`, as for `agentgit.open`.
        exclude_metadata: Names of settings in `configurable`, and of metadata in a config, that are not stored. Names
            that look like secrets are never stored.
        sessions: True to allow access to the threads of sessions, too. Changing them here, and not through their
            session, breaks the session.
        types: The data types in your states, or hints that contain them, such as the schema of the graph: dataclasses,
            enums, named tuples and pydantic models. Stored values of other types are returned as plain values, except
            those of types that this process has stored itself. LangGraph passes the types of the schema itself if
            `LANGGRAPH_STRICT_MSGPACK` is true.

    Raises:
        InvalidInput: `conn` is not one of these, or names a database or a driver that agentgit does not support.

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
        conn: Any,
        pipe: object = None,
        serde: SerializerProtocol | None = None,
        *,
        graphs: GraphStore | None = None,
        compression: str = "auto",
        exclude_metadata: Collection[str] = (),
        sessions: bool = False,
        types: Iterable[Any] = (),
    ) -> None:
        super().__init__(serde=serde or StrictSerializer())
        add_types(*types)
        self.exclude_metadata, self._compression = excluded_names(exclude_metadata), Compression(compression).name
        self.database = conn if isinstance(conn, Database) else open_database(conn)
        self._owns_database = self.database is not conn
        if graphs is not None:
            self.store = graphs
        self.sessions = sessions
        self.turn: RecordedTurn | None = None
        """The turn that takes part in saves and reads; None outside of turns."""
        self.channels: Channels = {}
        """The channels of the running graph, which contain the reducers of its DeltaChannels.

        LangGraph does not pass them to a saver. If nobody sets them, writes of messages are treated as a conversation.
        """
        self._codec: Codec = make_codec(self.serde)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | Path | URL,
        *,
        pipeline: bool = True,
        serde: SerializerProtocol | None = None,
        compression: str = "auto",
        keyring: Keyring | None = None,
        exclude_metadata: Collection[str] = (),
        sessions: bool = False,
        types: Iterable[Any] = (),
    ) -> Self:
        """Open a database and return a saver, which is also a sync and async context manager that closes the database.

        Args:
            conn_string: A path, `:memory:`, a URL or a connection string of libpq. On SQLite the tables are created at
                once; on a server, call `setup()` once.
            pipeline: Ignored. Statements to PostgreSQL that belong together are always sent in one pipeline.
            serde: Your own serializer for every value; None for LangGraph's serializer, which then rebuilds only known
                types.
            compression: The compression of new values: `auto`, `zstd`, `zlib` or `none`, as for `agentgit.open`.
            keyring: The keys that encrypt the contents; None is `$AGENTGIT_ENCRYPTION_KEYS`, else nothing is encrypted.
            exclude_metadata: Names of settings in `configurable`, and of metadata in a config, that are not stored.
            sessions: True to allow access to the threads of sessions, too.
            types: The data types in your states, or hints that contain them; see the class.

        Raises:
            InvalidInput: `conn_string` is not a path, and not a URL of SQLite or PostgreSQL, or `exclude_metadata` is
                not a list of names.
            SchemaMismatch: The database is not agentgit's, or is newer than this library.
        """
        excluded = excluded_names(exclude_metadata)
        database = Database(conn_string, keyring=load_keyring(keyring))
        saver = cls(
            database, serde=serde, compression=compression, exclude_metadata=excluded, sessions=sessions, types=types
        )
        saver._owns_database = True
        if saver.database.is_sqlite:
            saver.setup()
        return saver

    def setup(self) -> Awaitable[None]:
        """Create the tables of the database, or bring them up to date. No-op if they are.

        The work is done when the call returns, so that the result need not be awaited. It can be, as with LangGraph's
        async savers.

        Warns:
            UserWarning: The database also has threads of LangGraph's savers, which this saver does not read.
        """
        schema.upgrade(self.database)
        count = self._count_unread_threads()
        if count:
            warnings.warn(
                f"{self.database.name} also has {count} thread{'s' * (count != 1)} of LangGraph's savers, which "
                "SQLModelSaver does not read. To continue them with it, import them: "
                "repo.import_langgraph(URL, as_threads=True).",
                stacklevel=2,
            )
        return DONE

    def _count_unread_threads(self) -> int:
        with self.database.reading() as transaction:
            if not has_langgraph_tables(transaction):
                return 0
        try:
            with self.database.reading() as transaction:
                return count_unread_threads(transaction)
        except NotAllowed:  # the tables of LangGraph's savers belong to somebody else
            return 0

    @property
    def codec(self) -> Codec:
        """The codec for stored values; it follows the serializer, which LangGraph replaces on copies of the saver."""
        if self._codec.serde is not self.serde:
            self._codec = make_codec(self.serde)
        return self._codec

    def _parse_address(self, config: RunnableConfig) -> tuple[str, str, str | None]:
        thread, ns, checkpoint_id = address(config)
        return self._require_access(thread), ns, checkpoint_id

    def _turn_of(self, config: RunnableConfig) -> RecordedTurn | None:
        """Return the turn that takes over what a run saves; None outside of turns."""
        return self.turn

    def _require_no_run(self, config: RunnableConfig) -> None:
        """Check that what no turn has taken over may be stored without one."""

    def _config_of(self, graph_key: GraphKey) -> RunnableConfig:
        """Return the config that names a checkpoint for the callers of this saver."""
        return config_of(graph_key)

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the checkpoint that the config names, or the newest of its namespace; None if there is none."""
        thread, ns, checkpoint_id = self._parse_address(config)
        store = self.store
        with self.database.reading() as transaction:
            turn = self.turn
            head = turn.known_head(GraphKey(thread, ns, checkpoint_id or "")) if turn is not None else None
            loaded = (head, []) if head else store.find_with_writes(transaction, thread, ns, checkpoint_id or None)
            if turn is not None:
                turn.on_read(thread, ns, loaded[0] if loaded else None)
            if loaded is None:
                return None
            store.seen.add(loaded[0].key)
            found = next(self._build_tuples(transaction, store, [loaded]))
            task = config["configurable"]
            is_subgraph = bool(ns) and turn is not None and CONFIG_KEY_TASK_ID in task
            goes_on = is_subgraph and bool(task.get(CONFIG_KEY_RESUMING))
            if goes_on and not _has_begun(transaction, store, loaded[0], task.get(CONFIG_KEY_CHECKPOINT_MAP, {})):
                # LangGraph would go on with the call of the subgraph before this one, and drop the input.
                del task[CONFIG_KEY_RESUMING]
                goes_on = False
        if ns and loaded[0].is_imported and turn is not None and turn.goes_on and would_go_on(found):
            # LangGraph would go on with it because the graph around it goes on.
            raise Conflict(
                f"The subgraph {ns!r} stands at an imported checkpoint: what waits there never runs here. "
                "Nothing of it was run. Send a new message."
            )
        if turn is None or not is_subgraph or goes_on:
            return found
        return turn.with_answers(found, loaded[0].conversation_channel)

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
        graph_scope, threads = self._scope(config)
        required_metadata = from_json(compact(filter or {}))
        before_id = get_checkpoint_id(before) if before else None
        last_checkpoint: GraphCheckpoint | None = None
        remaining = limit if limit is not None else -1
        store = self.store
        while remaining != 0:
            with self.database.reading() as transaction:
                page = store.page(
                    transaction,
                    graph_scope,
                    before=before_id,
                    after=last_checkpoint,
                    limit=PAGE,
                    sessions=self.sessions,
                    entries=required_metadata,
                    threads=threads,
                )
                matching = [
                    checkpoint
                    for checkpoint in page
                    if all(checkpoint.meta.get(k) == v for k, v in required_metadata.items())
                ]
                matching = matching if remaining < 0 else matching[:remaining]
                tuples = self._build_tuples(
                    transaction,
                    store,
                    [(checkpoint, store.writes(transaction, checkpoint.key)) for checkpoint in matching],
                )
            yield from tuples
            remaining -= len(matching) if remaining > 0 else 0
            if len(page) < PAGE:
                return
            last_checkpoint = page[-1]

    def _scope(self, config: RunnableConfig | None) -> tuple[GraphScope, Sequence[str] | None]:
        """Return the checkpoints to list, and their threads if there are several; None for all threads."""
        graph_scope = scope(config)
        if graph_scope.thread is not None:
            self._require_access(graph_scope.thread)
        return graph_scope, None

    def _build_tuples(
        self,
        transaction: Reading,
        store: GraphStore,
        loaded: Sequence[tuple[GraphCheckpoint, Sequence[PendingWrite]]],
    ) -> Iterator[CheckpointTuple]:
        """Read all values at once, but build the tuples one by one: each contains a conversation as Python objects."""
        keys = {(checkpoint.session_id, key) for checkpoint, _ in loaded for key in checkpoint.channels.values()}
        keys.update((write.session_id, write.value) for _, pending in loaded for write in pending)
        bodies = read_values(transaction, store.blobs, keys)
        return (self._build_tuple(checkpoint, writes, bodies) for checkpoint, writes in loaded)

    def _build_tuple(
        self, stored: GraphCheckpoint, writes: Sequence[PendingWrite], bodies: Mapping[bytes, Body]
    ) -> CheckpointTuple:
        values = {name: self._decode_value(stored, name, bodies[key]) for name, key in stored.channels.items()}
        typed_fields, typed_metadata = read_typed_fields(stored.key, values.pop(TYPED_FIELDS, None))
        checkpoint = {
            **stored.header.get(OTHER_FIELDS, {}),
            **typed_fields,
            "id": stored.key.checkpoint_id,
            "channel_values": values,
            **{name: stored.header[short] for name, short in HEADER_FIELDS.items() if short in stored.header},
        }
        parent = stored.key._replace(checkpoint_id=stored.parent_id) if stored.parent_id else None
        return CheckpointTuple(
            self._config_of(stored.key),
            cast(Checkpoint, checkpoint),
            cast(CheckpointMetadata, {k: v for k, v in (stored.meta | typed_metadata).items() if k != AS_NODE}),
            self._config_of(parent) if parent else None,
            [
                self._decode_write(write, bodies[write.value])
                for write in writes
                # LangGraph would give an answer that waits in a file to the next question of a new turn.
                if not (stored.is_imported and write.channel == RESUME and write.task_id == NULL_TASK)
            ],
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
        thread, ns, id = self._parse_address(config)
        store = self.store
        with self.database.reading() as transaction:
            checkpoint = (
                store.find(transaction, GraphKey(thread, ns, id)) if id else store.newest(transaction, thread, ns)
            )
            writes, seeds = store.delta_values.history(transaction, checkpoint, channels) if checkpoint else ({}, {})
            keys = {(write.session_id, write.value) for one in writes.values() for write in one}
            keys.update((seed.session_id, seed.channels[name]) for name, seed in seeds.items())
            bodies = read_values(transaction, store.blobs, keys)
        histories: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            histories[name] = {
                "writes": [self._decode_write(write, bodies[write.value]) for write in writes.get(name, ())]
            }
            if name in seeds:
                histories[name]["seed"] = self._decode_value(seeds[name], name, bodies[seeds[name].channels[name]])
        return histories

    def _decode_value(self, checkpoint: GraphCheckpoint, name: str, body: Any) -> Any:
        value = self.codec.decode(body)
        return DeltaSnapshot(value) if name in checkpoint.header.get(SNAPSHOTS, ()) else value

    def _decode_write(self, write: PendingWrite, body: Any) -> tuple[str, str, Any]:
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
            metadata: The metadata to store. Strings, numbers and booleans of the config's `configurable` and `metadata`
                are added, except secrets and excluded names; see `stored_metadata`.
            new_versions: The channels that changed since the parent.

        Returns:
            The config that names the stored checkpoint.

        Raises:
            InvalidInput: A value cannot be stored.
            Conflict: The thread was deleted meanwhile, or another run has moved it on.
        """
        thread, ns, parent_id = self._parse_address(config)
        graph_key = GraphKey(thread, ns, checkpoint["id"])
        turn = self._turn_of(config)
        with turn.saving(graph_key) if turn is not None else nullcontext():
            draft = self.draft(config, checkpoint, metadata, new_versions, parent_id)
            new = NewCheckpoint(graph_key, replace(draft, continues=is_continuation(config, metadata)))
            if turn is None or not turn.put(new):
                self._require_no_run(config)
                self._put_now(new)
        return self._config_of(graph_key)

    def _put_now(self, new: NewCheckpoint) -> None:
        store, (graph_key, draft) = self.store, new
        try:
            if not self._append_if_head(graph_key, draft):
                self.database.write(lambda transaction: store.put(transaction, new))
        except Conflict:
            self.database.write(lambda transaction: store.refuse_writes(transaction, graph_key))
            raise
        store.seen.add(graph_key)

    def _append_if_head(self, graph_key: GraphKey, draft: Draft) -> bool:
        """Append a checkpoint to a known parent on a server, if that is still the newest; return whether it was."""
        store = self.store
        parent = store.newest_checkpoints.get(graph_key.namespace)
        if parent is None or parent.key.checkpoint_id != draft.parent_id or self.database.is_sqlite:
            return False
        result = self.database.write(lambda transaction: store.put_after(transaction, parent, graph_key, draft))
        return result.count() == 1

    def draft(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        parent_id: str | None,
    ) -> Draft:
        """Encode a checkpoint, so that it can be stored in one transaction with other data; see `put`."""
        stored = stored_metadata(config, metadata, self.exclude_metadata)
        # A thread without a session has no checkpoints that show its values: LangGraph rebuilds them itself.
        channels = self.channels if self.sessions else None
        return make_draft(self.codec, channels, checkpoint, stored, new_versions, parent_id)

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
        thread, ns, checkpoint_id = self._parse_address(config)
        if not checkpoint_id:
            raise InvalidInput(
                "put_writes needs a checkpoint_id in the config: the checkpoint that the task belongs to."
            )
        rows = [
            (WRITES_IDX_MAP.get(channel, index), channel, self.codec.encode(value).body)
            for index, (channel, value) in enumerate(writes)
        ]
        turn = self._turn_of(config)
        if turn is not None:
            rows += _asked(writes, rows)
        new = NewWrites(GraphKey(thread, ns, checkpoint_id), task_id, task_path, rows)
        if turn is None or not turn.put_writes(new):
            self._require_no_run(config)
            self._put_writes_now(new)

    def _put_writes_now(self, new: NewWrites) -> None:
        store = self.store
        self.database.write(lambda transaction: store.put_writes(transaction, new))

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
        if self._owns_database:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _asked(writes: Sequence[tuple[str, Any]], rows: Sequence[tuple[int, str, Body]]) -> list[tuple[int, str, Body]]:
    """Return the row that keeps the question of a task, if it asks one, when its next question replaces this one."""
    answers = next((value for channel, value in writes if channel == RESUME), None)
    number = len(answers) if isinstance(answers, list) else 0  # a caller's single answer belongs to no task
    return [
        (ASKED_INDEX - number, ASKED, body) for _, channel, body in rows if channel == INTERRUPT and number < MAX_ASKED
    ]


def _has_begun(transaction: Reading, store: GraphStore, subgraph: GraphCheckpoint, steps: Mapping[str, str]) -> bool:
    """Return whether a subgraph began in the steps of the graphs around it that run now, or before their updates."""
    for ns, step_id in steps.items():
        step = store.find(transaction, subgraph.key._replace(ns=ns, checkpoint_id=step_id))
        before = store.before_updates(transaction, step) if step is not None else []
        is_known = not before or before[-1].meta.get("source") != "update"  # if not, LangGraph goes on
        if is_known and subgraph.meta["parents"].get(ns) not in [one.key.checkpoint_id for one in before]:
            return False
    return True
