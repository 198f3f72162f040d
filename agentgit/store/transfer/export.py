"""Contents of an export, read from the store: a whole session unchanged, or one path of it as a one-branch session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from agentgit.checkpoints.references import free_name
from agentgit.effects.effects import READ_ONLY
from agentgit.effects.invocation import FAILED, PAUSED, REDO, REPLAY, STANDING
from agentgit.effects.plan import KEEP
from agentgit.effects.report import GROUPS
from agentgit.errors import Conflict
from agentgit.sessions.operation import DONE
from agentgit.store.queries.explorations import MARK
from agentgit.store.records.journal import TrackPart as TrackPart
from agentgit.store.records.sessions import Segment, StoredRow, require_no_unfinished_rollback
from agentgit.store.sql import row_codes
from agentgit.store.sql.tables import CHECKPOINT as POINT
from agentgit.store.sql.tables import OPERATION, TOOL_INVOCATION, WORLD_LOG
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import INTERRUPT, GraphKey
from agentgit.store.transfer import export_records as records
from agentgit.store.transfer.export_states import StateWriter, ValueWriter, Write
from agentgit.store.transfer.records import BRANCH, CHECKPOINT, SESSION
from agentgit.values import as_object

ELSEWHERE = "elsewhere"
"""The name of the branch that holds, in the export of one path, the calls of other branches in the same world."""

SYNTHETIC_ID = 2**53 - 1
"""The id of a branch, checkpoint or operation that exists only in the export. It sorts after all other ids."""

NOT_ON_THE_PATH = "it was made on another branch or later, and still exists in the original world"


@dataclass(frozen=True, kw_only=True)
class ExportScope:
    """The part of a session to export.

    Args:
        session: The row of the session.
        branch: The row of the branch; None for the whole session.
        point: The row of the checkpoint where the export ends; None for the head of the branch.
    """

    session: StoredRow
    branch: StoredRow | None = None
    point: StoredRow | None = None

    @property
    def of(self) -> str:
        """The kind of object to export: `session`, `branch` or `checkpoint`."""
        return SESSION if self.branch is None else BRANCH if self.point is None else CHECKPOINT

    @property
    def place(self) -> str | None:
        """The branch name or checkpoint reference within the session; None for a whole session."""
        if self.branch is None or self.point is None:
            return self.branch.name if self.branch is not None else None
        return f"{self.point.branch_name}#{self.point.number}"


Send = Callable[[Mapping[str, Any], str], tuple[int | None, str | None]]
"""Writes a snapshot, given the settings of its workspace and its id, unless it was written before.

Returns the number of its tree and None, or None and the reason why it has no tree."""


def export(store: Store, connection: Connection, cut: ExportScope, write: Write, send: Send | None = None) -> None:
    """Write all records of an export except its header and its end.

    Args:
        store: The store to export from.
        connection: A connection with a consistent view of the database.
        cut: The part to export.
        write: The function that writes one record.
        send: The function that writes the files of a snapshot; None leaves files out.

    Raises:
        Conflict: A rollback or another operation of the session is unfinished, or the branch cannot be exported alone.
        Corrupt: Data that belongs to it is missing or damaged.
        InvalidInput: A value is too large.
    """
    (_Session if cut.branch is None else _Path)(store, connection, cut, write, send).run()


class _Export:
    def __init__(self, store: Store, connection: Connection, cut: ExportScope, write: Write, send: Send | None) -> None:
        self.store = store
        self.connection = connection
        self.cut = cut
        self.write = write
        self.values = ValueWriter(store.graphs.content.blobs, connection, write)
        self.send = send
        self._with_files: dict[int, list[int]] = defaultdict(list)

    def _session(self, current: int) -> None:
        row = self.cut.session
        self.write(
            {
                "record": "session",
                "id": row.id,
                "name": row.session_name,
                "created_at": row.created_at.isoformat(),
                "current": current,
            }
        )

    def _states(self, branch_id: int) -> StateWriter:
        return StateWriter(self.connection, self.store.tenant_id, self.values, self.write, branch_id)

    def _calls(self, *conditions: Any) -> Iterable[Row[Any]]:
        """Read calls of the session in order of their ids, one page at a time."""
        c, after = TOOL_INVOCATION.c, 0
        own = (c.tenant_id == self.store.tenant_id, c.external_session_id == self.cut.session.id, *conditions)
        while rows := self.connection.execute(
            select(TOOL_INVOCATION).where(*own, c.id > after).order_by(c.id).limit(500)
        ).all():
            yield from self.store.journal.authentic(self.connection, rows)
            after = rows[-1].id

    def _tags(self, points: Container[int] | None = None) -> None:
        """Write the tags of the session, or only those of the given checkpoints."""
        for tag in self.store.tags.all(self.connection, self.cut.session.id):
            if points is None or tag.checkpoint_id in points:
                self.write(records.of_tag(tag))

    def _point(self, point: StoredRow, **other: Any) -> None:
        """Write a checkpoint, and remember it for its snapshot."""
        self.write(records.of_checkpoint(point, **other))
        if point.workspace_snapshot_id is not None:
            self._with_files[point.workspace_snapshot_id].append(point.id)

    def _pending_values(self, points: Iterable[StoredRow]) -> None:
        """Write the values of the pending writes that the checkpoints recorded."""
        self.values.put([key for row in points for key in pending_writes.hashes(row.pending, f"checkpoint {row.id}")])

    def _write_files(self, branches: Sequence[StoredRow], **other: Any) -> None:
        """Write the snapshots of the written checkpoints, and the last snapshot of each of these branches."""
        if self.send is None:
            return
        last = (self.store.snapshots.of_branch(self.connection, branch) for branch in branches)
        ids = self._with_files.keys() | {row.id for row in last if row is not None}
        for row in self.store.snapshots.rows(self.connection, ids):
            tree, why = self.send(as_object(row.settings), row.snapshot)
            found = {"tree": tree, "why": why, "checkpoints": self._with_files.get(row.id, [])}
            self.write(records.of_snapshot(row, **found, **other))

    def _log(self) -> Sequence[Row[Any]]:
        of = (WORLD_LOG.c.tenant_id == self.store.tenant_id, WORLD_LOG.c.external_session_id == self.cut.session.id)
        return row_codes.authentic(
            self.connection, WORLD_LOG, self.connection.execute(select(WORLD_LOG).where(*of).order_by(WORLD_LOG.c.seq))
        )


class _Session(_Export):
    """Writes a whole session unchanged."""

    def run(self) -> None:
        session_id = self.cut.session.id
        branches = self.store.sessions.branches(self.connection, session_id)
        for row in branches:
            require_no_unfinished_rollback(row)
        operations = self._operations(session_id)
        self._session(self.cut.session.current_branch_id)
        for row in branches:
            self.write(records.of_branch(row))
        for row in branches:
            self._states(row.id).thread(row.thread_id)
        points = [
            point
            for row in branches
            for point in self.store.checkpoints.find(self.connection, POINT.c.internal_session_id == row.id)
        ]
        self._pending_values(points)
        for point in points:
            self._point(point)
        self._tags()
        self._write_files(branches)
        for call in self._calls():
            self.write(records.of_call(call))
        for operation in operations:
            self.write(records.of_operation(operation))
        for entry in self._log():
            self.write(records.of_log(entry))

    def _operations(self, session_id: int) -> Sequence[Row[Any]]:
        of = (OPERATION.c.tenant_id == self.store.tenant_id, OPERATION.c.external_session_id == session_id)
        query = select(OPERATION).where(*of).order_by(OPERATION.c.id)
        found = row_codes.authentic(self.connection, OPERATION, self.connection.execute(query))
        for row in found:
            if row.status != DONE:
                raise Conflict(
                    f"{row.kind.capitalize()} {row.id} of this session is {row.status}. Finish it with "
                    f"repo.resume({row.id}), then export; or export another branch of it."
                )
        return found


@dataclass
class _Track:
    """The calls of one path, renumbered as the calls of one branch.

    Args:
        calls: The rows, each with its number and its batch.
        others: The calls of other branches in the same world, in the same form.
    """

    calls: list[tuple[Row[Any], int, int]] = field(default_factory=list)
    others: list[tuple[Row[Any], int, int]] = field(default_factory=list)


class _Path(_Export):
    """Writes one path as a session of one branch. Other calls in its world are written on a second branch."""

    def run(self) -> None:
        branch, point = self.cut.branch, self.cut.point
        assert branch is not None  # noqa: S101  # without a branch, `_Session` runs
        require_no_unfinished_rollback(branch)
        line = self.store.sessions.lineage(self.connection, branch)
        points = self._points(line)
        parts = [segment.track for segment in line]
        if point is not None:
            parts[-1] = TrackPart(branch_id=branch.id, before=branch.inherited, count=point.position - branch.inherited)
        track = self._track(parts, beside=bool(points))
        self._session(branch.id)
        head = points[-1].id if points else None
        meta = {name: value for name, value in as_object(branch.meta).items() if name != MARK}  # names other branches
        self.write(records.of_branch(branch, parent=None, point=None, inherited=0, head=head, meta=meta))
        if track.others:
            self._write_other_branch(branch, points[0])
        self._states(branch.id).path(self._ways(line), branch.thread_id if point is None else None, points)
        self._pending_values(points)
        for n, row in enumerate(points, 1):
            self._point(row, branch=branch.id, number=n)
        self._tags({row.id for row in points})
        if track.others:
            self._write_beginning(points[0])
        self._write_files([branch] if point is None else [], branch=branch.id)
        self._write_track(branch, points, track)

    # -- checkpoints and states

    def _points(self, line: Sequence[Segment]) -> list[StoredRow]:
        """Read the checkpoints on the path.

        The first checkpoint of a branch is replaced by its branch point, which is equal and may have a name.
        """
        found = self.store.checkpoints.on_path(self.connection, line)
        if (end := self.cut.point) is not None:
            found = [row for row in found if row.id <= end.id]
        left = self._left(line)
        same = [left.get(row.internal_session_id, row) if row.kind == "branch" else row for row in found]
        # A branch whose inherited calls ran again begins with a state that differs from its branch point's.
        points = [a if a.state_hash == b.state_hash else b for a, b in zip(same, found, strict=True)]
        states = {(row.graph_checkpoint_id, row.state_hash) for row in points}
        if len(states) > len({graph_checkpoint_id for graph_checkpoint_id, _ in states}):
            raise Conflict(
                "The calls of this branch ran again while it waited for an answer, so one graph checkpoint of its "
                "path has two states. Export the whole session."
            )
        return points

    def _left(self, line: Sequence[Segment]) -> dict[int, StoredRow]:
        """Read the branch point of each branch of the path except the first, by the id of the branch."""
        ids = {segment.branch.branch_point_id: segment.branch.id for segment in line[1:]}
        return {ids[row.id]: row for row in self.store.checkpoints.find(self.connection, POINT.c.id.in_(list(ids)))}

    def _ways(self, line: Sequence[Segment]) -> list[tuple[str, str]]:
        """List the threads on the path, each with the graph checkpoint where the path leaves it."""
        left = [*self._left(line).values(), *([self.cut.point] if self.cut.point is not None else [])]
        return [(row.thread_id, row.graph_checkpoint_id) for row in left if row.graph_checkpoint_id is not None]

    # -- the track

    def _track(self, parts: Sequence[TrackPart], *, beside: bool) -> _Track:
        """Renumber the calls of the path, and the calls of other branches in the same world."""
        track, batch = _Track(), 0
        for part in parts:
            rows = self._of_part(part, is_last=part is parts[-1])
            track.calls += [(row, len(track.calls) + n, batch + row.batch) for n, row in enumerate(rows)]
            batch += max((row.batch for row in rows), default=-1) + 1
        offsets: dict[int, int] = {}
        after = 0
        for n, row in enumerate(self._others({row.id: row for row, *_ in track.calls}) if beside else ()):
            if row.internal_session_id not in offsets:
                offsets[row.internal_session_id] = after
            place = max(row.batch, 0) + offsets[row.internal_session_id]
            after = max(after, place + 1)
            track.others.append((row, n, place if row.batch >= 0 else row.batch))
        return track

    def _of_part(self, part: TrackPart, *, is_last: bool) -> list[Row[Any]]:
        """Read the calls of a part of the track, including those that waited for an answer."""
        rows, counted = [], 0
        of_branch = TOOL_INVOCATION.c.internal_session_id == part.branch_id
        ordered = sorted(self._calls(of_branch, TOOL_INVOCATION.c.kind != REDO), key=lambda row: row.arrival)
        for row in ordered:
            counted += row.status != PAUSED
            if part.count is not None and counted > part.count:
                break
            rows.append(row)
        if part.count is not None and not (is_last and self._waits()):
            while rows and rows[-1].status == PAUSED:
                rows.pop()
        return rows

    def _waits(self) -> bool:
        """Return whether the path ends at the head of its branch, or at a checkpoint that waits for an answer."""
        point, graphs = self.cut.point, self.store.graphs
        if point is None or point.graph_checkpoint_id is None:
            return point is None
        if point.pending is not None:
            return any(one.values(INTERRUPT) for one in pending_writes.tasks(point.pending, f"checkpoint {point.id}"))
        at = GraphKey(point.thread_id, "", point.graph_checkpoint_id)
        return any(write.channel == INTERRUPT for write in graphs.writes(self.connection, at))

    def _others(self, own: Mapping[int, Row[Any]]) -> list[Row[Any]]:
        """Read the other calls that acted on the world of the session, and the calls that the path replays."""
        needed = {row.replay_of for row in own.values()}
        found: list[Row[Any]] = []
        for row in self._calls():
            acts = row.effect != READ_ONLY and row.kind != REPLAY and row.status != PAUSED
            if row.id not in own and (acts or row.id in needed):
                found.append(row)
        known = own.keys() | {row.id for row in found}
        return [row for row in found if row.replay_of is None or row.replay_of in known]

    def _write_track(self, branch: StoredRow, points: Sequence[StoredRow], track: _Track) -> None:
        for row, arrival, batch in track.calls:
            self.write(records.of_call(row, branch=branch.id, arrival=arrival, batch=batch))
        for row, arrival, batch in track.others:
            self.write(records.of_call(row, branch=SYNTHETIC_ID, arrival=arrival, batch=batch))
        if track.others:
            self._write_rollback(branch, points[0], [row for row, *_ in track.others])
        known = {row.id for row, *_ in (*track.calls, *track.others)}
        for seq, entry in enumerate((entry for entry in self._log() if entry.invocation_id in known), 1):
            self.write(records.of_log(entry, seq=seq, operation=None))

    # -- the branch beside the path

    def _write_other_branch(self, branch: StoredRow, first: StoredRow) -> None:
        """Write the branch for the calls that are not on the path. It starts at the first checkpoint of the path."""
        taken = {branch.name, *(tag.name for tag in self.store.tags.all(self.connection, self.cut.session.id))}
        about = {
            "id": SYNTHETIC_ID,
            "name": free_name(ELSEWHERE, taken),
            "parent": branch.id,
            "point": first.id,
            "inherited": first.position,
        }
        self.write(records.of_branch(branch, **about, head=SYNTHETIC_ID, meta={}))

    def _write_beginning(self, first: StoredRow) -> None:
        """Write the first checkpoint of the branch beside the path, because every branch begins with one."""
        begins = {
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
        self.write(records.of_checkpoint(first, **begins))

    def _write_rollback(self, branch: StoredRow, first: StoredRow, others: Sequence[Row[Any]]) -> None:
        """Write a rollback that kept the effects of the other calls, so that the fence answers for them on the path."""
        kept = [row for row in others if row.status in STANDING - {FAILED} and row.effect != READ_ONLY]
        items = [{"invocation": row.id, "reason": NOT_ON_THE_PATH} for row in kept]
        at = branch.created_at.isoformat()
        self.write(
            {
                "record": "operation",
                "id": SYNTHETIC_ID,
                "kind": "rollback",
                "request_id": str(SYNTHETIC_ID),
                "source": SYNTHETIC_ID,
                "target": first.id,
                "branch": branch.id,
                "created_at": at,
                "ended_at": at,
                "request": {"tools": "keep", "replay": "record"},
                "accepted": [],
                "steps": [{"invocation": row.id, "action": KEEP, "why": NOT_ON_THE_PATH} for row in kept],
                "report": {group: items if group == "kept" else [] for group in GROUPS},
            }
        )
