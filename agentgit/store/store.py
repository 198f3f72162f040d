"""The store of one tenant: its sessions, journal, operations and graph checkpoints in one database."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentgit.auth import Principal
from agentgit.effects import ToolInvocation
from agentgit.errors import Corrupt
from agentgit.sessions.messages import from_stored, unanswered
from agentgit.sessions.session import RUNNING
from agentgit.sessions.webhooks import WebhookHosts
from agentgit.store.audit.outbox import Outbox
from agentgit.store.audit.trail import Trail, note
from agentgit.store.database import Database
from agentgit.store.records.checkpoints import CheckpointStore, Snapshot, TagStore
from agentgit.store.records.journal import Journal, TrackPart
from agentgit.store.records.log import LogStore
from agentgit.store.records.login_attempts import LoginAttempts
from agentgit.store.records.operations import OperationStore
from agentgit.store.records.recorded_calls import RecordedCalls
from agentgit.store.records.session_access import MemberStore, VisibleSessions
from agentgit.store.records.sessions import SessionStore, StoredRow
from agentgit.store.records.users import ApiKeyStore, UserStore
from agentgit.store.records.workspace_snapshots import SnapshotReferences
from agentgit.store.records.world_log import WorldLog
from agentgit.store.search.index import SearchIndex
from agentgit.store.search.query import Search
from agentgit.store.sql import process
from agentgit.store.sql.postgres import EVERYBODY
from agentgit.store.threads.graph_rows import INTERRUPT, GraphKey
from agentgit.store.threads.graph_rows import GraphCheckpoint as At
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.pending_writes import NO_WRITES


@dataclass(frozen=True, kw_only=True)
class HeadState:
    """The current position of a branch.

    Args:
        snapshot: The state that a checkpoint made here refers to.
        latest: The newest graph checkpoint, even if the snapshot is an earlier one, before an unfinished batch.
        settled: True if no tool call waits for its result and no interrupt waits for its answer.
        last: The last message in the form that users see; empty if there is none.
        waiting: The AI message with tool calls that have no result, and the results that exist.
        batch: The number of the next batch of calls.
    """

    snapshot: Snapshot
    latest: str | None
    settled: bool
    last: Sequence[Mapping[str, Any]] = ()
    waiting: Sequence[Mapping[str, Any]] = ()
    batch: int = 0


class Store:
    """The data of one tenant.

    Args:
        database: An open database that has its tables.
        tenant_id: The tenant.
        compression: The compression of new values: `zlib`, `zstd` or `none`.
        webhook_hosts: The hosts that webhooks may be sent to besides public addresses.
    """

    def __init__(
        self,
        database: Database,
        tenant_id: int,
        compression: str = "zstd",
        webhook_hosts: WebhookHosts = WebhookHosts(),  # noqa: B008  # it is frozen
    ) -> None:
        self.database = database if database.tenant_id == tenant_id else database.bound(tenant_id)
        self.tenant_id = tenant_id
        self.compression = compression
        self.webhook_hosts = webhook_hosts
        self.users = UserStore(tenant_id)
        self.keys = ApiKeyStore(tenant_id)
        self.failures = LoginAttempts(tenant_id)
        self.members = MemberStore(tenant_id)
        self.visible = VisibleSessions(tenant_id)
        self.sessions = SessionStore(tenant_id, database.leases)
        self.checkpoints = CheckpointStore(tenant_id)
        self.journal = Journal(tenant_id)
        self.world = WorldLog(tenant_id, self.journal)
        self.fences = RecordedCalls(tenant_id, self.journal, self.world)
        self.operations = OperationStore(tenant_id, database.leases)
        self.snapshots = SnapshotReferences(tenant_id)
        self.graphs = GraphStore(tenant_id, compression)
        self.log = LogStore(tenant_id)
        self.trail = Trail(tenant_id)
        self.outbox = Outbox(tenant_id)
        self.tags = TagStore(tenant_id)
        self.texts = SearchIndex(tenant_id, self.sessions, self.graphs, names_only=database.seal is not None)
        self.search = Search(tenant_id, self.graphs)

    def of(self, principal: Principal) -> Store:
        """Return this store for a user. Its database shows the sessions that the user may see, and an admin all."""
        made = copy.copy(self)
        user_id = EVERYBODY if principal.user.is_admin else principal.user.id
        made.database = self.database.bound(self.tenant_id, user_id)
        return made

    def apart(self) -> Store:
        """Return this store with a separate `database`, which `seeing` can affect without affecting this one."""
        made = copy.copy(self)
        made.database = self.database.detached_copy()
        return made

    @property
    def all_users_database(self) -> Database:
        """The database with the data of all users of the tenant, even with row-level security."""
        return self.database.bound(self.tenant_id, EVERYBODY)

    @contextmanager
    def at_work(self) -> Iterator[str]:
        """Yield a name for one piece of work, which may take branches and operations until the block ends."""
        with process.owner() as name:
            try:
                yield name
            finally:
                if self.database.leases is not None:
                    self.database.leases.end(name)

    def track(self, connection: Connection, branch: StoredRow, position: int | None = None) -> list[ToolInvocation]:
        """Read the tool track of a branch from the root of the session.

        Args:
            branch: The row of the branch.
            position: The number of invocations; None for all.
        """
        return self.journal.track(connection, self.parts(connection, branch, position))

    def parts(self, connection: Connection, branch: StoredRow, position: int | None = None) -> list[TrackPart]:
        """Return the parts of the tool track of a branch, root first."""
        parts = [segment.track for segment in self.sessions.lineage(connection, branch)]
        if position is not None:
            parts[-1] = TrackPart(branch_id=branch.id, before=branch.inherited, count=position - branch.inherited)
        return parts

    def live_track(self, connection: Connection, branch: StoredRow) -> list[ToolInvocation]:
        """Read the tool track of a branch, followed by the calls that wait for an answer now."""
        track = self.track(connection, branch)
        return [*track, *self.journal.waiting(connection, branch.id, len(track))]

    def moment(self, connection: Connection, branch: StoredRow) -> HeadState:
        """Return the current position of a branch. See `request_position`."""
        return self.request_position(connection, branch.id, branch.thread_id)(branch)

    def request_position(
        self, connection: Connection, branch_id: int, thread_id: str
    ) -> Callable[[StoredRow], HeadState]:
        """Request the current position of a branch, and return a function that returns it for the branch's row.

        If the last batch of calls was never finished, the position is before that batch. This does not apply to a batch
        that waits for an answer (an interrupt), because a fork can continue it.

        Args:
            connection: Any open connection.
            branch_id: The branch.
            thread_id: The thread of the branch.
        """
        tally, stand = self.journal.tally(connection, branch_id), self.graphs.prefetch_newest(connection, thread_id)
        return lambda branch: self._moment(connection, branch, tally(), stand())

    def _moment(
        self, connection: Connection, branch: StoredRow, tally: tuple[int, int], stand: tuple[At | None, bool, bool]
    ) -> HeadState:
        (calls, batch), (at, asks, holds) = tally, stand
        position = branch.inherited + calls
        if at is None:
            return HeadState(snapshot=snapshot_of(None, position), latest=None, settled=True, batch=batch)
        latest, tail = at.place.checkpoint_id, self._tail(connection, at)
        waiting = unanswered(tail)
        if asks or not waiting:
            pending = self.graphs.pending(connection, at.place) if holds else NO_WRITES
            here, left = snapshot_of(at, position, pending), tail if waiting else ()
            return HeadState(snapshot=here, latest=latest, settled=not asks, last=tail[-1:], waiting=left, batch=batch)
        began = self.journal.last_batch(connection, branch.id, waiting)
        position = branch.inherited + self.journal.count(connection, branch.id, before_batch=began)
        before = snapshot_of(self._before(connection, at), position)
        return HeadState(snapshot=before, latest=latest, settled=False, waiting=tail, batch=batch)

    def _before(self, connection: Connection, at: At) -> At | None:
        """Return the newest graph checkpoint up to this one in which no tool call waits for its result."""
        found: At | None = at
        while found is not None and unanswered(self._tail(connection, found)):
            earlier = found.place._replace(checkpoint_id=found.parent_id) if found.parent_id else None
            found = self.graphs.find(connection, earlier) if earlier else None
        return found

    def pending(self, connection: Connection, branch: StoredRow, checkpoint_id: str | None) -> bytes | None:
        """Read the current pending writes at a graph checkpoint of a branch; None before the first one."""
        return self.graphs.pending(connection, GraphKey(branch.thread_id, "", checkpoint_id)) if checkpoint_id else None

    def is_interrupted(self, connection: Connection, at: At) -> bool:
        """Return whether a graph checkpoint waits for a person's answer."""
        return any(write.channel == INTERRUPT for write in self.graphs.writes(connection, at.place))

    def is_unfinished(self, connection: Connection, at: At) -> bool:
        """Return whether a tool call of a graph checkpoint has no result there."""
        return bool(self.unanswered(connection, at))

    def unanswered(self, connection: Connection, at: At) -> list[str]:
        """List the ids of the tool calls of a graph checkpoint that have no result there."""
        return unanswered(self._tail(connection, at))

    def last_message(self, connection: Connection, at: At) -> dict[str, Any] | None:
        """Return the last message of a graph checkpoint in the form that users see; None if there is none."""
        messages = self.graphs.messages_at(connection, at, 1)
        return from_stored(messages[0]) if messages else None

    def answered(self, connection: Connection, at: At) -> dict[str, Any] | None:
        """Return the AI message if the last messages are the results of all its tool calls; otherwise None."""
        tail = self._tail(connection, at)
        return tail[0] if len(tail) > 1 and not unanswered(tail) else None

    def _tail(self, connection: Connection, at: At) -> list[dict[str, Any]]:
        """Read the last message that is not a tool result, and the tool results after it."""
        last = 1
        while True:
            tail = [from_stored(message) for message in self.graphs.messages_at(connection, at, last)]
            starts = [n for n, message in enumerate(tail) if message["role"] != "tool"]
            if starts or len(tail) < last:
                return tail[starts[-1] :] if starts else tail
            last *= 8

    def recover(self, connection: Connection, branch: StoredRow) -> StoredRow:
        """Release a branch from a turn that has died or whose lease has ended. Its running calls become `unknown`."""
        if branch.status != RUNNING or not self.sessions.is_abandoned(connection, branch):
            return branch
        self.journal.abandon(connection, branch.id, branch.owner)
        self.sessions.release(connection, branch.id, branch.owner)
        note(connection, self.tenant_id, "turn.abandoned", branch_id=branch.id)
        return self.sessions.branch(connection, branch.id)

    def state(self, connection: Connection, thread_id: str, checkpoint_id: str | None) -> dict[str, Any]:
        """Read the state and the conversation at a graph checkpoint, as the fields of a value."""
        if checkpoint_id is None:
            return {"session_state": {}, "conversation_history": []}
        state, messages = self.graphs.read_state(connection, thread_id, checkpoint_id)
        return {"session_state": state, "conversation_history": [from_stored(m) for m in messages]}

    def verify_state(self, connection: Connection, branch: StoredRow, state_hash: bytes) -> None:
        """Check that a branch has the expected state.

        Raises:
            Corrupt: The branch has a different state.
        """
        head = self.graphs.head(connection, branch.thread_id)
        if (head.state_hash if head else b"") != state_hash:
            raise Corrupt(
                f"Branch {branch.name} does not have the state of the checkpoint it was made from. Run: agentgit fsck",
                row=f"internal_session {branch.id}",
            )


def snapshot_of(at: At | None, position: int, pending: bytes | None = None) -> Snapshot:
    """Return the snapshot for a checkpoint that is made at a graph checkpoint.

    Args:
        at: The graph checkpoint; None before the first one.
        position: The number of tool invocations before it.
        pending: The pending writes there; None if they are not known.
    """
    return Snapshot(
        graph_checkpoint_id=at.place.checkpoint_id if at else None,
        state_hash=at.state_hash if at else b"",
        position=position,
        message_count=at.message_count if at else 0,
        pending=pending if at else None,
    )
