"""Forks of threads: copy one graph checkpoint, with its id, into a new thread that continues the same way.

The fork copies, besides the checkpoint itself:

- **Pending writes.** A checkpoint of agentgit records the pending writes that existed when it was made
  (`agentgit.store.threads.pending_writes`), and exactly those are copied. If none were recorded, they are chosen from
  the writes that exist now. At the newest graph checkpoint of the thread, everything except answers is copied: a task
  that waits for an answer keeps its question and the answers before it, and a finished task keeps its output. After the
  thread has moved on, the writes describe what happened *after* the checkpoint, so they are left out. The exception is
  a paused step: its questions and failures are copied, and the output of the tasks that had neither.
- **Subgraphs.** A subgraph without memory has one namespace for each task (`node:task`), which is copied if the task is
  open. A subgraph with memory has one namespace for the thread (`node`); its newest checkpoint at or before the copied
  one is copied.
- **Ancestors**, if a value is spread over their writes (LangGraph's DeltaChannel).

Values are never copied, because rows refer to them by hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Integer, Row, and_, bindparam, func, insert, literal, select

from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import missing_row
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads.graph_rows import (
    ERROR,
    INTERRUPT,
    ONE,
    RESUME,
    SPACE,
    WRITES,
    GraphKey,
    parse_graph_checkpoint,
    where,
)
from agentgit.store.threads.lifecycle import delta_chain, require_empty_thread
from agentgit.store.threads.pending_writes import PendingAt

ERROR_SOURCE = "__error_source_node__"
"""LangGraph's channel that marks a failure as handled by an error handler."""

RESUME_INDEX = -4
"""LangGraph's index for answers (`WRITES_IDX_MAP`)."""

Rows = list[dict[str, Any]]


def copy(
    connection: Connection, tenant_id: int, place: GraphKey, target: str, pending: Sequence[PendingAt] | None = None
) -> None:
    """Copy a graph checkpoint of the root graph into a new thread.

    Args:
        connection: A connection in a transaction that writes.
        tenant_id: The tenant.
        place: An existing checkpoint.
        target: The new thread.
        pending: The pending writes to copy; None chooses among the current ones.

    Raises:
        Conflict: The target exists.
    """
    require_empty_thread(connection, tenant_id, target)
    checkpoints, writes = rows_of(connection, tenant_id, place, pending)
    for statement, rows in ((_ADD_CHECKPOINTS, checkpoints), (_ADD_WRITES, writes)):
        if rows:
            statement.run(connection, *({**row, "thread_id": target} for row in rows))


def rows_of(
    connection: Connection, tenant_id: int, place: GraphKey, pending: Sequence[PendingAt] | None = None
) -> tuple[Rows, Rows]:
    """Return the graph checkpoints and pending writes that a fork at a graph checkpoint of the root graph copies.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        place: An existing checkpoint.
        pending: The pending writes to copy; None chooses among the current ones.
    """
    fork = _Fork(connection, tenant_id, place, pending)
    checkpoints, writes = fork.checkpoint(fork.start)
    for nested in fork.nested():
        more = fork.checkpoint(nested)
        checkpoints, writes = checkpoints + more[0], writes + more[1]
    return checkpoints, writes


_of_thread = where(GRAPH_CHECKPOINT, "tenant_id", "thread_id")
_NESTED = row_codes.AuthenticQuery(
    select(GRAPH_CHECKPOINT)
    .where(*_of_thread, GRAPH_CHECKPOINT.c.root_id == bindparam("checkpoint_id"))
    .order_by(GRAPH_CHECKPOINT.c.seq.desc()),
    GRAPH_CHECKPOINT,
)
_WITH_MEMORY = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.root_id, func.max(GRAPH_CHECKPOINT.c.seq).label("seq"))
    .where(*_of_thread, GRAPH_CHECKPOINT.c.root_id.is_not(None), GRAPH_CHECKPOINT.c.ns.not_like("%:%"))
    .group_by(GRAPH_CHECKPOINT.c.ns, GRAPH_CHECKPOINT.c.root_id)
)
_LAST_SEQ = CompiledStatement(
    select(func.max(GRAPH_CHECKPOINT.c.seq).label("seq")).where(*where(GRAPH_CHECKPOINT, *SPACE))
)
_ADD_CHECKPOINTS, _ADD_WRITES = (
    row_codes.SignedWrite(insert(GRAPH_CHECKPOINT), GRAPH_CHECKPOINT),
    row_codes.SignedWrite(insert(GRAPH_WRITE), GRAPH_WRITE),
)


class _Fork:
    """Collects the rows of one fork."""

    def __init__(
        self, connection: Connection, tenant_id: int, place: GraphKey, pending: Sequence[PendingAt] | None
    ) -> None:
        self.connection, self.tenant_id, self.place = connection, tenant_id, place
        self.pending = None if pending is None else {(at.ns, at.checkpoint_id): at for at in pending}
        self.start = self._row(place)
        self.superseded = self._is_superseded(self.start)
        self.open_tasks = open_tasks(self._writes(self.start))

    def checkpoint(self, row: Row[Any]) -> tuple[Rows, Rows]:
        """Return the rows of a checkpoint and of the ancestors that hold parts of its values."""
        ancestors = [
            self._row(at.place)
            for at in reversed(delta_chain(self.connection, self.tenant_id, parse_graph_checkpoint(row)))
        ]
        checkpoints = [each._asdict() for each in (*ancestors, row)]
        for seq, copied in enumerate(checkpoints, start=1):
            copied["seq"] = seq
            copied["root_id"] = self.place.checkpoint_id if row.ns else None
        checkpoints[0]["parent_id"] = None
        history = chain.from_iterable(self._writes(each) for each in ancestors)
        return checkpoints, [*history, *self._pending(row)]

    def _pending(self, row: Row[Any]) -> Rows:
        """Return the pending writes to copy with a checkpoint."""
        if self.pending is None:
            return select_writes(self._writes(row), superseded=self._is_superseded(row))
        at = self.pending.get((row.ns, row.checkpoint_id))
        return at.rows(self.tenant_id, row.thread_id) if at is not None else []

    def nested(self) -> Iterable[Row[Any]]:
        """Find the subgraph checkpoints to copy with the forked checkpoint, one per namespace."""
        chosen = self._own() if self.pending is None else self._kept(self.pending)
        return [*chosen.values(), *(row for row in self._remembered() if row.ns not in chosen)]

    def _kept(self, pending: Iterable[tuple[str, str]]) -> dict[str, Row[Any]]:
        """Read the subgraph checkpoints for which pending writes were recorded."""
        places = [self.place._replace(ns=ns, checkpoint_id=id) for ns, id in pending if ns]
        return {place.ns: self._row(place) for place in places}

    def _own(self) -> dict[str, Row[Any]]:
        """Choose one checkpoint per namespace among the subgraph checkpoints below the forked one."""
        own: dict[str, list[Row[Any]]] = defaultdict(list)
        for row in _NESTED.all(self.connection, self._key(checkpoint_id=self.place.checkpoint_id)):
            own[row.ns].append(row)
        return {ns: best for ns, rows in own.items() if (best := self._choose(ns, rows)) is not None}

    def _choose(self, ns: str, rows: Sequence[Row[Any]]) -> Row[Any] | None:
        """Choose among the checkpoints of one namespace below the forked one; `rows` are ordered newest first."""
        if not self.superseded:
            return rows[0]
        paused = (row for row in rows if open_tasks(self._writes(row)))
        earlier = (row for row in rows if parse_graph_checkpoint(row).meta["parents"][""] != self.place.checkpoint_id)
        if _has_memory(ns):
            return next(paused, None) or next(earlier, None)
        task_id = ns.split("|")[0].partition(":")[2]
        return (next(paused, None) or rows[0]) if task_id in self.open_tasks else None

    def _remembered(self) -> Iterable[Row[Any]]:
        """Find, for each subgraph with memory, its newest checkpoint on the path to the forked one."""
        known = _WITH_MEMORY.all(self.connection, self._key())
        if not known:
            return
        distance = self._ancestors()
        nearest: dict[str, Row[Any]] = {}
        for row in known:
            best = nearest.get(row.ns)
            if row.root_id in distance and (best is None or distance[row.root_id] < distance[best.root_id]):
                nearest[row.ns] = row
        for ns, row in nearest.items():
            same = and_(self._of_thread(), GRAPH_CHECKPOINT.c.ns == ns, GRAPH_CHECKPOINT.c.seq == row.seq)
            found = row_codes.first(self.connection, GRAPH_CHECKPOINT, select(GRAPH_CHECKPOINT).where(same))
            if found is None:
                raise missing_row("graph checkpoint", f"{row.ns}/{row.seq}")
            yield found

    def _ancestors(self) -> dict[str, int]:
        """Return the distance of each ancestor of the forked checkpoint, read in one statement."""
        c = GRAPH_CHECKPOINT.c
        start = and_(self._of_thread(), c.ns == "", c.checkpoint_id == self.place.checkpoint_id)
        walk = select(c.parent_id, literal(1, Integer).label("distance")).where(start).cte("walk", recursive=True)
        older = GRAPH_CHECKPOINT.alias("older")
        step = select(older.c.parent_id, walk.c.distance + 1).where(
            older.c.tenant_id == self.tenant_id,
            older.c.thread_id == self.place.thread,
            older.c.ns == "",
            older.c.checkpoint_id == walk.c.parent_id,
            walk.c.distance < self.start.seq,  # stops the walk if damaged rows form a cycle
        )
        rows = self.connection.execute(select(walk.union(step))).all()
        return {row.parent_id: row.distance for row in rows if row.parent_id is not None}

    def _is_superseded(self, row: Row[Any]) -> bool:
        """Return whether the thread has moved on, so the checkpoint is no longer the newest of its namespace."""
        return bool(_LAST_SEQ.all(self.connection, self._key(ns=row.ns))[0].seq != row.seq)

    def _of_thread(self) -> Any:
        return and_(GRAPH_CHECKPOINT.c.tenant_id == self.tenant_id, GRAPH_CHECKPOINT.c.thread_id == self.place.thread)

    def _row(self, place: GraphKey) -> Row[Any]:
        row: Row[Any] | None = ONE.first(self.connection, place.columns(self.tenant_id))
        if row is None:
            raise missing_row("graph checkpoint", place.checkpoint_id)
        return row

    def _key(self, **more: str) -> dict[str, Any]:
        return {"tenant_id": self.tenant_id, "thread_id": self.place.thread, **more}

    def _writes(self, row: Row[Any]) -> Rows:
        key = GraphKey(row.thread_id, row.ns, row.checkpoint_id)
        return [each._asdict() for each in WRITES.all(self.connection, key.columns(self.tenant_id))]


def select_writes(rows: Rows, *, superseded: bool) -> Rows:
    """Choose the pending writes that a fork copies.

    Args:
        rows: The rows of one graph checkpoint.
        superseded: True if the thread has moved on from it.
    """
    tasks: dict[str, Rows] = defaultdict(list)
    for row in rows:
        if row["channel"] != RESUME:
            tasks[row["task_id"]].append(row)
    if superseded:
        # Writes of an input or an update have no path. They came after the checkpoint.
        tasks = {id: held for id, held in tasks.items() if _is_task_path(held[0]["task_path"])}
        if not open_tasks(rows):
            return []
    return [row for held in tasks.values() for row in _carried_of_task(held, superseded=superseded)]


def _carried_of_task(rows: Rows, *, superseded: bool) -> Rows:
    asked = [row for row in rows if row["channel"] == INTERRUPT]
    finished = any(row["idx"] >= 0 for row in rows)
    if finished and not (superseded and open_tasks(rows)):
        return [row for row in rows if row["channel"] != INTERRUPT]
    if not asked:
        return [row for row in rows if row["channel"] == ERROR] if superseded else rows
    question = asked[0]
    before = question["value"][HASH_BYTES:]
    answers = {**question, "idx": RESUME_INDEX, "channel": RESUME, "value": before}
    return [question, answers] if before else [question]


def open_tasks(rows: Rows) -> set[str]:
    """Return the ids of the paused tasks: those that raised an interrupt or failed without an error handler."""
    asked = {row["task_id"] for row in rows if row["channel"] == INTERRUPT}
    failed = {row["task_id"] for row in rows if row["channel"] == ERROR}
    handled = {row["task_id"] for row in rows if row["channel"] == ERROR_SOURCE}
    return asked | (failed - handled)


def _is_task_path(path: str) -> bool:
    """Return whether a write came from a task of the step rather than an input, an update or a later step."""
    return path != "" and not path.startswith("~~")


def _has_memory(ns: str) -> bool:
    """Return whether a namespace belongs to a subgraph that keeps its state between turns: no part names a task."""
    return ":" not in ns
