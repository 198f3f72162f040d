"""Rollback, switch, undo and redo of one session, from the words of a user to the request that is carried out."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from agentgit.auth.principal import EDITOR, VIEWER, Role
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.files import FilesAt
from agentgit.effects.plan import ROLLBACK
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.rollback import Request, SwitchRequest
from agentgit.sessions.operation import DONE
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import Snapshot
from agentgit.store.records.sessions import Found, require_whole
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.values import as_object


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    """The options of a rollback, as `Session.rollback` takes them."""

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
    """The verbs that move the world of a session. Each names the branch that it starts from."""

    # -- rollback

    def plan(self, to: CheckpointRef, branch: BranchRef, options: RollbackOptions) -> RollbackPlan:
        """Return what a rollback would do, without doing anything.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `Session.plan_rollback`.
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
        """Roll back; return the id of the new branch, or of the same one if the conversation stays.

        Raises:
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `Session.rollback`.
        """
        source, target, label = self.context.read(lambda c: self._target(c, branch, to, EDITOR))
        request = Request(
            user_id=self.context.user.id, source_id=source.id, target=target, label=label, **vars(options)
        )
        with self.context.noting_moves(self.session_id):
            return self.context.engine().run(request)

    def report(self, branch_id: int, *, kind: str = ROLLBACK, made: bool = True) -> RollbackReport:
        """Read the report of what has just been done.

        Args:
            branch_id: The branch that it led to.
            kind: The kind of operation: `rollback` or `fork`.
            made: True if it made that branch; False if it changed the world of it only.
        """

        def read(connection: Connection) -> RollbackReport:
            rows = self.context.store.operations.of_branches(connection, [branch_id])
            done = [row for row in rows if row.kind == kind]
            # What made a branch came first of all that led to it; what only moved its world came last.
            return self.context.engine().reports.read(connection, done[0] if made else done[-1])

        return self.context.read(read)

    def operation(self, operation_id: int) -> RollbackReport:
        """Read the report of an operation of this session."""
        return self.context.engine().read_report(operation_id)

    def _target(
        self, connection: Connection, branch: BranchRef, to: CheckpointRef, needs: Role = VIEWER
    ) -> tuple[Found, Found, str]:
        """Find the branch that is left, the checkpoint that is meant, and how a person calls it."""
        found = self.find(connection, needs)
        source = self.context.lookup.branch(connection, found, branch)
        return source, *self.context.lookup.target(connection, found, source, to)

    # -- files alone

    def rewind(self, request: Request) -> RollbackReport:
        """Bring files back; the conversation stays.

        Raises:
            NotFound, WorkspaceChanged, RollbackIncomplete, Conflict: As `Session.rewind_files`.
        """
        return self.report(self.context.engine().run(request), made=False)

    def plan_request(self, request: Request) -> RollbackPlan:
        """Return what bringing files back would do, without doing anything."""
        return self.context.engine().plan(
            request.source_id, request.target, request.label, tools="keep", files=request.files, conversation=False
        )

    def rewind_request(
        self, restore_point: CheckpointRef, branch: BranchRef, needs: Role = EDITOR, *, force: bool = False
    ) -> Request:
        """Return the request to bring back the files of a restore point.

        Raises:
            NotFound: As `Session.rewind_files`.
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
            # Of another session only the files are meant; this one stays at its own head.
            own = point.external_session_id == found.id
            target = point if own else lookup.target(connection, found, source, "HEAD")[0]
            return self._files_request(source.id, target, label, at, force=force)

        return self.context.read(find)

    def _files_request(self, source_id: int, target: Found, label: str, at: FilesAt, *, force: bool) -> Request:
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
        """Return what would bring the world to where a branch stands, without doing anything."""
        return self.context.engine().plan_switch(self.read_branch(branch).id)

    def enter(self, branch: BranchRef) -> Found:
        """Make a branch the current one, whatever stands in the world; return its row.

        Raises:
            NotFound: The session has no such branch.
            Conflict: Its rollback is half done.
        """

        def move(connection: Connection) -> Found:
            row = self.branch(connection, branch, EDITOR)
            require_whole(row)
            self.context.store.sessions.set_current(connection, self.session_id, row.id, self.context.user.id)
            return row

        with self.context.noting_moves(self.session_id):
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
        """Enter a branch, and bring branch and world together; return the ids of the branch and of the operation.

        Args:
            branch: The branch to enter.
            source: The branch that is left.
            sync: As `Session.switch` takes it.
            force: As `Session.switch` takes it.
            on_error: As `Session.switch` takes it.
            current: False to bring the world to the branch only, while the session stays on its current one.

        Raises:
            NotFound, InvalidInput, RollbackBlocked, RollbackIncomplete, Conflict: As `Session.switch`.
        """

        def find(connection: Connection) -> tuple[int, Found]:
            row = self.branch(connection, branch, EDITOR)
            require_whole(row)
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
        with self.context.noting_moves(self.session_id):
            return row.id, self.context.engine().switch(request)

    # -- one step back, and forth

    def previous(self, branch: BranchRef, steps: int = 1, needs: Role = EDITOR) -> tuple[int, int]:
        """Find the checkpoint that lies so many different points back; return the ids of the branch and of it.

        Raises:
            NotFound, InvalidInput: As `Session.undo`.
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
            here = (where(now.snapshot), last) if now.settled else None
            found = 0
            for point in reversed(path):
                # Where no workspace was attached, its files say nothing.
                there = (where(point), names.get(point.workspace_snapshot_id, last))
                if there != here:
                    here, found = there, found + 1
                if found == steps:
                    return int(row.id), int(point.id)
            only = (
                f"are {found} earlier checkpoints" if found > 1 else f"is {'one' if found else 'no'} earlier checkpoint"
            )
            raise NotFound(f"There {only} on this branch to go back to. agent.checkpoint() creates one.")

        return self.context.read(look)

    def rewound(self, branch: BranchRef, needs: Role = EDITOR, *, force: bool = False) -> Request | None:
        """Return how to take back a rewind of files, if that is the last thing that was done on a branch."""
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
            at = FilesAt(snapshot=report.files.safety, settings=wanted["settings"]).brought()
            target = self.context.lookup.target(connection, self.find(connection), row, "HEAD")[0]
            return self._files_request(row.id, target, "before the files were brought back", at, force=force)

        return self.context.read(look)

    def left_by(self, branch: BranchRef, needs: Role = EDITOR) -> int:
        """Return the id of the branch that was left by the rollback that made this one.

        Raises:
            NotFound: No rollback made it.
        """

        def look(connection: Connection) -> int:
            row = self.branch(connection, branch, needs)
            made = self.context.store.operations.of_branches(connection, [row.id])
            if not made or made[0].kind != ROLLBACK or made[0].source_id == row.id:
                raise NotFound("There is nothing to redo: this branch was not created by a rollback.")
            return int(made[0].source_id)

        return self.context.read(look)


def where(point: Found | Snapshot) -> tuple[bytes, int, bytes]:
    """Return a key that identifies a point: its state, its track, and what waits there."""
    return point.state_hash, point.position, point.pending or NO_WRITES
