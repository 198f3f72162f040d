"""A turn: one run of the graph on a branch.

A turn acquires the branch, so that nobody else runs it, makes the automatic checkpoints, records the tool calls and
releases the branch. Its beginning and its end are one transaction each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import TurnInput
from agentgit.agents.turn.abandoned_turn import warn_of_abandoned_turn
from agentgit.agents.turn.calls import Calls
from agentgit.agents.turn.checkpoint_tracker import CheckpointTracker
from agentgit.agents.turn.files import TurnFiles
from agentgit.agents.turn.recorder import Recorder
from agentgit.agents.turn.requests import Batch, message_name
from agentgit.agents.turn.unowned_calls import watching
from agentgit.effects.kinds import Kind
from agentgit.effects.plan import KEEP
from agentgit.errors import AgentGitError, Conflict, Corrupt, InvalidInput, Unavailable, WorldDiverged
from agentgit.rollback.crash_recovery import recover_abandoned
from agentgit.rollback.report import DELIVERED, note_for_model
from agentgit.sessions.messages import text_of
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance import retention
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.sessions import StoredRow, session_has_moved
from agentgit.store.records.turn_state import TurnState, query_turn_state
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import HeadState, checkpoint_state
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey, NewCheckpoint, NewWrites
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.store.unit_of_work import UnitOfWork
from agentgit.tracing import NO_SPAN, TracedSpan
from agentgit.values import as_object


class _TurnStart(NamedTuple):
    """The results of the transaction that begins a turn; an attempt that is rolled back leaves nothing behind."""

    branch: StoredRow
    turn_input: TurnInput
    batch: int
    unfinished_batch: Batch | None
    state: TurnState
    last_number: int
    searched: int
    replayed_ids: Mapping[str, str]


class _TurnEnd(NamedTuple):
    """The results of the transaction that ends a turn."""

    latest_id: str | None
    is_settled: bool
    end_checkpoint_id: int | None
    head_id: int | None
    removed_count: int


@dataclass
class Turn:
    """One run of the graph on a branch."""

    context: BranchContext
    turn_input: TurnInput
    span: TracedSpan = NO_SPAN
    saves_each_step: bool = False
    requested_checkpoints: list[tuple[int, Label]] = field(default_factory=list)
    """Checkpoints that tools requested, each with the batch of its call; they are made when that batch is complete."""
    after_turn: Callable[[], Any] | None = None
    """A function that a tool requested to be called after the turn."""

    replayed_ids: Mapping[str, str] = field(init=False)
    """The graph checkpoints, by namespace, whose tasks LangGraph is to begin again; none if it continues them."""
    _state: TurnState = field(init=False)
    _last_number: int | None = None
    """The number of the last checkpoint of the branch; None if it must be read."""
    _before_number: int | None = None
    """The number of the checkpoint before this turn; None if there is none."""
    _searched: int = 0
    """The number of checkpoints whose text the search index has."""
    _known_head: GraphCheckpoint | None = None
    """The newest graph checkpoint, until something is written on top of it or after it."""
    _last_put: GraphKey | None = None
    """The last graph checkpoint of the root graph that this turn has put; None before the first."""
    _batch_labels: dict[int, Label] = field(default_factory=dict)
    """The automatic checkpoint of each finished batch."""

    branch_id: int = field(init=False)
    branch: StoredRow = field(init=False)
    head_id: int | None = field(init=False)
    """The branch's head at the end of the turn, if the turn did not complete."""
    is_completed: bool = False
    """True if the turn has ended, and its run neither raised nor was aborted."""
    is_settled: bool = field(init=False)
    end_checkpoint_id: int | None = field(init=False)
    """The checkpoint at the end of the turn; None if it made none."""
    unit_of_work: UnitOfWork = field(init=False)
    recorder: Recorder = field(init=False)
    calls: Calls = field(init=False)
    has_ended: bool = False
    """True once the turn ends or is abandoned, so that no call can begin."""
    files: TurnFiles = field(init=False)
    checkpoint_tracker: CheckpointTracker = field(default_factory=CheckpointTracker)

    # -- beginning and end

    def begin(self) -> None:
        """Acquire the branch and begin the turn."""
        self.branch_id = self.context.branch_id
        self._resources = ExitStack()
        owner = self._resources.enter_context(self.context.store.register_owner())
        try:
            self.files = TurnFiles(self.context.store, self.context.settings.workspace, self.branch_id)
            self.files.begin(self._first_title)
            # Need not be durable: the first intent of the turn is, and takes everything written before it to disk.
            start = self.context.store.database.write(
                lambda connection: self._begin(connection, owner), async_commit=True
            )
            self.branch, self.turn_input = start.branch, start.turn_input
            self.span.set(agentgit_session_name=start.state.session_name, agentgit_branch_name=start.branch.name)
            self._state, newest, self.replayed_ids = start.state, start.state.newest, start.replayed_ids
            self._last_number, self._searched = start.last_number, start.searched
            self._before_number = start.last_number if start.last_number != start.state.last_number else None
            self.unit_of_work = UnitOfWork(self.context.store, start.branch, newest, start.state.world_seq)
            self._known_head = newest.checkpoint if not newest.has_writes else None
            self.recorder = Recorder(self, owner, start.batch, start.unfinished_batch)
            self.calls = self.recorder.calls
            self._resources.enter_context(watching(self.calls))
        except BaseException:
            self._resources.close()
            raise

    def _begin(self, connection: Connection, owner: str) -> _TurnStart:
        store, session_id = self.context.store, self.context.session_id
        self.context.authorize(connection)
        store.sessions.lock(connection, session_id)
        # Read before the world is checked: what another turn adds to the log in between has not been seen.
        read_state = query_turn_state(connection, store.tenant_id, self.branch_id)
        idle = self.context.settings.idle_status
        read_acquired = store.sessions.queue_acquire(connection, self.branch_id, owner, idle)
        state, acquired = read_state(), read_acquired()
        running_operations: list[int] = []
        dead_owner = store.sessions.branch(connection, self.branch_id).owner if acquired is None else None
        if state.is_busy:
            running_operations = recover_abandoned(store, connection, session_id)
            state = query_turn_state(connection, store.tenant_id, self.branch_id)()
        branch = acquired or store.sessions.acquire(connection, self.branch_id, owner, idle)
        if running_operations:
            raise Conflict("A rollback is in progress in this session. Wait until it ends; then run this turn again.")
        if self.context.must_be_current and state.current_branch_id != self.branch_id:
            raise session_has_moved()
        head_state = store.head_state_of(connection, branch, state.tally, state.newest)
        if (
            head_state.latest_id != self.context.seen_checkpoint_id
            and branch.head_id not in self.context.interrupted_heads
        ):
            raise Conflict(
                f"Branch {branch.name} has moved since this agent last saw it. Nothing was run. "
                f"Switch to {branch.name!r} to continue at its head, or fork.",
                head=branch.head_id,
            )
        if state.newest.is_imported and self.goes_on:
            raise Conflict(
                f"Branch {branch.name} stands at an imported checkpoint: what waits there was asked for elsewhere, and "
                "never runs here. Nothing was run. Send a new message, or go back to an earlier checkpoint first."
            )
        if self.context.needs_world:
            self._require_world_unchanged(connection, branch, state.world_seq)
        if dead_owner is not None and self.turn_input.is_new and not self.context.must_be_current:
            warn_of_abandoned_turn(self.context, connection, dead_owner, head_state.unfinished_messages)
        self.files.record_snapshot(connection, branch)
        start = _TurnStart(
            branch,
            self._input_with_note(connection, branch),
            head_state.next_batch,
            self._unfinished_batch(connection, branch, head_state),
            state,
            state.last_number,
            branch.searched,
            self._find_replayed(connection, branch, state.newest.checkpoint),
        )
        if not (self.turn_input.is_new and self.context.settings.checkpoint_interval.before_turns):
            return start
        before = head_state.checkpoint_state
        label = self._label("before", self._first_title, self.turn_input.message_id)
        self._add_checkpoint(connection, branch, before, label, last_number=state.last_number)
        has_new_text = (before.graph_checkpoint_id, before.position) != (state.head_state_id, state.head_position)
        return start._replace(
            last_number=state.last_number + 1, searched=branch.searched if has_new_text else branch.searched + 1
        )

    def _find_replayed(
        self, connection: Connection, branch: StoredRow, newest: GraphCheckpoint | None
    ) -> Mapping[str, str]:
        """Return the graph checkpoints whose tasks begin again, because the branch begins there and none has begun.

        If a run does not name its checkpoint, LangGraph continues the tasks, and a subgraph with memory does not run.
        """
        graphs, begins_again, start = self.context.store.graphs, self.context.begins_again, newest
        if self.turn_input.is_new or begins_again is False or newest is None:
            return {}
        while start is not None and start.parent_id is not None and start.meta.get("source") == "update":
            start = graphs.find(connection, start.key._replace(checkpoint_id=start.parent_id))
        if start is None or start.parent_id is not None:
            return {}
        is_first = (CHECKPOINT.c.internal_session_id == branch.id, CHECKPOINT.c.kind == "branch")
        for first in self.context.store.checkpoints.find(connection, *is_first):
            steps = pending_writes.unpack(first.pending, f"checkpoint {first.id}")
            if first.graph_checkpoint_id != start.key.checkpoint_id or steps is None or any(s.writes for s in steps):
                continue
            begun = graphs.pack_pending_writes(connection, newest.key)
            expected = first.pending if start is newest else pending_writes.NO_WRITES
            if begun != expected and not begins_again:
                continue
            if not self.turn_input.is_answer:
                return {**{step.ns: step.checkpoint_id for step in steps}, "": newest.key.checkpoint_id}
            if not steps and graphs.has_subgraphs(connection, newest.key.thread):
                raise InvalidInput(
                    "No question waits at this checkpoint, so nothing was run. Run it with None first; then answer."
                )
        return {}

    def _require_world_unchanged(self, connection: Connection, branch: StoredRow, last_seq: int) -> None:
        """Check that the outside world is as this branch left it."""
        plan = self.files.divergence(connection, branch, self.context.planner, last_seq)
        if plan is not None:
            changes = "; ".join(
                [*map(str, (s for s in plan.steps if s.action != KEEP)), *self.files.describe_changes(plan)]
            )
            raise WorldDiverged(
                f"The world has changed since branch {branch.name} last ran, so nothing was run: {changes}. "
                f"Restore it by a switch to {branch.name!r} with sync='world', tell the model with "
                "sync='note', or continue anyway with sync='ignore'.",
                self.context.planner.add_names(connection, plan, branch.id),
            )
        self.context.store.sessions.set_world_seen(connection, branch, last_seq)

    def _input_with_note(self, connection: Connection, branch: StoredRow) -> TurnInput:
        """Return the input, preceded by the note about the world that a switch left for the model."""
        note_text = note_for_model(as_object(branch.meta))
        input_with_note = inputs.with_note(self.turn_input, note_text) if note_text else None
        if input_with_note is None:
            return self.turn_input
        self.context.store.sessions.merge_metadata(connection, self.branch_id, DELIVERED)
        return input_with_note

    def authorize_call(self, connection: Connection, effect: Kind) -> None:
        """Authorize a call in the transaction that records its intent."""
        store = self.context.store
        if effect.is_exclusive and self.unit_of_work.world_seq is None:
            last_seq = store.world.last_seq(connection, self.branch.external_session_id)
            self._require_world_unchanged(connection, store.sessions.branch(connection, self.branch_id), last_seq)

    def _unfinished_batch(self, connection: Connection, branch: StoredRow, head_state: HeadState) -> Batch | None:
        """Return the batch that this turn continues, in which calls that run again stay; None if there is none."""
        if self.turn_input.is_new or not head_state.unfinished_messages:
            return None
        tool_calls = head_state.unfinished_messages[0]["tool_calls"]
        call_ids = [call["id"] for call in tool_calls]
        batch = self.context.store.journal.last_batch(connection, branch.id, call_ids)
        return (
            None
            if batch is None
            else Batch(message_name(head_state.unfinished_messages[0]["id"], tool_calls), batch, call_ids)
        )

    def end(self, *, completed: bool) -> str | None:
        """Release the branch and return the newest graph checkpoint."""
        self.is_completed = completed
        with self._resources:
            self.has_ended = True
            self.calls.end_spans()
            self.files.end()
            self._add_unsaved_model_calls()
            try:
                turn_end = self.unit_of_work.write(lambda connection: self._end(connection, completed), closing=True)
            except Unavailable:
                raise
            except AgentGitError:
                self._require_session()
                raise
            self.is_settled, self.head_id = turn_end.is_settled, turn_end.head_id
            self.end_checkpoint_id = turn_end.end_checkpoint_id
            if turn_end.removed_count:
                self.context.context.engine().files.release_unused()
            return turn_end.latest_id

    def _add_unsaved_model_calls(self) -> None:
        """Keep the model calls of a step that ended without a graph checkpoint."""
        newest = self.unit_of_work.newest.checkpoint
        key = self._last_put or (newest.key if newest is not None else None)
        writes = self.recorder.model_calls.unsaved_writes(key) if key is not None else None
        if writes is not None:
            with suppress(Conflict):  # the end of the turn raises it
                self.unit_of_work.add(writes)

    @property
    def _first_title(self) -> str | None:
        """The title of the turn when it begins; None if the graph can still redact it."""
        return None if self.context.may_rewrite_input else self.turn_input.title

    def _add_redacted_title(self, connection: Connection, latest: GraphCheckpoint | None) -> None:
        """Describe the checkpoint before this turn with the user's message as the graph has left it."""
        store, message_id = self.context.store, self.turn_input.message_id
        if message_id is None or latest is None or self._before_number is None:
            return
        messages = (message["data"] for message in store.graphs.messages_at(connection, latest))
        text = next((text_of(message) for message in messages if message.get("id") == message_id), None)
        if text is not None:
            title = inputs.first_line(text)
            store.checkpoints.describe_automatic(connection, self.branch_id, self._before_number, title)

    def _require_session(self) -> None:
        """Check that the session still exists."""
        with self.context.store.database.reading() as connection:
            self.context.store.sessions.load_row(connection, self.branch.external_session_id)

    def _end(self, connection: Connection, completed: bool) -> _TurnEnd:
        store, sessions = self.context.store, self.context.store.sessions
        if not completed or self.calls.is_call_running:
            store.journal.abandon(connection, self.branch_id, self.calls.owner)
        tally = store.journal.tally(connection, self.branch_id) if self.calls.has_calls else self._state.tally
        head_state = store.head_state_of(connection, self.branch, tally, self.unit_of_work.newest)
        self.files.record_snapshot(connection, self.branch)
        world_seq = self.unit_of_work.world_seq
        changes: dict[str, Any] = (
            {"world_seen": world_seq} if (world_seq or 0) > self.branch.world_seen and self.context.needs_world else {}
        )
        if completed and self.context.may_rewrite_input:
            with suppress(Corrupt):  # damaged data must not make a finished turn fail
                self._add_redacted_title(connection, head_state.latest)
        if head_state.is_settled:
            self._make_requested_checkpoints(connection, head_state.checkpoint_state, last_batch=None)
            if completed and self._is_end_checkpoint_due(connection):
                changes |= self._make_end_checkpoint(connection, head_state)
        if "searched" not in changes:
            with suppress(Corrupt):  # damaged data must not make a finished turn fail
                store.search_index.index_next(connection, self.branch_id)
        sessions.release(connection, self.branch, **changes)
        head_id = None if completed else sessions.branch(connection, self.branch_id).head_id
        session_meta = self.unit_of_work.read_session_meta()
        removed_count = retention.apply_if_due(connection, store, self.branch.external_session_id, session_meta)
        result = "done" if completed and head_state.is_settled else "waiting" if completed else "failed"
        record_event(
            connection,
            store.tenant_id,
            f"turn.{result}",
            branch_id=self.branch_id,
            user_id=self.context.settings.user_id,
        )
        return _TurnEnd(head_state.latest_id, head_state.is_settled, changes.get("head_id"), head_id, removed_count)

    def _make_end_checkpoint(self, connection: Connection, head_state: HeadState) -> dict[str, Any]:
        """Make the checkpoint at the end of the turn; return the columns of the branch that change with it."""
        store, state = self.context.store, head_state.checkpoint_state
        title = inputs.first_line(text_of(head_state.last_messages[0])) if head_state.last_messages else None
        # Only the first attempt of the transaction uses the number, because somebody else may have used it since.
        last_number, self._last_number = self._last_number, None
        checkpoint_id = store.checkpoints.add(
            connection,
            self.branch_id,
            replace(state, workspace_snapshot_id=self.files.record_snapshot(connection, self.branch)),
            self._label("after", title),
            last_number=last_number,
            moves_head=False,
        )
        if last_number is None or self._searched != last_number:
            return {"head_id": checkpoint_id}  # the index lacks earlier checkpoints, too
        states = self._state.newest.checkpoint, head_state.latest
        calls = self._state.tally.calls, state.position - self.branch.inherited
        try:
            store.search_index.index_checkpoint(connection, self.branch, last_number + 1, states, calls)
        except Corrupt:  # damaged data must not make a finished turn fail
            return {"head_id": checkpoint_id}
        return {"head_id": checkpoint_id, "searched": last_number + 1}

    def _is_end_checkpoint_due(self, connection: Connection) -> bool:
        seconds = self.context.settings.checkpoint_interval.seconds
        if seconds:
            head_id = self.branch.head_id
            newest = self.context.store.checkpoints.find(connection, CHECKPOINT.c.id == head_id) if head_id else []
            return not newest or datetime.now(UTC) - newest[0].created_at >= timedelta(seconds=seconds)
        interval = self.context.settings.checkpoint_interval.turns
        if interval <= 1:
            return interval == 1
        return self.context.store.sessions.count_turn(connection, self.branch_id) % interval == 0

    def _label(self, kind: str, description: str | None, restore_point: str | None = None) -> Label:
        return Label(
            kind=kind, user_id=self.context.settings.user_id, description=description, restore_point=restore_point
        )

    # -- during the turn

    @property
    def counts_calls(self) -> bool:
        """True if a checkpoint, which records the number of calls so far, may be made before the turn ends."""
        return bool(self.requested_checkpoints) or self.context.settings.checkpoint_interval.calls > 0

    @property
    def writes_on_put(self) -> bool:
        """True if a step is written as soon as the graph has saved it."""
        return self.saves_each_step or self.counts_calls

    @property
    def goes_on(self) -> bool:
        """True if the graph goes on with what waits, and acts."""
        return self.turn_input.goes_on and self.context.settings.simulation is None

    @property
    def is_waiting(self) -> bool:
        """True if steps or calls of this turn are not written yet."""
        return self.unit_of_work.is_waiting

    def flush(self) -> None:
        """Write the steps and calls of this turn that wait."""
        self.unit_of_work.flush()

    def saving(self, graph_key: GraphKey) -> AbstractContextManager[None]:
        """Record that the block saves a graph checkpoint, for which calls that act on the world may wait."""
        return self.checkpoint_tracker.saving(graph_key)

    def put(self, new: NewCheckpoint) -> bool:
        """Take over a graph checkpoint of this turn, and make the checkpoints that are due after it."""
        if new.key.thread != self.branch.thread_id:
            return False
        if not new.key.ns:
            new = new._replace(draft=self.recorder.model_calls.attach(new.draft))
        if self._state.newest.is_imported and not self.turn_input.is_new:
            new = new.as_imported()
        if not self.unit_of_work.add(new):
            return False
        if not new.key.ns:
            self._last_put = new.key
        self._known_head = None
        if self.counts_calls and not new.key.ns:
            self.unit_of_work.write(lambda connection: self._make_due_checkpoints(connection, new.key))
        elif self.saves_each_step:
            self.flush()
        return True

    def put_writes(self, new: NewWrites) -> bool:
        """Take over the writes of a task of this turn."""
        if new.key.thread != self.branch.thread_id:
            return False
        self._known_head = None
        return self.unit_of_work.add(new)

    def known_head(self, graph_key: GraphKey) -> GraphCheckpoint | None:
        """Return the newest graph checkpoint if the turn knows it and nothing was written on top of it."""
        head = self._known_head
        is_asked = head is not None and graph_key in (head.key, head.key._replace(checkpoint_id=""))
        return head if is_asked else None

    def on_read(self, thread: str, ns: str, checkpoint: GraphCheckpoint | None) -> None:
        """Record which checkpoint the graph read, so that a call can wait until the checkpoints before it are saved."""
        self.checkpoint_tracker.record_read(thread, ns, checkpoint.key if checkpoint is not None else None)
        if checkpoint is not None:
            self.recorder.model_calls.record_read(checkpoint)

    def _make_due_checkpoints(self, connection: Connection, graph_key: GraphKey) -> None:
        """Make the checkpoints that are due after a finished batch of tool calls."""
        store = self.context.store
        graph_checkpoint = store.graphs.find(connection, graph_key)
        ai_message = store.answered_message(connection, graph_checkpoint) if graph_checkpoint is not None else None
        requested = message_name(ai_message["id"], ai_message["tool_calls"]) if ai_message else ""
        batch = self.calls.requests.batch_of(requested)
        if graph_checkpoint is None or batch is None:
            return
        calls_before, calls_after = (
            store.journal.count(connection, self.branch_id, before_batch=n) for n in (batch, batch + 1)
        )
        snapshot = checkpoint_state(graph_checkpoint, self.branch.inherited + calls_after, NO_WRITES)
        self._make_requested_checkpoints(connection, snapshot, last_batch=batch)
        if self.context.settings.checkpoint_interval.is_passed(calls_before, calls_after):
            label = self._batch_labels.setdefault(batch, replace(self._label("tools", None), id=new_id()))
            self._make_checkpoint(connection, snapshot, label, batch)

    def request_checkpoint(self, batch: int, label: Label) -> None:
        """Register a checkpoint that a tool requested, once even if its batch runs again after an answer."""
        if all(
            (batch, label.name) != (other_batch, other_label.name)
            for other_batch, other_label in self.requested_checkpoints
        ):
            self.requested_checkpoints.append((batch, label))
        self.flush()

    def on_batch_ended(self, batch: int) -> None:
        """Handle the end of a call when no other call of its batch is running."""
        if self.counts_calls:
            self.files.snapshot_batch(batch)

    def _make_requested_checkpoints(
        self, connection: Connection, snapshot: CheckpointState, last_batch: int | None
    ) -> None:
        """Make the checkpoints that tools requested in the batches up to this one; None means all batches."""
        for batch, label in self.requested_checkpoints:
            if last_batch is None or batch <= last_batch:
                self._make_checkpoint(connection, snapshot, label, last_batch)

    def _make_checkpoint(
        self, connection: Connection, snapshot: CheckpointState, label: Label, batch: int | None
    ) -> None:
        """Make a checkpoint that already has an id, unless it exists: a transaction may run twice."""
        if not self.context.store.checkpoints.find(connection, CHECKPOINT.c.id == label.id):
            self._add_checkpoint(connection, self.branch, snapshot, label, batch)

    def _add_checkpoint(
        self,
        connection: Connection,
        branch: StoredRow,
        snapshot: CheckpointState,
        label: Label,
        batch: int | None = None,
        last_number: int | None = None,
    ) -> None:
        self._last_number = None
        snapshot = replace(snapshot, workspace_snapshot_id=self.files.record_snapshot(connection, branch, batch))
        self.context.store.checkpoints.add(connection, self.branch_id, snapshot, label, last_number=last_number)


class ThreadedTurn:
    """A turn that begins in a thread and releases its branch if the caller has left in the meantime.

    The event loop cannot release the branch: it may end or block before the thread has acquired the branch.
    """

    def __init__(
        self,
        begin: Callable[[Any, RunnableConfig | None, TracedSpan], tuple[Turn, RunnableConfig]],
        end: Callable[..., None],
    ) -> None:
        self._begin, self._end = begin, end
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._is_abandoned = False

    def begin(self, value: Any, config: RunnableConfig | None, span: TracedSpan) -> tuple[Turn, RunnableConfig]:
        """Begin the turn. Runs in a thread."""
        turn_and_config = self._begin(value, config, span)
        with self._lock:
            self._turn, is_abandoned = turn_and_config[0], self._is_abandoned
        if is_abandoned:
            self._end(turn_and_config[0], completed=False)
        return turn_and_config

    def abandon(self) -> None:
        """Abandon the turn; whichever of `begin` and `abandon` finishes second releases the branch."""
        with self._lock:
            self._is_abandoned, turn = True, self._turn
        if turn is not None:
            self._end(turn, completed=False)
