"""Graph checkpoints and pending writes, as a LangGraph saver needs them; nothing here knows LangGraph."""

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
    refuse_gone,
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
    Found,
    GraphKey,
    GraphScope,
    Head,
    Pending,
    Task,
    conversation,
    found,
    hash_state,
    is_shown,
    message_counts,
    pending,
    state_names,
    unchanged_names,
)

__all__ = ["Draft", "Encoded", "Found", "GraphKey", "GraphScope", "GraphStore", "Head", "Pending", "Task"]


class GraphStore:
    """The graph checkpoints and pending writes of one tenant. Every method runs in the transaction of its caller.

    Args:
        tenant_id: The tenant.
        compression: The compression of new values: `zlib`, `zstd` or `none`.
        counts: False if the answers of models that are put were given elsewhere: what they used is counted there.
    """

    def __init__(self, tenant_id: int, compression: str = "zstd", *, counts: bool = True) -> None:
        self.tenant_id = tenant_id
        self.counts = counts
        self.content = Content(tenant_id, compression)
        self.spread = SpreadValues(self.content)
        self.seen = SeenCheckpoints()
        self.newest_known = Newest()

    # -- writing

    def put(self, connection: Connection, place: GraphKey, draft: Draft) -> Head:
        """Store a graph checkpoint; one that is there already is replaced and keeps its `seq`.

        Args:
            connection: A connection in a transaction that writes.
            place: The key of the graph checkpoint.
            draft: The graph checkpoint to store.

        Raises:
            Conflict: Its thread was deleted meanwhile, or another run moved it; see
                `agentgit.store.threads.append_if_head`.
        """
        row = NEWEST_FOR_PUT.first(connection, self._space(place.thread, place.ns))
        newest = found(row) if row is not None else None
        parent = self._parent(connection, place, draft, newest)
        values = self._values(connection, place, draft, parent, newest.seq + 1 if newest else 1)
        UPSERT.run(connection, values)
        if connection.dialect.name != "sqlite":
            self._remember(values)
        return Head(place.checkpoint_id, values["state_hash"], values["message_count"])

    def put_after(
        self, connection: Connection, parent: Found, place: GraphKey, draft: Draft, fence: BranchHold | None
    ) -> PendingResult:
        """Store a graph checkpoint on a server without looking first; see `agentgit.store.threads.append_if_head`."""
        values = self._values(connection, place, draft, parent, parent.seq + 1)
        stored = put_after(connection, values, parent, fence)
        self._remember(values)
        return stored

    def _remember(self, values: Mapping[str, Any]) -> None:
        self.newest_known.add(found(SimpleNamespace(**values)))

    def _values(
        self, connection: Connection, place: GraphKey, draft: Draft, parent: Found | None, seq: int
    ) -> dict[str, Any]:
        """Store what a graph checkpoint holds, and give its columns."""
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
        used = token_usage.of_put(connection, self.content, place, talk, fresh, parent, counts=self.counts)
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

    def _parent(self, connection: Connection, place: GraphKey, draft: Draft, newest: Found | None) -> Found | None:
        """Find what a checkpoint was made from, and refuse what would bring a thread back or leave it behind."""
        parent_id = draft.parent_id
        if newest is not None and newest.place.checkpoint_id == parent_id:
            return newest
        if draft.continues and self.find(connection, place) is None:
            refuse_second_run(place, parent_id, newest)
        if parent_id is None:
            root_id = (draft.meta.get("parents") or {}).get("")
            if place.ns and newest is None and root_id:
                self._must_not_be_gone(connection, GraphKey(place.thread, "", root_id))
            return None
        at = place._replace(checkpoint_id=parent_id)
        known = at in self.seen  # asked first: what is on its way may arrive between the two
        parent = self.find(connection, at)
        if known and parent is None:
            refuse_gone(at)
        if parent is None and draft.parent_thread is not None:
            return self.find(connection, at._replace(thread=draft.parent_thread))
        return parent

    def _must_not_be_gone(self, connection: Connection, place: GraphKey) -> None:
        if place in self.seen and IS_THERE.first(connection, self._key(place)) is None:
            refuse_gone(place)

    def refuse(self, connection: Connection, place: GraphKey) -> None:
        """Drop the writes that came before a graph checkpoint which was refused, and let no more in."""
        self.seen.add(place)
        if IS_THERE.first(connection, self._key(place)) is None:
            DROP_WRITES.run(connection, self._key(place))

    def put_writes(
        self, connection: Connection, place: GraphKey, task: Task, writes: Sequence[tuple[int, str, Body]]
    ) -> None:
        """Store what a task wrote; storing it again changes nothing, except that negative indexes replace.

        Args:
            connection: A connection in a transaction that writes.
            place: The graph checkpoint that the task belongs to.
            task: The task that wrote.
            writes: The writes: index, channel and value of each.

        Raises:
            Conflict: That graph checkpoint was deleted meanwhile.
        """
        self._must_not_be_gone(connection, place)
        hashes = self.content.put(connection, [(body, None) for _, _, body in writes])
        held = {channel: value for (_, channel, _), value in zip(writes, hashes, strict=True)}
        rows = [
            {
                **self._key(place),
                "task_id": task.id,
                "idx": index,
                "task_path": task.path,
                "channel": channel,
                # An interrupt remembers the answers that came before it, so that a fork can ask it again.
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
        """Copy one graph checkpoint of the whole graph with its id into a new thread, with all it needs to go on.

        See `agentgit.store.threads.fork` for what that is. Only rows are copied, so the cost does not depend on the
        messages.

        Args:
            connection: A connection in a transaction that writes.
            source: The thread to leave from.
            checkpoint_id: The graph checkpoint to copy.
            target: The new thread.
            pending: The pending writes that a checkpoint of agentgit keeps; None to choose among those of now.

        Raises:
            NotFound: The source has no such graph checkpoint.
            Conflict: The target thread exists.
            Corrupt: The pending writes cannot be read.
        """
        head, place = self.snapshot(connection, source, checkpoint_id), GraphKey(source, "", checkpoint_id)
        fork.copy(connection, self.tenant_id, place, target, pending_writes.unpack(pending, "/".join(place)))
        return head

    def copy_thread(self, connection: Connection, source: str, target: str) -> None:
        """Copy everything of a thread into a new one; see `threads.copy`."""
        lifecycle.copy(connection, self.tenant_id, source, target)

    def delete_thread(self, connection: Connection, thread: str) -> None:
        """Delete the graph checkpoints and pending writes of a thread; see `threads.delete_thread`."""
        lifecycle.delete_thread(connection, self.tenant_id, thread)

    def delete_for_runs(self, connection: Connection, run_ids: Sequence[str], *, sessions: bool = False) -> None:
        """Delete what those runs made; see `threads.delete_for_runs`."""
        lifecycle.delete_for_runs(connection, self.tenant_id, run_ids, sessions=sessions)

    def prune(self, connection: Connection, thread: str) -> None:
        """Keep only the newest graph checkpoint of each namespace; see `threads.prune`."""
        lifecycle.prune(connection, self.tenant_id, thread)

    # -- reading

    def find(self, connection: Connection, place: GraphKey) -> Found | None:
        """Read one graph checkpoint, or None."""
        return self.finding(connection, place)()

    def finding(self, connection: Connection, place: GraphKey) -> Callable[[], Found | None]:
        """Ask for one graph checkpoint; give what tells it, or None."""
        asked = ONE.ask(connection, self._key(place))
        return lambda: found(row) if (row := asked.first()) is not None else None

    def newest(self, connection: Connection, thread: str, ns: str = "") -> Found | None:
        """Read the graph checkpoint of a namespace that came last, or None."""
        row = NEWEST.first(connection, self._space(thread, ns))
        return found(row) if row is not None else None

    def with_writes(
        self, connection: Connection, thread: str, ns: str, checkpoint_id: str | None
    ) -> tuple[Found, list[Pending]] | None:
        """Read one graph checkpoint, the one that came last if none is named, with its pending writes; or None."""
        if checkpoint_id is None:
            space = self._space(thread, ns)
            newest, asked = NEWEST.ask(connection, space), WRITES_OF_NEWEST.ask(connection, space)
        else:
            key = self._key(GraphKey(thread, ns, checkpoint_id))
            newest, asked = ONE.ask(connection, key), WRITES.ask(connection, key)
        row, rows = newest.first(), asked.all()
        if row is None:
            return None
        at = found(row)
        if checkpoint_id is None:
            self.newest_known.add(at)
            if any(one.newest != row.checkpoint_id for one in rows):  # a newer one came between the two
                return at, self.writes(connection, at.place)
        return at, pending([one for one in rows if one.channel is not None])

    def stand(self, connection: Connection, thread: str) -> Callable[[], tuple[Found | None, bool, bool]]:
        """Ask for the graph checkpoint of a thread that came last.

        With it comes whether it waits for a person's answer, and whether anything has been written on top of it.
        """
        asked = NEWEST_ASKING.ask(connection, self._space(thread, ""))

        def told() -> tuple[Found | None, bool, bool]:
            row = asked.first()
            return (found(row), bool(row.asks), bool(row.holds)) if row is not None else (None, False, False)

        return told

    def page(
        self,
        connection: Connection,
        scope: GraphScope,
        *,
        before: str | None = None,
        after: Found | None = None,
        limit: int = 64,
        sessions: bool = True,
    ) -> list[Found]:
        """List graph checkpoints, newest first, a page at a time.

        Args:
            connection: Any open connection.
            scope: The scope of the search.
            before: Only those older than the one with this id.
            after: The last one of the page before; None for the first page.
            limit: The greatest number of them.
            sessions: False to leave out the threads of sessions.
        """
        c = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).where(c.tenant_id == self.tenant_id).limit(limit)
        query = query if sessions else query.where(lifecycle.is_of_nobody(c.thread_id))
        for column, value in zip((c.thread_id, c.ns, c.checkpoint_id), scope, strict=True):
            query = query.where(column == value) if value is not None else query
        mark = None
        if scope.thread is not None and scope.ns is not None:
            # In one namespace the order is that in which they came, also where a clock went back.
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
        return [found(row) for row in row_codes.authentic(connection, GRAPH_CHECKPOINT, connection.execute(query))]

    def writes(self, connection: Connection, place: GraphKey) -> list[Pending]:
        """Read the pending writes of a graph checkpoint, by task path, task and index."""
        return pending(WRITES.all(connection, self._key(place)))

    def pending(self, connection: Connection, place: GraphKey) -> bytes:
        """Read what waits at a graph checkpoint now, as a checkpoint keeps it.

        See `agentgit.store.threads.pending_writes`.
        """
        return pending_writes.read(connection, self.tenant_id, place)

    def head(self, connection: Connection, thread: str) -> Head | None:
        """Return the newest graph checkpoint of a thread by the order in which they came, never by the greatest id."""
        row = NEWEST.first(connection, self._space(thread, ""))
        return _head(row) if row is not None else None

    def snapshot(self, connection: Connection, thread: str, checkpoint_id: str) -> Head:
        """Return what a checkpoint of agentgit keeps of a graph checkpoint.

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
        """Read the state as JSON-like values without the messages, and the messages in LangChain's stored form.

        A value that only LangGraph's serializer can rebuild is shown as its plain data, and one that was written with
        an own or encrypting serializer as a text that says so.

        Args:
            connection: Any open connection.
            thread: The thread.
            checkpoint_id: A graph checkpoint of the whole graph.

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
        """Read the messages in LangChain's stored form, oldest first.

        Args:
            connection: Any open connection.
            thread: The thread.
            checkpoint_id: A graph checkpoint of the whole graph.
            last: The number of newest ones to read; None for all. Older ones are not read.

        Raises:
            NotFound: The thread has no such graph checkpoint.
            Corrupt: A value does not match its hash.
        """
        return self.messages_at(connection, self._expect(connection, thread, checkpoint_id), last)

    def messages_at(self, connection: Connection, at: Found, last: int | None = None) -> list[dict[str, Any]]:
        """Read the messages of a graph checkpoint that was read already, as `messages`."""
        if last == 0:
            return []
        return self.messages_of(connection, self.message_hashes(connection, at)[-last if last else 0 :])

    def message_hashes(self, connection: Connection, at: Found) -> Sequence[bytes]:
        """List the hashes of the messages of a graph checkpoint, oldest first."""
        channel = conversation(at.header["counts"])
        return self.content.items(connection, at.values[channel]) if channel is not None else ()

    def messages_of(self, connection: Connection, hashes: Sequence[bytes]) -> list[dict[str, Any]]:
        """Read messages in LangChain's stored form by their hashes.

        Raises:
            Corrupt: One does not match its hash.
        """
        leaves = self.content.blobs.get_many(connection, hashes)
        return [show_message(leaves[key]) for key in hashes]

    def _expect(self, connection: Connection, thread: str, checkpoint_id: str) -> Found:
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
