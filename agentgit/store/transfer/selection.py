"""The rows that an export takes: those of a whole session, or those on the path to a branch or a checkpoint.

The path keeps its branches. A branch that the path leaves ends where it does: with that checkpoint as its head, and
with what a fork there would copy. Calls beside the path acted on the same world. They stand on a branch `elsewhere`,
below the first checkpoint, and a rollback that kept them, so that the fence answers for them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import Table, select

from agentgit.checkpoints.references import free_name
from agentgit.effects.invocation import FAILED, PAUSED, REDO, REPLAY, SIMULATED, STANDING
from agentgit.effects.kinds import WORKSPACE, kind_of
from agentgit.effects.plan import KEEP, ROLLBACK
from agentgit.errors import Conflict
from agentgit.next_steps import Next
from agentgit.sessions.session import DONE
from agentgit.store.queries.explorations import MARK_KEY
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.sessions import StoredRow, is_simulated, require_no_unfinished_rollback
from agentgit.store.sql import tables as t
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import fork, pending_writes
from agentgit.store.threads.graph_rows import INTERRUPT, GraphKey
from agentgit.store.transfer.import_check import BRANCH, CHECKPOINT, SESSION
from agentgit.values import to_json

ELSEWHERE = "elsewhere"
"""The name of the branch that holds, in the export of one path, the calls beside it in the same world."""

ROWS_AT_ONCE = 500
"""The number of rows in memory at a time."""

SYNTHETIC_ID = 2**53 - 1
"""The id of a branch, checkpoint or operation that exists only in the export. It sorts after all other ids."""

NOT_ON_THE_PATH = "it was made on another branch or later, and still exists in the original world"

Row = Mapping[str, Any]
Rows = Generator[Row, None, None]
Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ExportScope:
    session: StoredRow
    branch: StoredRow | None = None
    point: StoredRow | None = None

    @property
    def kind(self) -> str:
        return SESSION if self.branch is None else BRANCH if self.point is None else CHECKPOINT

    @property
    def reference(self) -> str | None:
        """The branch name or checkpoint reference within the session; None for a whole session."""
        if self.branch is None or self.point is None:
            return self.branch.name if self.branch is not None else None
        return f"{self.point.branch_name}#{self.point.number}"


class _Exit(NamedTuple):
    """The end of the path on a branch: the checkpoint, and what a fork there copies of the graph checkpoint."""

    point: StoredRow
    states: set[Key]
    writes: Sequence[Row]


class Selection:
    """The rows of a whole session, or those on the path to a branch or a checkpoint; they are read a page at a time."""

    def __init__(self, store: Store, transaction: Reading, scope: ExportScope) -> None:
        self.store, self.transaction, self.scope = store, transaction, scope
        self.session_id: int = scope.session.id
        self.path = self._read_branches() if scope.branch is None else self._read_path(scope.branch)
        """The branches, each after its parent."""
        self._exits: dict[int, _Exit] = {}
        self._first_point: Row = {}
        self._places: Mapping[int, Mapping[str, Any]] | None = None
        """What changes of each call that is taken; None if all are taken as they are."""
        if scope.branch is not None:
            point_ids = [row.branch_point_id for row in self.path[1:]]
            points = {row.id: row for row in store.checkpoints.find(transaction, t.CHECKPOINT.c.id.in_(point_ids))}
            exits = [points[id] for id in point_ids] + ([scope.point] if scope.point is not None else [])
            self._exits = {row.id: self._read_exit(point) for row, point in zip(self.path, exits, strict=False)}
            self._first_point = next(self._rows(t.CHECKPOINT, "number", internal_session_id=self.path[0].id), {})
            self._places = self._place_calls()
        places = (self._places or {}).items()
        self._beside = {id for id, place in places if place["internal_session_id"] == SYNTHETIC_ID}

    def _read_branches(self) -> Sequence[StoredRow]:
        rows: dict[int | None, StoredRow] = {
            row.id: row for row in self.store.sessions.branches(self.transaction, self.session_id)
        }
        ordered: dict[int, StoredRow] = {}
        for row in rows.values():
            require_no_unfinished_rollback(row)
            above, one = [], rows.get(row.id)
            while one is not None and one.id not in ordered and one not in above:
                above.append(one)
                one = rows.get(one.parent_id)
            ordered.update((one.id, one) for one in reversed(above))
        return list(ordered.values())

    def _rows(self, table: Table, order: str = "", **values: Any) -> Rows:
        columns = [table.c[name] for name in order.split()] or table.primary_key
        query = select(table).where(*(table.c[name] == value for name, value in values.items())).order_by(*columns)
        with self.transaction.execute(query.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
            for row in rows:
                yield row._asdict()

    def _read_path(self, branch: StoredRow) -> Sequence[StoredRow]:
        require_no_unfinished_rollback(branch)
        if is_simulated(branch):
            raise Conflict(
                f"Branch {branch.name} is a rerun, and nothing of it happened. Export the branch that was run again."
            )
        return [segment.branch for segment in self.store.sessions.lineage(self.transaction, branch)]

    def _read_exit(self, point: StoredRow) -> _Exit:
        id = point.graph_checkpoint_id
        if id is None:
            return _Exit(point, set(), [])
        pending = pending_writes.unpack(point.pending, f"checkpoint {point.id}")
        states, writes = fork.select_rows(self.transaction, GraphKey(point.thread_id, "", id), pending)
        keys = {_key(row) for row in states if id in (row["root_id"], row["checkpoint_id"])}
        return _Exit(point, keys, [row for row in writes if _key(row) in keys])

    def session(self) -> Row:
        """Return the row of the session. The current branch of a path is the last one."""
        row = self.scope.session._asdict()
        return row if self.scope.branch is None else {**row, "current_branch_id": self.path[-1].id}

    def states(self) -> Rows:
        """Yield the graph checkpoints of the path, and those whose pending writes its checkpoints recorded."""
        recorded: set[Key] = set()
        for row in self.points() if self._exits else ():
            pending = pending_writes.unpack(row["pending"], f"checkpoint {row['id']}") or ()
            recorded |= {(one.ns, one.checkpoint_id) for one in pending}
        for branch in self.path:
            kept, exit = self._earlier_states(branch), self._exits.get(branch.id)
            for row in self._rows(t.GRAPH_CHECKPOINT, "ns seq", thread_id=branch.thread_id):
                if exit is None or _key(row) in kept | exit.states or (row["ns"] and _key(row) in recorded):
                    yield row

    def writes(self) -> Rows:
        """Yield the pending writes of the path. Where it leaves a branch, they are those that a fork would copy."""
        for branch in self.path:
            kept, exit = self._earlier_states(branch), self._exits.get(branch.id)
            for row in self._rows(t.GRAPH_WRITE, thread_id=branch.thread_id):
                if exit is None or _key(row) in kept:
                    yield row
            yield from exit.writes if exit is not None else ()

    def _earlier_states(self, branch: StoredRow) -> set[Key]:
        """Return the graph checkpoints before the one where the path leaves a branch, and those below them."""
        exit = self._exits.get(branch.id)
        if exit is None or not exit.states:
            return set()
        c = t.GRAPH_CHECKPOINT.c
        query = select(c.ns, c.checkpoint_id, c.root_id, c.seq).where(c.thread_id == branch.thread_id)
        rows = self.transaction.execute(query).all()
        numbers = {row.checkpoint_id: row.seq for row in rows if not row.ns}
        end = numbers[exit.point.graph_checkpoint_id]
        # A subgraph's memory was copied from before the thread's first graph checkpoint.
        return {_key(row._asdict()) for row in rows if numbers.get(row.root_id or row.checkpoint_id, 0) < end}

    def points(self) -> Rows:
        """Yield the checkpoints of the path, and the first one of the branch beside it."""
        for branch in self.path:
            exit = self._exits.get(branch.id)
            for row in self._rows(t.CHECKPOINT, "number", internal_session_id=branch.id):
                if exit is None or row["number"] <= exit.point.number:
                    yield row
        if self._beside:
            empty = "name graph_checkpoint_id restore_point data pending workspace_snapshot_id"
            nothing = dict.fromkeys(empty.split())
            place = {"id": SYNTHETIC_ID, "internal_session_id": SYNTHETIC_ID, "number": 1}
            state = {"kind": "branch", "is_auto": True, "state_hash": b"", "message_count": 0}
            yield {**self._first_point, **nothing, **place, **state, "description": "what other branches did"}

    def tags(self) -> Rows:
        rows = self._rows(t.TAG, external_session_id=self.session_id)
        if self.scope.branch is None:
            return rows
        known = {row["id"] for row in self.points()}
        return (row for row in rows if row["checkpoint_id"] in known)

    def branches(self) -> Rows:
        """Yield the branches of the path, and the one beside it."""
        for row in self.path:
            changed: dict[str, Any] = {"head_id": self._exits[row.id].point.id} if row.id in self._exits else {}
            if self.scope.branch is not None:
                meta = {name: value for name, value in read_meta(row).items() if name != MARK_KEY}
                changed["meta"] = to_json(meta)  # a mark names other branches
            yield {**row._asdict(), **changed}
        if self._beside:
            root, first = self.path[0], self._first_point
            tags = self.store.tags.all(self.transaction, self.session_id)
            name = free_name(ELSEWHERE, {row.name for row in self.path} | {tag.name for tag in tags})
            start = {"parent_id": root.id, "branch_point_id": first["id"], "inherited": first["position"]}
            own = {"id": SYNTHETIC_ID, "thread_id": ELSEWHERE, "name": name, "head_id": SYNTHETIC_ID, "meta": b"{}"}
            yield {**root._asdict(), **start, **own}

    def snapshots(self) -> list[StoredRow]:
        """Return the snapshots of the checkpoints, and the last one of each branch that is taken up to its end."""
        ends = [row for row in self.path if row.id not in self._exits]
        newest = (self.store.snapshots.newest_of_branch(self.transaction, row) for row in ends)
        ids = {row["workspace_snapshot_id"] for row in self.points()} | {row.id for row in newest if row is not None}
        return self.store.snapshots.load_rows(self.transaction, ids - {None})

    # -- calls

    def _place_calls(self) -> dict[int, dict[str, Any]]:
        """Return what changes of each call that is taken. Those beside the path get new numbers, on a branch there."""
        c = t.TOOL_INVOCATION.c
        names = "id internal_session_id arrival batch kind status effect replay_of parent_id"
        columns = [c[name] for name in names.split()]
        query = select(*columns).where(c.external_session_id == self.session_id).order_by(c.id)
        rows = self.transaction.execute(query).all()
        taken = {row.id: row for branch in self.path for row in self._track(branch, rows)}
        replayed = {row.replay_of for row in taken.values()}
        others = [row for row in rows if row.id not in taken and (_is_effect(row) or row.id in replayed)]
        known = taken.keys() | {row.id for row in others} | {None}
        places: dict[int, dict[str, Any]] = {
            id: {"internal_session_id": row.internal_session_id} for id, row in taken.items()
        }
        offsets: dict[int, int] = {}
        end = 0
        for arrival, row in enumerate(row for row in others if row.replay_of in known and self._first_point):
            batch = max(row.batch, 0) + offsets.setdefault(row.internal_session_id, end)
            end = max(end, batch + 1)
            batch = batch if row.batch >= 0 else row.batch
            places[row.id] = {"internal_session_id": SYNTHETIC_ID, "arrival": arrival, "batch": batch}
        for row in rows:
            if row.id in places and row.parent_id not in places:
                places[row.id]["parent_id"] = None
        return places

    def _track(self, branch: StoredRow, rows: Sequence[Any]) -> list[Any]:
        """Return the calls of a branch up to where the path leaves it, with those that wait for an answer there."""
        own = [row for row in rows if row.internal_session_id == branch.id and row.kind != REDO]
        own.sort(key=lambda row: int(row.arrival))
        exit = self._exits.get(branch.id)
        if exit is None:
            return own
        ends = accumulate(row.status != PAUSED for row in own)
        kept = [row for row, end in zip(own, ends, strict=True) if end <= exit.point.position - branch.inherited]
        is_waiting = branch is self.path[-1] and any(row["channel"] == INTERRUPT for row in exit.writes)
        while kept and kept[-1].status == PAUSED and not is_waiting:
            kept.pop()
        return kept

    def calls(self) -> Rows:
        """Yield the calls of the path, and those beside it."""
        for row in self._rows(t.TOOL_INVOCATION, external_session_id=self.session_id):
            if self._places is None:
                yield row
            elif row["id"] in self._places:
                yield {**row, "made_on": row["made_on"] or row["internal_session_id"], **self._places[row["id"]]}

    def operations(self) -> Rows:
        """Yield the operations; of a path, a rollback that kept the effects of the calls beside it, for the fence."""
        for row in self._rows(t.OPERATION, external_session_id=self.session_id) if self.scope.branch is None else ():
            if row["status"] != DONE:
                name, status = f"{row['kind'].capitalize()} {row['id']}", row["status"]
                raise Conflict(
                    f"{name} of this session is {status}. Export another branch.", Next("resume", operation=row["id"])
                )
            yield row
        if not self._beside:
            return
        kept = [row["id"] for row in self.calls() if row["id"] in self._beside and _is_kept(row)]
        steps = [{"invocation": id, "action": KEEP, "why": NOT_ON_THE_PATH} for id in kept]
        items = [{"invocation": id, "reason": NOT_ON_THE_PATH} for id in kept]
        last, at = self.path[-1], self.path[-1].created_at
        yield {
            "id": SYNTHETIC_ID, "kind": ROLLBACK, "request_id": str(SYNTHETIC_ID), "source_id": SYNTHETIC_ID,
            "target_id": self._first_point["id"], "internal_session_id": last.id, "created_at": at, "ended_at": at,
            "request": to_json({"tools": "keep", "replay": "record", "steps": steps}),
            "report": to_json({"kept": items}),
        }  # fmt: skip

    def log(self) -> Rows:
        """Yield the entries of the world log about the calls that are taken."""
        entries, places = self._rows(t.WORLD_LOG, external_session_id=self.session_id), self._places
        if places is None:
            return entries
        taken = (row for row in entries if row["invocation_id"] in places)
        return ({**row, "seq": seq, "operation_id": None} for seq, row in enumerate(taken, 1))


def _key(row: Row) -> Key:
    return row["ns"], row["checkpoint_id"]


def _is_effect(row: Any) -> bool:
    return not kind_of(row.effect).is_neutral and row.kind != REPLAY and row.status not in (PAUSED, SIMULATED)


def _is_kept(row: Row) -> bool:
    is_standing = row["status"] in STANDING - {FAILED}
    return is_standing and row["effect"] != WORKSPACE and not kind_of(row["effect"]).is_neutral
