"""A turn: one run of the graph on a branch.

A turn acquires the branch, makes the automatic checkpoints, records the tool calls and releases the branch. Its
beginning and its end are one transaction each, which may run twice: each attempt sets all that it sets on the turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.channels import LastValue
from langgraph.checkpoint.base import CheckpointTuple

from agentgit.agents import inputs
from agentgit.agents.inputs import TurnInput
from agentgit.agents.tools.unanswered_calls import (
    REFUSE,
    add_written,
    answer_all,
    read_unanswered,
    require_answered,
    warn_of_abandoned,
)
from agentgit.agents.tools.unowned_calls import watching
from agentgit.agents.turn.calls import Calls
from agentgit.agents.turn.files import TurnFiles
from agentgit.agents.turn.recorder import Recorder
from agentgit.agents.turn.requests import Batch, message_name
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects.files import PERSON, UNKNOWN
from agentgit.errors import AgentGitError, Conflict, Corrupt, Unavailable
from agentgit.next_steps import Next
from agentgit.rollback.crash_recovery import owning, recover_abandoned
from agentgit.rollback.report import DELIVERED, note_for_model
from agentgit.sessions.messages import has_late_result, text_of
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance import retention
from agentgit.store.queries.graph_points import find_replayed
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.sessions import session_has_moved
from agentgit.store.records.turn_state import TurnState, query_turn_state
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.process import beyond_ctrl_c, is_interrupt
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import HeadState, checkpoint_state
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey, NewCheckpoint, NewWrites
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.store.unit_of_work import UnitOfWork


@dataclass
class Turn(RunningTurn):
    """One run of the graph on a branch."""

    resources: ExitStack = field(default_factory=ExitStack)
    """What the turn holds until it ends."""
    saves_each_step: bool = False

    replayed_ids: Mapping[str, str] = field(init=False)
    """The graph checkpoints, by namespace, whose tasks LangGraph is to begin again; none if it continues them."""
    _state: TurnState = field(init=False)
    """What the turn found."""
    before_id: int | None = field(init=False)
    """The checkpoint before this turn; None if there is none."""
    _known_head: GraphCheckpoint | None = None
    """The newest graph checkpoint, until something is written on top of it or after it."""
    _batch_labels: dict[int, Label] = field(default_factory=dict)
    """The automatic checkpoint of each finished batch."""

    recorder: Recorder = field(init=False)
    calls: Calls = field(init=False)

    head_id: int | None = field(init=False)
    """The branch's head at the end of the turn, if the turn did not complete."""
    is_settled: bool = field(init=False)
    end_checkpoint_id: int | None = None
    """The checkpoint at the end of the turn; None if it made none."""

    # -- the beginning

    def begin(self) -> None:
        context, given = self.context, self.turn_input
        owner = self.resources.enter_context(owning(context.store, context.session_id))
        try:
            files = context.context.engine().files
            self.files = TurnFiles(
                context.store, context.settings.workspace, context.session_id, context.branch_id, files
            )
            self.files.begin(self._first_title)
            # Need not be durable: the first intent of the turn is, and takes everything written before it to disk.
            # The event of a checkpoint must: if a crash lost it, its place in the feed could be given again.
            next_batch, unfinished_batch = context.store.database.write(
                lambda transaction: self._begin(transaction, owner, given),
                async_commit=not self._begins_with_checkpoint,
            )
            state = self._state
            self.span.set(agentgit_session_name=state.session_name, agentgit_branch_name=self.branch.name)
            self.unit_of_work = UnitOfWork(context.store, self.branch, state.newest, state.world_seq)
            self._known_head = state.newest.checkpoint if not state.newest.has_writes else None
            self.recorder = Recorder(self, owner, next_batch, unfinished_batch)
            self.calls = self.recorder.calls
            self.resources.enter_context(watching(self.calls))
            self.resources.push(self._end_interrupted)
        except BaseException:
            self.resources.__exit__(*sys.exc_info())
            raise

    @property
    def _begins_with_checkpoint(self) -> bool:
        return self.turn_input.is_new and self.context.settings.checkpoint_interval.before_turns

    def _acquire(self, transaction: Writing, owner: str) -> tuple[TurnState, str | None]:
        """Acquire the branch; return what the turn finds there, and the owner of a turn that has died."""
        context, store, session_id = self.context, self.context.store, self.context.session_id
        context.authorize(transaction)
        store.sessions.lock(transaction, session_id)
        # Read before the world is checked: what another turn adds to the log in between has not been seen.
        read_state = query_turn_state(transaction, context.branch_id)
        self.before_id = new_id() if self._begins_with_checkpoint else None
        idle = context.settings.idle_status
        acquiring = (transaction, context.branch_id, owner, idle, self.before_id)
        read_acquired = store.sessions.acquire(*acquiring)
        state, acquired = read_state(), read_acquired()
        running_operations: list[int] = []
        dead_owner = store.sessions.branch(transaction, context.branch_id).owner if acquired is None else None
        if state.is_busy:
            running_operations = recover_abandoned(store, transaction, session_id)
            state = query_turn_state(transaction, context.branch_id)()
        acquired = acquired or store.sessions.acquire(*acquiring)()
        if acquired is None:
            raise store.sessions.not_idle(transaction, context.branch_id, idle)
        self.branch = acquired._replace(head_id=state.head_id)  # the checkpoint before this turn is not made yet
        if running_operations:
            raise Conflict("A rollback is in progress in this session. Wait until it ends; then run this turn again.")
        if context.must_be_current and state.current_branch_id != self.branch.id:
            raise session_has_moved()
        return state, dead_owner

    def _begin(self, transaction: Writing, owner: str, given: TurnInput) -> tuple[int, Batch | None]:
        """Begin the turn; return the number of the next batch, and the batch that the turn continues."""
        context, store = self.context, self.context.store
        state, dead_owner = self._acquire(transaction, owner)
        branch, self._state = self.branch, state
        head_state = store.head_state_of(transaction, branch, state.tally, state.newest)
        context.require_unmoved(branch, head_state.latest_id)
        if state.newest.is_imported and self.goes_on:
            raise Conflict(
                f"Branch {branch.name} stands at an imported checkpoint: what waits there was asked for elsewhere, and "
                "never runs here. Nothing was run. Send a new message.",
                Next("rollback"),
            )
        if context.needs_world:
            self.require_world_unchanged(transaction, branch, state.world_seq)
        if given.keeps_question and state.newest.is_interrupted and not state.newest.is_imported:
            inputs.require_no_question(context.questions(transaction, state.newest.checkpoint), has_run=False)
        if given.is_answer and state.newest.is_interrupted and state.newest.checkpoint is not None:
            context.require_asking_nodes(transaction, state.newest.checkpoint)
        self.files.record_snapshot(transaction, branch, changed_by=UNKNOWN if state.is_busy else PERSON)
        if head_state.latest is not None:
            given = replace(given, channel=head_state.latest.conversation_channel or given.channel)
        self.turn_input = given = self._with_note(transaction, given)
        if given.is_new:
            self.turn_input = self._with_answers(transaction, given, head_state, dead_owner)
        self.replayed_ids = {}
        if not given.is_new:
            self.replayed_ids = find_replayed(
                store,
                transaction,
                branch,
                state.newest.checkpoint,
                is_answer=given.is_answer,
                begins_again=context.begins_again,
            )
        self._make_first_checkpoint(transaction, head_state)
        return head_state.next_batch, self._unfinished_batch(transaction, head_state)

    def _with_answers(
        self, transaction: Reading, given: TurnInput, head_state: HeadState, dead_owner: str | None
    ) -> TurnInput:
        """Return the input, preceded by answers to the calls that the last turn has left open."""
        context, store, messages = self.context, self.context.store, head_state.unfinished_messages
        answered = inputs.answered_calls(given)
        calls = read_unanswered(store, transaction, self.branch, messages)
        calls = [call for call in calls if call.requested["id"] not in answered]
        if any(call.recorded is None for call in calls):
            calls = add_written(calls, context.step_writes(transaction, self._state.newest.checkpoint))
        mode = context.settings.on_unanswered
        if mode != REFUSE or not self._state.newest.is_interrupted:  # `on_question` decides what becomes of a question
            require_answered(self.branch, calls, mode)
        if dead_owner is not None and not context.must_be_current:
            name = context.session(transaction).reference
            warn_of_abandoned(store, transaction, self.branch, name, dead_owner, calls)
        has_more = (calls and any(one["role"] != "tool" for one in messages[1:])) or has_late_result(messages)
        channel = context.graph.channels.get(given.channel)
        if isinstance(channel, LastValue):  # the input replaces the conversation, with its open calls
            return given
        is_replaced = has_more and inputs.can_replace_messages(channel)
        conversation = context.messages(transaction, head_state.latest) if is_replaced else []
        return inputs.with_answers(given, [call.answer() for call in calls], conversation)

    def _with_note(self, transaction: Writing, given: TurnInput) -> TurnInput:
        """Return the input, preceded by the note about the world that a switch left for the model."""
        note = note_for_model(read_meta(self.branch))
        with_note = inputs.with_note(given, note) if note else None
        if with_note is not None:
            self.context.store.sessions.merge_metadata(transaction, self.branch.id, DELIVERED)
        return with_note or given

    def _make_first_checkpoint(self, transaction: Writing, head_state: HeadState) -> None:
        self._last_number = number = self._state.last_number
        if self.before_id is not None:
            label = self._label("before", self._first_title, self.turn_input.message_id)
            state = head_state.checkpoint_state
            self.make_checkpoint(transaction, state, replace(label, id=self.before_id), moves_head=False)
            self._last_number = number + 1

    def _unfinished_batch(self, transaction: Reading, head_state: HeadState) -> Batch | None:
        """Return the batch that this turn continues, in which calls that run again stay; None if there is none."""
        if self.turn_input.is_new or not head_state.unfinished_messages:
            return None
        message = head_state.unfinished_messages[0]
        call_ids = [call["id"] for call in message["tool_calls"]]
        batch = self.context.store.journal.last_batch(transaction, self.branch.id, call_ids)
        return Batch(message_name(message["id"], message["tool_calls"]), batch, call_ids) if batch is not None else None

    @property
    def _first_title(self) -> str | None:
        """The title of the turn when it begins; None if the graph can still redact it."""
        return None if self.context.may_rewrite_input else self.turn_input.title

    # -- the end

    def end(self, *, completed: bool) -> str | None:
        """Release the branch and return the newest graph checkpoint."""
        self.is_completed = completed
        with self.resources:
            return self._finish()

    def _end_interrupted(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the turn if Ctrl-C has broken its end off, or has come before it."""
        if is_interrupt(error):
            beyond_ctrl_c(self._finish)

    def _finish(self) -> str | None:
        self.has_ended = True
        self.calls.end_spans()
        self.files.take_snapshot("after a turn")
        if (writes := self.recorder.model_calls.unsaved_writes()) is not None:
            with suppress(Conflict):  # the end of the turn raises it
                self.unit_of_work.add(writes)
        try:
            latest_id, removed_count = self.unit_of_work.write(self._end, closing=True)
        except Unavailable:
            raise
        except AgentGitError:
            with self.context.store.database.reading() as transaction:  # it may have been deleted
                self.context.store.sessions.load_row(transaction, self.branch.external_session_id)
            raise
        if removed_count:
            self.context.context.engine().files.release_unused()
        return latest_id

    def _end(self, transaction: Writing) -> tuple[str | None, int]:
        """Release the branch; return the newest graph checkpoint, and the number of removed checkpoints."""
        store, branch, completed = self.context.store, self.branch, self.is_completed
        if not completed or self.calls.is_call_running:
            store.journal.abandon(transaction, branch.id, self.calls.owner)
        tally = store.journal.tally(transaction, branch.id) if self.calls.has_calls else self._state.tally
        head_state = store.head_state_of(transaction, branch, tally, self.unit_of_work.newest)
        self.is_settled, self.end_checkpoint_id = head_state.is_settled, None
        self.files.record_snapshot(transaction, branch)
        changes: dict[str, Any] = {}
        world_seq = self.unit_of_work.world_seq or 0
        if world_seq > branch.world_seen and self.context.needs_world:
            changes["world_seen"] = world_seq
        if completed and self.context.may_rewrite_input:
            with suppress(Corrupt):  # damaged data must not make a finished turn fail
                self._add_redacted_title(transaction, head_state.latest)
        if head_state.is_settled:
            self.make_requested(transaction, head_state.checkpoint_state)
            if completed and self._is_end_checkpoint_due(transaction):
                last, state = head_state.last_messages, head_state.checkpoint_state
                label = self._label("after", inputs.first_line(text_of(last[0])) if last else None)
                # The release of the branch makes it the head.
                self.end_checkpoint_id = self.make_checkpoint(transaction, state, label, moves_head=False)
                changes["head_id"] = self.end_checkpoint_id
        store.sessions.release(transaction, branch, **changes)
        self.head_id = None if completed else store.sessions.branch(transaction, branch.id).head_id
        session_meta = self.unit_of_work.read_session_meta()
        removed_count = retention.apply_if_due(transaction, store, branch.external_session_id, session_meta)
        result = "failed" if not completed else "done" if head_state.is_settled else "waiting"
        user_id = self.context.settings.user_id
        record_event(transaction, f"turn.{result}", branch_id=branch.id, user_id=user_id)
        return head_state.latest_id, removed_count

    def _add_redacted_title(self, transaction: Writing, latest: GraphCheckpoint | None) -> None:
        """Describe the checkpoint before this turn with the user's message as the graph has left it."""
        store, message_id = self.context.store, self.turn_input.message_id
        if message_id is None or latest is None or self.before_id is None:
            return
        messages = (message["data"] for message in store.graphs.messages(transaction, latest))
        text = next((text_of(message) for message in messages if message.get("id") == message_id), None)
        if text is not None:
            store.checkpoints.describe_automatic(transaction, self.before_id, inputs.first_line(text))

    def _is_end_checkpoint_due(self, transaction: Writing) -> bool:
        interval, store, head_id = self.context.settings.checkpoint_interval, self.context.store, self.branch.head_id
        if interval.seconds:
            age = timedelta(seconds=interval.seconds)
            return not head_id or datetime.now(UTC) - store.checkpoints.load(transaction, head_id).created_at >= age
        if interval.turns <= 1:
            return interval.turns == 1
        return store.sessions.count_turn(transaction, self.branch.id) % interval.turns == 0

    def _label(self, kind: str, description: str | None = None, restore_point: str | None = None) -> Label:
        user_id = self.context.settings.user_id
        return Label(kind=kind, user_id=user_id, description=description, restore_point=restore_point)

    # -- what the saver takes part in

    @property
    def writes_on_put(self) -> bool:
        """True if a step is written as soon as the graph has saved it."""
        return self.saves_each_step or self.counts_calls

    @property
    def owner(self) -> str:
        return self.calls.owner

    @property
    def goes_on(self) -> bool:
        """True if the graph goes on with what waits, and acts."""
        return self.turn_input.goes_on and self.context.settings.simulation is None

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
        is_root = not new.key.ns
        if is_root:
            new = self.recorder.model_calls.attach(new)
        if self._state.newest.is_imported and not self.turn_input.is_new:
            new = new.as_imported()
        if not self.unit_of_work.add(new):
            return False
        self._known_head = None
        if self.counts_calls and is_root:
            self.files.take_snapshot("after tools")
            self.unit_of_work.write(lambda transaction: self._make_due_checkpoints(transaction, new.key))
        elif self.saves_each_step:
            self.flush()
        return True

    def put_writes(self, new: NewWrites) -> bool:
        if new.key.thread != self.branch.thread_id:
            return False
        self._known_head = None
        return self.unit_of_work.add(new)

    def with_answers(self, found: CheckpointTuple, channel: str | None) -> CheckpointTuple:
        """Return the state of a subgraph that begins, with answers to the calls that were left open in it."""
        values = found.checkpoint["channel_values"]
        if channel is None or not isinstance(values.get(channel), list):
            return found
        writes = [(channel, value) for _, channel, value in found.pending_writes or ()]
        messages = answer_all(self.context.store, self.branch, values[channel], writes)
        return found._replace(checkpoint={**found.checkpoint, "channel_values": {**values, channel: messages}})

    def known_head(self, graph_key: GraphKey) -> GraphCheckpoint | None:
        """Return the newest graph checkpoint if the turn knows it and nothing was written on top of it."""
        head = self._known_head
        is_asked = head is not None and graph_key in (head.key, head.key._replace(checkpoint_id=""))
        return head if is_asked else None

    def on_read(self, thread: str, ns: str, checkpoint: GraphCheckpoint | None) -> None:
        """Record which checkpoint the graph read, so that a call can wait until the checkpoints before it are saved."""
        self.checkpoint_tracker.record_read(thread, ns, checkpoint.key if checkpoint is not None else None)
        if checkpoint is not None and (thread, ns) == (self.branch.thread_id, ""):
            self.recorder.model_calls.record_read(checkpoint)

    def _make_due_checkpoints(self, transaction: Writing, graph_key: GraphKey) -> None:
        """Make the checkpoints that are due after a finished batch of tool calls."""
        store = self.context.store
        graph_checkpoint = store.graphs.find(transaction, graph_key)
        ai_message = store.answered_message(transaction, graph_checkpoint) if graph_checkpoint is not None else None
        requested = message_name(ai_message["id"], ai_message["tool_calls"]) if ai_message else ""
        batch = self.calls.requests.batch_of(requested)
        if graph_checkpoint is None or batch is None:
            return
        calls_before, calls_after = (
            store.journal.count(transaction, self.branch.id, before_batch=n) for n in (batch, batch + 1)
        )
        state = checkpoint_state(graph_checkpoint, self.branch.inherited + calls_after, NO_WRITES)
        self.make_requested(transaction, state, last_batch=batch)
        if self.context.settings.checkpoint_interval.is_passed(calls_before, calls_after):
            label = self._batch_labels.setdefault(batch, replace(self._label("tools"), id=new_id()))
            self.make_checkpoint(transaction, state, label, batch)
