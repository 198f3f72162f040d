"""Rollback, switch, undo and redo of one session: from a user's arguments to the request that the engine executes."""

from __future__ import annotations

from dataclasses import replace

from agentgit.auth.principal import EDITOR, VIEWER, Role
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.files import SnapshotRef
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.errors import InvalidInput, NotFound, WorldDiverged
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.next_steps import Next
from agentgit.rollback import Request, SwitchRequest
from agentgit.rollback.crash_recovery import require_idle
from agentgit.rollback.planner import is_of_files
from agentgit.rollback.request import OVERWRITE, ConfirmedPlan, FilesOption, RollbackOptions
from agentgit.sessions.session import DONE
from agentgit.store.queries.graph_points import GraphPoint
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import CheckpointState
from agentgit.store.records.json_columns import read_request
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback, require_real
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.pending_writes import NO_WRITES


class Rollbacks(SessionAccess):
    """The operations that change the world of a session. Each takes the branch that it starts from."""

    # -- rollback

    def plan(self, to: CheckpointRef | GraphPoint, branch: BranchRef, options: RollbackOptions) -> RollbackPlan:
        return self.context.engine().plan(self._request(to, branch, options))

    def run(self, to: CheckpointRef | GraphPoint, branch: BranchRef, options: RollbackOptions) -> int:
        """Roll back, and return the id of the new branch, or of the same branch if the conversation is unchanged."""
        request = self._request(to, branch, options, EDITOR)
        with self.context.recording_moves(self.session_id):
            return self.context.engine().run(request)

    def report(self, branch_id: int, *, has_new_branch: bool = True) -> RollbackReport:
        """Read the report of the rollback that has just ended."""

        def read(transaction: Reading) -> RollbackReport:
            rows = self.context.store.operations.of_branch(transaction, branch_id)
            matches = [row for row in rows if row.kind == ROLLBACK]
            # The operation that created a branch is its oldest one; the one that only changed the world is the newest.
            return self.context.engine().reports.read(transaction, matches[0] if has_new_branch else matches[-1])

        return self.context.read(read)

    def _request(
        self,
        to: CheckpointRef | GraphPoint,
        branch: BranchRef,
        options: RollbackOptions,
        required_role: Role = VIEWER,
    ) -> Request:
        def create_request(transaction: Reading) -> Request:
            session = self.load_session(transaction, required_role)
            source = self.context.lookup.branch(transaction, session.id, branch)
            target, label = self.context.lookup.target(transaction, source, to)
            return Request(
                user_id=self.context.user.id,
                source_id=source.id,
                target=target,
                label=label,
                ref="REF" if isinstance(to, GraphPoint) else f"{target.branch_name}#{target.number}",
                overwrites_files=options.files == OVERWRITE,
                **vars(options),
            )

        return self.context.read(create_request)

    def require_own(self, plan: RollbackPlan, branch_id: int, *next: Next) -> None:
        """Check that a plan takes back only what was done on a branch, and not what other branches have done."""
        store = self.context.store

        def load(transaction: Reading) -> tuple[set[int], StoredRow]:
            row = store.sessions.branch(transaction, branch_id)
            return {call.first_id for call in store.calls_of(transaction, row)}, row

        own_ids, row = self.context.read(load)
        foreign = [str(one.invocation) for one in plan.reversals if one.invocation.first_id not in own_ids]
        if plan.files is not None and plan.files.changed:
            foreign += self.context.engine().files.of_others(row, plan.files)
        if foreign:
            raise WorldDiverged(
                f"Nothing was done, because this would also change what other branches did: {'; '.join(foreign)}.",
                Next("switch_world", branch=row.name),
                *next,
                plan=plan,
            )

    # -- files alone

    def rewind(self, request: Request, *, force: bool = False, plan: ConfirmedPlan = None) -> RollbackReport:
        """Restore files; the conversation is unchanged."""
        run = self.context.engine().run
        return self.report(run(replace(request, force=force, plan=plan)), has_new_branch=False)

    def rewind_request(
        self, restore_point: CheckpointRef, branch: BranchRef, files: FilesOption = True, required_role: Role = EDITOR
    ) -> Request:
        store, lookup = self.context.store, self.context.lookup

        def create_request(transaction: Reading) -> Request:
            session = self.load_session(transaction, required_role)
            source = lookup.branch(transaction, session.id, branch)
            checkpoint = lookup.restore_point(transaction, source, restore_point)
            snapshot, label = (
                store.snapshots.of_checkpoint(transaction, checkpoint),
                f"{checkpoint.branch_name}#{checkpoint.number}",
            )
            if snapshot is None:
                text = f"{label} has no files: no workspace was attached when it was created."
                raise NotFound(text, Next("keep_files"))
            # From another session, only the files are restored; this session stays at its own head.
            is_own = checkpoint.external_session_id == session.id
            target = checkpoint if is_own else lookup.target(transaction, source, "HEAD")[0]
            request = self._files_request(source.id, target, label, snapshot)
            return replace(request, ref=label if is_own else checkpoint.id, overwrites_files=files == OVERWRITE)

        return self.context.read(create_request)

    def _files_request(self, source_id: int, target: StoredRow, label: str, snapshot: SnapshotRef) -> Request:
        return Request(
            user_id=self.context.user.id,
            source_id=source_id,
            target=target,
            label=label,
            tools="keep",
            files=snapshot,
            conversation=False,
        )

    # -- switch

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        return self.context.engine().plan_switch(self.read_branch(branch).id)

    def set_current_branch(self, branch: BranchRef, *, source_id: int | None = None) -> StoredRow:
        """Make a branch the current one without changing the world, and return its row."""

        def set_current(transaction: Writing) -> StoredRow:
            row = self.find_branch(transaction, branch, EDITOR)
            require_no_unfinished_rollback(row)
            require_real(row)
            if source_id is not None:
                self.context.store.sessions.lock(transaction, self.session_id)
                require_idle(self.context.store, transaction, self.session_id)
                self.context.store.sessions.require_current(transaction, self.session_id, source_id, row.id)
            self.context.store.sessions.set_current(transaction, self.session_id, row.id, self.context.user.id)
            return row

        with self.context.recording_moves(self.session_id):
            return self.context.change(set_current)

    def switch(
        self,
        branch: BranchRef,
        source: BranchRef,
        *,
        sync: str,
        force: bool = False,
        on_error: str = "stop",
        current: bool = True,
        only_from_current: bool = False,
        plan: ConfirmedPlan = None,
    ) -> tuple[int, int]:
        """Switch to a branch, and handle differences of the world; return the ids of branch and operation."""

        def load_branches(transaction: Reading) -> tuple[int, StoredRow]:
            row = self.find_branch(transaction, branch, EDITOR)
            require_no_unfinished_rollback(row)
            return self.find_branch(transaction, source).id, row

        source_id, row = self.context.change(load_branches, durable=False)
        request = SwitchRequest(
            user_id=self.context.user.id,
            source_id=source_id,
            branch=row,
            sync=sync,
            force=force,
            on_error=on_error,
            current=current,
            only_from_current=only_from_current,
            plan=plan,
        )
        with self.context.recording_moves(self.session_id):
            return row.id, self.context.engine().switch(request)

    # -- undo and redo

    def find_previous(
        self,
        branch: BranchRef,
        steps: int,
        files: FilesOption,
        required_role: Role = EDITOR,
        *,
        began_at: int | None = None,
    ) -> tuple[int, int]:
        """Return the ids of a branch and of the checkpoint that lies `steps` distinct points back on it.

        If the files are left alone, points that differ only in files are one. The checkpoint `began_at` of a turn that
        was broken off is a step even if the turn has changed nothing yet.
        """
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"steps must be a number from 1, not {steps!r}.")
        store = self.context.store

        def load(transaction: Reading) -> tuple[int, int]:
            row = self.find_branch(transaction, branch, required_role)
            head_state = store.head_state(transaction, row)
            newest = store.snapshots.newest_of_branch(transaction, row)
            path = self.context.lookup.path_checkpoints(transaction, row)
            known = store.snapshots.without_others(transaction, row.external_session_id) if files else {}
            last_files = known.get(newest.id) if newest is not None else None
            last_key = (point_key(head_state.checkpoint_state), last_files) if head_state.is_at_latest else None
            count = 0
            for checkpoint in reversed(path):
                # A checkpoint without a workspace does not differ in its files.
                key = (point_key(checkpoint), known.get(checkpoint.workspace_snapshot_id, last_files))
                if key != last_key or (not count and checkpoint.id == began_at):
                    last_key, count = key, count + 1
                if count == steps:
                    return int(row.id), int(checkpoint.id)
            count_text = (
                f"are {count} earlier checkpoints" if count > 1 else f"is {'one' if count else 'no'} earlier checkpoint"
            )
            raise NotFound(f"There {count_text} on this branch to go back to.")

        return self.context.read(load)

    def find_answered(self, branch: BranchRef) -> int | None:
        """Return the id of the newest checkpoint of a branch that holds no open tool call; None if there is none."""
        store = self.context.store

        def load(transaction: Reading) -> int | None:
            path = self.context.lookup.path_checkpoints(transaction, self.find_branch(transaction, branch, EDITOR))
            for row in reversed(path):
                key = GraphKey(row.thread_id, "", row.graph_checkpoint_id or "")
                state = store.graphs.find(transaction, key) if row.graph_checkpoint_id else None
                if state is None or not store.unanswered(transaction, state):
                    return int(row.id)
            return None

        return self.context.read(load)

    def undo_rewind_request(self, branch: BranchRef, required_role: Role = EDITOR) -> Request | None:
        """Return the request to undo the last rewind of files that nothing has undone or followed; None if none."""
        store = self.context.store

        def create_request(transaction: Reading) -> Request | None:
            row = self.find_branch(transaction, branch, required_role)
            newest = store.graphs.newest(transaction, row.thread_id)
            rewinds: dict[int, tuple[SnapshotRef, str]] = {}
            for operation in store.operations.of_branch(transaction, row.id):
                request = read_request(operation)
                if operation.kind == SWITCH:
                    continue  # it left the files as the branch had them, or brought them back
                ran_since = newest is not None and newest.made_at > operation.ended_at
                is_rewind = is_of_files(operation) and operation.status == DONE and not ran_since
                done = self.context.engine().reports.read(transaction, operation).files if is_rewind else None
                if done is None or not done.safety:
                    rewinds.clear()
                elif request.get("undoes") is not None:
                    rewinds.pop(request["undoes"], None)
                elif done.changed:
                    rewinds[operation.id] = SnapshotRef(**request["files"]), done.safety
            if not rewinds:
                return None
            undone, (files, safety) = rewinds.popitem()
            snapshot = SnapshotRef(snapshot=safety, settings=files.settings).without_import_mark()
            target = self.context.lookup.target(transaction, row, "HEAD")[0]
            again = self._files_request(row.id, target, "before the files were brought back", snapshot)
            return replace(again, undoes=int(undone))

        return self.context.read(create_request)

    def rollback_source_id(self, branch: BranchRef, required_role: Role = EDITOR) -> int:

        def load(transaction: Reading) -> int:
            row = self.find_branch(transaction, branch, required_role)
            operations = self.context.store.operations.of_branch(transaction, row.id)
            if not operations or operations[0].kind != ROLLBACK or operations[0].source_id == row.id:
                raise NotFound("There is nothing to redo: this branch was not created by a rollback.")
            return int(operations[0].source_id)

        return self.context.read(load)


def point_key(point: StoredRow | CheckpointState) -> tuple[bytes, int, bytes]:
    """Return a key that identifies a point: its state, its position on the track, and its pending writes."""
    return point.state_hash, point.position, point.pending or NO_WRITES
