"""The verbs that go one step back or forth: `undo`, `redo`, and what each would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentgit.errors import InvalidInput, NotFound
from agentgit.rollback import Settle, wait
from agentgit.store.lookup import Place
from agentgit.tools import RollbackPlan
from agentgit.tools.files import FileChanges

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


class Steps:
    """What `RollbackAgent` can do without being told a place."""

    @property
    def _stepping(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    def undo(self, steps: int = 1, *, force: bool = False) -> RollbackAgent:
        """Roll back to the newest checkpoint that differs from where the branch stands now.

        Args:
            steps: how many such points to go back, at least 1.
            force: as `rollback` takes it.

        Raises:
            NotFound: there are not so many.
            InvalidInput: `steps` is less than 1.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: as `rollback`.
        """
        return self._stepping.rollback(self._previous(steps), force=force)

    def plan_undo(self, steps: int = 1) -> RollbackPlan:
        """Tell what `undo(steps)` would do, without doing anything.

        Raises:
            NotFound, InvalidInput: as `undo`.
        """
        return self._stepping.plan_rollback(self._previous(steps))

    def _previous(self, steps: int = 1) -> int:
        """Find the checkpoint that lies so many different points back."""
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"undo({steps!r}) means nothing; give a number of steps from 1.")
        agent = self._stepping
        with agent.store.database.reading() as connection:
            row = agent._row(connection)
            now = agent.store.moment(connection, row)
            files = agent.store.snapshots.of_branch(connection, row)
            path = agent.repository.lookup.path(connection, row)
            names = agent.store.snapshots.names(connection, [point.workspace_snapshot_id for point in path])
            last = files.snapshot if files is not None else None
            here = (now.snapshot.state_hash, now.snapshot.position, last) if now.settled else None
            found = 0
            for point in reversed(path):
                # Where no workspace was attached, its files say nothing.
                there = (point.state_hash, point.position, names.get(point.workspace_snapshot_id, last))
                if there != here:
                    here, found = there, found + 1
                if found == steps:
                    return int(point.id)
        only = f"{found} earlier checkpoint{'' if found == 1 else 's'}" if found else "no earlier checkpoint"
        raise NotFound(f"There is {only} on this branch to go back to. agent.checkpoint() makes one.")

    def rewind_files(self, restore_point: Place, *, force: bool = False) -> FileChanges:
        """Bring the files back to what they were when the user said something; the conversation stays as it is.

        Args:
            restore_point: the id of the user's message, or any place that `rollback` takes.
            force: True to bring back files that others have changed since the last turn too.

        Raises:
            NotFound: no workspace is attached, or there is no such restore point.
            WorkspaceChanged: somebody else has changed the files since the last turn; none was touched.
            RollbackIncomplete: they could not be brought back; `repo.resume(operation)` goes on from there.
            Conflict: the branch is running.
        """
        agent = self._stepping
        return agent.repository.rewind_files(restore_point, agent._session_id, branch=agent.branch_id, force=force)

    def redo(self, *, force: bool = False) -> RollbackAgent:
        """Take back the rollback that made this branch: go on where it left, with what it reversed run again.

        Args:
            force: as `switch` takes it.

        Raises:
            NotFound: no rollback made this branch.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: as `switch`.
        """
        return self._redo(wait, force=force)

    def plan_redo(self) -> RollbackPlan:
        """Tell what `redo` would do, without doing anything.

        Raises:
            NotFound: no rollback made this branch.
        """
        return self._stepping.plan_switch(self._left())

    def _redo(self, settle: Settle, *, force: bool) -> RollbackAgent:
        left = self._left()
        return self._stepping._on(left)._switch(left, settle, sync="world", force=force)

    def _left(self) -> int:
        """Find the branch that was left by the rollback that made this one."""
        agent = self._stepping
        with agent.store.database.reading() as connection:
            made = agent.store.operations.of_branches(connection, [agent.branch_id])
        if not made or made[0].kind != "rollback" or made[0].source_id == agent.branch_id:
            raise NotFound("There is nothing to redo: no rollback made this branch.")
        return int(made[0].source_id)
