"""Storage of graph checkpoints and pending writes for a LangGraph saver. It does not depend on LangGraph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sqlalchemy import literal, select, tuple_

from agentgit.errors import NotFound
from agentgit.store.objects.blobs import BlobStore, NewValues, compact, pack, readable
from agentgit.store.objects.content import Content
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.packing import split_hashes
from agentgit.store.objects.plain_values import NOT_COMPUTED, show_message, show_state
from agentgit.store.sql.compiled_statement import PendingResult
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import fork, lifecycle, model_calls, pending_writes
from agentgit.store.threads.append_if_head import (
    UPSERT_IF_NEWEST,
    SeenCheckpoints,
    raise_deleted,
    require_newest_parent,
)
from agentgit.store.threads.delta_values import NO_DELTA_VALUES, DeltaValueStore
from agentgit.store.threads.fork import CopiedState
from agentgit.store.threads.graph_rows import (
    ADD_WRITES,
    CHECKPOINT_EXISTS,
    DELETE_WRITES,
    INTERRUPT,
    MODEL_CALLS,
    NEWEST,
    NEWEST_LOCKED,
    ONE,
    REPLACE_WRITES,
    RESUME,
    UPSERT,
    WITH_PARENT,
    WRITES,
    WRITES_OF_NEWEST,
    Draft,
    GraphCheckpoint,
    GraphKey,
    GraphScope,
    Namespace,
    NewCheckpoint,
    NewModelCalls,
    NewRows,
    NewWrites,
    PendingWrite,
    conversation_channel,
    count_messages,
    hash_state,
    is_shown,
    may_have,
    parse_graph_checkpoint,
    parse_pending_writes,
    state_channels,
    unchanged_channels,
)
from agentgit.store.threads.owners import SESSION_THREAD_PREFIX, ThreadOwners, copy_values_of_thread

MAX_NEWEST_CHECKPOINTS = 1_000
"""The number of namespaces whose newest graph checkpoint is remembered."""

NOTHING_KNOWN: Mapping[Namespace, GraphCheckpoint | None] = {}


class GraphStore:
    """The graph checkpoints and pending writes. Every method runs in the transaction of its caller."""

    def __init__(self, compression: str = "auto") -> None:
        self.blobs = BlobStore(compression)
        self.owners = ThreadOwners()
        self.delta_values = DeltaValueStore(self.blobs)
        self.seen = SeenCheckpoints()
        self.newest_checkpoints: LRUCache[Namespace, GraphCheckpoint] = LRUCache(MAX_NEWEST_CHECKPOINTS)
        """The newest graph checkpoints, as this process last saw them. A transaction that added one may have failed."""

    def content(self, session_id: int) -> Content:
        return Content(self.blobs.of(session_id))

    # -- writing

    def put(self, transaction: Writing, new: NewCheckpoint) -> GraphCheckpoint:
        """Store a graph checkpoint, or replace it and keep its `seq`."""
        stored = self.write(transaction, [new])[new.key.namespace]
        assert stored is not None  # noqa: S101  # it was just stored
        if not transaction.is_sqlite:
            self.newest_checkpoints.add([(stored.key.namespace, stored)])
        return stored

    def put_writes(self, transaction: Writing, new: NewWrites) -> None:
        """Store the writes of a task. A write that exists is kept, or replaced if its index is negative."""
        self._require_not_deleted(transaction, new.key)
        self.write(transaction, [new])

    def write(
        self,
        transaction: Writing,
        entries: Sequence[NewRows],
        newest: Mapping[Namespace, GraphCheckpoint | None] = NOTHING_KNOWN,
        *,
        is_protected: bool = False,
    ) -> dict[Namespace, GraphCheckpoint | None]:
        """Store graph checkpoints and writes in order, with one statement for each table."""
        newest, stored = dict(newest), dict[GraphKey, GraphCheckpoint]()
        if not is_protected and not transaction.is_sqlite:
            # Keeps the values from being collected until this transaction ends.
            for owner in sorted({self.owners.find(transaction, entry.key.thread) for entry in entries}):
                self.blobs.of(owner).protect(transaction)
        # Values that are computed from stored writes must find those of the entries before.
        for batch in _split_before(entries, lambda entry: isinstance(entry, NewCheckpoint) and bool(entry.draft.folds)):
            values, checkpoints, writes = defaultdict[int, NewValues](NewValues), list[Any](), list[Any]()
            with readable(transaction, values):
                for entry in batch:
                    if isinstance(entry, NewWrites):
                        writes += self._encode_writes(transaction, entry, newest, values)
                    else:
                        checkpoints.append(self._encode_new(transaction, entry, newest, stored, values))
            for owner in sorted(values):
                self.blobs.of(owner).insert(transaction, values[owner])
            replacing, adding = [row for row in writes if row["idx"] < 0], [row for row in writes if row["idx"] >= 0]
            for statement, rows in ((UPSERT, checkpoints), (REPLACE_WRITES, replacing), (ADD_WRITES, adding)):
                if rows:
                    statement.run(transaction, *rows)
        return newest

    def _encode_new(
        self,
        transaction: Writing,
        new: NewCheckpoint,
        newest: dict[Namespace, GraphCheckpoint | None],
        stored: dict[GraphKey, GraphCheckpoint],
        values: Mapping[int, NewValues],
    ) -> dict[str, Any]:
        """Return the columns of a graph checkpoint, and add it to what is known as newest and as stored."""
        graph_key, draft = new
        if graph_key.namespace not in newest:
            row = NEWEST_LOCKED.first(transaction, graph_key.columns())
            newest[graph_key.namespace] = parse_graph_checkpoint(row) if row is not None else None
        last = newest[graph_key.namespace]
        owner = self.owners.find(transaction, graph_key.thread)
        if last is not None and last.session_id != owner:  # the thread was deleted, and another one copied there
            owner = last.session_id
            self.owners.add(graph_key.thread, owner)
            self.blobs.of(owner).protect(transaction)
        parent = stored.get(graph_key._replace(checkpoint_id=draft.parent_id or ""))
        parent = parent or self._find_parent(transaction, graph_key, draft, last)
        if parent is not None and parent.session_id != owner:  # as if it were here, with its values
            source = self.blobs.of(parent.session_id)
            source.protect(transaction)
            hashes = [*parent.values.values(), *split_hashes(parent.model_calls or b"")]
            self.blobs.of(owner).copy_from(transaction, source, hashes)
            parent = parent._replace(session_id=owner)
        columns = self._encode_checkpoint(
            transaction, graph_key, owner, draft, parent, last.seq + 1 if last is not None else 1, values[owner]
        )
        stored[graph_key] = newest[graph_key.namespace] = parse_graph_checkpoint(SimpleNamespace(**columns))
        return columns

    def put_after(
        self, transaction: Writing, parent: GraphCheckpoint, graph_key: GraphKey, draft: Draft
    ) -> PendingResult:
        """Store a graph checkpoint on a server without a prior read; see `agentgit.store.threads.append_if_head`."""
        values, owner = NewValues(), parent.session_id
        self.blobs.of(owner).protect(transaction)
        columns = self._encode_checkpoint(transaction, graph_key, owner, draft, parent, parent.seq + 1, values)
        self.blobs.of(owner).insert(transaction, values)
        result = UPSERT_IF_NEWEST.submit(transaction, {**columns, "parent_hash": parent.state_hash})
        self.newest_checkpoints.add([(graph_key.namespace, parse_graph_checkpoint(SimpleNamespace(**columns)))])
        return result

    def _encode_checkpoint(
        self,
        transaction: Reading,
        graph_key: GraphKey,
        owner: int,
        draft: Draft,
        parent: GraphCheckpoint | None,
        seq: int,
        values: NewValues,
    ) -> dict[str, Any]:
        """Return the columns of a graph checkpoint, and add the values to store to `values`."""
        content = self.content(owner)
        names, parent_values = state_channels(graph_key, draft, parent), parent.values if parent else {}
        unchanged = unchanged_channels(names, draft, parent)
        kept_hashes = {name: parent_values[name] for name in names if name in unchanged and name in parent_values}
        new_values = {name: draft.encode(name) for name in draft.channels if name not in kept_hashes}
        delta_values = NO_DELTA_VALUES
        if len(names) > len(draft.channels):
            delta_values = self.delta_values.compute(
                transaction, graph_key, draft, parent, draft.folds.keys() - kept_hashes.keys(), unchanged
            )
            new_values |= delta_values.encoded
        new_hashes = content.encode(
            transaction, [(value.body, parent_values.get(name)) for name, value in new_values.items()], values
        )
        value_hashes = {**kept_hashes, **dict(zip(new_values, new_hashes, strict=True))}
        self.delta_values.cache(delta_values, owner, value_hashes)
        channels = {name: value_hashes[name] for name in names if name in value_hashes}
        counts = count_messages(channels, new_values, parent)
        messages_channel = conversation_channel(counts)
        calls = self._encode_model_calls(transaction, owner, draft.model_calls, parent, values)
        run_id, parents = draft.meta.get("run_id"), draft.meta.get("parents") or {}
        return {
            **graph_key.columns(),
            "external_session_id": owner,
            "seq": seq,
            "parent_id": draft.parent_id,
            "root_id": parents.get("") if graph_key.ns else None,
            "run_id": run_id if isinstance(run_id, str) else None,
            "message_count": counts.get(messages_channel or "", 0),
            "meta": compact(draft.meta),
            "header": compact({**draft.header, "counts": counts, **delta_values.header(value_hashes)}),
            "channels": pack({**channels, **model_calls.named(calls)} if not graph_key.ns else channels),
            "state_hash": hash_state({**channels, **delta_values.digests}),
        }

    def _encode_model_calls(
        self,
        transaction: Reading,
        owner: int,
        new: NewModelCalls | None,
        before: GraphCheckpoint | None,
        values: NewValues,
    ) -> bytes | None:
        """Return the hashes of the model calls up to a point; None if there are none."""
        earlier = before.model_calls if before is not None else None
        if new is None:
            return earlier
        channel = before.conversation_channel if before is not None else None
        conversation = before.values.get(channel) if before is not None and channel is not None else None
        return model_calls.encode(transaction, self.content(owner), new, new.earlier or earlier, conversation, values)

    def _find_parent(
        self, transaction: Reading, graph_key: GraphKey, draft: Draft, newest: GraphCheckpoint | None
    ) -> GraphCheckpoint | None:
        """Return the parent of a checkpoint, and refuse a checkpoint of a deleted thread or of an overtaken run."""
        parent_id = draft.parent_id
        if newest is not None and newest.key.checkpoint_id == parent_id:
            return newest
        if draft.continues and self.find(transaction, graph_key) is None:
            require_newest_parent(graph_key, parent_id, newest)
        if parent_id is None:
            root_id = (draft.meta.get("parents") or {}).get("")
            if graph_key.ns and newest is None and root_id:
                self._require_not_deleted(transaction, GraphKey(graph_key.thread, "", root_id))
            return None
        parent_key = graph_key._replace(checkpoint_id=parent_id)
        was_seen = parent_key in self.seen  # checked before the read: the parent may be stored between the two
        parent = self.find(transaction, parent_key)
        if was_seen and parent is None:
            raise_deleted(parent_key)
        if parent is None and draft.parent_thread is not None:
            return self.find(transaction, parent_key._replace(thread=draft.parent_thread))
        return parent

    def _require_not_deleted(self, transaction: Reading, graph_key: GraphKey) -> None:
        if graph_key in self.seen and CHECKPOINT_EXISTS.first(transaction, graph_key.columns()) is None:
            raise_deleted(graph_key)

    def refuse_writes(self, transaction: Writing, graph_key: GraphKey) -> None:
        """Delete the writes that arrived before their refused graph checkpoint, and refuse further ones."""
        self.seen.add(graph_key)
        if CHECKPOINT_EXISTS.first(transaction, graph_key.columns()) is None:
            DELETE_WRITES.run(transaction, graph_key.columns())

    def _encode_writes(
        self,
        transaction: Reading,
        new: NewWrites,
        newest: Mapping[Namespace, GraphCheckpoint | None],
        values: Mapping[int, NewValues],
    ) -> list[dict[str, Any]]:
        """Return the rows of the writes of a task, and add the values to store to `values`."""
        owner = self.owners.find(transaction, new.key.thread)
        bodies = [(body, None) for _, _, body in new.writes]
        hashes = self.content(owner).encode(transaction, bodies, values[owner])
        rows = [(index, channel, value) for (index, channel, _), value in zip(new.writes, hashes, strict=True)]
        # An interrupt keeps the answers that came before it, so that a fork can raise it again.
        answers = {INTERRUPT: next((value for _, channel, value in reversed(rows) if channel == RESUME), b"")}
        rows = [(index, channel, value + answers.get(channel, b"")) for index, channel, value in rows]
        if new.model_calls is not None:
            before = newest.get(new.key.namespace)
            before = before if before is not None and before.key == new.key else self.find(transaction, new.key)
            calls = self._encode_model_calls(transaction, owner, new.model_calls, before, values[owner])
            rows += [(model_calls.WRITE_INDEX, MODEL_CALLS, calls)] if calls is not None else []
        return [
            {
                **new.key.columns(),
                "external_session_id": owner,
                "task_id": new.task_id,
                "idx": index,
                "task_path": new.task_path,
                "channel": channel,
                "value": value,
            }
            for index, channel, value in rows
        ]

    def fork(
        self, transaction: Writing, source: str, checkpoint_id: str, target: str, pending: bytes | None = None
    ) -> CopiedState:
        """Copy one graph checkpoint into a new thread that can continue from it; see `agentgit.store.threads.fork`."""
        graph_key = GraphKey(source, "", checkpoint_id)
        recorded_writes = pending_writes.unpack(pending, "/".join(graph_key))
        owner = self._owner_of_copy(transaction, source, target)
        return fork.copy(transaction, self.blobs, graph_key, target, owner, recorded_writes)

    def copy_thread(self, transaction: Writing, source: str, target: str) -> None:
        """Copy a whole thread into a new one; see `lifecycle.copy`."""
        owner = self._owner_of_copy(transaction, source, target)
        for one in sorted({self.owners.find(transaction, source), owner}):
            self.blobs.of(one).protect(transaction)
        copy_values_of_thread(transaction, self.blobs, source, owner)
        lifecycle.copy(transaction, source, target, owner)

    def _owner_of_copy(self, transaction: Reading, source: str, target: str) -> int:
        """Return the owner of a copy: its session; outside of sessions the family of the source."""
        source_owner = self.owners.find(transaction, source)
        if source_owner < 0 and not target.startswith(SESSION_THREAD_PREFIX):
            self.owners.add(target, source_owner)
            return source_owner
        return self.owners.find(transaction, target)

    # -- reading

    def find(self, transaction: Reading, graph_key: GraphKey) -> GraphCheckpoint | None:
        return self.prefetch(transaction, graph_key)()

    def prefetch(self, transaction: Reading, graph_key: GraphKey) -> Callable[[], GraphCheckpoint | None]:
        """Send the query for one graph checkpoint; return a function that returns it, or None."""
        result = ONE.submit(transaction, graph_key.columns())
        return lambda: parse_graph_checkpoint(row) if (row := result.first()) is not None else None

    def before_updates(self, transaction: Reading, newest: GraphCheckpoint) -> list[GraphCheckpoint]:
        """Return a graph checkpoint and, while each is an update by hand, the one before it, as far as it is known.

        A fork of an update does not have the one before it; another branch of the session may.
        """
        found = [newest]
        while found[-1].meta.get("source") == "update":
            key = {**found[-1].key.columns(), "external_session_id": newest.session_id}
            row = WITH_PARENT.first(transaction, key)
            before = row and self.find(
                transaction, newest.key._replace(thread=row.thread_id, checkpoint_id=row.parent_id)
            )
            if before is None:
                break
            found.append(before)
        return found

    def newest(self, transaction: Reading, thread: str, ns: str = "") -> GraphCheckpoint | None:
        """Return the newest graph checkpoint of a namespace, by the order in which they were stored, or None."""
        row = NEWEST.first(transaction, {"thread_id": thread, "ns": ns})
        return parse_graph_checkpoint(row) if row is not None else None

    def find_with_writes(
        self, transaction: Reading, thread: str, ns: str, checkpoint_id: str | None
    ) -> tuple[GraphCheckpoint, list[PendingWrite]] | None:
        """Return one graph checkpoint with its pending writes, or None. Without an id, the newest of the namespace."""
        statements, key = (NEWEST, WRITES_OF_NEWEST), {"thread_id": thread, "ns": ns}
        if checkpoint_id is not None:
            statements, key = (ONE, WRITES), key | {"checkpoint_id": checkpoint_id}
        checkpoint_result, writes_result = [one.submit(transaction, key) for one in statements]
        row, rows = checkpoint_result.first(), writes_result.all()
        if row is None:
            return None
        checkpoint = parse_graph_checkpoint(row)
        if checkpoint_id is None:
            self.newest_checkpoints.add([(checkpoint.key.namespace, checkpoint)])
            # A newer one may have been stored between the two reads.
            if any(write_row.newest != row.checkpoint_id for write_row in rows):
                rows = WRITES.all(transaction, checkpoint.key.columns())
        calls = next((write_row.value for write_row in rows if write_row.channel == MODEL_CALLS), None)
        if calls is not None:
            checkpoint = checkpoint._replace(model_calls=calls)
        return checkpoint, parse_pending_writes([write_row for write_row in rows if write_row.channel is not None])

    def page(
        self,
        transaction: Reading,
        scope: GraphScope,
        *,
        before: str | None = None,
        after: GraphCheckpoint | None = None,
        limit: int = 64,
        sessions: bool = True,
        entries: Mapping[str, Any] | None = None,
        threads: Sequence[str] | None = None,
    ) -> list[GraphCheckpoint]:
        columns = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).limit(limit)
        query = query if threads is None else query.where(columns.thread_id.in_(threads))
        query = query if sessions else query.where(lifecycle.belongs_to_no_session(columns.thread_id))
        if entries and transaction.seal is None:  # encrypted metadata cannot be searched
            query = query.where(*(may_have(transaction, columns.meta, name, entries[name]) for name in entries))
        for column, value in zip((columns.thread_id, columns.ns, columns.checkpoint_id), scope, strict=True):
            query = query.where(column == value) if value is not None else query
        before_checkpoint = None
        if scope.thread is not None and scope.ns is not None:
            # Within one namespace, `seq` gives the order in which they were stored, even if a clock went back.
            before_checkpoint = self.find(transaction, GraphKey(scope.thread, scope.ns, before)) if before else None
            query = query.order_by(columns.seq.desc())
            query = query.where(columns.seq < after.seq) if after else query
        else:
            order = (columns.checkpoint_id, columns.thread_id, columns.ns)
            query = query.order_by(*(column.desc() for column in order))
            if after:
                last_key = (after.key.checkpoint_id, after.key.thread, after.key.ns)
                pairs = zip(last_key, order, strict=True)
                query = query.where(tuple_(*order) < tuple_(*(literal(v, column.type) for v, column in pairs)))
        if before is not None:
            is_older = columns.checkpoint_id < before
            if scope.ns:  # the memory that a subgraph has from before the thread is older, even if a clock went back
                root = GRAPH_CHECKPOINT.alias("root")
                of_thread = (root.c.thread_id == scope.thread, root.c.ns == "")
                is_older |= columns.root_id.not_in(select(root.c.checkpoint_id).where(*of_thread))
            query = query.where(columns.seq < before_checkpoint.seq if before_checkpoint else is_older)
        return [parse_graph_checkpoint(row) for row in transaction.execute(query).all()]

    def has_subgraphs(self, transaction: Reading, thread: str) -> bool:
        c = GRAPH_CHECKPOINT.c
        query = select(c.ns).where(c.thread_id == thread, c.ns != "").limit(1)
        return transaction.execute(query).first() is not None

    def writes(self, transaction: Reading, graph_key: GraphKey) -> list[PendingWrite]:
        """Return the pending writes of a graph checkpoint, ordered by task path, task and index."""
        return parse_pending_writes(WRITES.all(transaction, graph_key.columns()))

    def read_state(
        self, transaction: Reading, thread: str, checkpoint_id: str
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the state as JSON-like values without the messages, and the messages in LangChain's stored form.

        A value that only LangGraph's serializer can rebuild is shown as its plain data. A value that was written with a
        custom or encrypting serializer is shown as a text that says so, and so is one of a DeltaChannel that could not
        be computed from its writes.
        """
        checkpoint = self.find(transaction, GraphKey(thread, "", checkpoint_id))
        if checkpoint is None:
            raise NotFound(
                f"Thread {thread!r} has no graph checkpoint {checkpoint_id!r}. It may have been pruned or deleted."
            )
        names = [name for name in (*checkpoint.values, *checkpoint.digests) if is_shown(name)]
        return self.values_at(transaction, checkpoint, names, checkpoint.conversation_channel)

    def values_at(
        self, transaction: Reading, checkpoint: GraphCheckpoint, names: Sequence[str], conversation: str | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return some channels of a graph checkpoint that was already read; see `read_state`."""
        hashes = {name: checkpoint.values[name] for name in names if name in checkpoint.values}
        bodies = self.content(checkpoint.session_id).get(transaction, hashes.values())
        state, messages = show_state({name: bodies[key] for name, key in hashes.items()}, conversation)
        return state | {name: NOT_COMPUTED for name in names if name in checkpoint.digests}, messages

    def messages(
        self, transaction: Reading, checkpoint: GraphCheckpoint, last: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the messages of a graph checkpoint in LangChain's stored form, oldest first."""
        if last == 0:
            return []
        hashes = self.message_hashes(transaction, checkpoint)[-last if last else 0 :]
        return self.messages_of(transaction, checkpoint.session_id, hashes)

    def message_hashes(self, transaction: Reading, checkpoint: GraphCheckpoint) -> Sequence[bytes]:
        """List the hashes of the messages of a graph checkpoint, oldest first."""
        channel = checkpoint.conversation_channel
        if channel is None:
            return ()
        return self.content(checkpoint.session_id).item_hashes(transaction, checkpoint.values[channel])

    def messages_of(self, transaction: Reading, session_id: int, hashes: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return messages of a session in LangChain's stored form by their hashes."""
        leaves = self.blobs.of(session_id).get_many(transaction, hashes)
        return [show_message(leaves[key]) for key in hashes]


def _split_before(entries: Iterable[NewRows], begins: Callable[[NewRows], bool]) -> Iterator[list[NewRows]]:
    """Yield the entries in batches; an entry that meets the condition begins a new one."""
    batch: list[NewRows] = []
    for entry in entries:
        if batch and begins(entry):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch
