"""Contents of an export, read from the store: a whole session unchanged, or one path of it as a one-branch session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, select

from agentgit.checkpoints.references import free_name
from agentgit.effects.invocation import FAILED, PAUSED, REDO, REPLAY, STANDING
from agentgit.effects.kinds import WORKSPACE, kind_of
from agentgit.effects.plan import KEEP
from agentgit.effects.report import GROUPS
from agentgit.errors import Conflict
from agentgit.next_steps import Next
from agentgit.sessions.session import DONE, SIMULATED
from agentgit.store.queries.explorations import MARK_KEY
from agentgit.store.records.journal import TrackPart as TrackPart
from agentgit.store.records.sessions import Segment, StoredRow, is_simulated, require_no_unfinished_rollback
from agentgit.store.sql.tables import CHECKPOINT as POINT
from agentgit.store.sql.tables import OPERATION, TOOL_INVOCATION, WORLD_LOG
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.transfer import export_records as records
from agentgit.store.transfer.export_states import StateWriter, ValueWriter, WriteRecord
from agentgit.store.transfer.records import BRANCH, CHECKPOINT, SESSION
from agentgit.values import as_object

ELSEWHERE = "elsewhere"
"""The name of the branch that holds, in the export of one path, the calls of other branches in the same world."""

SYNTHETIC_ID = 2**53 - 1
"""The id of a branch, checkpoint or operation that exists only in the export. It sorts after all other ids."""

NOT_ON_THE_PATH = "it was made on another branch or later, and still exists in the original world"


@dataclass(frozen=True, kw_only=True)
class ExportScope:
    """The part of a session to export."""

    session: StoredRow
    branch: StoredRow | None = None
    point: StoredRow | None = None

    @property
    def kind(self) -> str:
        """The kind of object to export: `session`, `branch` or `checkpoint`."""
        return SESSION if self.branch is None else BRANCH if self.point is None else CHECKPOINT

    @property
    def reference(self) -> str | None:
        """The branch name or checkpoint reference within the session; None for a whole session."""
        if self.branch is None or self.point is None:
            return self.branch.name if self.branch is not None else None
        return f"{self.point.branch_name}#{self.point.number}"


WriteSnapshot = Callable[[Mapping[str, Any], str], tuple[int | None, str | None]]
"""Writes a snapshot, given the settings of its workspace and its id, unless it was written before.

Returns the number of its tree and None, or None and the reason why it has no tree."""


def export(
    store: Store,
    transaction: Reading,
    scope: ExportScope,
    write: WriteRecord,
    write_snapshot: WriteSnapshot | None = None,
) -> None:
    """Write all records of an export except its header and its end."""
    (_SessionExport if scope.branch is None else _PathExport)(store, transaction, scope, write, write_snapshot).run()


class _Export:
    def __init__(
        self,
        store: Store,
        transaction: Reading,
        scope: ExportScope,
        write: WriteRecord,
        write_snapshot: WriteSnapshot | None,
    ) -> None:
        self.store = store
        self.transaction = transaction
        self.scope = scope
        self.write = write
        self.values = ValueWriter(store.graphs.blobs.of(scope.session.id), transaction, write)
        self.write_snapshot = write_snapshot
        self._points_by_snapshot: dict[int, list[int]] = defaultdict(list)

    def _write_session(self, current_branch_id: int) -> None:
        row = self.scope.session
        self.write(
            {
                "record": "session",
                "id": row.id,
                "name": row.session_name,
                "created_at": row.created_at.isoformat(),
                "current": current_branch_id,
            }
        )

    def _state_writer(self, branch_id: int) -> StateWriter:
        return StateWriter(self.transaction, self.values, self.write, branch_id)

    def _read_calls(self, *conditions: Any) -> Iterable[Row[Any]]:
        """Read calls of the session in order of their ids, one page at a time."""
        c, last_id = TOOL_INVOCATION.c, 0
        all_conditions = (c.external_session_id == self.scope.session.id, *conditions)
        while rows := self.transaction.execute(
            select(TOOL_INVOCATION).where(*all_conditions, c.id > last_id).order_by(c.id).limit(500)
        ).all():
            yield from rows
            last_id = rows[-1].id

    def _write_tags(self, checkpoint_ids: Container[int] | None = None) -> None:
        """Write the tags of the session, or only those of the given checkpoints."""
        for tag in self.store.tags.all(self.transaction, self.scope.session.id):
            if checkpoint_ids is None or tag.checkpoint_id in checkpoint_ids:
                self.write(records.tag_record(tag))

    def _write_checkpoint(self, point: StoredRow, **other: Any) -> None:
        """Write a checkpoint, and remember it for its snapshot."""
        self.write(records.checkpoint_record(point, **other))
        if point.workspace_snapshot_id is not None:
            self._points_by_snapshot[point.workspace_snapshot_id].append(point.id)

    def _write_pending_values(self, points: Iterable[StoredRow]) -> None:
        """Write the values of the pending writes that the checkpoints recorded."""
        self.values.put([key for row in points for key in pending_writes.hashes(row.pending, f"checkpoint {row.id}")])

    def _write_files(self, branches: Sequence[StoredRow], **other: Any) -> None:
        """Write the snapshots of the written checkpoints, and the last snapshot of each of these branches."""
        if self.write_snapshot is None:
            return
        last_snapshots = (self.store.snapshots.newest_of_branch(self.transaction, branch) for branch in branches)
        ids = self._points_by_snapshot.keys() | {row.id for row in last_snapshots if row is not None}
        for row in self.store.snapshots.load_rows(self.transaction, ids):
            tree, reason = self.write_snapshot(as_object(row.settings), row.snapshot)
            fields = {"tree": tree, "why": reason, "checkpoints": self._points_by_snapshot.get(row.id, [])}
            self.write(records.snapshot_record(row, **fields, **other))

    def _read_log(self) -> Sequence[Row[Any]]:
        return self.transaction.execute(
            select(WORLD_LOG).where(WORLD_LOG.c.external_session_id == self.scope.session.id).order_by(WORLD_LOG.c.seq)
        ).all()


class _SessionExport(_Export):
    """Writes a whole session unchanged."""

    def run(self) -> None:
        session_id = self.scope.session.id
        branches = self.store.sessions.branches(self.transaction, session_id)
        for row in branches:
            require_no_unfinished_rollback(row)
        operations = self._read_operations(session_id)
        self._write_session(self.scope.session.current_branch_id)
        for row in branches:
            self.write(records.branch_record(row))
        for row in branches:
            self._state_writer(row.id).write_thread(row.thread_id)
        points = [
            point
            for row in branches
            for point in self.store.checkpoints.find(self.transaction, POINT.c.internal_session_id == row.id)
        ]
        self._write_pending_values(points)
        for point in points:
            self._write_checkpoint(point)
        self._write_tags()
        self._write_files(branches)
        for call in self._read_calls():
            self.write(records.call_record(call))
        for operation in operations:
            self.write(records.operation_record(operation))
        for entry in self._read_log():
            self.write(records.log_record(entry))

    def _read_operations(self, session_id: int) -> Sequence[Row[Any]]:
        query = select(OPERATION).where(OPERATION.c.external_session_id == session_id).order_by(OPERATION.c.id)
        operations = self.transaction.execute(query).all()
        for row in operations:
            if row.status != DONE:
                raise Conflict(
                    f"{row.kind.capitalize()} {row.id} of this session is {row.status}. Export another branch.",
                    Next("resume", operation=row.id),
                )
        return operations


@dataclass
class _PathCalls:
    """The calls of one path, renumbered as the calls of one branch."""

    calls: list[tuple[Row[Any], int, int]] = field(default_factory=list)
    other_calls: list[tuple[Row[Any], int, int]] = field(default_factory=list)


class _PathExport(_Export):
    """Writes one path as a session of one branch. Other calls in its world are written on a second branch."""

    def run(self) -> None:
        branch, point = self.scope.branch, self.scope.point
        assert branch is not None  # noqa: S101  # without a branch, `_SessionExport` runs
        require_no_unfinished_rollback(branch)
        if is_simulated(branch):
            raise Conflict(
                f"Branch {branch.name} is a rerun, and nothing of it happened. Export the branch that was run again."
            )
        lineage = self.store.sessions.lineage(self.transaction, branch)
        points = self._read_points(lineage)
        parts = [segment.track_part for segment in lineage]
        if point is not None:
            parts[-1] = TrackPart(branch_id=branch.id, before=branch.inherited, count=point.position - branch.inherited)
        track = self._read_track(parts, with_others=bool(points))
        self._write_session(branch.id)
        head = points[-1].id if points else None
        meta = {
            name: value for name, value in as_object(branch.meta).items() if name != MARK_KEY
        }  # names other branches
        self.write(records.branch_record(branch, parent=None, point=None, inherited=0, head=head, meta=meta))
        if track.other_calls:
            self._write_other_branch(branch, points[0])
        self._state_writer(branch.id).write_path(
            self._list_thread_exits(lineage), branch.thread_id if point is None else None, points
        )
        self._write_pending_values(points)
        for n, row in enumerate(points, 1):
            self._write_checkpoint(row, branch=branch.id, number=n)
        self._write_tags({row.id for row in points})
        if track.other_calls:
            self._write_first_checkpoint(points[0])
        self._write_files([branch] if point is None else [], branch=branch.id)
        self._write_track(branch, points, track)

    # -- checkpoints and states

    def _read_points(self, lineage: Sequence[Segment]) -> list[StoredRow]:
        """Read the checkpoints on the path.

        The first checkpoint of a branch is replaced by its branch point, which is equal and may have a name.
        """
        rows = self.store.checkpoints.on_path(self.transaction, lineage)
        if (end := self.scope.point) is not None:
            rows = [row for row in rows if row.id <= end.id]
        branch_points = self._read_branch_points(lineage)
        replaced_rows = [
            branch_points.get(row.internal_session_id, row) if row.kind == "branch" else row for row in rows
        ]
        # A branch begins with another state if its inherited calls ran again, or if it starts from a graph checkpoint
        # before its branch point.
        points = [a if _is_same_point(a, b) else b for a, b in zip(replaced_rows, rows, strict=True)]
        states = {(row.graph_checkpoint_id, row.state_hash) for row in points}
        if len(states) > len({graph_checkpoint_id for graph_checkpoint_id, _ in states}):
            raise Conflict(
                "The calls of this branch ran again while it waited for an answer, so one graph checkpoint of its "
                "path has two states. Export the whole session."
            )
        return points

    def _read_branch_points(self, lineage: Sequence[Segment]) -> dict[int, StoredRow]:
        """Read the branch point of each branch of the path except the first, by the id of the branch."""
        branches_by_point = {segment.branch.branch_point_id: segment.branch.id for segment in lineage[1:]}
        return {
            branches_by_point[row.id]: row
            for row in self.store.checkpoints.find(self.transaction, POINT.c.id.in_(list(branches_by_point)))
        }

    def _list_thread_exits(self, lineage: Sequence[Segment]) -> list[tuple[str, str]]:
        """List the threads on the path, each with the graph checkpoint where the path leaves it."""
        exit_points = [
            *self._read_branch_points(lineage).values(),
            *([self.scope.point] if self.scope.point is not None else []),
        ]
        return [(row.thread_id, row.graph_checkpoint_id) for row in exit_points if row.graph_checkpoint_id is not None]

    # -- the track

    def _read_track(self, parts: Sequence[TrackPart], *, with_others: bool) -> _PathCalls:
        """Renumber the calls of the path, and the calls of other branches in the same world."""
        track, batch = _PathCalls(), 0
        for part in parts:
            rows = self._read_part(part, is_last=part is parts[-1])
            track.calls += [(row, len(track.calls) + n, batch + row.batch) for n, row in enumerate(rows)]
            batch += max((row.batch for row in rows), default=-1) + 1
        offsets: dict[int, int] = {}
        next_batch = 0
        for n, row in enumerate(
            self._read_other_calls({row.id: row for row, *_ in track.calls}) if with_others else ()
        ):
            if row.internal_session_id not in offsets:
                offsets[row.internal_session_id] = next_batch
            new_batch = max(row.batch, 0) + offsets[row.internal_session_id]
            next_batch = max(next_batch, new_batch + 1)
            track.other_calls.append((row, n, new_batch if row.batch >= 0 else row.batch))
        return track

    def _read_part(self, part: TrackPart, *, is_last: bool) -> list[Row[Any]]:
        """Read the calls of a part of the track, including those that waited for an answer."""
        rows, call_count = [], 0
        branch_condition = TOOL_INVOCATION.c.internal_session_id == part.branch_id
        calls = sorted(self._read_calls(branch_condition, TOOL_INVOCATION.c.kind != REDO), key=lambda row: row.arrival)
        for row in calls:
            call_count += row.status != PAUSED
            if part.count is not None and call_count > part.count:
                break
            rows.append(row)
        if part.count is not None and not (is_last and self._is_end_waiting()):
            while rows and rows[-1].status == PAUSED:
                rows.pop()
        return rows

    def _is_end_waiting(self) -> bool:
        """Return whether the path ends at the head of its branch, or at a checkpoint that waits for an answer."""
        point, graphs = self.scope.point, self.store.graphs
        if point is None or point.graph_checkpoint_id is None:
            return point is None
        graph_key, pending = GraphKey(point.thread_id, "", point.graph_checkpoint_id), point.pending
        pending = pending if pending is not None else graphs.pack_pending_writes(self.transaction, graph_key)
        return bool(pending_writes.waiting(pending, f"checkpoint {point.id}"))

    def _read_other_calls(self, path_calls: Mapping[int, Row[Any]]) -> list[Row[Any]]:
        """Read the other calls that acted on the world of the session, and the calls that the path replays."""
        replayed_ids = {row.replay_of for row in path_calls.values()}
        other_calls: list[Row[Any]] = []
        for row in self._read_calls():
            is_effect = (
                not kind_of(row.effect).is_neutral and row.kind != REPLAY and row.status not in (PAUSED, SIMULATED)
            )
            if row.id not in path_calls and (is_effect or row.id in replayed_ids):
                other_calls.append(row)
        exported_ids = path_calls.keys() | {row.id for row in other_calls}
        return [row for row in other_calls if row.replay_of is None or row.replay_of in exported_ids]

    def _write_track(self, branch: StoredRow, points: Sequence[StoredRow], track: _PathCalls) -> None:
        exported_ids = {row.id for row, *_ in (*track.calls, *track.other_calls)}
        placed = [(branch.id, *call) for call in track.calls] + [(SYNTHETIC_ID, *call) for call in track.other_calls]
        for branch_id, row, arrival, batch in placed:
            parent = row.parent_id if row.parent_id in exported_ids else None
            self.write(records.call_record(row, branch=branch_id, arrival=arrival, batch=batch, parent=parent))
        if track.other_calls:
            self._write_rollback(branch, points[0], [row for row, *_ in track.other_calls])
        for seq, entry in enumerate((entry for entry in self._read_log() if entry.invocation_id in exported_ids), 1):
            self.write(records.log_record(entry, seq=seq, operation=None))

    # -- the branch beside the path

    def _write_other_branch(self, branch: StoredRow, first_point: StoredRow) -> None:
        """Write the branch for the calls that are not on the path. It starts at the first checkpoint of the path."""
        taken_names = {branch.name, *(tag.name for tag in self.store.tags.all(self.transaction, self.scope.session.id))}
        fields = {
            "id": SYNTHETIC_ID,
            "name": free_name(ELSEWHERE, taken_names),
            "parent": branch.id,
            "point": first_point.id,
            "inherited": first_point.position,
        }
        self.write(records.branch_record(branch, **fields, head=SYNTHETIC_ID, meta={}))

    def _write_first_checkpoint(self, first_point: StoredRow) -> None:
        """Write the first checkpoint of the branch beside the path, because every branch begins with one."""
        fields = {
            "id": SYNTHETIC_ID,
            "branch": SYNTHETIC_ID,
            "number": 1,
            "kind": "branch",
            "name": None,
            "is_auto": True,
            "state": None,
            "state_hash": None,
            "messages": 0,
            "restore_point": None,
            "data": None,
            "pending": None,
            "description": "what other branches did",
        }
        self.write(records.checkpoint_record(first_point, **fields))

    def _write_rollback(self, branch: StoredRow, first_point: StoredRow, others: Sequence[Row[Any]]) -> None:
        """Write a rollback that kept the effects of the other calls, so that the fence answers for them on the path."""
        kept_calls = [
            row
            for row in others
            if row.status in STANDING - {FAILED} and row.effect != WORKSPACE and not kind_of(row.effect).is_neutral
        ]
        items = [{"invocation": row.id, "reason": NOT_ON_THE_PATH} for row in kept_calls]
        created_at = branch.created_at.isoformat()
        self.write(
            {
                "record": "operation",
                "id": SYNTHETIC_ID,
                "kind": "rollback",
                "request_id": str(SYNTHETIC_ID),
                "source": SYNTHETIC_ID,
                "target": first_point.id,
                "branch": branch.id,
                "created_at": created_at,
                "ended_at": created_at,
                "request": {"tools": "keep", "replay": "record"},
                "accepted": [],
                "steps": [{"invocation": row.id, "action": KEEP, "why": NOT_ON_THE_PATH} for row in kept_calls],
                "report": {group: items if group == "kept" else [] for group in GROUPS},
            }
        )


def _is_same_point(point: StoredRow, other: StoredRow) -> bool:
    """Return whether two checkpoints have the same state and the same calls before them."""
    return bool(point.state_hash == other.state_hash and point.position == other.position)
