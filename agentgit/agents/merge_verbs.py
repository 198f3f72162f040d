"""The methods of an agent that involve another branch: compare with it, merge it, cherry-pick from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection

from agentgit.agents.merge.base import Bases
from agentgit.agents.merge.cherry_pick import Picking
from agentgit.agents.merge.commit import Arriving
from agentgit.agents.merge.merge import Coming, Merge, counted
from agentgit.agents.merge.side import Side
from agentgit.auth.roles import EDITOR
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.errors import Conflict, InvalidInput, MergeConflict, NotFound
from agentgit.handles.comparison import What
from agentgit.rollback.crash_recovery import take_back_all
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import MERGED, named
from agentgit.store.records.sessions import Found
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Moment

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

PICKED = "picked"
"""The key in the data of a checkpoint that holds what was picked with it."""

TOLD = {MERGED: "merge.done", PICKED: "cherry_pick.done"}
"""The kind of event that the audit trail then records."""


class Carries:
    """The verbs of `RollbackAgent` that look at, or take from, another branch.

    Merging and picking need the graph: its reducers write what comes. They add a checkpoint to this branch; nothing is
    taken away, no tool runs, and what the other branch's tools did is history here and no effect of this branch.
    """

    @property
    def _carrying(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    def compare(self, other: CheckpointRef) -> Comparison:
        """Put this branch beside another one: what each did since they parted, and how they differ now.

        Args:
            other: A branch, or any place as `rollback` takes it.

        Raises:
            NotFound: Nothing is called so; or this branch has no checkpoint yet.
        """
        agent = self._carrying
        head = agent.head
        if head is None:
            raise NotFound("This branch has no checkpoint yet. agent.checkpoint() makes one.")
        return agent.repository.compare(head, other, agent._session_id)

    # -- merge

    def plan_merge(self, source: CheckpointRef, *, resolve: Resolve = None) -> MergePlan:
        """Return what `merge` would bring, and what stands against it, without doing anything.

        Args:
            source: As `merge` takes it.
            resolve: As `merge` takes it; functions are not called.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `merge`.
        """
        return self._merging(source, resolve)[0].plan

    def merge(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint:
        """Bring what another branch did since the two parted into this one: its messages, and the values it changed.

        A value that only one of them changed is taken from that one. Their new messages come behind ours, tool calls
        only with their results. No tool runs, and the files stay as they are: the world does not change. Merged again,
        only what is new comes.

        Args:
            source: The branch, or any place on it as `rollback` takes it; of a branch its newest checkpoint counts.
            resolve: What to do about values that both changed: `ours`, `theirs`, or a function that gets a `Clash` with
                `key`, `base`, `ours` and `theirs` and gives the value; or a mapping from keys to one of these, where
                `*` is every other key.
            name: The name of the checkpoint that is made.

        Returns:
            The checkpoint that is made; the head, if everything is here already.

        Raises:
            MergeConflict: Both changed a value, and `resolve` says nothing about it; its `plan` has them.
            Conflict: This branch is running, or in the middle of a turn, or was moved.
            NotFound, Ambiguous: As `rollback`.
            InvalidInput: `resolve` means nothing, or its function gives what cannot be.
        """
        self._carrying._expect_now(EDITOR)
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

    def _merging(self, source: CheckpointRef, resolve: Resolve) -> tuple[Coming, Found]:
        agent = self._carrying
        take_back_all(agent.store, agent._session_id)
        with agent._reading() as connection:
            here, moment = self._stands(connection)
            theirs, label = agent._target(connection, source)
            bases = self._bases(connection, here, theirs)
        *before, there = (self._side(row.thread_id, row.graph_checkpoint_id) for row in (*bases, theirs))
        since = " and ".join(f"{base.branch_name}#{base.number}" for base in bases)
        plan = MergePlan(kind="merge", source=label, into=here.name, base=since)
        coming = Coming(self._side(here.thread_id, moment.latest), plan, before[0].message_hashes)
        return Merge(before, there, coming, resolve).make(), theirs

    def _bases(self, connection: Connection, here: Found, theirs: Found) -> list[Found]:
        """Find what both sides are compared with: the newest that is behind both; or several."""
        if here.head_id is None:
            raise InvalidInput(f"Branch {here.name} has no checkpoint to merge behind. agent.checkpoint() makes one.")
        store = self._carrying.store
        (ours,) = store.checkpoints.find(connection, CHECKPOINT.c.id == here.head_id)
        bases = Bases(store).find(connection, ours, theirs)
        if not bases:
            raise InvalidInput("These are of two sessions, which never parted. cherry_pick() takes messages.")
        return bases

    # -- cherry-pick

    def plan_cherry_pick(self, what: What) -> MergePlan:
        """Return what `cherry_pick` would bring, without doing anything.

        Args:
            what: As `cherry_pick` takes it.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `cherry_pick`.
        """
        return self._picking(what).plan

    def cherry_pick(self, what: What, *, name: str | None = None) -> Checkpoint:
        """Bring chosen messages of other branches behind this one's; tool calls only with their results.

        No tool runs: the result of a tool call that comes is the recorded one.

        Args:
            what: A place: the messages that its checkpoint added to the one before. A list of message ids, as
                `history()` has them; a tool call brings its results along, and a result its call. Or a ToolInvocation:
                that call with its result, without those beside it.
            name: The name of the checkpoint that is made.

        Returns:
            The checkpoint that is made; the head, if everything is here already.

        Raises:
            NotFound: There is no such message, place or call.
            InvalidInput: It is none of these, or the graph's state has no messages.
            Conflict: This branch is running, or in the middle of a turn, or was moved; or nothing of it can come.
        """
        self._carrying._expect_now(EDITOR)
        return self._arrive(coming := self._picking(what), name, PICKED, counted(coming.plan))

    def _picking(self, what: What) -> Coming:
        agent = self._carrying
        take_back_all(agent.store, agent._session_id)
        with agent._reading() as connection:
            here, moment = self._stands(connection)
        picked = Picking(agent).find(what)
        plan = MergePlan(kind="cherry_pick", source=picked.label, into=here.name)
        coming = Coming(self._side(here.thread_id, moment.latest), plan)
        picked.come(coming)
        return coming

    # -- both

    def _stands(self, connection: Connection) -> tuple[Found, Moment]:
        if self._carrying._turn is not None:
            raise Conflict("This agent is running. Try again when its turn has ended.")
        return Arriving(self._carrying).stands(connection)

    def _side(self, thread: str, checkpoint_id: str | None) -> Side:
        agent = self._carrying
        return Side(agent._saver, agent.graph, thread, checkpoint_id)

    def _arrive(self, coming: Coming, name: str | None, how: str, facts: dict[str, Any]) -> Checkpoint:
        agent, plan = self._carrying, coming.plan
        label = named(agent.rules.user_id, name, plan.heading.partition(":")[0], {how: facts})
        if not plan.values and not plan.messages:
            if plan.left_out:
                raise Conflict(f"Nothing of {plan.source} can come: {plan.left_out[0].why}.")
            if agent.head is not None:
                return agent.head
        checkpoint_id, made = Arriving(agent).publish(coming, label, TOLD[how], facts)
        agent.seen, agent.late = made, ()
        return agent.repository.checkpoint(checkpoint_id)
