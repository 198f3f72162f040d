"""Rollback, switch, undo and redo of one session: from a user's arguments to the request that the engine executes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from agentgit.auth.principal import EDITOR, VIEWER, Role
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.files import SnapshotRef
from agentgit.effects.plan import ROLLBACK
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.rollback import Request, SwitchRequest
from agentgit.sessions.operation import DONE
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import Snapshot
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.values import as_object


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    """The options of a rollback; see `Session.rollback`."""

    tools: str = "reverse"
    files: bool = True
    conversation: bool = True
    replay: str = "record"
    name: str | None = None
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "stop"
    request_id: str | None = None


class Rollbacks(SessionAccess):
    """The operations that change the world of a session. Each takes the branch that it starts from."""

    # -- rollback

    def plan(self, to: CheckpointRef, branch: BranchRef, options: RollbackOptions) -> RollbackPlan:
        """Return what a rollback would do, without doing anything.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.plan_rollback`.
        """
        source, target, label = self.context.read(lambda c: self._target(c, branch, to))
        return self.context.engine().plan(
            source.id,
            target,
            label,
            tools=options.tools,
            files=options.files,
            conversation=options.conversation,
            replay=options.replay,
        )

    def run(self, to: CheckpointRef, branch: BranchRef, options: RollbackOptions) -> int:
        """Roll back, and return the id of the new branch, or of the same branch if the conversation is unchanged.

        Raises:
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As for `Session.rollback`.
        """
        source, target, label = self.context.read(lambda c: self._target(c, branch, to, EDITOR))
        request = Request(
            user_id=self.context.user.id, source_id=source.id, target=target, label=label, **vars(options)
        )
        with self.context.recording_moves(self.session_id):
            return self.context.engine().run(request)

    def report(self, branch_id: int, *, kind: str = ROLLBACK, made: bool = True) -> RollbackReport:
        """Read the report of the operation that has just ended.

        Args:
            branch_id: The branch that the operation led to.
            kind: The kind of operation: `rollback` or `fork`.
            made: True if it created that branch; False if it only changed the world.
        """

        def read(connection: Connection) -> RollbackReport:
            rows = self.context.store.operations.of_branches(connection, [branch_id])
            done = [row for row in rows if row.kind == kind]
            # The operation that created a branch is its oldest one; the one that only changed the world is the newest.
            return self.context.engine().reports.read(connection, done[0] if made else done[-1])

        return self.context.read(read)

    def operation(self, operation_id: int) -> RollbackReport:
        """Read the report of an operation of this session."""
        return self.context.engine().read_report(operation_id)

    def _target(
        self, connection: Connection, branch: BranchRef, to: CheckpointRef, needs: Role = VIEWER
    ) -> tuple[StoredRow, StoredRow, str]:
        """Find the branch to leave, the checkpoint to go to, and the checkpoint's display name."""
        found = self.find(connection, needs)
        source = self.context.lookup.branch(connection, found, branch)
        return source, *self.context.lookup.target(connection, found, source, to)

    # -- files alone

    def rewind(self, request: Request) -> RollbackReport:
        """Restore files; the conversation is unchanged.

        Raises:
            NotFound, WorkspaceChanged, RollbackIncomplete, Conflict: As for `Session.rewind_files`.
        """
        return self.report(self.context.engine().run(request), made=False)

    def plan_request(self, request: Request) -> RollbackPlan:
        """Return what restoring files would do, without doing anything."""
        return self.context.engine().plan(
            request.source_id, request.target, request.label, tools="keep", files=request.files, conversation=False
        )

    def rewind_request(
        self, restore_point: CheckpointRef, branch: BranchRef, needs: Role = EDITOR, *, force: bool = False
    ) -> Request:
        """Return the request to restore the files of a restore point.

        Raises:
            NotFound: As for `Session.rewind_files`.
        """
        store, lookup = self.context.store, self.context.lookup

        def find(connection: Connection) -> Request:
            found = self.find(connection, needs)
            source = lookup.branch(connection, found, branch)
            point = lookup.restore_point(connection, found, source, restore_point)
            at, label = store.snapshots.of_checkpoint(connection, point), f"{point.branch_name}#{point.number}"
            if at is None:
                raise NotFound(
                    f"{label} has no files: no workspace was attached when it was created. Wrap the graph with "
                    "workspace=... (agentgit chat --workspace DIR) to keep its files from then on."
                )
            # From another session, only the files are restored; this session stays at its own head.
            own = point.external_session_id == found.id
            target = point if own else lookup.target(connection, found, source, "HEAD")[0]
            return self._files_request(source.id, target, label, at, force=force)

        return self.context.read(find)

    def _files_request(self, source_id: int, target: StoredRow, label: str, at: SnapshotRef, *, force: bool) -> Request:
        return Request(
            user_id=self.context.user.id,
            source_id=source_id,
            target=target,
            label=label,
            tools="keep",
            files=at,
            conversation=False,
            force=force,
        )

    # -- switch

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        """Return what would bring the world to the state of a branch, without doing anything."""
        return self.context.engine().plan_switch(self.read_branch(branch).id)

    def enter(self, branch: BranchRef) -> StoredRow:
        """Make a branch the current one without changing the world, and return its row.

        Raises:
            NotFound: The session has no such branch.
            Conflict: The branch's rollback is incomplete.
        """

        def move(connection: Connection) -> StoredRow:
            row = self.branch(connection, branch, EDITOR)
            require_no_unfinished_rollback(row)
            self.context.store.sessions.set_current(connection, self.session_id, row.id, self.context.user.id)
            return row

        with self.context.recording_moves(self.session_id):
            return self.context.change(move)

    def switch(
        self,
        branch: BranchRef,
        source: BranchRef,
        *,
        sync: str,
        force: bool = False,
        on_error: str = "stop",
        current: bool = True,
    ) -> tuple[int, int]:
        """Switch to a branch, and handle differences of the world; return the ids of the branch and of the operation.

        Args:
            branch: The branch to switch to.
            source: The branch to leave.
            sync: See `Session.switch`.
            force: See `Session.switch`.
            on_error: See `Session.switch`.
            current: False to change only the world, while the session stays on its current branch.

        Raises:
            NotFound, InvalidInput, RollbackBlocked, RollbackIncomplete, Conflict: As for `Session.switch`.
        """

        def find(connection: Connection) -> tuple[int, StoredRow]:
            row = self.branch(connection, branch, EDITOR)
            require_no_unfinished_rollback(row)
            return self.branch(connection, source).id, row

        source_id, row = self.context.change(find, durable=False)
        request = SwitchRequest(
            user_id=self.context.user.id,
            source_id=source_id,
            branch=row,
            sync=sync,
            force=force,
            on_error=on_error,
            current=current,
        )
        with self.context.recording_moves(self.session_id):
            return row.id, self.context.engine().switch(request)

    # -- undo and redo

    def previous(self, branch: BranchRef, steps: int = 1, needs: Role = EDITOR) -> tuple[int, int]:
        """Return the ids of a branch and of the checkpoint that lies `steps` distinct points back on it.

        Raises:
            NotFound, InvalidInput: As for `Session.undo`.
        """
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"steps must be a number from 1, not {steps!r}.")
        store = self.context.store

        def look(connection: Connection) -> tuple[int, int]:
            row = self.branch(connection, branch, needs)
            now = store.moment(connection, row)
            files = store.snapshots.of_branch(connection, row)
            path = self.context.lookup.path(connection, row)
            names = store.snapshots.names(connection, [point.workspace_snapshot_id for point in path])
            last = files.snapshot if files is not None else None
            here = (point_key(now.snapshot), last) if now.settled else None
            found = 0
            for point in reversed(path):
                # A checkpoint without a workspace does not differ in its files.
                there = (point_key(point), names.get(point.workspace_snapshot_id, last))
                if there != here:
                    here, found = there, found + 1
                if found == steps:
                    return int(row.id), int(point.id)
            only = (
                f"are {found} earlier checkpoints" if found > 1 else f"is {'one' if found else 'no'} earlier checkpoint"
            )
            raise NotFound(f"There {only} on this branch to go back to. agent.checkpoint() creates one.")

        return self.context.read(look)

    def undo_rewind_request(self, branch: BranchRef, needs: Role = EDITOR, *, force: bool = False) -> Request | None:
        """Return the request to undo a rewind of files, if that was the last operation on a branch; else None."""
        store = self.context.store

        def look(connection: Connection) -> Request | None:
            row = self.branch(connection, branch, needs)
            made = store.operations.of_branches(connection, [row.id])
            last = made[-1] if made else None
            if last is None or last.source_id != row.id or last.status != DONE or (row.head_id or 0) > last.id:
                return None
            report = self.context.engine().reports.read(connection, last)
            wanted = as_object(last.request).get("files")
            if wanted is None or report.files is None or not report.files.safety or report.reversed or report.redone:
                return None
            at = SnapshotRef(snapshot=report.files.safety, settings=wanted["settings"]).without_import_mark()
            target = self.context.lookup.target(connection, self.find(connection), row, "HEAD")[0]
            return self._files_request(row.id, target, "before the files were brought back", at, force=force)

        return self.context.read(look)

    def rollback_source(self, branch: BranchRef, needs: Role = EDITOR) -> int:
        """Return the id of the branch from which a rollback created this one.

        Raises:
            NotFound: The branch was not created by a rollback.
        """

        def look(connection: Connection) -> int:
            row = self.branch(connection, branch, needs)
            made = self.context.store.operations.of_branches(connection, [row.id])
            if not made or made[0].kind != ROLLBACK or made[0].source_id == row.id:
                raise NotFound("There is nothing to redo: this branch was not created by a rollback.")
            return int(made[0].source_id)

        return self.context.read(look)


def point_key(point: StoredRow | Snapshot) -> tuple[bytes, int, bytes]:
    """Return a key that identifies a point: its state, its position on the track, and its pending writes."""
    return point.state_hash, point.position, point.pending or NO_WRITES
