"""Storage of graph checkpoints and pending writes for a LangGraph saver. It does not depend on LangGraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, literal, select, tuple_

from agentgit.errors import NotFound
from agentgit.store.objects.blobs import compact, pack
from agentgit.store.objects.content import Body, Content, Encoded
from agentgit.store.objects.plain_values import show_message, show_state
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import PendingResult
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.threads import fork, lifecycle, pending_writes, token_usage
from agentgit.store.threads.append_if_head import (
    BranchHold,
    Newest,
    SeenCheckpoints,
    put_after,
    raise_deleted,
    refuse_second_run,
)
from agentgit.store.threads.delta_values import NOTHING, SpreadValues
from agentgit.store.threads.graph_rows import (
    ADD_WRITES,
    DROP_WRITES,
    INTERRUPT,
    IS_THERE,
    NEWEST,
    NEWEST_ASKING,
    NEWEST_FOR_PUT,
    ONE,
    REPLACE_WRITES,
    RESUME,
    UPSERT,
    WRITES,
    WRITES_OF_NEWEST,
    Draft,
    GraphCheckpoint,
    GraphKey,
    GraphScope,
    Head,
    Pending,
    Task,
    conversation,
    hash_state,
    is_shown,
    message_counts,
    parse_graph_checkpoint,
    pending,
    state_names,
    unchanged_names,
)

__all__ = ["Draft", "Encoded", "GraphCheckpoint", "GraphKey", "GraphScope", "GraphStore", "Head", "Pending", "Task"]


class GraphStore:
    """The graph checkpoints and pending writes of one tenant. Every method runs in the transaction of its caller.

    Args:
        tenant_id: The tenant.
        compression: The compression of new values: `zlib`, `zstd` or `none`.
        count_usage: False if the AI messages to store come from another branch, which already counts their token usage.
    """

    def __init__(self, tenant_id: int, compression: str = "zstd", *, count_usage: bool = True) -> None:
        self.tenant_id = tenant_id
        self.count_usage = count_usage
        self.content = Content(tenant_id, compression)
        self.spread = SpreadValues(self.content)
        self.seen = SeenCheckpoints()
        self.newest_known = Newest()

    # -- writing

    def put(self, connection: Connection, place: GraphKey, draft: Draft) -> Head:
        """Store a graph checkpoint, or replace it and keep its `seq`.

        Args:
            connection: A connection in a transaction that writes.
            place: The key of the graph checkpoint.
            draft: The graph checkpoint to store.

        Raises:
            Conflict: The thread was deleted in the meantime, or another run moved it; see
                `agentgit.store.threads.append_if_head`.
        """
        row = NEWEST_FOR_PUT.first(connection, self._space(place.thread, place.ns))
        newest = parse_graph_checkpoint(row) if row is not None else None
        parent = self._parent(connection, place, draft, newest)
        values = self._values(connection, place, draft, parent, newest.seq + 1 if newest else 1)
        UPSERT.run(connection, values)
        if connection.dialect.name != "sqlite":
            self._remember(values)
        return Head(place.checkpoint_id, values["state_hash"], values["message_count"])

    def put_after(
        self, connection: Connection, parent: GraphCheckpoint, place: GraphKey, draft: Draft, fence: BranchHold | None
    ) -> PendingResult:
        """Store a graph checkpoint on a server without a prior read; see `agentgit.store.threads.append_if_head`."""
        values = self._values(connection, place, draft, parent, parent.seq + 1)
        stored = put_after(connection, values, parent, fence)
        self._remember(values)
        return stored

    def _remember(self, values: Mapping[str, Any]) -> None:
        self.newest_known.add(parse_graph_checkpoint(SimpleNamespace(**values)))

    def _values(
        self, connection: Connection, place: GraphKey, draft: Draft, parent: GraphCheckpoint | None, seq: int
    ) -> dict[str, Any]:
        """Store the values of a graph checkpoint and return its columns."""
        names, before = state_names(place, draft, parent), parent.values if parent else {}
        same = unchanged_names(names, draft, parent)
        kept = {name: before[name] for name in names if name in same and name in before}
        fresh = {name: draft.encode(name) for name in draft.names if name not in kept}
        spread = NOTHING
        if len(names) > len(draft.names):
            spread = self.spread.make(connection, place, draft, parent, draft.folds.keys() - kept.keys(), same)
            fresh |= spread.encoded
        hashes = self.content.put(connection, [(value.body, before.get(name)) for name, value in fresh.items()])
        stored = {**kept, **dict(zip(fresh, hashes, strict=True))}
        self.spread.remember(spread, stored)
        channels = {name: stored[name] for name in names if name in stored}
        counts = message_counts(channels, fresh, parent)
        talk = conversation(counts)
        used = token_usage.usage_header(connection, self.content, place, talk, fresh, parent, counts=self.count_usage)
        run_id, parents = draft.meta.get("run_id"), draft.meta.get("parents") or {}
        return {
            **self._key(place),
            "seq": seq,
            "parent_id": draft.parent_id,
            "root_id": parents.get("") if place.ns else None,
            "run_id": run_id if isinstance(run_id, str) else None,
            "message_count": counts.get(talk or "", 0),
            "meta": compact(draft.meta),
            "header": compact({**draft.header, "counts": counts, **used, **spread.header(stored)}),
            "channels": pack(channels),
            "state_hash": hash_state({**channels, **spread.digests}),
        }

    def _parent(
        self, connection: Connection, place: GraphKey, draft: Draft, newest: GraphCheckpoint | None
    ) -> GraphCheckpoint | None:
        """Return the parent of a checkpoint, and refuse a checkpoint of a deleted thread or of an overtaken run."""
        parent_id = draft.parent_id
        if newest is not None and newest.place.checkpoint_id == parent_id:
            return newest
        if draft.continues and self.find(connection, place) is None:
            refuse_second_run(place, parent_id, newest)
        if parent_id is None:
            root_id = (draft.meta.get("parents") or {}).get("")
            if place.ns and newest is None and root_id:
                self._require_present(connection, GraphKey(place.thread, "", root_id))
            return None
        at = place._replace(checkpoint_id=parent_id)
        known = at in self.seen  # checked before the read: the parent may be stored between the two
        parent = self.find(connection, at)
        if known and parent is None:
            raise_deleted(at)
        if parent is None and draft.parent_thread is not None:
            return self.find(connection, at._replace(thread=draft.parent_thread))
        return parent

    def _require_present(self, connection: Connection, place: GraphKey) -> None:
        if place in self.seen and IS_THERE.first(connection, self._key(place)) is None:
            raise_deleted(place)

    def refuse(self, connection: Connection, place: GraphKey) -> None:
        """Delete the writes that arrived before their refused graph checkpoint, and refuse further ones."""
        self.seen.add(place)
        if IS_THERE.first(connection, self._key(place)) is None:
            DROP_WRITES.run(connection, self._key(place))

    def put_writes(
        self, connection: Connection, place: GraphKey, task: Task, writes: Sequence[tuple[int, str, Body]]
    ) -> None:
        """Store the writes of a task. A write that exists is kept, or replaced if its index is negative.

        Args:
            connection: A connection in a transaction that writes.
            place: The graph checkpoint that the task belongs to.
            task: The task that wrote.
            writes: The index, channel and value of each write.

        Raises:
            Conflict: That graph checkpoint was deleted in the meantime.
        """
        self._require_present(connection, place)
        hashes = self.content.put(connection, [(body, None) for _, _, body in writes])
        held = {channel: value for (_, channel, _), value in zip(writes, hashes, strict=True)}
        rows = [
            {
                **self._key(place),
                "task_id": task.id,
                "idx": index,
                "task_path": task.path,
                "channel": channel,
                # An interrupt keeps the answers that came before it, so that a fork can raise it again.
                "value": value + held.get(RESUME, b"") if channel == INTERRUPT else value,
            }
            for (index, channel, _), value in zip(writes, hashes, strict=True)
        ]
        for statement, part in (
            (REPLACE_WRITES, [row for row in rows if row["idx"] < 0]),
            (ADD_WRITES, [row for row in rows if row["idx"] >= 0]),
        ):
            if part:
                statement.run(connection, *part)

    def fork(
        self, connection: Connection, source: str, checkpoint_id: str, target: str, pending: bytes | None = None
    ) -> Head:
        """Copy one graph checkpoint of the root graph, with its id, into a new thread that can continue from it.

        `agentgit.store.threads.fork` describes what is copied. Only rows are copied, so the cost does not depend on the
        messages.

        Args:
            connection: A connection in a transaction that writes.
            source: The thread to copy from.
            checkpoint_id: The graph checkpoint to copy.
            target: The new thread.
            pending: The pending writes that a checkpoint of agentgit recorded; None chooses among the current ones.

        Raises:
            NotFound: The source has no such graph checkpoint.
            Conflict: The target thread exists.
            Corrupt: The pending writes cannot be read.
        """
        head, place = self.snapshot(connection, source, checkpoint_id), GraphKey(source, "", checkpoint_id)
        fork.copy(connection, self.tenant_id, place, target, pending_writes.unpack(pending, "/".join(place)))
        return head

    def copy_thread(self, connection: Connection, source: str, target: str) -> None:
        """Copy a whole thread into a new one; see `lifecycle.copy`."""
        lifecycle.copy(connection, self.tenant_id, source, target)

    def delete_thread(self, connection: Connection, thread: str) -> None:
        """Delete the graph checkpoints and pending writes of a thread; see `lifecycle.delete_thread`."""
        lifecycle.delete_thread(connection, self.tenant_id, thread)

    def delete_for_runs(self, connection: Connection, run_ids: Sequence[str], *, sessions: bool = False) -> None:
        """Delete the graph checkpoints of some runs; see `lifecycle.delete_for_runs`."""
        lifecycle.delete_for_runs(connection, self.tenant_id, run_ids, sessions=sessions)

    def prune(self, connection: Connection, thread: str) -> None:
        """Keep only the newest graph checkpoint of each namespace; see `lifecycle.prune`."""
        lifecycle.prune(connection, self.tenant_id, thread)

    # -- reading

    def find(self, connection: Connection, place: GraphKey) -> GraphCheckpoint | None:
        """Return one graph checkpoint, or None if it does not exist."""
        return self.prefetch(connection, place)()

    def prefetch(self, connection: Connection, place: GraphKey) -> Callable[[], GraphCheckpoint | None]:
        """Send the query for one graph checkpoint; return a function that returns it, or None."""
        asked = ONE.submit(connection, self._key(place))
        return lambda: parse_graph_checkpoint(row) if (row := asked.first()) is not None else None

    def newest(self, connection: Connection, thread: str, ns: str = "") -> GraphCheckpoint | None:
        """Return the newest graph checkpoint of a namespace, or None."""
        row = NEWEST.first(connection, self._space(thread, ns))
        return parse_graph_checkpoint(row) if row is not None else None

    def with_writes(
        self, connection: Connection, thread: str, ns: str, checkpoint_id: str | None
    ) -> tuple[GraphCheckpoint, list[Pending]] | None:
        """Return one graph checkpoint with its pending writes, or None. Without an id, the newest of the namespace."""
        if checkpoint_id is None:
            space = self._space(thread, ns)
            newest, asked = NEWEST.submit(connection, space), WRITES_OF_NEWEST.submit(connection, space)
        else:
            key = self._key(GraphKey(thread, ns, checkpoint_id))
            newest, asked = ONE.submit(connection, key), WRITES.submit(connection, key)
        row, rows = newest.first(), asked.all()
        if row is None:
            return None
        at = parse_graph_checkpoint(row)
        if checkpoint_id is None:
            self.newest_known.add(at)
            if any(one.newest != row.checkpoint_id for one in rows):  # a newer one was stored between the two reads
                return at, self.writes(connection, at.place)
        return at, pending([one for one in rows if one.channel is not None])

    def prefetch_newest(
        self, connection: Connection, thread: str
    ) -> Callable[[], tuple[GraphCheckpoint | None, bool, bool]]:
        """Send the query for the newest graph checkpoint of a thread; return a function that returns its result.

        The result is the graph checkpoint or None, whether it waits for a person's answer, and whether anything has
        been written on top of it.
        """
        asked = NEWEST_ASKING.submit(connection, self._space(thread, ""))

        def told() -> tuple[GraphCheckpoint | None, bool, bool]:
            row = asked.first()
            return (
                (parse_graph_checkpoint(row), bool(row.asks), bool(row.holds))
                if row is not None
                else (None, False, False)
            )

        return told

    def page(
        self,
        connection: Connection,
        scope: GraphScope,
        *,
        before: str | None = None,
        after: GraphCheckpoint | None = None,
        limit: int = 64,
        sessions: bool = True,
    ) -> list[GraphCheckpoint]:
        """List one page of graph checkpoints, newest first.

        Args:
            connection: Any open connection.
            scope: The scope of the search.
            before: List only graph checkpoints older than the one with this id.
            after: The last graph checkpoint of the previous page; None for the first page.
            limit: The maximum number of graph checkpoints.
            sessions: False leaves out the threads of sessions.
        """
        c = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).where(c.tenant_id == self.tenant_id).limit(limit)
        query = query if sessions else query.where(lifecycle.belongs_to_no_session(c.thread_id))
        for column, value in zip((c.thread_id, c.ns, c.checkpoint_id), scope, strict=True):
            query = query.where(column == value) if value is not None else query
        mark = None
        if scope.thread is not None and scope.ns is not None:
            # Within one namespace, `seq` gives the order in which they were stored, even if a clock went back.
            mark = self.find(connection, GraphKey(scope.thread, scope.ns, before)) if before else None
            query = query.order_by(c.seq.desc())
            query = query.where(c.seq < after.seq) if after else query
        else:
            order = (c.checkpoint_id, c.thread_id, c.ns)
            query = query.order_by(*(column.desc() for column in order))
            if after:
                last = (after.place.checkpoint_id, after.place.thread, after.place.ns)
                pairs = zip(last, order, strict=True)
                query = query.where(tuple_(*order) < tuple_(*(literal(v, column.type) for v, column in pairs)))
        if before is not None:
            query = query.where(c.seq < mark.seq if mark else c.checkpoint_id < before)
        return [
            parse_graph_checkpoint(row)
            for row in row_codes.authentic(connection, GRAPH_CHECKPOINT, connection.execute(query))
        ]

    def writes(self, connection: Connection, place: GraphKey) -> list[Pending]:
        """Return the pending writes of a graph checkpoint, ordered by task path, task and index."""
        return pending(WRITES.all(connection, self._key(place)))

    def pending(self, connection: Connection, place: GraphKey) -> bytes:
        """Return the current pending writes of a graph checkpoint in the form that a checkpoint stores.

        See `agentgit.store.threads.pending_writes`.
        """
        return pending_writes.read(connection, self.tenant_id, place)

    def head(self, connection: Connection, thread: str) -> Head | None:
        """Return the newest graph checkpoint of a thread, by the order in which they were stored and not by id."""
        row = NEWEST.first(connection, self._space(thread, ""))
        return _head(row) if row is not None else None

    def snapshot(self, connection: Connection, thread: str, checkpoint_id: str) -> Head:
        """Return the part of a graph checkpoint that a checkpoint of agentgit records.

        Raises:
            NotFound: The thread has no such graph checkpoint.
        """
        row = ONE.first(connection, self._key(GraphKey(thread, "", checkpoint_id)))
        if row is None:
            raise _missing(thread, checkpoint_id)
        return _head(row)

    def read_state(
        self, connection: Connection, thread: str, checkpoint_id: str
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the state as JSON-like values without the messages, and the messages in LangChain's stored form.

        A value that only LangGraph's serializer can rebuild is shown as its plain data. A value that was written with a
        custom or encrypting serializer is shown as a text that says so.

        Args:
            connection: Any open connection.
            thread: The thread.
            checkpoint_id: A graph checkpoint of the root graph.

        Raises:
            NotFound: The thread has no such graph checkpoint.
            Corrupt: A value does not match its hash.
        """
        at = self._expect(connection, thread, checkpoint_id)
        shown = {name: key for name, key in at.values.items() if is_shown(name)}
        bodies = self.content.get(connection, shown.values())
        return show_state({name: bodies[key] for name, key in shown.items()}, conversation(at.header["counts"]))

    def messages(
        self, connection: Connection, thread: str, checkpoint_id: str, last: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the messages in LangChain's stored form, oldest first.

        Args:
            connection: Any open connection.
            thread: The thread.
            checkpoint_id: A graph checkpoint of the root graph.
            last: The number of newest messages to read; None reads all. Older messages are not read.

        Raises:
            NotFound: The thread has no such graph checkpoint.
            Corrupt: A value does not match its hash.
        """
        return self.messages_at(connection, self._expect(connection, thread, checkpoint_id), last)

    def messages_at(self, connection: Connection, at: GraphCheckpoint, last: int | None = None) -> list[dict[str, Any]]:
        """Return the messages of a graph checkpoint that was already read; see `messages`."""
        if last == 0:
            return []
        return self.messages_of(connection, self.message_hashes(connection, at)[-last if last else 0 :])

    def message_hashes(self, connection: Connection, at: GraphCheckpoint) -> Sequence[bytes]:
        """List the hashes of the messages of a graph checkpoint, oldest first."""
        channel = conversation(at.header["counts"])
        return self.content.items(connection, at.values[channel]) if channel is not None else ()

    def messages_of(self, connection: Connection, hashes: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return messages in LangChain's stored form by their hashes.

        Raises:
            Corrupt: A message does not match its hash.
        """
        leaves = self.content.blobs.get_many(connection, hashes)
        return [show_message(leaves[key]) for key in hashes]

    def _expect(self, connection: Connection, thread: str, checkpoint_id: str) -> GraphCheckpoint:
        at = self.find(connection, GraphKey(thread, "", checkpoint_id))
        if at is None:
            raise _missing(thread, checkpoint_id)
        return at

    def _space(self, thread: str, ns: str) -> dict[str, Any]:
        return {"tenant_id": self.tenant_id, "thread_id": thread, "ns": ns}

    def _key(self, place: GraphKey) -> dict[str, Any]:
        return place.columns(self.tenant_id)


def _head(row: Any) -> Head:
    return Head(row.checkpoint_id, row.state_hash, row.message_count)


def _missing(thread: str, checkpoint_id: str) -> NotFound:
    return NotFound(f"Thread {thread!r} has no graph checkpoint {checkpoint_id!r}. It may have been pruned or deleted.")
