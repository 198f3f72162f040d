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
from agentgit.agents.merge.merge import IncomingChanges, Merge, plan_summary
from agentgit.agents.merge.side import MergeBaseFinder, Side
from agentgit.auth.principal import EDITOR
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.errors import Conflict, Corrupt, InvalidInput, MergeConflict
from agentgit.langgraph_internals import ChannelWrite, ChannelWriteTupleEntry, PregelNode
from agentgit.rollback.crash_recovery import recover_abandoned, recover_all_abandoned
from agentgit.saver.saver import SQLModelSaver
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import record_event
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import MERGE_KEY, Label, named_label
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback, require_real
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import HeadState, checkpoint_state
from agentgit.store.threads import staging
from agentgit.store.threads.graph_store import GraphKey, GraphStore
from agentgit.store.threads.pending_writes import NO_WRITES

WRITER = "agentgit"
"""The name of the node that writes the changes."""


class MergeCommit:
    """The commit of a merge or a cherry-pick to a branch."""

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    def position(self, connection: Connection) -> tuple[StoredRow, HeadState]:
        """Return the row of the branch and the state of its head."""
        row = self.store.sessions.branch(connection, self.branch.branch_id)
        require_no_unfinished_rollback(row)
        require_real(row)
        if row.status == RUNNING:
            raise Conflict(f"Branch {row.name} is running. Wait for its turn to end, then try again.")
        head_state = self.store.head_state(connection, row)
        if head_state.latest_id != self.branch.seen_checkpoint_id and row.head_id not in self.branch.interrupted_heads:
            raise Conflict(
                f"Branch {row.name} has moved since this agent last saw it. Nothing was changed. "
                f"agent.switch({row.name!r}) returns an agent at its head.",
                head=row.head_id,
            )
        if not head_state.is_settled:
            raise Conflict(
                f"Branch {row.name} is in the middle of a turn: a tool call waits for its result, or a question for "
                "its answer. Answer it, or continue the turn with agent.invoke(None); then try again."
            )
        return row, head_state

    def commit(self, changes: IncomingChanges, label: Label, kind: str, facts: Mapping[str, Any]) -> tuple[int, str]:
        """Write the changes and create a checkpoint; return the id of it and of its graph checkpoint."""
        values = {key: value() for key, value in changes.updates.items()}
        graph_key = changes.ours.graph_key
        staging_thread = staging.staging_thread_id(self.branch.settings.user_id, WRITER, uuid4().hex)
        try:
            graph_checkpoint_id = self._write(staging_thread, graph_key, values)
            checkpoint_id = self.store.database.write(
                lambda connection: self._commit(
                    connection, staging_thread, graph_checkpoint_id, graph_key, label, kind, facts
                ),
                durable=True,
            )
            return checkpoint_id, graph_checkpoint_id
        finally:
            self.store.database.write(lambda connection: self.store.graphs.delete_thread(connection, staging_thread))

    def _write(self, staging_thread: str, graph_key: GraphKey | None, values: Mapping[str, Any]) -> str:
        """Write values to a copy of the branch's head; return the id of the new graph checkpoint."""
        # Separate instances: shared ones may cache deleted threads, or belong to the turn of a calling agent.
        graphs = GraphStore(self.store.tenant_id, self.store.compression, count_usage=False)
        saver = SQLModelSaver(self.store.database, tenant_id=self.store.tenant_id, graphs=graphs, sessions=True)
        saver.channels = self.branch.graph.channels
        graphs.owners.add(staging_thread, self.branch.session_id)

        def copy_head(connection: Connection, graph_key: GraphKey) -> None:
            graphs.blobs.of(self.branch.session_id).protect(connection)
            graphs.fork(connection, graph_key.thread, graph_key.checkpoint_id, staging_thread)

        if graph_key is not None:
            self.store.database.write(lambda connection: copy_head(connection, graph_key))
        writer = PregelNode(
            channels=[], triggers=[], writers=[ChannelWrite([ChannelWriteTupleEntry(mapper=lambda v: list(v.items()))])]
        )
        graph = self.branch.graph.copy({"checkpointer": saver, "nodes": {**self.branch.graph.nodes, WRITER: writer}})
        config: Any = {"configurable": {"thread_id": staging_thread}}
        with detached():
            if graph.get_state(config).next:
                raise Conflict("The branch is in the middle of a turn. First continue it with agent.invoke(None).")
            new_config = graph.update_state(config, values, WRITER)
            if not values.keys().isdisjoint(graph.trigger_to_nodes) and graph.get_state(config).next:
                new_config = graph.update_state(config, None, END)  # else the write would leave a node due to run
        return str(new_config["configurable"]["checkpoint_id"])

    def _commit(
        self,
        connection: Connection,
        staging_thread: str,
        graph_checkpoint_id: str,
        graph_key: GraphKey | None,
        label: Label,
        kind: str,
        facts: Mapping[str, Any],
    ) -> int:
        sessions = self.store.sessions
        self.branch.authorize(connection)
        sessions.lock(connection, self.branch.session_id)
        if recover_abandoned(self.store, connection, self.branch.session_id):
            raise Conflict("A rollback is in progress in this session. Wait until it ends, then try again.")
        row, head_state = self.position(connection)
        if head_state.latest_id != (graph_key.checkpoint_id if graph_key is not None else None):
            raise Conflict(f"Branch {row.name} has moved in the meantime. Nothing was changed; try again.")
        graph_checkpoint = self.store.graphs.find(connection, GraphKey(staging_thread, "", graph_checkpoint_id))
        # If the copy it is based on was removed, the result lacks the state of the branch.
        is_complete = (
            graph_key is None
            or self.store.graphs.find(connection, graph_key._replace(thread=staging_thread)) is not None
        )
        if (
            graph_checkpoint is None
            or not is_complete
            or not staging.move_new(
                connection, self.store.graphs.blobs, staging_thread, row.thread_id, row.external_session_id
            )
        ):
            raise Conflict("The cleanup of unfinished imports removed this. Nothing was changed; try again.")
        snapshot_row = self.store.snapshots.newest_of_branch(connection, row)
        snapshot = checkpoint_state(graph_checkpoint, head_state.checkpoint_state.position, NO_WRITES)
        if snapshot_row is not None:
            snapshot = replace(snapshot, workspace_snapshot_id=snapshot_row.id)
        checkpoint_id = self.store.checkpoints.add(connection, row.id, snapshot, label)
        with suppress(Corrupt):  # content too damaged to index must not prevent the merge
            self.store.search_index.index_next(connection, row.id)
        record_event(
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

AUDIT_KINDS = {MERGE_KEY: "merge.done", PICKED: "cherry_pick.done"}
"""The kind of event that the audit trail records."""


class Merger:
    """Merges and cherry-picks from other branches into one branch.

    Both need the graph, whose reducers write the changes. They add a checkpoint to the branch; nothing is removed and
    no tool runs. Tool calls of the other branch become part of the conversation, but not effects of this branch.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    # -- merge

    def plan_merge(self, source: CheckpointRef, resolve: Resolve) -> MergePlan:
        """Return what a merge would add, and the conflicts."""
        return self._compute_merge(source, resolve)[0].plan

    def merge(self, source: CheckpointRef, resolve: Resolve, name: str | None) -> int:
        """Merge, and return the id of the new checkpoint, or of the head if there is nothing to add."""
        self.branch.authorize_now(EDITOR)
        changes, their_row = self._compute_merge(source, resolve)
        if changes.plan.conflicts:
            keys = ", ".join(one.key for one in changes.plan.conflicts)
            raise MergeConflict(
                f"Nothing was changed. Both branches have changed {keys} since {changes.plan.base}. Choose which to "
                "keep: resolve='ours', 'theirs', a function, or a mapping from keys to these.",
                changes.plan,
            )
        data = {"checkpoint": their_row.id, **plan_summary(changes.plan)}
        return self._commit(changes, name, MERGE_KEY, data)

    def _compute_merge(self, source: CheckpointRef, resolve: Resolve) -> tuple[IncomingChanges, StoredRow]:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as connection:
            branch_row, head_state = self._position(connection)
            their_row, label = self.branch.target(connection, source)
            self.store.sessions.require_real_thread(connection, their_row.thread_id)
            bases = self._find_bases(connection, branch_row, their_row)
            session_name = self.branch.planner.name_session(connection, self.branch.session_id)
        *base_sides, their_side = (self._side_at(row.thread_id, row.graph_checkpoint_id) for row in (*bases, their_row))
        base_label = " and ".join(f"{base.branch_name}#{base.number}" for base in bases)
        plan = MergePlan(kind="merge", source=label, into=branch_row.name, base=base_label, session_name=session_name)
        changes = IncomingChanges(
            self._side_at(branch_row.thread_id, head_state.latest_id), plan, base_sides[0].message_hashes
        )
        return Merge(base_sides, their_side, changes, resolve).compute(), their_row

    def _find_bases(self, connection: Connection, branch_row: StoredRow, their_row: StoredRow) -> list[StoredRow]:
        """Find the merge bases: the newest checkpoints in the history of both sides."""
        if branch_row.head_id is None:
            raise InvalidInput(
                f"Branch {branch_row.name} has no checkpoint to merge into. Run a turn or create one first."
            )
        (our_row,) = self.store.checkpoints.find(connection, CHECKPOINT.c.id == branch_row.head_id)
        bases = MergeBaseFinder(self.store).find(connection, our_row, their_row)
        if not bases:
            raise InvalidInput("These are in two sessions without a common history. Cherry-pick instead.")
        return bases

    # -- cherry-pick

    def plan_cherry_pick(self, selection: CherryPickSelection) -> MergePlan:
        """Return what a cherry-pick would add."""
        return self._compute_pick(selection).plan

    def cherry_pick(self, selection: CherryPickSelection, name: str | None) -> int:
        """Cherry-pick, and return the id of the new checkpoint, or of the head if there is nothing to add."""
        self.branch.authorize_now(EDITOR)
        return self._commit(changes := self._compute_pick(selection), name, PICKED, plan_summary(changes.plan))

    def _compute_pick(self, selection: CherryPickSelection) -> IncomingChanges:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as connection:
            branch_row, head_state = self._position(connection)
            session_name = self.branch.planner.name_session(connection, self.branch.session_id)
        picked_messages = CherryPick(self.branch).find(selection)
        if picked_messages.side.graph_key is not None:
            with self.branch.reading() as connection:
                self.store.sessions.require_real_thread(connection, picked_messages.side.graph_key.thread)
        plan = MergePlan(
            kind="cherry_pick", source=picked_messages.label, into=branch_row.name, session_name=session_name
        )
        changes = IncomingChanges(self._side_at(branch_row.thread_id, head_state.latest_id), plan)
        picked_messages.add_to(changes)
        return changes

    # -- shared

    def _position(self, connection: Connection) -> tuple[StoredRow, HeadState]:
        return MergeCommit(self.branch).position(connection)

    def _side_at(self, thread: str, checkpoint_id: str | None) -> Side:
        return Side(self.branch.saver, self.branch.graph, thread, checkpoint_id)

    def _commit(self, changes: IncomingChanges, name: str | None, kind: str, facts: dict[str, Any]) -> int:
        branch, plan = self.branch, changes.plan
        label = named_label(branch.settings.user_id, name, plan.title, {kind: facts})
        if not plan.values and not plan.messages:
            if plan.left_out:
                raise Conflict(f"Nothing of {plan.source} can be added: {plan.left_out[0].why}.")
            with branch.reading() as connection:
                head = branch.row(connection).head_id
            if head is not None:
                return int(head)
        checkpoint_id, graph_checkpoint_id = MergeCommit(branch).commit(changes, label, AUDIT_KINDS[kind], facts)
        branch.seen_checkpoint_id, branch.interrupted_heads = graph_checkpoint_id, ()
        return checkpoint_id
