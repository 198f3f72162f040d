"""Merging and cherry-picking: what comes from another branch, and its arrival on this one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.merge.base import Bases
from agentgit.agents.merge.cherry_pick import CherryPick, What
from agentgit.agents.merge.commit import MergeCommit
from agentgit.agents.merge.merge import IncomingChanges, Merge, counted
from agentgit.agents.merge.side import Side
from agentgit.auth.roles import EDITOR
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.errors import Conflict, InvalidInput, MergeConflict
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import MERGED, named
from agentgit.store.records.sessions import Found
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Moment

PICKED = "picked"
"""The key in the data of a checkpoint that holds what was picked with it."""

TOLD = {MERGED: "merge.done", PICKED: "cherry_pick.done"}
"""The kind of event that the audit trail then records."""


class Merging:
    """Brings to a branch what another one did.

    Merging and picking need the graph: its reducers write what comes. They add a checkpoint to this branch; nothing is
    taken away, no tool runs, and what the other branch's tools did is history here and no effect of this branch.

    Args:
        branch: The branch that it comes to.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    # -- merge

    def plan_merge(self, source: CheckpointRef, resolve: Resolve) -> MergePlan:
        """Return what a merge would bring, and what stands against it.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.merge`.
        """
        return self._merging(source, resolve)[0].plan

    def merge(self, source: CheckpointRef, resolve: Resolve, name: str | None) -> int:
        """Merge, and return the id of the checkpoint that was made.

        Raises:
            MergeConflict, NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.merge`.
        """
        self.branch.authorize_now(EDITOR)
        coming, theirs = self._merging(source, resolve)
        if coming.plan.conflicts:
            keys = ", ".join(one.key for one in coming.plan.conflicts)
            raise MergeConflict(
                f"Nothing was changed. Both branches have changed {keys} since {coming.plan.base}. Say which one is to "
                "stay: resolve='ours', 'theirs', a function, or a mapping from keys to these.",
                coming.plan,
            )
        data = {"checkpoint": theirs.id, **counted(coming.plan)}
        return self._arrive(coming, name, MERGED, data)

    def _merging(self, source: CheckpointRef, resolve: Resolve) -> tuple[IncomingChanges, Found]:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as connection:
            here, moment = self._position(connection)
            theirs, label = self.branch.target(connection, source)
            bases = self._bases(connection, here, theirs)
        *before, there = (self._side(row.thread_id, row.graph_checkpoint_id) for row in (*bases, theirs))
        since = " and ".join(f"{base.branch_name}#{base.number}" for base in bases)
        plan = MergePlan(kind="merge", source=label, into=here.name, base=since)
        coming = IncomingChanges(self._side(here.thread_id, moment.latest), plan, before[0].message_hashes)
        return Merge(before, there, coming, resolve).make(), theirs

    def _bases(self, connection: Connection, here: Found, theirs: Found) -> list[Found]:
        """Find what both sides are compared with: the newest that is behind both; or several."""
        if here.head_id is None:
            raise InvalidInput(f"Branch {here.name} has no checkpoint to merge behind. agent.checkpoint() makes one.")
        (ours,) = self.store.checkpoints.find(connection, CHECKPOINT.c.id == here.head_id)
        bases = Bases(self.store).find(connection, ours, theirs)
        if not bases:
            raise InvalidInput("These are of two sessions, which never parted. cherry_pick() takes messages.")
        return bases

    # -- cherry-pick

    def plan_cherry_pick(self, what: What) -> MergePlan:
        """Return what a cherry-pick would bring.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.cherry_pick`.
        """
        return self._picking(what).plan

    def cherry_pick(self, what: What, name: str | None) -> int:
        """Cherry-pick, and return the id of the checkpoint that was made.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.cherry_pick`.
        """
        self.branch.authorize_now(EDITOR)
        return self._arrive(coming := self._picking(what), name, PICKED, counted(coming.plan))

    def _picking(self, what: What) -> IncomingChanges:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as connection:
            here, moment = self._position(connection)
        picked = CherryPick(self.branch).find(what)
        plan = MergePlan(kind="cherry_pick", source=picked.label, into=here.name)
        coming = IncomingChanges(self._side(here.thread_id, moment.latest), plan)
        picked.come(coming)
        return coming

    # -- both

    def _position(self, connection: Connection) -> tuple[Found, Moment]:
        return MergeCommit(self.branch).position(connection)

    def _side(self, thread: str, checkpoint_id: str | None) -> Side:
        return Side(self.branch.saver, self.branch.graph, thread, checkpoint_id)

    def _arrive(self, coming: IncomingChanges, name: str | None, how: str, facts: dict[str, Any]) -> int:
        branch, plan = self.branch, coming.plan
        label = named(branch.settings.user_id, name, plan.heading.partition(":")[0], {how: facts})
        if not plan.values and not plan.messages:
            if plan.left_out:
                raise Conflict(f"Nothing of {plan.source} can come: {plan.left_out[0].why}.")
            with branch.reading() as connection:
                head = branch.row(connection).head_id
            if head is not None:
                return int(head)
        checkpoint_id, made = MergeCommit(branch).publish(coming, label, TOLD[how], facts)
        branch.seen, branch.late = made, ()
        return checkpoint_id
