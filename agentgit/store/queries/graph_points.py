"""The places of a session that LangGraph's checkpoint ids name: branch points between the checkpoints of a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, select

from agentgit.effects import ToolInvocation
from agentgit.errors import InvalidInput, NotFound
from agentgit.store.objects.blobs import compact
from agentgit.store.objects.plain_values import show
from agentgit.store.records.sessions import IS_OF_THREAD, StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE, SESSION
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.fork import has_memory
from agentgit.store.threads.graph_rows import (
    INTERRUPT,
    GraphCheckpoint,
    is_newest,
    parse_graph_checkpoint,
)
from agentgit.store.threads.pending_writes import NO_WRITES, unpack


class GraphPlace(NamedTuple):
    """A place in a session that a client names by LangGraph's ids."""

    checkpoint_id: str
    subgraphs: Mapping[str, str] = {}  # it is never modified
    """The checkpoints of the subgraph that the run continues and of those around it, by namespace, innermost last."""
    is_answered: bool = False
    """True if the questions that waited there wait again, because the run brings an answer; else the tasks begin
    again."""


@dataclass(frozen=True, kw_only=True)
class GraphPoint:
    place: GraphPlace
    branch: StoredRow
    is_head: bool
    target: StoredRow | None

    def require_target(self) -> StoredRow:
        if self.target is None:
            raise NotFound(f"Branch {self.branch.name} has no checkpoint after {self.place.checkpoint_id}.")
        return self.target


def find_graph_point(
    store: Store, transaction: Reading, session_id: int, current_id: int | None, place: GraphPlace
) -> GraphPoint | None:
    """Find a checkpoint of the root graph, or of a subgraph below it, by LangGraph's ids.

    Forks copy graph checkpoints with their ids, so that several branches can have one. The current branch comes first,
    then the oldest.
    """
    branches = {row.thread_id: row for row in store.sessions.branches(transaction, session_id)}
    c = GRAPH_CHECKPOINT.c
    query = select(GRAPH_CHECKPOINT).where(
        c.thread_id.in_(list(branches)), c.ns == "", c.checkpoint_id == place.checkpoint_id
    )
    found = [(branches[row.thread_id], parse_graph_checkpoint(row)) for row in transaction.execute(query).all()]
    found.sort(key=lambda one: (one[0].id != current_id, one[0].id))
    for branch, checkpoint in found:
        steps = _Steps(store, transaction, branch, checkpoint)
        if place.subgraphs.items() <= steps.subgraphs.keys():
            is_head = all(
                (newest := store.graphs.newest(transaction, branch.thread_id, ns)) is not None
                and newest.key.checkpoint_id == id
                for ns, id in [("", place.checkpoint_id), *place.subgraphs.items()]
            )
            target = steps.find_target(place._replace(is_answered=True) if is_head else place)
            return GraphPoint(place=place, branch=branch, is_head=is_head, target=target)
    return None


class _Steps:
    """A graph checkpoint of a branch, and the checkpoints of subgraphs that were saved in the step after it."""

    def __init__(self, store: Store, transaction: Reading, branch: StoredRow, checkpoint: GraphCheckpoint) -> None:
        self.store, self.transaction, self.branch, self.checkpoint = store, transaction, branch, checkpoint
        c = GRAPH_CHECKPOINT.c
        query = select(GRAPH_CHECKPOINT).where(
            c.thread_id == branch.thread_id, c.root_id == checkpoint.key.checkpoint_id
        )
        rows = transaction.execute(query).all()
        self.subgraphs = {(row.ns, row.checkpoint_id): parse_graph_checkpoint(row) for row in rows}

    def find_target(self, place: GraphPlace) -> StoredRow | None:
        """Return the checkpoint of a place or, if there is none, one after it, moved to its state."""
        c, id = CHECKPOINT.c, self.checkpoint.key.checkpoint_id
        here = self._find(c.number, GRAPH_CHECKPOINT.c.checkpoint_id == id)
        if place.is_answered and not place.subgraphs:
            here = self._find(c.number, GRAPH_CHECKPOINT.c.checkpoint_id == id, c.pending != NO_WRITES) or here
        later = self._find(c.number, GRAPH_CHECKPOINT.c.seq > self.checkpoint.seq)
        after = here or later
        if after is None:
            return None
        is_exact = here is not None and not place.subgraphs
        if is_exact and (place.is_answered or after.pending in (None, NO_WRITES)):
            return after
        earlier = self._find(c.number.desc(), c.number < after.number)
        if earlier is None and here is not None:  # the branch began here, and lacks what is older
            original = self._find_original(place)
            if original is not None:
                return original.find_target(place)
            if is_exact:
                return after
        self._require_alone(place)
        begun = self.subgraphs[[*place.subgraphs.items()][-1]] if place.subgraphs else self.checkpoint
        position, later_calls = self._split_calls(earlier, later, begun)
        files_id = self.store.snapshots.found_by(self.transaction, self.branch, later_calls)
        point = {
            "graph_checkpoint_id": id,
            "state_hash": self.checkpoint.state_hash.hex(),
            "message_count": self.checkpoint.message_count,
            "position": position,
            "workspace_snapshot_id": after.workspace_snapshot_id if files_id is None else files_id,
            "subgraphs": dict(place.subgraphs),
        }
        return move(after, point)

    def _find(self, order: Any, *conditions: Any) -> StoredRow | None:
        """Find the first checkpoint of the branch that meets the conditions; they may name its graph checkpoint."""
        c, graph = CHECKPOINT.c, GRAPH_CHECKPOINT.c
        state_of = and_(
            graph.thread_id == self.branch.thread_id, graph.ns == "", graph.checkpoint_id == c.graph_checkpoint_id
        )
        query = (
            select(c.id)
            .join_from(CHECKPOINT, GRAPH_CHECKPOINT, state_of, isouter=True)
            .where(c.internal_session_id == self.branch.id, *conditions)
        )
        id = self.transaction.execute(query.order_by(order).limit(1)).scalar()
        return self.store.checkpoints.load(self.transaction, id) if id is not None else None

    def _find_original(self, place: GraphPlace) -> _Steps | None:
        """Find the graph checkpoint on the branch that it was copied from; None if it is no copy, or not all of it."""
        if self.branch.parent_id is None:
            return None
        parent = self.store.sessions.branch(self.transaction, self.branch.parent_id)
        checkpoint = self.store.graphs.find(self.transaction, self.checkpoint.key._replace(thread=parent.thread_id))
        steps = _Steps(self.store, self.transaction, parent, checkpoint) if checkpoint is not None else None
        return steps if steps is not None and place.subgraphs.items() <= steps.subgraphs.keys() else None

    def _require_alone(self, place: GraphPlace) -> None:
        """Refuse a place inside a subgraph beside which others ran, because their state at that time is not known."""
        inner_ns = [*place.subgraphs][-1] if place.subgraphs else ""
        for ns, id in self.subgraphs if place.subgraphs else ():
            parent_id = self.subgraphs[ns, id].meta["parents"].get(inner_ns)
            parent = self.subgraphs.get((inner_ns, parent_id or ""))
            is_older = parent is not None and parent.seq < self.subgraphs[inner_ns, place.subgraphs[inner_ns]].seq
            if ns not in place.subgraphs and (parent is None or (is_older and has_memory(ns))):
                raise InvalidInput(
                    f"Another subgraph, {ns!r}, ran in the same step, so nothing was run. Run at the checkpoint of the "
                    f"whole graph instead: {place.checkpoint_id}."
                )

    def _split_calls(
        self, earlier: StoredRow | None, later: StoredRow | None, begun: GraphCheckpoint
    ) -> tuple[int, list[ToolInvocation]]:
        """Count the calls that began before a graph checkpoint was made, and return those between it and the next one.

        Only calls between two checkpoints are compared by their times, so that clocks of different machines do not
        matter.
        """
        first: int = earlier.position if earlier is not None else self.branch.inherited
        last = later.position if later is not None else None
        calls = self.store.track(self.transaction, self.branch, last)[first:]
        after = [call for call in calls if call.started_at is None or begun.precedes(call.started_at)]
        return first + len(calls) - len(after), after


def move(row: StoredRow, point: dict[str, Any]) -> StoredRow:
    """Return the row of a checkpoint as if it had the state of a graph checkpoint before it."""
    pending = compact([[ns, id, []] for ns, id in sorted(point["subgraphs"].items())])
    changes = {**point, "state_hash": bytes.fromhex(point["state_hash"]), "restore_point": None, "pending": pending}
    moved: Any = SimpleNamespace(**{**row._asdict(), **changes}, moved_to=point)
    return moved  # type: ignore[no-any-return]  # it has the columns of the row


def moved_to(row: StoredRow) -> dict[str, Any] | None:
    """Return the state to which a row was moved, to be stored with an operation; None if it was not moved."""
    point: dict[str, Any] | None = getattr(row, "moved_to", None)
    return point


class BranchHead(NamedTuple):
    row: StoredRow
    checkpoint_id: str | None


def read_branch_head(store: Store, transaction: Reading, branch_id: int) -> BranchHead:
    row = store.sessions.branch(transaction, branch_id)
    newest = store.graphs.newest(transaction, row.thread_id)
    return BranchHead(row, newest.key.checkpoint_id if newest is not None else None)


def find_thread_head(transaction: Reading, user_id: int, thread_id: str) -> BranchHead | None:
    """Find the current branch of a user's session for a thread of a served graph; None if it has none."""
    row = _OF_THREAD.first(transaction, {"user": user_id, "thread": thread_id})
    return BranchHead(row, row.newest_id) if row is not None else None


def _query() -> CompiledStatement:
    """Build the query for a thread. Without joins, a server uses the right indexes even before it has statistics."""
    c = GRAPH_CHECKPOINT.c
    of_branch = (c.thread_id == BRANCH.c.thread_id, c.ns == "")
    newest = select(c.checkpoint_id).where(*of_branch).order_by(c.seq.desc()).limit(1).scalar_subquery()
    current_id = select(SESSION.c.current_branch_id).where(IS_OF_THREAD).scalar_subquery()
    query = select(BRANCH, newest.label("newest_id"))
    return CompiledStatement(query.where(BRANCH.c.id == current_id))


_OF_THREAD = _query()


def read_questions(store: Store, transaction: Reading, branches: Sequence[StoredRow]) -> dict[int, list[Any]]:
    """Return what the graph asks at the head of each branch of a session, as JSON-like values, by branch id."""
    found: dict[int, list[Any]] = {}
    for part in slices([row.id for row in branches]):
        for branch_id, thread in transaction.execute(_ASKING, {"branches": part}).all():
            newest = store.graphs.newest(transaction, thread)
            if newest is None or newest.is_imported:  # what a file asks is never answered here
                continue
            keys = store.asked(transaction, newest)
            bodies = store.graphs.content(newest.session_id).get(transaction, keys)
            found[branch_id] = [question["value"] for key in keys for question in show(bodies[key])]
    return found


_of_checkpoint = [GRAPH_WRITE.c[column.name] == column for column in GRAPH_CHECKPOINT.primary_key]
_ASKING = (
    select(BRANCH.c.id, BRANCH.c.thread_id)
    .join_from(BRANCH, GRAPH_CHECKPOINT, is_newest(BRANCH.c.thread_id))
    .join(GRAPH_WRITE, and_(*_of_checkpoint, GRAPH_WRITE.c.channel == INTERRUPT))
    .where(BRANCH.c.id.in_(bindparam("branches", expanding=True)))
    .distinct()
)
"""The branches whose newest graph checkpoint has a question, answered or not."""


def find_replayed(
    store: Store,
    transaction: Reading,
    branch: StoredRow,
    newest: GraphCheckpoint | None,
    *,
    is_answer: bool,
    begins_again: bool | None,
) -> Mapping[str, str]:
    """Return the graph checkpoints, by namespace, whose tasks a run begins again; none if it continues them.

    They begin again if the branch begins there and none of them has begun on it, or if `begins_again` is true; never if
    it is False. If a run does not name its checkpoint, LangGraph continues the tasks, and a subgraph with memory does
    not run.
    """
    graphs, start = store.graphs, newest
    while start is not None and start.parent_id is not None and start.meta.get("source") == "update":
        start = graphs.find(transaction, start.key._replace(checkpoint_id=start.parent_id))
    if begins_again is False or newest is None or start is None or start.parent_id is not None:
        return {}
    if start.meta.get("source") == "update":
        return {}  # what ran before the edit is not known here
    if any(start.precedes(call.started_at) for call in store.track(transaction, branch)):
        return {}  # a task has begun, and died before it wrote anything
    is_first = (CHECKPOINT.c.internal_session_id == branch.id, CHECKPOINT.c.kind == "branch")
    first = next(iter(store.checkpoints.find(transaction, *is_first)), None)
    if first is None or first.graph_checkpoint_id != start.key.checkpoint_id:
        return {}
    steps = unpack(first.pending, f"checkpoint {first.id}")
    if steps is None or any(step.writes for step in steps):
        return {}
    begun = pending_writes.read(transaction, newest.key)
    if begun != (first.pending if start is newest else NO_WRITES) and not begins_again:
        return {}
    if not is_answer:
        return {**{step.ns: step.checkpoint_id for step in steps}, "": newest.key.checkpoint_id}
    if not steps and graphs.has_subgraphs(transaction, newest.key.thread):
        raise InvalidInput(
            "No question waits at this checkpoint, so nothing was run. Run it with None first; then answer."
        )
    return {}
