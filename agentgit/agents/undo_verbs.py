"""The verbs that go one step back or forth: `undo`, `redo`, and what each would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentgit.auth.roles import EDITOR
from agentgit.effects import RollbackPlan
from agentgit.effects.files import FileChanges
from agentgit.rollback import Settle, wait
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


class UndoVerbs:
    """The methods of `RollbackAgent` that need no reference to a checkpoint."""

    @property
    def _stepping(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    def undo(self, steps: int = 1, *, force: bool = False) -> RollbackAgent:
        """Roll back to the newest checkpoint that differs from where the branch stands now.

        Args:
            steps: The number of such points to go back, at least 1.
            force: As `rollback` takes it.

        Raises:
            NotFound: There are not so many.
            InvalidInput: `steps` is less than 1.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`.
        """
        return self._stepping.rollback(self._at(steps), force=force)

    def plan_undo(self, steps: int = 1) -> RollbackPlan:
        """Return what `undo(steps)` would do, without doing anything.

        Raises:
            NotFound, InvalidInput: As `undo`.
        """
        return self._stepping.plan_rollback(self._at(steps))

    def _at(self, steps: int) -> int:
        return self._stepping.repository._previous(self._stepping.branch_id, steps)

    def rewind_files(self, restore_point: CheckpointRef, *, force: bool = False) -> FileChanges:
        """Bring the files back to what they were when the user said something; the conversation stays as it is.

        Args:
            restore_point: The id of the user's message, or any place that `rollback` takes.
            force: True to bring back files that others have changed since the last turn too.

        Raises:
            NotFound: No workspace is attached, or there is no such restore point.
            WorkspaceChanged: Somebody else has changed the files since the last turn; none was touched.
            RollbackIncomplete: They could not be brought back; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
        """
        agent = self._stepping
        return agent.repository.rewind_files(restore_point, agent._session_id, branch=agent.branch_id, force=force)

    def redo(self, *, force: bool = False) -> RollbackAgent:
        """Take back the last rollback: go on where the branch was that it left, with what it reversed run again.

        If files alone were brought back since the last turn, these are as before that again, and the agent stays.

        Args:
            force: As `switch` takes it.

        Raises:
            NotFound: There is nothing to take back.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `switch`.
        """
        return self._redo(wait, force=force)

    def plan_redo(self) -> RollbackPlan:
        """Return what `redo` would do, without doing anything.

        Raises:
            NotFound: There is nothing to take back.
        """
        agent = self._stepping
        return agent.repository.plan_redo(agent._session_id, branch=agent.branch_id)

    def _redo(self, settle: Settle, *, force: bool) -> RollbackAgent:
        self._stepping._expect_now(EDITOR)
        agent = self._stepping
        if agent.repository._rewound(agent.branch_id) is not None:  # of files alone: no tool runs
            agent.repository.redo(agent._session_id, branch=agent.branch_id, force=force)
            return agent
        left = agent.repository._left_by(agent.branch_id)
        return agent._on(left)._switch(left, settle, sync="world", force=force)
