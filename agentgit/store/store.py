"""The store: its sessions, journal, operations and graph checkpoints in one database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from agentgit.effects import ToolInvocation
from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.sessions.messages import from_stored, has_late_result, unanswered_calls
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import Trail, record_event
from agentgit.store.database import Database
from agentgit.store.records.checkpoints import CheckpointState, CheckpointStore, TagStore
from agentgit.store.records.encryption_keys import unlock
from agentgit.store.records.journal import CallTally, Journal, TrackPart
from agentgit.store.records.log import LogStore
from agentgit.store.records.operations import OperationStore
from agentgit.store.records.recorded_calls import RecordedCalls
from agentgit.store.records.session_access import MemberStore, VisibleSessions
from agentgit.store.records.sessions import SessionStore, StoredRow
from agentgit.store.records.turn_state import read_turn_state
from agentgit.store.records.users import ApiKeyStore, UserStore
from agentgit.store.records.workspace_snapshots import SnapshotReferences
from agentgit.store.records.world_log import WorldLog
from agentgit.store.schema import schema
from agentgit.store.search.index import SearchIndex
from agentgit.store.search.query import Search
from agentgit.store.sql import process
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import INTERRUPT, GraphCheckpoint, NewestState
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.pending_writes import NO_WRITES, TaskWrites, waiting


@dataclass(frozen=True, kw_only=True)
class HeadState:
    checkpoint_state: CheckpointState
    latest: GraphCheckpoint | None
    is_settled: bool
    last_messages: Sequence[Mapping[str, Any]] = ()
    unfinished_messages: Sequence[Mapping[str, Any]] = ()
    next_batch: int = 0

    @property
    def latest_id(self) -> str | None:
        return self.latest.key.checkpoint_id if self.latest is not None else None

    @property
    def is_at_latest(self) -> bool:
        """False if the newest graph checkpoint holds open calls, so that the position is before them."""
        return self.checkpoint_state.graph_checkpoint_id == self.latest_id


class Store:
    def __init__(
        self, database: Database, compression: str = "auto", exclude_metadata: frozenset[str] = frozenset()
    ) -> None:
        self.database = database
        self.compression = compression
        self.exclude_metadata = exclude_metadata
        self.users = UserStore()
        self.api_keys = ApiKeyStore()
        self.members = MemberStore()
        self.visible_sessions = VisibleSessions()
        self.sessions = SessionStore(database.leases)
        self.checkpoints = CheckpointStore()
        self.journal = Journal()
        self.world = WorldLog(self.journal)
        self.recorded_calls = RecordedCalls(self.journal, self.world)
        self.operations = OperationStore(database.leases)
        self.snapshots = SnapshotReferences()
        self.graphs = GraphStore(compression)
        self.log = LogStore()
        self.trail = Trail()
        self.tags = TagStore()
        self.search_index = SearchIndex(self.sessions, self.graphs, names_only=database.seal is not None)
        self.search = Search(self.graphs)

    @classmethod
    def open(cls, database: Database, *, create: bool = True, **settings: Any) -> Self:
        """Open the data. The tables are created or upgraded if needed."""
        if not create:
            database.require_file()
        schema.prepare(database)
        store = cls(database, **settings)
        unlock(store.database)
        if not database.is_sqlite:
            with database.reading() as transaction:
                is_restarted = store.trail.is_restarted(transaction)
            if is_restarted:  # after a restore into another server, so that readers of the feed go on
                database.write(store.trail.begin_epoch)
        return store

    @contextmanager
    def register_owner(self) -> Iterator[str]:
        """Yield a name for one piece of work, which may take branches and operations until the block ends."""
        with process.register_owner() as name:
            try:
                yield name
            finally:
                if self.database.leases is not None:
                    self.database.leases.stop_renewing(name)

    def track(self, transaction: Reading, branch: StoredRow, position: int | None = None) -> list[ToolInvocation]:
        """Read the tool track of a branch from the root of the session, as it was recorded."""
        return self.journal.track(transaction, self.track_parts(transaction, branch, position))

    def track_parts(self, transaction: Reading, branch: StoredRow, position: int | None = None) -> list[TrackPart]:
        """Return the parts of the tool track of a branch, root first."""
        parts = [segment.track_part for segment in self.sessions.lineage(transaction, branch)]
        if position is not None:
            parts[-1] = TrackPart(branch_id=branch.id, before=branch.inherited, count=position - branch.inherited)
        return parts

    def live_track(self, transaction: Reading, branch: StoredRow, position: int | None = None) -> list[ToolInvocation]:
        """Read the tool track of a branch as users see it: the newest run of each call; see `Journal.live_track`."""
        runs = self.journal.newest_runs(transaction, branch.external_session_id)
        return self.journal.live_track(transaction, runs, self.track_parts(transaction, branch, position))

    def calls_of(self, transaction: Reading, branch: StoredRow) -> list[ToolInvocation]:
        """Read the tool track of a branch as users see it, and then the calls that wait for an answer."""
        track = self.live_track(transaction, branch)
        return [*track, *self.journal.waiting_calls(transaction, branch.id, len(track))]

    def head_state(self, transaction: Reading, branch: StoredRow) -> HeadState:
        """Return the position of a branch: before its last batch if that was neither finished nor asks a person."""
        state = read_turn_state(transaction, branch.id)
        return self.head_state_of(transaction, branch, state.tally, state.newest)

    def head_state_of(
        self, transaction: Reading, branch: StoredRow, tally: CallTally, newest: NewestState
    ) -> HeadState:
        """Return the current position of a branch, as `head_state`, from what was already read."""
        (calls, batch), (graph_checkpoint, is_interrupted, has_writes) = tally, newest
        position = branch.inherited + calls
        if graph_checkpoint is None:
            return HeadState(
                checkpoint_state=checkpoint_state(None, position), latest=None, is_settled=True, next_batch=batch
            )
        tail = self._read_tail(transaction, graph_checkpoint)
        unanswered_ids = unanswered_calls(tail)
        if is_interrupted or not unanswered_ids:
            pending = pending_writes.read(transaction, graph_checkpoint.key) if has_writes else NO_WRITES
            if is_interrupted:
                is_interrupted = bool(self._waiting(transaction, graph_checkpoint, pending, unanswered_ids))
        if is_interrupted or not unanswered_ids:
            return HeadState(
                checkpoint_state=checkpoint_state(graph_checkpoint, position, pending),
                latest=graph_checkpoint,
                is_settled=not is_interrupted,
                last_messages=tail[-1:],
                unfinished_messages=tail if unanswered_ids or has_late_result(tail) else (),
                next_batch=batch,
            )
        unfinished_batch = self.journal.last_batch(transaction, branch.id, unanswered_ids)
        position = branch.inherited + self.journal.count(transaction, branch.id, before_batch=unfinished_batch)
        complete_state = checkpoint_state(self._last_complete(transaction, graph_checkpoint), position, NO_WRITES)
        open_calls = self.journal.track(transaction, self.track_parts(transaction, branch), skip=position)
        files_id = self.snapshots.found_by(transaction, branch, open_calls)
        return HeadState(
            checkpoint_state=replace(complete_state, workspace_snapshot_id=files_id),
            latest=graph_checkpoint,
            is_settled=False,
            unfinished_messages=tail,
            next_batch=batch,
        )

    def _last_complete(self, transaction: Reading, newest: GraphCheckpoint) -> GraphCheckpoint | None:
        """Return the newest graph checkpoint up to this one in which no tool call waits for its result."""
        candidate: GraphCheckpoint | None = newest
        while candidate is not None and self.unanswered(transaction, candidate):
            parent_key = candidate.key._replace(checkpoint_id=candidate.parent_id) if candidate.parent_id else None
            candidate = self.graphs.find(transaction, parent_key) if parent_key else None
        return candidate

    def asked(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> list[bytes]:
        """List the hashes of the questions of a graph checkpoint that wait for a person's answer."""
        pending = pending_writes.read(transaction, graph_checkpoint.key)
        tasks = self._waiting(transaction, graph_checkpoint, pending, self.unanswered(transaction, graph_checkpoint))
        # A @task and the task that called it ask one question.
        return list(dict.fromkeys(key for task in tasks for key in task.values(INTERRUPT)))

    def _waiting(
        self, transaction: Reading, graph_checkpoint: GraphCheckpoint, pending: bytes, unanswered_ids: Sequence[str]
    ) -> list[TaskWrites]:
        """List the tasks of a graph checkpoint that wait for an answer.

        If all open calls have ended, none waits: LangGraph loses what a task wrote that ends after another one failed.
        """
        tasks = waiting(pending, graph_checkpoint.key.checkpoint_id)
        thread = graph_checkpoint.key.thread
        has_ended = bool(tasks and unanswered_ids) and self.journal.have_ended(transaction, thread, unanswered_ids)
        return [] if has_ended else tasks

    def unanswered(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> list[str]:
        """List the ids of the tool calls of a graph checkpoint that have no result there."""
        return unanswered_calls(self._read_tail(transaction, graph_checkpoint))

    def last_message(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> dict[str, Any] | None:
        """Return the last message of a graph checkpoint in the form that users see; None if there is none."""
        messages = self.graphs.messages(transaction, graph_checkpoint, 1)
        return from_stored(messages[0]) if messages else None

    def answered_message(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> dict[str, Any] | None:
        """Return the AI message if the last messages are the results of all its tool calls; otherwise None."""
        tail = self._read_tail(transaction, graph_checkpoint)
        is_answered = len(tail) > 1 and tail[-1]["role"] == "tool" and not unanswered_calls(tail)
        return tail[0] if is_answered else None

    def _read_tail(self, transaction: Reading, graph_checkpoint: GraphCheckpoint) -> list[dict[str, Any]]:
        """Read the last message of the model, whose provider has accepted all before it, and what came after it."""
        count = 2
        while True:
            tail = [from_stored(message) for message in self.graphs.messages(transaction, graph_checkpoint, count)]
            start_indexes = [n for n, message in enumerate(tail) if message["role"] == "assistant"]
            if start_indexes or len(tail) < count:
                return tail[start_indexes[-1] :] if start_indexes else tail
            count *= 8

    def recover(self, transaction: Writing, branch: StoredRow) -> StoredRow:
        """Release a branch from a turn that has died or whose lease has ended. Its running calls become `unknown`."""
        if not self._is_run_abandoned(transaction, branch):
            return branch
        # A run whose lease has ended may still live, and be writing. Wait for that, because it counts as made in time.
        self.graphs.blobs.of(branch.external_session_id).lock(transaction)
        branch = self.sessions.branch(transaction, branch.id)
        if not self._is_run_abandoned(transaction, branch):
            return branch
        self.journal.abandon(transaction, branch.id, branch.owner)
        self.sessions.release_abandoned(transaction, branch)
        self.snapshots.record_crash(transaction, branch.external_session_id)
        record_event(transaction, "turn.abandoned", branch_id=branch.id)
        return self.sessions.branch(transaction, branch.id)

    def _is_run_abandoned(self, transaction: Reading, branch: StoredRow) -> bool:
        return branch.status == RUNNING and self.sessions.is_abandoned(transaction, branch)

    def read_state(self, transaction: Reading, thread_id: str, checkpoint_id: str | None) -> dict[str, Any]:
        """Read the state and the conversation at a graph checkpoint, as the fields of a value."""
        if checkpoint_id is None:
            return {"session_state": {}, "conversation_history": []}
        state, messages = self.graphs.read_state(transaction, thread_id, checkpoint_id)
        return {"session_state": state, "conversation_history": [from_stored(m) for m in messages]}

    def require_state(self, branch: StoredRow, found_hash: bytes, state_hash: bytes) -> None:
        if found_hash != state_hash:
            raise Corrupt(
                f"Branch {branch.name} does not have the state of the checkpoint it was made from.",
                Next("fsck"),
                row=f"internal_session {branch.id}",
            )


def checkpoint_state(
    graph_checkpoint: GraphCheckpoint | None, position: int, pending: bytes | None = None
) -> CheckpointState:
    """Return the snapshot for a checkpoint that is made at a graph checkpoint."""
    return CheckpointState(
        graph_checkpoint_id=graph_checkpoint.key.checkpoint_id if graph_checkpoint else None,
        state_hash=graph_checkpoint.state_hash if graph_checkpoint else b"",
        position=position,
        message_count=graph_checkpoint.message_count if graph_checkpoint else 0,
        pending=pending if graph_checkpoint else None,
    )
