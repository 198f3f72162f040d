"""The end of a rollback, a switch or a fork: its branch is opened, and its report is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgit.effects import ToolInvocation
from agentgit.effects.files import FileChanges, SnapshotRef
from agentgit.effects.invocation import REVERSED, SIMULATED
from agentgit.effects.kinds import WORKSPACE
from agentgit.effects.plan import ANSWER, GONE, KEEP, REDO, REVERSE, ROLLBACK, SWITCH
from agentgit.effects.report import ReportItem
from agentgit.next_steps import Reason
from agentgit.rollback.executor import RerunTrack, stops_at_drift
from agentgit.rollback.files import RollbackFiles, why_not_restored
from agentgit.rollback.report import Reports, after_drift, store_notes
from agentgit.rollback.resume import Resumption
from agentgit.sessions.session import DONE, OPEN, PARTIAL, RERUN
from agentgit.store.queries.graph_points import move
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.json_columns import read_meta, read_request
from agentgit.store.records.sessions import StoredRow, is_simulated
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import GraphKey


class Finisher:
    """Publishes the results of operations."""

    def __init__(
        self, store: Store, reports: Reports, resumption: Resumption, files: RollbackFiles, rerun_track: RerunTrack
    ) -> None:
        self.store = store
        self.reports = reports
        self.resumption = resumption
        self.files = files
        self.rerun_track = rerun_track

    def end(self, transaction: Writing, operation_id: int, owner: str, file_changes: FileChanges | None) -> str:
        """Publish the branch if all steps are done, record the report in any case, and return the status."""
        sessions = self.store.sessions
        sessions.lock(transaction, self.resumption.load_operation(transaction, operation_id).external_session_id)
        self.store.operations.require_held(transaction, operation_id, owner)
        row = self.resumption.load_operation(transaction, operation_id)
        groups, request = self.reports.outcome(transaction, row), read_request(row)
        must_wait = request.get("files") is not None and (
            file_changes is None or bool(file_changes.problem and not request.get("leaves_files"))
        )
        if request.get("give_up"):
            row, must_wait = self._skip_failed_steps(transaction, row, groups), False
            groups = self.reports.outcome(transaction, row)
        if not must_wait and (why := why_not_restored(file_changes)) is not None:
            row = self._keep_file_calls(transaction, row, why)
            groups = self.reports.outcome(transaction, row)
        files = self.files.snapshots_after(row, file_changes)
        must_wait |= any(stops_at_drift(row, item.invocation) for item in groups["drifted"])
        status = PARTIAL if groups["failed"] or groups["remaining"] or must_wait else DONE
        if status != DONE:
            drifted_ids = [item.invocation.id for item in groups["drifted"]]
            self.store.operations.set_request(transaction, row.id, read_request(row) | {"told": drifted_ids})
            sessions.set_status(transaction, row.internal_session_id, PARTIAL)
            self.store.snapshots.record_crash(transaction, row.external_session_id)
        elif row.kind == ROLLBACK and row.internal_session_id != row.source_id:
            session = sessions.load_row(transaction, row.external_session_id)
            # Somebody may have moved the session to another branch before a stopped rollback was resumed.
            is_on_source = session.current_branch_id == row.source_id
            point = request.get("point")
            target = self.store.checkpoints.load(transaction, row.target_id)
            self._publish_branch(
                transaction,
                row,
                files,
                move(target, point) if point else target,
                current=is_on_source,
            )
        else:
            current = row.kind == SWITCH and request["current"]
            # With "note" and "ignore", the branch has seen the world only as it was when the switch began.
            world_seen = request.get("seen") if request.get("sync") in ("note", "ignore") else None
            branch = sessions.branch(transaction, row.internal_session_id)
            self._open_branch(transaction, branch, files, current=current, world_seen=world_seen)
        if file_changes is not None and file_changes.problem and (status != DONE or not file_changes.now):
            # Some may be restored, and others not.
            self.store.snapshots.record_crash(transaction, row.external_session_id)
        if status == DONE and groups["drifted"]:
            branch = sessions.branch(transaction, row.internal_session_id)
            store_notes(self.store, transaction, branch, after_drift(read_meta(branch), groups["drifted"]))
        report: dict[str, Any] = {
            group: [{"invocation": item.invocation.id, **Reason.of(item.reason).to_dict("reason")} for item in items]
            for group, items in groups.items()
        }
        report["files"] = file_changes.to_dict() if file_changes is not None else None
        self.store.operations.end(transaction, operation_id, status, report)
        return status

    def _skip_failed_steps(
        self, transaction: Writing, row: StoredRow, groups: dict[str, list[ReportItem]]
    ) -> StoredRow:
        """Replace the steps that could not be done by steps that leave the world unchanged.

        The calls of a rerun are never skipped, because they would be taken for done.
        """
        branch = self.store.sessions.branch(transaction, row.internal_session_id)
        is_rerun = is_simulated(branch)
        unfinished = [*groups["failed"], *groups["remaining"]]
        reasons = {item.invocation.first_id: item.reason for item in unfinished}  # the item of a redo is its run
        request = read_request(row)
        calls = self.store.journal.invocations(transaction, [step["invocation"] for step in request["steps"]])
        for step in request["steps"]:
            call = calls[step["invocation"]]
            is_open = step["action"] == REDO or (step["action"] == REVERSE and call.status != REVERSED)
            if is_open and call.first_id in reasons and not (is_rerun and call.status == SIMULATED):
                action = KEEP if step["action"] == REVERSE else self._action_for_skipped_redo(transaction, row, call)
                step |= {"action": action, **Reason.of(reasons[call.first_id]).within("forced: ").to_dict("why")}
        self.store.operations.set_request(transaction, row.id, request)
        return self.resumption.load_operation(transaction, row.id)

    def _keep_file_calls(self, transaction: Writing, row: StoredRow, why: str) -> StoredRow:
        """Add a step for each call whose files stay and that no step tells of."""
        request = read_request(row)
        known_ids = {step["invocation"] for step in request["steps"]}
        plan = self.resumption.planner.replan(transaction, row, why_files_stay=why).without(known_ids)
        kept = [step for step in plan.kept if step.invocation.effect == WORKSPACE]
        request["steps"] += replace(plan, steps=kept).as_request()
        self.store.operations.set_request(transaction, row.id, request)
        return self.resumption.load_operation(transaction, row.id)

    def _action_for_skipped_redo(self, transaction: Reading, row: StoredRow, call: ToolInvocation) -> str:
        """Return the action for a call that was to run again and did not; the record answers for an existing effect."""
        is_in_world = call.effect.is_neutral or self.store.world.may_be_in_world(transaction, call)
        return ANSWER if is_in_world and self.rerun_track.has_reruns(row) else GONE

    def _publish_branch(
        self,
        transaction: Writing,
        created_by: StoredRow,
        files: Sequence[tuple[SnapshotRef, str]],
        branch_point: StoredRow,
        *,
        current: bool,
    ) -> None:
        """Open a branch at its branch point, or at the state that its calls produced when they ran again."""
        branch = self.store.sessions.branch(transaction, created_by.internal_session_id)
        head = self.store.graphs.newest(transaction, branch.thread_id)
        self.store.require_state(branch, head.state_hash if head is not None else b"", branch_point.state_hash)
        state_hash, graph_checkpoint_id = branch_point.state_hash, branch_point.graph_checkpoint_id
        if self.rerun_track.has_reruns(created_by):
            self.rerun_track.replace_calls(transaction, created_by)
            head = self.store.graphs.newest(transaction, branch.thread_id)
            if head is not None:
                state_hash, graph_checkpoint_id = head.state_hash, head.key.checkpoint_id
            branch = self.store.sessions.branch(transaction, branch.id)
        key = GraphKey(branch.thread_id, "", branch_point.graph_checkpoint_id or "")
        content = CheckpointState(
            graph_checkpoint_id=graph_checkpoint_id,
            state_hash=state_hash,
            position=branch_point.position,
            message_count=branch_point.message_count,
            workspace_snapshot_id=self._record_files(transaction, branch, files),
            pending=pending_writes.read(transaction, key) if key.checkpoint_id else None,
        )
        label = Label(
            kind="branch", user_id=created_by.user_id, description=branch_point.name or branch_point.description
        )
        self.store.checkpoints.add(transaction, branch.id, content, label)
        self._open_branch(transaction, branch, files[-1:], current=current)

    def _open_branch(
        self,
        transaction: Writing,
        branch: StoredRow,
        files: Sequence[tuple[SnapshotRef, str]],
        *,
        current: bool,
        world_seen: int | None = None,
    ) -> None:
        """Open a branch and record that it has seen the world log up to `world_seen`, or up to its end."""
        sessions = self.store.sessions
        self._record_files(transaction, branch, files)
        if world_seen is None:
            world_seen = self.store.world.last_seq(transaction, branch.external_session_id)
        sessions.set_world_seen(transaction, branch, world_seen)
        sessions.set_status(transaction, branch.id, OPEN)
        mark = read_meta(branch).get(RERUN)
        if mark is not None:  # its calls have just run
            sessions.merge_metadata(transaction, branch.id, {RERUN: {**mark, "is_real": True}})
        if current:
            sessions.set_current(transaction, branch.external_session_id, branch.id)

    def _record_files(
        self, transaction: Writing, branch: StoredRow, files: Sequence[tuple[SnapshotRef, str]]
    ) -> int | None:
        """Record the files of a branch, and return the id of the last row."""
        ids = [self.store.snapshots.record(transaction, branch, *one) for one in files]
        return ids[-1] if ids else None
