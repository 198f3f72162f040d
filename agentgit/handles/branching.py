"""The verbs that save points and make branches without a graph: `add_checkpoint`, `fork`, `undo`, `redo`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR, VIEWER, Role
from agentgit.checkpoints import Checkpoint
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.files import FilesAt
from agentgit.errors import AgentGitError, Conflict, Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.session import BranchRef, SessionRef, Verbs
from agentgit.rollback import Request
from agentgit.sessions import InternalSession
from agentgit.sessions.operation import DONE
from agentgit.sessions.session import RUNNING
from agentgit.store.maintenance import retention
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import Label, Snapshot, named
from agentgit.store.records.sessions import Found, expect_whole
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.values import as_object


class Branching(Verbs):
    """Methods of a repository that act on the branches of a session.

    The world of the session stays as it is, except for `undo` and `redo`.
    """

    # -- points

    def add_checkpoint(
        self,
        name: str | None = None,
        session: SessionRef = None,
        *,
        branch: BranchRef = None,
        description: str | None = None,
        data: object = None,
        files: bool = True,
    ) -> Checkpoint:
        """Save the point where a branch stands, as `RollbackAgent.checkpoint` does.

        Args:
            name: The name of the checkpoint; names may repeat.
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            description: A sentence about it.
            data: Any JSON-like data to keep with it.
            files: False to save it without the files of the workspace.

        Raises:
            Conflict: The branch is running.
            InvalidInput: The name is empty or too long.
            Unavailable: The workspace is not here, or its files cannot be kept.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.add_checkpoint("before payment").metadata["reference"]
            'main#3'
        """
        label = named(self.user.id, name, description, data)
        row = self._branch(session, branch)
        return self._save(row.id, label, self._files(row, f"checkpoint {name}") if files else None)

    def _save(self, branch_id: int, label: Label, files: FilesAt | None) -> Checkpoint:
        """Save the point where a branch stands; what it keeps of files was taken before.

        If its last turn broke off inside a batch of tool calls, the point is before that batch.

        Args:
            branch_id: The id of the branch.
            label: The label of the checkpoint.
            files: Those that it keeps.

        Raises:
            Conflict: The branch is running.
        """

        def write(connection: Connection) -> tuple[Found, int]:
            self.store.sessions.lock(connection, self._admitted(connection, branch_id, EDITOR).external_session_id)
            row = self.store.recover(connection, self.store.sessions.branch(connection, branch_id))
            if row.status == RUNNING:
                raise Conflict(f"Branch {row.name} is running. Make the checkpoint when its turn has ended.")
            expect_whole(row)
            point = self._standing(connection, row, files)
            made = self._point(connection, self.store.checkpoints.add(connection, row.id, point, label))
            with suppress(Corrupt):  # what is damaged is no reason to lose this point
                self.store.texts.follow(connection, row.id)
            return made, retention.automatic(connection, self.store, row.external_session_id)

        made, thinned = self.store.database.write(write, durable=True)
        if thinned:
            self._engine().files.release()
        return self.views.checkpoint(made)

    def _branch(self, session: SessionRef, branch: BranchRef, needs: Role = EDITOR) -> Found:
        return self._read(lambda c: self.lookup.branch(c, self.lookup.session(c, session, needs), branch))

    def _admitted(self, connection: Connection, branch_id: int, needs: Role = VIEWER) -> Found:
        """Read a branch of a session where the principal still has that role."""
        row = self.store.sessions.branch(connection, branch_id)
        self.lookup.admit(connection, row.external_session_id, needs)
        return row

    def _point(self, connection: Connection, checkpoint_id: int) -> Found:
        return self.store.checkpoints.by_id(connection, checkpoint_id)

    def _files(self, branch: Found, why: str) -> FilesAt | None:
        """Keep the files of a session's workspace as they are now; None if it has none."""
        try:
            return self._engine().files.take(branch.external_session_id, why)
        except AgentGitError as error:
            raise Unavailable(
                f"Nothing was done. The files of the session cannot be kept: {str(error).rstrip('.')}. With "
                "files=False the point is saved without them."
            ) from error

    def _standing(self, connection: Connection, row: Found, files: FilesAt | None) -> Snapshot:
        """Return where a branch stands, and write down which files it has."""
        now = self.store.moment(connection, row).snapshot
        if files is None:
            return now
        return replace(now, workspace_snapshot_id=self.store.snapshots.see(connection, row, files))

    # -- branches

    def fork(
        self,
        to: CheckpointRef | None = None,
        session: SessionRef = None,
        *,
        branch: BranchRef = None,
        name: str | None = None,
        files: bool = True,
    ) -> InternalSession:
        """Make a branch without touching the world; the session stays where it is until somebody switches.

        Args:
            to: The point where it leaves, as `checkpoint` takes it; None is where the branch stands now.
            session: The session; None is the one that moved last.
            branch: The one that is left; None is the current one.
            name: The name of the new branch; None for the next one like `main-2`.
            files: False not to look at the files of the workspace now.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `checkpoint`.
            Conflict: There is a branch of that name.
            Unavailable: As `add_checkpoint`.
        """
        left = self._branch(session, branch)
        return self._leave(left.id, to, name, self._files(left, "fork") if files and to is None else None)

    def _leave(
        self, branch_id: int, to: CheckpointRef | None, name: str | None, files: FilesAt | None
    ) -> InternalSession:
        """Make a branch that leaves from another one.

        Args:
            branch_id: The id of the branch that is left.
            to: The point; None is where it stands now.
            name: The name of the new branch; None for a free one.
            files: Those of the workspace now, where it leaves from now.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `fork`.
        """

        def make(connection: Connection) -> InternalSession:
            left = self.store.sessions.branch(connection, branch_id)
            session = self.lookup.session(connection, left.external_session_id, EDITOR)
            self.store.sessions.lock(connection, session.id)
            if to is None:
                target = self._here(connection, branch_id, files)
            else:
                target = self.lookup.target(connection, session, left, to)[0]
            made = self._engine().fork(connection, target, name, branch_id, self.user.id)
            return self.views.branch(connection, session, self.store.sessions.branch(connection, made))

        return self.store.database.write(make, durable=True)

    def _here(self, connection: Connection, branch_id: int, files: FilesAt | None) -> Found:
        """Return the checkpoint where a branch stands, making one if there is none; while it runs, its head.

        Args:
            connection: A connection in a transaction that writes.
            branch_id: The id of the branch.
            files: Those of the workspace now; None if there are none.
        """
        row = self.store.recover(connection, self.store.sessions.branch(connection, branch_id))
        expect_whole(row)
        head = self._point(connection, row.head_id) if row.head_id else None
        now = self._standing(connection, row, files)
        if head is not None and (row.status == RUNNING or _stands_at(head, now)):
            return head
        label = Label(kind="after", user_id=self.user.id)
        return self._point(connection, self.store.checkpoints.add(connection, row.id, now, label))

    # -- one step back, and forth

    def undo(
        self, steps: int = 1, session: SessionRef = None, *, branch: BranchRef = None, force: bool = False
    ) -> RollbackReport:
        """Roll back to the newest checkpoint that differs from where a branch stands now.

        Args:
            steps: The number of such points to go back, at least 1.
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            force: As `rollback` takes it.

        Raises:
            NotFound: There are not so many.
            InvalidInput: `steps` is less than 1.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`.
        """
        row = self._branch(session, branch)
        return self.rollback(self._previous(row.id, steps), row.external_session_id, branch=row.id, force=force)

    def plan_undo(self, steps: int = 1, session: SessionRef = None, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `undo` would do, without doing anything.

        Args:
            steps: As `undo` takes it.
            session: The name or id of the session; None is the one that moved last.
            branch: The name or id of the branch; None is the current one.

        Raises:
            NotFound, InvalidInput: As `undo`.
        """
        row = self._branch(session, branch, VIEWER)
        return self.plan_rollback(self._previous(row.id, steps), row.external_session_id, branch=row.id)

    def _previous(self, branch_id: int, steps: int = 1) -> int:
        """Find the checkpoint that lies so many different points back on a branch; give its id.

        Raises:
            NotFound, InvalidInput: As `undo`.
        """
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"undo({steps!r}) means nothing; give a number of steps from 1.")
        with self.store.database.reading() as connection:
            row = self._admitted(connection, branch_id)
            now = self.store.moment(connection, row)
            files = self.store.snapshots.of_branch(connection, row)
            path = self.lookup.path(connection, row)
            names = self.store.snapshots.names(connection, [point.workspace_snapshot_id for point in path])
        last = files.snapshot if files is not None else None
        here = (_where(now.snapshot), last) if now.settled else None
        found = 0
        for point in reversed(path):
            # Where no workspace was attached, its files say nothing.
            there = (_where(point), names.get(point.workspace_snapshot_id, last))
            if there != here:
                here, found = there, found + 1
            if found == steps:
                return int(point.id)
        only = f"are {found} earlier checkpoints" if found > 1 else f"is {'one' if found else 'no'} earlier checkpoint"
        raise NotFound(f"There {only} on this branch to go back to. agent.checkpoint() makes one.")

    def redo(self, session: SessionRef = None, *, branch: BranchRef = None, force: bool = False) -> RollbackReport:
        """Take back the last rollback: go on where the branch was that it left, with what it reversed run again.

        If files alone were brought back since the last turn, these are as before that again.

        Args:
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            force: As `switch` takes it.

        Raises:
            NotFound: There is nothing to take back.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `switch`.
        """
        row = self._branch(session, branch)
        rewound = self._rewound(row.id, force=force)
        if rewound is not None:
            return self._done(self._engine().run(rewound), conversation=False)
        report = self.switch(self._left_by(row.id), row.external_session_id, sync="world", force=force)
        assert report is not None  # noqa: S101  # a switch that moves the world has one
        return report

    def plan_redo(self, session: SessionRef = None, *, branch: BranchRef = None) -> RollbackPlan:
        """Return what `redo` would do, without doing anything.

        Args:
            session: As `redo` takes it.
            branch: The name or id of the branch; None is the current one.

        Raises:
            NotFound: There is nothing to take back.
        """
        row = self._branch(session, branch, VIEWER)
        rewound = self._rewound(row.id, VIEWER)
        if rewound is None:
            return self.plan_switch(self._left_by(row.id), row.external_session_id)
        return self._engine().plan(
            row.id, rewound.target, rewound.label, tools="keep", files=rewound.files, conversation=False
        )

    def _rewound(self, branch_id: int, needs: Role = EDITOR, *, force: bool = False) -> Request | None:
        """Return how to take back a rewind of files, if that is the last thing that was done on a branch."""

        def look(connection: Connection) -> Request | None:
            row = self.store.sessions.branch(connection, branch_id)
            session = self.lookup.session(connection, row.external_session_id, needs)
            made = self.store.operations.of_branches(connection, [branch_id])
            last = made[-1] if made else None
            if last is None or last.source_id != branch_id or last.status != DONE or (row.head_id or 0) > last.id:
                return None
            report = self._engine().reports.read(connection, last)
            wanted = as_object(last.request).get("files")
            if wanted is None or report.files is None or not report.files.safety or report.reversed or report.redone:
                return None
            at = FilesAt(snapshot=report.files.safety, settings=wanted["settings"]).brought()
            return Request(
                user_id=self.user.id,
                source_id=branch_id,
                label="before the files were brought back",
                tools="keep",
                target=self.lookup.target(connection, session, row, "HEAD")[0],
                files=at,
                conversation=False,
                force=force,
            )

        return self._read(look)

    def _left_by(self, branch_id: int) -> int:
        """Return the id of the branch that was left by the rollback that made this one.

        Raises:
            NotFound: No rollback made it.
        """
        made = self._read(lambda c: self.store.operations.of_branches(c, [self._admitted(c, branch_id).id]))
        if not made or made[0].kind != "rollback" or made[0].source_id == branch_id:
            raise NotFound("There is nothing to redo: no rollback made this branch.")
        return int(made[0].source_id)


def _stands_at(head: Found, now: Snapshot) -> bool:
    """Return whether a branch stands where its head was made, with the same files."""
    same = head.graph_checkpoint_id == now.graph_checkpoint_id and _where(head) == _where(now)
    return same and now.workspace_snapshot_id in (None, head.workspace_snapshot_id)


def _where(point: Found | Snapshot) -> tuple[bytes, int, bytes]:
    """Return a key that identifies a point: its state, its track, and what waits there."""
    return point.state_hash, point.position, point.pending or NO_WRITES
