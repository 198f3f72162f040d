"""The last step of a merge or a cherry-pick: what comes is written by the graph's own reducers, then published.

It is written on a copy of where the branch stands, as `update_state` writes, by a node of our own that has no edges: so
no node, no tool and no condition of the graph runs. One transaction puts what came of it behind the branch, with a
checkpoint; killed before that, the branch is as before.
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
from agentgit.agents.isolation import by_itself
from agentgit.agents.merge.merge import IncomingChanges
from agentgit.errors import Conflict, Corrupt
from agentgit.langgraph_internals import ChannelWrite, ChannelWriteTupleEntry, PregelNode
from agentgit.rollback.crash_recovery import recover_abandoned
from agentgit.saver.saver import SQLModelSaver
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import note
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.sessions import Found, require_whole
from agentgit.store.store import Moment, snapshot_of
from agentgit.store.threads import staging
from agentgit.store.threads.graph_store import GraphKey, GraphStore
from agentgit.store.threads.pending_writes import NO_WRITES

WRITER = "agentgit"
"""The name of our node."""


class MergeCommit:
    """The arrival of a merge or a cherry-pick on a branch.

    Args:
        branch: The branch.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    def position(self, connection: Connection) -> tuple[Found, Moment]:
        """Return the row of the branch and the moment where it stands.

        Raises:
            Conflict: The branch is running, has moved, or is in the middle of a turn.
        """
        row = self.store.sessions.branch(connection, self.branch.branch_id)
        require_whole(row)
        if row.status == RUNNING:
            raise Conflict(f"Branch {row.name} is running. Wait for its turn to end, then try again.")
        moment = self.store.moment(connection, row)
        if moment.latest != self.branch.seen and row.head_id not in self.branch.late:
            raise Conflict(
                f"Branch {row.name} has moved since this agent last saw it. Nothing was changed. Look at its new head "
                f"with agent = agent.switch({row.name!r}), then try again.",
                head=row.head_id,
            )
        if not moment.settled:
            raise Conflict(
                f"Branch {row.name} is in the middle of a turn: a tool call waits for its result, or a question for "
                "its answer. Answer it or go on with agent.invoke(None), then try again."
            )
        return row, moment

    def publish(self, coming: IncomingChanges, label: Label, kind: str, facts: Mapping[str, Any]) -> tuple[int, str]:
        """Write what comes, and make a checkpoint of it; return its id, and the graph checkpoint it stands at.

        Args:
            coming: The changes that come.
            label: The label of the checkpoint.
            kind: The kind of event that the audit trail records.
            facts: The details that the audit trail records.

        Raises:
            Conflict: The branch moved meanwhile, or is in the middle of a turn; nothing was changed.
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
        """Write values on a copy of where the branch stands; give the id of the graph checkpoint."""
        # Of its own, without a memory of threads that are gone, and without the turn of an agent around it.
        graphs = GraphStore(self.store.tenant_id, self.store.compression, counts=False)
        saver = SQLModelSaver(self.store.database, tenant_id=self.store.tenant_id, graphs=graphs, sessions=True)
        saver.channels = self.branch.graph.channels
        if place is not None:
            self.store.database.write(lambda c: graphs.fork(c, place.thread, place.checkpoint_id, staged))
        writer = PregelNode(
            channels=[], triggers=[], writers=[ChannelWrite([ChannelWriteTupleEntry(mapper=lambda v: list(v.items()))])]
        )
        graph = self.branch.graph.copy({"checkpointer": saver, "nodes": {**self.branch.graph.nodes, WRITER: writer}})
        config: Any = {"configurable": {"thread_id": staged}}
        with by_itself():
            if graph.get_state(config).next:
                raise Conflict("The branch is in the middle of a turn. Go on with agent.invoke(None), then try again.")
            made = graph.update_state(config, values, WRITER)
            if not values.keys().isdisjoint(graph.trigger_to_nodes) and graph.get_state(config).next:
                made = graph.update_state(config, None, END)  # no node is to run for what only came along
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
            raise Conflict("A rollback is being done in this session. Wait until it ends, then try again.")
        row, moment = self.position(connection)
        if moment.latest != (place.checkpoint_id if place is not None else None):
            raise Conflict(f"Branch {row.name} has moved meanwhile. Nothing was changed; try again.")
        at = self.store.graphs.find(connection, GraphKey(staged, "", made))
        # Without the copy it was written on, it would have nothing of the branch.
        is_whole = place is None or self.store.graphs.find(connection, place._replace(thread=staged)) is not None
        if at is None or not is_whole or not staging.move_new(connection, self.store.tenant_id, staged, row.thread_id):
            raise Conflict("A collection of what imports have left took this away. Nothing was changed; try again.")
        files = self.store.snapshots.of_branch(connection, row)
        snapshot = snapshot_of(at, moment.snapshot.position, NO_WRITES)
        if files is not None:
            snapshot = replace(snapshot, workspace_snapshot_id=files.id)
        checkpoint_id = self.store.checkpoints.add(connection, row.id, snapshot, label)
        with suppress(Corrupt):  # what is damaged is no reason to lose what came
            self.store.texts.follow(connection, row.id)
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
