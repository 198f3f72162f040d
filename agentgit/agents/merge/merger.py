"""Merge and cherry-pick: finding the changes of another branch, and committing them to this one.

The commit first writes the changes to a copy of the branch's head, through the graph's reducers, as `update_state`
does. An extra node without edges makes the write, so no node, tool or condition of the graph runs. Then one
transaction appends the result to the branch with a checkpoint. If the process dies before that, the branch is
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from langgraph.constants import END
from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.isolation import detached
from agentgit.agents.merge.cherry_pick import CherryPick, CherryPickSelection
from agentgit.agents.merge.merge import IncomingChanges, Merge, counted
from agentgit.agents.merge.side import Bases, Side
from agentgit.auth.principal import EDITOR
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.errors import Conflict, Corrupt, InvalidInput, MergeConflict
from agentgit.langgraph_internals import ChannelWrite, ChannelWriteTupleEntry, PregelNode
from agentgit.rollback.crash_recovery import recover_abandoned, recover_all_abandoned
from agentgit.saver.saver import SQLModelSaver
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import note
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import MERGED, Label, named_label
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import HeadState, snapshot_of
from agentgit.store.threads import staging
from agentgit.store.threads.graph_store import GraphKey, GraphStore
from agentgit.store.threads.pending_writes import NO_WRITES

WRITER = "agentgit"
"""The name of the node that writes the changes."""


class MergeCommit:
    """The commit of a merge or a cherry-pick to a branch.

    Args:
        branch: The branch.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    def position(self, connection: Connection) -> tuple[StoredRow, HeadState]:
        """Return the row of the branch and the state of its head.

        Raises:
            Conflict: The branch is running, has moved, or is in the middle of a turn.
        """
        row = self.store.sessions.branch(connection, self.branch.branch_id)
        require_no_unfinished_rollback(row)
        if row.status == RUNNING:
            raise Conflict(f"Branch {row.name} is running. Wait for its turn to end, then try again.")
        moment = self.store.moment(connection, row)
        if moment.latest != self.branch.seen and row.head_id not in self.branch.interrupted_heads:
            raise Conflict(
                f"Branch {row.name} has moved since this agent last saw it. Nothing was changed. Go to its new head "
                f"with agent = agent.switch({row.name!r}), then try again.",
                head=row.head_id,
            )
        if not moment.settled:
            raise Conflict(
                f"Branch {row.name} is in the middle of a turn: a tool call waits for its result, or a question for "
                "its answer. Answer it, or continue with agent.invoke(None); then try again."
            )
        return row, moment

    def publish(self, coming: IncomingChanges, label: Label, kind: str, facts: Mapping[str, Any]) -> tuple[int, str]:
        """Write the changes and create a checkpoint; return the id of it and of its graph checkpoint.

        Args:
            coming: The changes to write.
            label: The label of the checkpoint.
            kind: The kind of event that the audit trail records.
            facts: The details that the audit trail records.

        Raises:
            Conflict: The branch has moved in the meantime, or is in the middle of a turn; nothing was changed.
        """
        values = {key: value() for key, value in coming.updates.items()}
        place = coming.ours.place
        staged = staging.name(self.branch.settings.user_id, WRITER, uuid4().hex)
        try:
            made = self._write(staged, place, values)
            checkpoint_id = self.store.database.write(
                lambda connection: self._publish(connection, staged, made, place, label, kind, facts), durable=True
            )
            return checkpoint_id, made
        finally:
            self.store.database.write(lambda connection: self.store.graphs.delete_thread(connection, staged))

    def _write(self, staged: str, place: GraphKey | None, values: Mapping[str, Any]) -> str:
        """Write values to a copy of the branch's head; return the id of the new graph checkpoint."""
        # Separate instances: shared ones may cache deleted threads, or belong to the turn of a calling agent.
        graphs = GraphStore(self.store.tenant_id, self.store.compression, count_usage=False)
        saver = SQLModelSaver(self.store.database, tenant_id=self.store.tenant_id, graphs=graphs, sessions=True)
        saver.channels = self.branch.graph.channels
        if place is not None:
            self.store.database.write(lambda c: graphs.fork(c, place.thread, place.checkpoint_id, staged))
        writer = PregelNode(
            channels=[], triggers=[], writers=[ChannelWrite([ChannelWriteTupleEntry(mapper=lambda v: list(v.items()))])]
        )
        graph = self.branch.graph.copy({"checkpointer": saver, "nodes": {**self.branch.graph.nodes, WRITER: writer}})
        config: Any = {"configurable": {"thread_id": staged}}
        with detached():
            if graph.get_state(config).next:
                raise Conflict("The branch is in the middle of a turn. First continue with agent.invoke(None).")
            made = graph.update_state(config, values, WRITER)
            if not values.keys().isdisjoint(graph.trigger_to_nodes) and graph.get_state(config).next:
                made = graph.update_state(config, None, END)  # else the write would leave a node due to run
        return str(made["configurable"]["checkpoint_id"])

    def _publish(
        self,
        connection: Connection,
        staged: str,
        made: str,
        place: GraphKey | None,
        label: Label,
        kind: str,
        facts: Mapping[str, Any],
    ) -> int:
        sessions = self.store.sessions
        self.branch.authorize(connection)
        sessions.lock(connection, self.branch.session_id)
        if recover_abandoned(self.store, connection, self.branch.session_id):
            raise Conflict("A rollback is in progress in this session. Wait until it ends, then try again.")
        row, moment = self.position(connection)
        if moment.latest != (place.checkpoint_id if place is not None else None):
            raise Conflict(f"Branch {row.name} has moved in the meantime. Nothing was changed; try again.")
        at = self.store.graphs.find(connection, GraphKey(staged, "", made))
        # If the copy it is based on was removed, the result lacks the state of the branch.
        is_whole = place is None or self.store.graphs.find(connection, place._replace(thread=staged)) is not None
        if at is None or not is_whole or not staging.move_new(connection, self.store.tenant_id, staged, row.thread_id):
            raise Conflict("The cleanup of unfinished imports removed this. Nothing was changed; try again.")
        files = self.store.snapshots.of_branch(connection, row)
        snapshot = snapshot_of(at, moment.snapshot.position, NO_WRITES)
        if files is not None:
            snapshot = replace(snapshot, workspace_snapshot_id=files.id)
        checkpoint_id = self.store.checkpoints.add(connection, row.id, snapshot, label)
        with suppress(Corrupt):  # content too damaged to index must not prevent the merge
            self.store.texts.index_next(connection, row.id)
        note(
            connection,
            self.store.tenant_id,
            kind,
            branch_id=row.id,
            user_id=label.user_id,
            made=checkpoint_id,
            source=facts,
        )
        sessions.touch(connection, row.external_session_id)
        return checkpoint_id


PICKED = "picked"
"""The key in the data of a checkpoint that holds the summary of its cherry-pick."""

AUDIT_KINDS = {MERGED: "merge.done", PICKED: "cherry_pick.done"}
"""The kind of event that the audit trail records."""


class Merger:
    """Merges and cherry-picks from other branches into one branch.

    Both need the graph, whose reducers write the changes. They add a checkpoint to the branch; nothing is removed and
    no tool runs. Tool calls of the other branch become part of the conversation, but not effects of this branch.

    Args:
        branch: The branch that receives the changes.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    # -- merge

    def plan_merge(self, source: CheckpointRef, resolve: Resolve) -> MergePlan:
        """Return what a merge would add, and the conflicts.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.merge`.
        """
        return self._merging(source, resolve)[0].plan

    def merge(self, source: CheckpointRef, resolve: Resolve, name: str | None) -> int:
        """Merge, and return the id of the new checkpoint, or of the head if there is nothing to add.

        Raises:
            MergeConflict, NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.merge`.
        """
        self.branch.authorize_now(EDITOR)
        coming, theirs = self._merging(source, resolve)
        if coming.plan.conflicts:
            keys = ", ".join(one.key for one in coming.plan.conflicts)
            raise MergeConflict(
                f"Nothing was changed. Both branches have changed {keys} since {coming.plan.base}. Choose which to "
                "keep: resolve='ours', 'theirs', a function, or a mapping from keys to these.",
                coming.plan,
            )
        data = {"checkpoint": theirs.id, **counted(coming.plan)}
        return self._commit(coming, name, MERGED, data)

    def _merging(self, source: CheckpointRef, resolve: Resolve) -> tuple[IncomingChanges, StoredRow]:
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

    def _bases(self, connection: Connection, here: StoredRow, theirs: StoredRow) -> list[StoredRow]:
        """Find the merge bases: the newest checkpoints in the history of both sides."""
        if here.head_id is None:
            raise InvalidInput(f"Branch {here.name} has no checkpoint to merge into. agent.checkpoint() creates one.")
        (ours,) = self.store.checkpoints.find(connection, CHECKPOINT.c.id == here.head_id)
        bases = Bases(self.store).find(connection, ours, theirs)
        if not bases:
            raise InvalidInput("These are in two sessions without a common history. Use cherry_pick().")
        return bases

    # -- cherry-pick

    def plan_cherry_pick(self, what: CherryPickSelection) -> MergePlan:
        """Return what a cherry-pick would add.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.cherry_pick`.
        """
        return self._picking(what).plan

    def cherry_pick(self, what: CherryPickSelection, name: str | None) -> int:
        """Cherry-pick, and return the id of the new checkpoint, or of the head if there is nothing to add.

        Raises:
            NotFound, Ambiguous, InvalidInput, Conflict: As `RollbackAgent.cherry_pick`.
        """
        self.branch.authorize_now(EDITOR)
        return self._commit(coming := self._picking(what), name, PICKED, counted(coming.plan))

    def _picking(self, what: CherryPickSelection) -> IncomingChanges:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as connection:
            here, moment = self._position(connection)
        picked = CherryPick(self.branch).find(what)
        plan = MergePlan(kind="cherry_pick", source=picked.label, into=here.name)
        coming = IncomingChanges(self._side(here.thread_id, moment.latest), plan)
        picked.add_to(coming)
        return coming

    # -- shared

    def _position(self, connection: Connection) -> tuple[StoredRow, HeadState]:
        return MergeCommit(self.branch).position(connection)

    def _side(self, thread: str, checkpoint_id: str | None) -> Side:
        return Side(self.branch.saver, self.branch.graph, thread, checkpoint_id)

    def _commit(self, coming: IncomingChanges, name: str | None, how: str, facts: dict[str, Any]) -> int:
        branch, plan = self.branch, coming.plan
        label = named_label(branch.settings.user_id, name, plan.heading.partition(":")[0], {how: facts})
        if not plan.values and not plan.messages:
            if plan.left_out:
                raise Conflict(f"Nothing of {plan.source} can be added: {plan.left_out[0].why}.")
            with branch.reading() as connection:
                head = branch.row(connection).head_id
            if head is not None:
                return int(head)
        checkpoint_id, made = MergeCommit(branch).publish(coming, label, AUDIT_KINDS[how], facts)
        branch.seen, branch.interrupted_heads = made, ()
        return checkpoint_id
