"""Pending writes of a graph checkpoint, recorded with a checkpoint of agentgit.

LangGraph keeps writing to the same graph checkpoint until its step is finished. Each answer, each task that ends and
each new question adds or replaces a pending write there, and a paused subgraph saves newer checkpoints below it. A
checkpoint of agentgit that is made in between therefore records the writes and the newest checkpoint of each subgraph.
Values are referenced by hash; `agentgit.store.maintenance.gc` keeps the values that are referenced here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select

from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.store.objects.blobs import compact
from agentgit.store.objects.packing import HASH_BYTES, split_hashes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import (
    ASKED,
    ERROR,
    INTERRUPT,
    MODEL_CALLS,
    RESUME,
    WRITES,
    GraphKey,
    parameter_conditions,
)
from agentgit.values import from_json

NO_WRITES = b"[]"
"""The stored form of no pending writes."""

Rows = list[dict[str, Any]]

_WRITE_FIELDS = ("task_id", "idx", "task_path", "channel", "value")


class PendingWrites(NamedTuple):
    """The pending writes of one graph checkpoint, of the root graph or of a subgraph below it."""

    ns: str
    checkpoint_id: str
    writes: Sequence[Mapping[str, Any]]

    def rows(self, session_id: int, thread: str) -> Rows:
        key_columns = GraphKey(thread, self.ns, self.checkpoint_id).columns()
        return [{**key_columns, "external_session_id": session_id, **write} for write in self.writes]


def read(transaction: Reading, graph_key: GraphKey) -> bytes:
    """Return the current pending writes of a graph checkpoint of the root graph, in their stored form."""
    own_writes = WRITES.submit(transaction, graph_key.columns())  # together with the next query
    heads = subgraph_heads(transaction, graph_key)
    keys = [GraphKey(graph_key.thread, ns, id).columns() for ns, id in heads.items()]
    writes = own_writes.all() + [write for key in keys for write in WRITES.all(transaction, key)]
    return pack_rows(graph_key, heads, [write._asdict() for write in writes])


def pack_rows(graph_key: GraphKey, heads: Mapping[str, str], rows: Rows) -> bytes:
    """Return the stored form of the writes of a graph checkpoint and of the subgraph checkpoints below it."""
    entries = []
    # Sorted by namespace, so that equal pending writes give equal bytes.
    for ns, checkpoint_id in sorted({"": graph_key.checkpoint_id, **heads}.items()):
        writes = sorted(
            (row["task_path"], row["task_id"], row["idx"], row["channel"], row["value"].hex())
            for row in rows
            if (row["ns"], row["checkpoint_id"]) == (ns, checkpoint_id) and row["channel"] != ASKED
        )
        if ns or writes:
            entries.append([ns, checkpoint_id, [[task, idx, path, *rest] for path, task, idx, *rest in writes]])
    return compact(entries)


def subgraph_heads(transaction: Reading, graph_key: GraphKey) -> dict[str, str]:
    """Return the newest subgraph checkpoint below a graph checkpoint by namespace, in the order of the saves."""
    parameters = {"thread_id": graph_key.thread, "root_id": graph_key.checkpoint_id}
    newest: dict[str, str] = {}
    for row in _SUBGRAPH_CHECKPOINTS.all(transaction, parameters):
        newest.pop(row.ns, None)  # re-inserted below, for the order
        newest[row.ns] = row.checkpoint_id
    return newest


def unpack(data: bytes | None, row: str) -> list[PendingWrites] | None:
    if data is None:
        return None
    try:
        return [
            PendingWrites(
                ns,
                id,
                [dict(zip(_WRITE_FIELDS, (*rest, bytes.fromhex(value)), strict=True)) for *rest, value in writes],
            )
            for ns, id, writes in from_json(data)
        ]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"{row} has damaged pending writes.", Next("fsck"), row=row) from error


def hashes(data: bytes | None, row: str) -> Iterator[bytes]:
    for pending in unpack(data, row) or ():
        for write in pending.writes:
            yield from split_hashes(write["value"])


class TaskWrites(NamedTuple):
    id: str
    ns: str
    writes: Sequence[Mapping[str, Any]]

    @property
    def status(self) -> str:
        """`done`, `waiting` for an answer, `failed`, or `begun` if it has none of these writes."""
        if any(write["idx"] >= 0 for write in self.writes):
            return "done"
        values = {write["channel"]: write["value"] for write in self.writes}
        # An interrupt holds the answers before it. If there are others now, the task was answered, and then failed.
        is_answered = values.get(RESUME, b"") != values.get(INTERRUPT, b"")[HASH_BYTES:]
        if INTERRUPT in values and not (ERROR in values and is_answered):
            return "waiting"
        return "failed" if ERROR in values else "begun"

    def values(self, channel: str) -> list[bytes]:
        return [write["value"][:HASH_BYTES] for write in self.writes if write["channel"] == channel]

    @property
    def results(self) -> list[tuple[str, bytes]]:
        """Its writes to the channels of the graph, each as the channel and the hash of the value."""
        return [(write["channel"], write["value"][:HASH_BYTES]) for write in self.writes if write["idx"] >= 0]

    def may_contain(self, other: TaskWrites) -> bool:
        """Return whether another task runs in a graph of this one, or raised the interrupt that this one has, too."""
        is_inside = len(other.ns) > len(self.ns)
        is_task_of = other.ns == self.ns and bool(other.values(RESUME)) and not self.values(RESUME)  # a @task
        has_asked = bool(self.values(INTERRUPT)) and other.values(INTERRUPT) == self.values(INTERRUPT)
        return (is_inside and (f":{self.id}" in other.ns or has_asked)) or (is_task_of and has_asked)

    def digest(self) -> str:
        entries = sorted((write["channel"], write["idx"], write["value"].hex()) for write in self.writes)
        return sha256(compact(entries)).hexdigest()


def tasks(data: bytes | None, row: str) -> list[TaskWrites]:
    """Return the tasks that have pending writes, those of the root graph first."""
    writes_by_task: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for pending in unpack(data, row) or ():
        for write in (one for one in pending.writes if one["channel"] != MODEL_CALLS):
            writes_by_task.setdefault((pending.ns, write["task_id"]), []).append(write)
    return [TaskWrites(id, ns, writes) for (ns, id), writes in writes_by_task.items()]


def waiting(data: bytes | None, row: str) -> list[TaskWrites]:
    """Return the tasks of the root graph that wait for a person's answer."""
    all_tasks = tasks(data, row)
    innermost_first = sorted(all_tasks, key=lambda one: (len(one.ns), bool(one.values(RESUME))), reverse=True)
    asking: set[tuple[str, str]] = set()
    for number, task in enumerate(innermost_first):
        # What a task that failed has asked is what a task inside it asked, unless that was answered and then failed.
        inner = [one for one in innermost_first[:number] if task.values(ERROR) and task.may_contain(one)]
        if task.status == "waiting" and (not inner or any((one.ns, one.id) in asking for one in inner)):
            asking.add((task.ns, task.id))
    return [task for task in all_tasks if not task.ns and (task.ns, task.id) in asking]


_SUBGRAPH_CHECKPOINTS = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.checkpoint_id)
    .where(
        *parameter_conditions(GRAPH_CHECKPOINT, "thread_id"),
        GRAPH_CHECKPOINT.c.root_id == bindparam("root_id"),
    )
    .order_by(GRAPH_CHECKPOINT.c.seq)
)
