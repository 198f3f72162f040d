"""Forks of threads: copy one graph checkpoint, with its id, into a new thread that continues the same way.

The fork copies, besides the checkpoint itself:

- **Pending writes**: exactly those that the checkpoint of agentgit recorded (`agentgit.store.threads.pending_writes`).
  Those of a subgraph with memory that ran in an earlier step are chosen from what exists now: everything except answers
  or, after the subgraph has moved on, the questions and failures of a paused step, and the output of its other tasks.
- **Subgraphs.** A subgraph without memory has one namespace for each task (`node:task`), which is copied if its pending
  writes were recorded. A subgraph with memory has one namespace for the thread (`node`). If it has no task that waits,
  its newest checkpoint that is older than the copied one is copied, so that it runs again.
- **Ancestors**, if a value is spread over their writes (LangGraph's DeltaChannel).

Values are not copied within a session, because rows refer to them by hash. A new session gets its own copy of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Row, and_, exists, func, insert, select

from agentgit.store.objects.blobs import BlobStore
from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import require_row
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import (
    ASKED,
    ERROR,
    INTERRUPT,
    KEY_COLUMNS,
    MODEL_CALLS,
    NEWEST,
    ONE,
    RESUME,
    WRITES,
    GraphKey,
    parameter_conditions,
    parse_graph_checkpoint,
)
from agentgit.store.threads.lifecycle import delta_ancestors
from agentgit.store.threads.owners import copy_values
from agentgit.store.threads.pending_writes import PendingWrites, pack_rows

ERROR_SOURCE = "__error_source_node__"
"""LangGraph's channel that marks a failure as handled by an error handler."""

RESUME_INDEX = -4
"""LangGraph's index for answers (`WRITES_IDX_MAP`)."""

Rows = list[dict[str, Any]]


class CopiedState(NamedTuple):
    """A thread that was just copied: the hash of its state, and its pending writes in their stored form."""

    state_hash: bytes = b""
    pending: bytes | None = None


def copy(
    transaction: Writing,
    blobs: BlobStore,
    graph_key: GraphKey,
    target: str,
    owner: int,
    pending: Sequence[PendingWrites] | None = None,
) -> CopiedState:
    """Copy a graph checkpoint of the root graph into a new thread."""
    checkpoints, writes = select_rows(transaction, graph_key, pending)
    copy_values(transaction, blobs, [*checkpoints, *writes], owner)
    for statement, rows in ((_ADD_CHECKPOINTS, checkpoints), (_ADD_WRITES, writes)):
        if rows:
            statement.run(transaction, *({**row, "thread_id": target, "external_session_id": owner} for row in rows))
    id = graph_key.checkpoint_id
    (root,) = (row for row in checkpoints if (row["ns"], row["checkpoint_id"]) == ("", id))
    heads = {row["ns"]: row["checkpoint_id"] for row in checkpoints if row["root_id"] == id}
    return CopiedState(root["state_hash"], pack_rows(graph_key, heads, writes))


def select_rows(
    transaction: Reading, graph_key: GraphKey, pending: Sequence[PendingWrites] | None = None
) -> tuple[Rows, Rows]:
    """Return the graph checkpoints and pending writes that a fork at a graph checkpoint of the root graph copies."""
    collector = _RowCollector(transaction, graph_key, pending)
    checkpoints, writes = collector.checkpoint_rows(collector.start)
    for subgraph_row in collector.subgraph_rows():
        subgraph_rows = collector.checkpoint_rows(subgraph_row)
        checkpoints, writes = checkpoints + subgraph_rows[0], writes + subgraph_rows[1]
    return checkpoints, writes


def _is_memory(checkpoints: Any) -> Any:
    """Return the condition for a checkpoint of a subgraph with memory; the first part of it is for the index."""
    return and_(checkpoints.c.ns > "", checkpoints.c.root_id.is_not(None), checkpoints.c.ns.not_like("%:%"))


_memory = GRAPH_CHECKPOINT.alias("memory")
_THREAD_CONDITIONS = parameter_conditions(GRAPH_CHECKPOINT, "thread_id")
_START = CompiledStatement(
    select(
        GRAPH_CHECKPOINT,
        exists().where(_memory.c.thread_id == GRAPH_CHECKPOINT.c.thread_id, _is_memory(_memory)).label("has_memory"),
    ).where(*parameter_conditions(GRAPH_CHECKPOINT, *KEY_COLUMNS))
)
_root = GRAPH_CHECKPOINT.alias("root")
_MEMORY_CHECKPOINTS = CompiledStatement(
    select(
        GRAPH_CHECKPOINT.c.ns,
        GRAPH_CHECKPOINT.c.root_id,
        _root.c.seq.label("root_seq"),
        func.max(GRAPH_CHECKPOINT.c.seq).label("seq"),
    )
    .join_from(
        GRAPH_CHECKPOINT,
        _root,
        and_(
            _root.c.thread_id == GRAPH_CHECKPOINT.c.thread_id,
            _root.c.ns == "",
            _root.c.checkpoint_id == GRAPH_CHECKPOINT.c.root_id,
        ),
        isouter=True,
    )
    .where(*_THREAD_CONDITIONS, _is_memory(GRAPH_CHECKPOINT))
    .group_by(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.root_id, _root.c.seq)
)
_ADD_CHECKPOINTS, _ADD_WRITES = (
    CompiledStatement(insert(GRAPH_CHECKPOINT)),
    CompiledStatement(insert(GRAPH_WRITE)),
)


class _RowCollector:
    def __init__(self, transaction: Reading, graph_key: GraphKey, recorded: Sequence[PendingWrites] | None) -> None:
        self.transaction, self.graph_key = transaction, graph_key
        self.recorded_writes = {(writes.ns, writes.checkpoint_id): writes for writes in recorded or ()}
        self.start = self._load_row(graph_key, _START)

    def checkpoint_rows(self, row: Row[Any]) -> tuple[Rows, Rows]:
        """Return the rows of a checkpoint and of the ancestors that hold parts of its values."""
        ancestor_rows = [
            self._load_row(ancestor.key)
            for ancestor in reversed(delta_ancestors(self.transaction, parse_graph_checkpoint(row)))
        ]
        checkpoints = [{c.name: getattr(each, c.name) for c in GRAPH_CHECKPOINT.c} for each in (*ancestor_rows, row)]
        for seq, columns in enumerate(checkpoints, start=1):
            columns["seq"] = seq
        checkpoints[0]["parent_id"] = None
        ancestor_writes = chain.from_iterable(self._load_writes(each) for each in ancestor_rows)
        return checkpoints, [*ancestor_writes, *self._pending_writes(row)]

    def _pending_writes(self, row: Row[Any]) -> Rows:
        recorded = self.recorded_writes.get((row.ns, row.checkpoint_id))
        if recorded is not None:
            return recorded.rows(row.external_session_id, row.thread_id)
        if not row.ns or not has_memory(row.ns):
            return []
        last = NEWEST.first(self.transaction, {"thread_id": self.graph_key.thread, "ns": row.ns})
        return select_writes(self._load_writes(row), superseded=last is None or last.seq != row.seq)

    def subgraph_rows(self) -> Iterable[Row[Any]]:
        """Find the subgraph checkpoints to copy with the forked checkpoint, one per namespace."""
        graph_keys = [self.graph_key._replace(ns=ns, checkpoint_id=id) for ns, id in self.recorded_writes if ns]
        recorded = {graph_key.ns: self._load_row(graph_key) for graph_key in graph_keys}
        return [*recorded.values(), *(row for row in self._memory_subgraphs() if row.ns not in recorded)]

    def _memory_subgraphs(self) -> Iterable[Row[Any]]:
        """Find, for each subgraph with memory, its newest checkpoint that is older than the forked one.

        It was saved in the step after an ancestor, or copied here from before the thread's first checkpoint.
        """
        if not self.start.has_memory:
            return
        candidates = _MEMORY_CHECKPOINTS.all(self.transaction, {"thread_id": self.graph_key.thread})
        ancestor_ids = self._read_ancestor_ids()
        nearest: dict[str, Row[Any]] = {}
        for row in sorted(candidates, key=lambda row: (row.root_seq or 0, row.seq)):
            if row.root_seq is None or row.root_id in ancestor_ids:
                nearest[row.ns] = row
        for ns, row in nearest.items():
            c = GRAPH_CHECKPOINT.c
            newest = (c.thread_id == self.graph_key.thread, c.ns == ns, c.seq == row.seq)
            full_row = self.transaction.execute(select(GRAPH_CHECKPOINT).where(*newest)).first()
            yield require_row(full_row, "graph checkpoint", f"{row.ns}/{row.seq}")

    def _read_ancestor_ids(self) -> set[str]:
        """Return the ids of the ancestors of the forked checkpoint, read in one statement."""
        columns = GRAPH_CHECKPOINT.c
        is_forked = self.graph_key.conditions(GRAPH_CHECKPOINT)
        walk = select(columns.parent_id).where(*is_forked).cte("walk", recursive=True)
        older = GRAPH_CHECKPOINT.alias("older")
        step = select(older.c.parent_id).where(
            older.c.thread_id == self.graph_key.thread, older.c.ns == "", older.c.checkpoint_id == walk.c.parent_id
        )
        # A union without duplicates ends, even if damaged rows form a cycle.
        return set(self.transaction.execute(select(walk.union(step))).scalars()) - {None}

    def _load_row(self, graph_key: GraphKey, statement: CompiledStatement = ONE) -> Row[Any]:
        row = statement.first(self.transaction, graph_key.columns())
        return require_row(row, "graph checkpoint", graph_key.checkpoint_id)

    def _load_writes(self, row: Row[Any]) -> Rows:
        stored = WRITES.all(self.transaction, GraphKey(row.thread_id, row.ns, row.checkpoint_id).columns())
        return [write._asdict() for write in stored if write.channel != ASKED]


def select_writes(rows: Rows, *, superseded: bool) -> Rows:
    """Choose the pending writes of a subgraph with memory that a fork copies."""
    rows_by_task: dict[str, Rows] = defaultdict(list)
    model_calls = [row for row in rows if row["channel"] == MODEL_CALLS]
    for row in rows:
        if row["channel"] not in (RESUME, MODEL_CALLS):
            rows_by_task[row["task_id"]].append(row)
    if superseded:
        if not open_tasks(rows):
            return []
        # Writes of an input or an update have no path, and those of later steps one that begins so. They came later.
        paths = {id: task_rows[0]["task_path"] for id, task_rows in rows_by_task.items()}
        rows_by_task = {id: rows_by_task[id] for id, path in paths.items() if path and not path.startswith("~~")}
    task_writes = chain.from_iterable(
        _select_task_writes(each, superseded=superseded) for each in rows_by_task.values()
    )
    return [*task_writes, *model_calls]


def _select_task_writes(rows: Rows, *, superseded: bool) -> Rows:
    interrupts = [row for row in rows if row["channel"] == INTERRUPT]
    is_finished = any(row["idx"] >= 0 for row in rows)
    if is_finished and not (superseded and open_tasks(rows)):
        return [row for row in rows if row["channel"] != INTERRUPT]
    if not interrupts:
        return [row for row in rows if row["channel"] == ERROR] if superseded else rows
    question = interrupts[0]
    earlier_answers = question["value"][HASH_BYTES:]
    answers = {**question, "idx": RESUME_INDEX, "channel": RESUME, "value": earlier_answers}
    return [question, answers] if earlier_answers else [question]


def open_tasks(rows: Rows) -> set[str]:
    """Return the ids of the paused tasks: those that raised an interrupt or failed without an error handler."""
    interrupted = {row["task_id"] for row in rows if row["channel"] == INTERRUPT}
    failed = {row["task_id"] for row in rows if row["channel"] == ERROR}
    handled = {row["task_id"] for row in rows if row["channel"] == ERROR_SOURCE}
    return interrupted | (failed - handled)


def has_memory(ns: str) -> bool:
    """Return whether a namespace belongs to a subgraph that keeps its state between turns: no part names a task."""
    return ":" not in ns
