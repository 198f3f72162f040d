"""Handles on the checkpoints of a session, with the actions on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgit.handles.session import Session

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.comparison import Comparison
    from agentgit.checkpoints.diff import Diff
    from agentgit.effects import RollbackPlan, RollbackReport
    from agentgit.rollback.request import ConfirmedPlan
    from agentgit.store.queries.lookup import CheckpointRef


class TreeHandles:
    def __init__(self, session: Session, agent: RollbackAgent | None) -> None:
        self.session = session
        self.agent = agent

    @property
    def branch_id(self) -> int | None:
        """The id of the branch that the next action starts from; None for the current one."""
        return self.agent.branch_id if self.agent is not None else None

    def __getitem__(self, ref: CheckpointRef) -> CheckpointHandle:
        """Return the handle of a checkpoint, in any form that `Session` lists. A branch is its newest checkpoint."""
        return CheckpointHandle(self, self.session.get_checkpoint(ref, branch=self.branch_id))


class CheckpointHandle:
    """A checkpoint of a tree, with the actions on it.

    Args:
        browser: The tree.
        checkpoint: The checkpoint.
    """

    def __init__(self, browser: TreeHandles, checkpoint: Checkpoint) -> None:
        self._browser = browser
        self.checkpoint = checkpoint

    @property
    def id(self) -> int:
        """The id of the checkpoint."""
        return self.checkpoint.id or 0

    @property
    def reference(self) -> str:
        """The reference of the checkpoint, like `main#3`."""
        return str(self.checkpoint.metadata["reference"])

    @property
    def branch(self) -> str:
        """The name of the branch on which it was made."""
        return str(self.checkpoint.metadata["branch"])

    def __repr__(self) -> str:
        return f"<{self.reference} of session {self._browser.session.reference}: {self.checkpoint.get_summary()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.checkpoint._repr_mimebundle_(include, exclude)

    def plan_rollback(self, **options: Any) -> RollbackPlan:
        """Return what `rollback` would do, without doing anything.

        Args:
            options: `tools`, `files`, `conversation` and `replay`, as for `Session.plan_rollback`.
        """
        return self._browser.session.plan_rollback(self.id, branch=self._browser.branch_id, **options)

    def rollback(self, **options: Any) -> RollbackAgent | RollbackReport:
        """Roll back to the checkpoint on a new branch.

        Args:
            options: `tools`, `name`, `force`, `plan` and others, as for `Session.rollback`.

        Returns:
            The agent on the new branch; the report if the tree has no agent.

        Raises:
            RollbackBlocked, WorkspaceChanged, Unavailable, RollbackIncomplete, Conflict: As for `Session.rollback`.
        """
        if self._browser.agent is None:
            return self._browser.session.rollback(self.id, **options)
        return self._move(self._browser.agent.rollback(self.id, **options))

    def fork(self, name: str | None = None) -> RollbackAgent | RollbackReport:
        """Create a branch at the checkpoint without changing the world.

        Args:
            name: The name of the branch; None for the next free one.

        Returns:
            The agent on the new branch; the report if the tree has no agent.

        Raises:
            Conflict: A branch of that name exists.
        """
        if self._browser.agent is None:
            return self._browser.session.fork(self.id, name=name)
        return self._move(self._browser.agent.fork(self.id, name=name))

    def switch(
        self, sync: str | None = None, *, force: bool = False, plan: ConfirmedPlan = None
    ) -> RollbackAgent | RollbackReport:
        """Switch to the branch of the checkpoint, at its newest checkpoint.

        Args:
            sync: What to do about a world that another branch changed, as for `Session.switch`.
            force: True to keep effects that cannot be reversed or repeated.
            plan: The plan that was confirmed, as for `Session.switch`.

        Returns:
            The agent on that branch; the report if the tree has no agent.

        Raises:
            PlanChanged, RollbackBlocked, RollbackIncomplete, Conflict: As for `Session.switch`.
        """
        branch_id = self.checkpoint.internal_session_id
        if self._browser.agent is None:
            return self._browser.session.switch(branch_id, sync, force=force, plan=plan)
        return self._move(self._browser.agent.switch(branch_id, sync, force=force, plan=plan))

    def compare(self, other: CheckpointHandle | CheckpointRef = "HEAD") -> Comparison:
        """Compare it with another checkpoint: what each branch did since they diverged.

        Args:
            other: A handle or a reference.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.get_checkpoint`.
        """
        return self._browser.session.compare(self.id, self._find(other))

    def diff(self, other: CheckpointHandle | CheckpointRef = "HEAD") -> Diff:
        """Return what changed from this checkpoint to another one.

        Args:
            other: A handle or a reference.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.get_checkpoint`.
        """
        return self._browser.session.diff(self.id, self._find(other))

    def _find(self, other: CheckpointHandle | CheckpointRef) -> int:
        return other.id if isinstance(other, CheckpointHandle) else self._browser[other].id

    def _move(self, agent: RollbackAgent) -> RollbackAgent:
        self._browser.agent = agent
        return agent
