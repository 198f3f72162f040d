"""The store of one tenant: its sessions, its journal, its operations and its graph checkpoints, in one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentgit.errors import Corrupt
from agentgit.sessions.history import from_stored, unanswered
from agentgit.sessions.session import RUNNING
from agentgit.store import owners
from agentgit.store.checkpoints import Checkpoints, Snapshot
from agentgit.store.database import Database
from agentgit.store.graph import GraphStore
from agentgit.store.graph_rows import INTERRUPT, Head, Place
from agentgit.store.journal import Journal, Part
from agentgit.store.operations import Operations
from agentgit.store.sessions import Found, Sessions
from agentgit.tools import ToolInvocation

NO_STATE = Head(checkpoint_id="", state_hash=b"", message_count=0)
"""What a branch looks like before its first turn."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a branch stands now.

    Args:
        snapshot: what a checkpoint made here points at.
        latest: the newest graph checkpoint, also where the snapshot had to go back behind an unfinished batch.
        settled: True if nothing waits: no tool call for its result, no interrupt for its answer.
    """

    snapshot: Snapshot
    latest: str | None
    settled: bool


class Store:
    """Everything of one tenant.

    Args:
        database: an open one that has its tables.
        tenant_id: whose.
    """

    def __init__(self, database: Database, tenant_id: int) -> None:
        self.database = database
        self.tenant_id = tenant_id
        self.sessions = Sessions(tenant_id)
        self.checkpoints = Checkpoints(tenant_id)
        self.journal = Journal(tenant_id)
        self.operations = Operations(tenant_id)
        self.graphs = GraphStore(tenant_id)

    def track(self, connection: Connection, branch: Found, position: int | None = None) -> list[ToolInvocation]:
        """Read the tool track of a branch from the root of the session.

        Args:
            branch: its row.
            position: how many invocations; None for all.
        """
        parts = [segment.track for segment in self.sessions.lineage(connection, branch)]
        if position is not None:
            parts[-1] = Part(branch_id=branch.id, before=branch.inherited, count=position - branch.inherited)
        return self.journal.track(connection, parts)

    def moment(self, connection: Connection, branch: Found) -> Moment:
        """Look where a branch stands, stepping back behind a batch of tool calls that was never finished.

        A batch that waits for an answer (an interrupt) is not stepped behind: it goes on rightly from a fork.
        """
        thread, head = branch.thread_id, self.graphs.head(connection, branch.thread_id)
        position = branch.inherited + self.journal.count(connection, branch.id)
        if head is None:
            return Moment(snapshot=_snapshot(None, position), latest=None, settled=True)
        latest = head.checkpoint_id
        if self.is_interrupted(connection, thread, latest):
            return Moment(snapshot=_snapshot(head, position), latest=latest, settled=False)
        waiting = self.waiting(connection, thread, latest)
        if not waiting:
            return Moment(snapshot=_snapshot(head, position), latest=latest, settled=True)
        began = self.journal.last_batch(connection, branch.id, waiting)
        position = branch.inherited + self.journal.count(connection, branch.id, before_batch=began)
        before = self._before(connection, thread, latest)
        return Moment(snapshot=_snapshot(before, position), latest=latest, settled=False)

    def _before(self, connection: Connection, thread_id: str, checkpoint_id: str) -> Head | None:
        """Find the newest graph checkpoint before this one in which no tool call waits for its result."""
        at = self.graphs.find(connection, Place(thread_id, "", checkpoint_id))
        while at is not None and self.waiting(connection, thread_id, at.place.checkpoint_id):
            at = self.graphs.find(connection, at.place._replace(checkpoint_id=at.parent_id)) if at.parent_id else None
        return self.graphs.snapshot(connection, thread_id, at.place.checkpoint_id) if at is not None else None

    def is_interrupted(self, connection: Connection, thread_id: str, checkpoint_id: str) -> bool:
        """Tell whether a graph checkpoint waits for a person's answer."""
        pending = self.graphs.writes(connection, Place(thread_id, "", checkpoint_id))
        return any(write.channel == INTERRUPT for write in pending)

    def waiting(self, connection: Connection, thread_id: str, checkpoint_id: str) -> list[str]:
        """List the tool calls that wait for their results at a graph checkpoint."""
        return unanswered(self._tail(connection, thread_id, checkpoint_id))

    def answered(self, connection: Connection, thread_id: str, checkpoint_id: str) -> list[str]:
        """List the tool calls whose results came last, if none of their batch still waits; else nothing."""
        tail = self._tail(connection, thread_id, checkpoint_id)
        return [] if unanswered(tail) else [message["tool_call_id"] for message in tail if message["role"] == "tool"]

    def _tail(self, connection: Connection, thread_id: str, checkpoint_id: str) -> list[dict[str, Any]]:
        """Read the last message that is no result of a tool, and the results after it."""
        last = 1
        while True:
            stored = self.graphs.messages(connection, thread_id, checkpoint_id, last=last)
            tail = [from_stored(message) for message in stored]
            starts = [n for n, message in enumerate(tail) if message["role"] != "tool"]
            if starts or len(tail) < last:
                return tail[starts[-1] :] if starts else tail
            last *= 8

    def recover(self, connection: Connection, branch: Found) -> Found:
        """Take a branch back from a turn whose process has died; what it was calling is unknown from now on."""
        if branch.status != RUNNING or owners.is_alive(branch.owner):
            return branch
        self.journal.abandon(connection, branch.id, branch.owner)
        self.sessions.release(connection, branch.id, branch.owner)
        return self.sessions.branch(connection, branch.id)

    def state(self, connection: Connection, thread_id: str, checkpoint_id: str | None) -> dict[str, Any]:
        """Read the state and the conversation at a graph checkpoint, as a value's large fields have them."""
        if checkpoint_id is None:
            return {"session_state": {}, "conversation_history": []}
        state, messages = self.graphs.read_state(connection, thread_id, checkpoint_id)
        return {"session_state": state, "conversation_history": [from_stored(m) for m in messages]}

    def sure(self, connection: Connection, branch: Found, state_hash: bytes) -> None:
        """Make sure that a branch stands where it should.

        Raises:
            Corrupt: its state is another one.
        """
        head = self.graphs.head(connection, branch.thread_id) or NO_STATE
        if head.state_hash != state_hash:
            raise Corrupt(
                f"Branch {branch.name} does not have the state of the checkpoint it was made from. Run: agentgit fsck",
                row=f"internal_session {branch.id}",
            )


def _snapshot(head: Head | None, position: int) -> Snapshot:
    at = head or NO_STATE
    return Snapshot(
        graph_checkpoint_id=at.checkpoint_id or None,
        state_hash=at.state_hash,
        position=position,
        message_count=at.message_count,
    )
