"""A turn: one run of the graph on a branch.

A turn acquires the branch, so that nobody else runs it, makes the automatic checkpoints, records the tool calls and
releases the branch. Its beginning and its end are one transaction each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import TurnInput
from agentgit.agents.turn.checkpoint_tracker import CheckpointTracker
from agentgit.agents.turn.files import TurnFiles
from agentgit.agents.turn.recorder import Recorder, name_of
from agentgit.effects.effects import READ_ONLY, UNDECLARED
from agentgit.effects.plan import KEEP
from agentgit.errors import Conflict, Corrupt, WorldDiverged
from agentgit.rollback import notes
from agentgit.rollback.crash_recovery import recover_abandoned
from agentgit.saver.recorded_turn import NOTHING_ELSE, After, PutHook
from agentgit.sessions.messages import text_of
from agentgit.store.audit.trail import note, prefetch_notes
from agentgit.store.maintenance import retention
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import HeadState, snapshot_of
from agentgit.store.threads.append_if_head import BranchHold
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.pending_writes import NO_WRITES
from agentgit.tracing import NO_SPAN, TracedSpan
from agentgit.values import as_object


class _TurnStart(NamedTuple):
    """The results of the transaction that begins a turn; an attempt that is rolled back leaves nothing behind.

    Args:
        branch: The row of the branch, as the turn holds it.
        given: The input, preceded by the notes for the model.
        owner_id: The owner of the session.
        batch: The number of the first batch of calls.
        unfinished: The batch that the turn continues, as `Recorder` takes it.
    """

    branch: StoredRow
    given: TurnInput
    owner_id: int
    batch: int
    unfinished: tuple[str, int, list[str]] | None


class _TurnEnd(NamedTuple):
    """The results of the transaction that ends a turn.

    Args:
        latest: The newest graph checkpoint.
        settled: True if no tool call waits for its result and no interrupt for its answer.
        head_id: The head of the branch, if the turn did not complete.
        thinned: The number of checkpoints that the session's retention removed.
    """

    latest: str | None
    settled: bool
    head_id: int | None
    thinned: int


@dataclass
class Turn:
    """One run of the graph on a branch.

    Args:
        context: The branch that it runs on.
        given: The input.
        span: The span that traces it.
    """

    context: BranchContext
    given: TurnInput
    span: TracedSpan = NO_SPAN
    requested_checkpoints: list[tuple[int, Label]] = field(default_factory=list)
    """Checkpoints that tools requested, each with the batch of its call; they are made when that batch is complete."""
    afterwards: Callable[[], Any] | None = None
    """A function that a tool requested to be called after the turn."""

    _batches: dict[int, Label] = field(default_factory=dict)
    """The automatic checkpoint of each finished batch."""

    branch_id: int = field(init=False)
    branch: StoredRow = field(init=False)
    head_id: int | None = field(init=False)
    """The branch's head at the end of the turn, if the turn did not complete."""
    is_settled: bool = field(init=False)
    recorder: Recorder = field(init=False)
    files: TurnFiles = field(init=False)
    saves: CheckpointTracker = field(default_factory=CheckpointTracker)

    # -- beginning and end

    def begin(self) -> None:
        """Acquire the branch and begin the turn.

        Raises:
            Conflict: Another run holds the branch, or the branch has moved since the agent last saw it.
        """
        self.branch_id = self.context.branch_id
        self._held = ExitStack()
        owner = self._held.enter_context(self.context.store.at_work())
        try:
            self.files = TurnFiles(self.context.store, self.context.settings.workspace, self.branch_id)
            self.files.begin(self.given.title)
            # Need not be durable: the first intent of the turn is, and takes everything written before it to disk.
            begun = self.context.store.database.write(lambda connection: self._begin(connection, owner), carried=True)
            self.branch, self.given = begun.branch, begun.given
            # A user who loses access during the turn can still end it: what its tools did must be recorded.
            self._held.enter_context(self.context.store.database.seeing(begun.owner_id))
            self.recorder = Recorder(self, owner, begun.batch, begun.unfinished)
        except BaseException:
            self._held.close()
            raise

    def _begin(self, connection: Connection, owner: str) -> _TurnStart:
        store, session_id = self.context.store, self.context.session_id
        self.context.authorize(connection)
        store.sessions.lock(connection, session_id)
        going_on = recover_abandoned(store, connection, session_id)
        look = store.request_position(connection, self.branch_id, self.context.thread_id)
        # Asked before the world is checked: entries that another turn adds in between have not been seen.
        last = store.world.request_last_seq(connection, session_id)
        self._prefetch(connection)
        branch = store.sessions.acquire(connection, self.branch_id, owner)
        if going_on:
            raise Conflict("A rollback is in progress in this session. Wait until it ends; then run this turn again.")
        moment = look(branch)
        if moment.latest != self.context.seen and branch.head_id not in self.context.interrupted_heads:
            raise Conflict(
                f"Branch {branch.name} has moved since this agent last saw it. Nothing was run. Continue from its "
                f"new head with agent = agent.switch({branch.name!r}), or branch off with agent.fork().",
                head=branch.head_id,
            )
        self._require_world_unchanged(connection, branch, last())
        self.files.record_snapshot(connection, branch)
        begun = _TurnStart(
            branch,
            self._input_with_note(connection, branch),
            self.context.owner(connection),
            moment.batch,
            self._unfinished(connection, branch, moment),
        )
        if self.given.is_new and self.context.settings.auto.before_turns:
            label = self._label("before", self.given.title, self.given.message_id)
            self._add(connection, branch, moment.snapshot, label)
        return begun

    def _prefetch(self, connection: Connection) -> None:
        """Prefetch the rows that this transaction, which has locked the session, needs for its writes."""
        self.context.store.checkpoints.prefetch(connection, self.branch_id)
        prefetch_notes(connection, self.context.store.tenant_id, self.branch_id)

    def _require_world_unchanged(self, connection: Connection, branch: StoredRow, last: int) -> None:
        """Check that the outside world is as this branch left it.

        Args:
            connection: A connection in a transaction that writes.
            branch: The row of the branch as it is now.
            last: The length of the world log before this turn.

        Raises:
            WorldDiverged: Another branch has changed it since.
        """
        plan = self.files.divergence(connection, branch, self.context.planner, last)
        if plan is not None:
            changes = "; ".join([*map(str, (s for s in plan.steps if s.action != KEEP)), *self.files.changes(plan)])
            raise WorldDiverged(
                f"The world has changed since branch {branch.name} last ran, so nothing was run: {changes}. "
                f"Restore it with agent = agent.switch({branch.name!r}, sync='world'), tell the model with "
                "sync='note', or continue anyway with sync='ignore'.",
                plan,
            )
        self.context.store.sessions.set_world_seen(connection, branch, last)

    def _input_with_note(self, connection: Connection, branch: StoredRow) -> TurnInput:
        """Return the input, preceded by the note about the world that a switch left for the model."""
        note = notes.note_of(as_object(branch.meta))
        noted = inputs.with_note(self.given, note) if note else None
        if noted is None:
            return self.given
        self.context.store.sessions.note(connection, self.branch_id, notes.DELIVERED)
        return noted

    def authorize_call(self, connection: Connection, effect: str) -> None:
        """Authorize a call in the transaction that records its intent.

        Args:
            connection: A connection in a transaction that writes.
            effect: The effect of the tool on the outside world.

        Raises:
            Conflict: Another run has taken over the branch.
            WorldDiverged: Another branch has changed the world during this turn.
        """
        store = self.context.store
        store.sessions.require_held(connection, self.branch)
        if effect not in (READ_ONLY, UNDECLARED):
            last = store.world.request_last_seq(connection, self.branch.external_session_id)
            self._require_world_unchanged(connection, store.sessions.branch(connection, self.branch_id), last())

    def holds(self, connection: Connection) -> bool:
        """Return whether this turn still holds its branch."""
        return self.context.store.sessions.is_held(connection, self.branch)

    def _unfinished(
        self, connection: Connection, branch: StoredRow, moment: HeadState
    ) -> tuple[str, int, list[str]] | None:
        """Return the batch that this turn continues, in which calls that run again stay; None if there is none."""
        if self.given.is_new or not moment.waiting:
            return None
        asked = moment.waiting[0]["tool_calls"]
        ids = [call["id"] for call in asked]
        batch = self.context.store.journal.last_batch(connection, branch.id, ids)
        return None if batch is None else (name_of(moment.waiting[0]["id"], asked), batch, ids)

    def end(self, *, completed: bool) -> str | None:
        """Release the branch and return the newest graph checkpoint.

        Args:
            completed: False if the run raised or was aborted.
        """
        outcomes = self.recorder.outcomes
        with self._held:
            self.recorder.end_spans()
            self.files.end()
            try:
                ended = outcomes.write_with(lambda connection: self._end(connection, completed))
            except Conflict:  # another run has taken over the branch; what this one did is still recorded
                outcomes.write()
                raise
            self.is_settled, self.head_id = ended.settled, ended.head_id
            if ended.thinned:
                self.context.context.engine().files.release()
            return ended.latest

    def _end(self, connection: Connection, completed: bool) -> _TurnEnd:
        store, sessions, owner = self.context.store, self.context.store.sessions, self.recorder.owner
        touched = sessions.queue_touch(connection, self.branch.external_session_id)
        held = sessions.query_hold(connection, self.branch)
        abandon = store.journal.query_abandoned(connection, self.branch_id, owner)
        look = store.request_position(connection, self.branch_id, self.branch.thread_id)
        self._prefetch(connection)
        held()
        abandon()
        moment = look(self.branch)
        self.files.record_snapshot(connection, self.branch)
        if moment.settled:
            self._make_wanted(connection, moment.snapshot, until=None)
            if completed and self._is_due(connection):
                title = inputs.first_line(text_of(moment.last[0])) if moment.last else None
                self._add(connection, self.branch, moment.snapshot, self._label("after", title))
        with suppress(Corrupt):  # damaged data must not make a finished turn fail
            store.texts.index_next(connection, self.branch_id)
        head_id = None if completed else sessions.branch(connection, self.branch_id).head_id
        thinned = retention.apply_if_due(connection, store, self.branch.external_session_id, touched())
        sessions.release(connection, self.branch_id, owner)
        how = "done" if completed and moment.settled else "waiting" if completed else "failed"
        note(
            connection,
            store.tenant_id,
            f"turn.{how}",
            branch_id=self.branch_id,
            user_id=self.context.settings.user_id,
        )
        return _TurnEnd(moment.latest, moment.settled, head_id, thinned)

    def _is_due(self, connection: Connection) -> bool:
        every = self.context.settings.auto.turns
        if every <= 1:
            return every == 1
        return self.context.store.sessions.count_turn(connection, self.branch_id) % every == 0

    def _label(self, kind: str, description: str | None, restore_point: str | None = None) -> Label:
        return Label(
            kind=kind, user_id=self.context.settings.user_id, description=description, restore_point=restore_point
        )

    # -- during the turn

    @property
    def counts_calls(self) -> bool:
        """True if a checkpoint, which records the number of calls so far, may be made before the turn ends."""
        return bool(self.requested_checkpoints) or self.context.settings.auto.calls > 0

    @contextmanager
    def on_put(self, place: GraphKey) -> Iterator[PutHook]:
        """Write the buffered outcomes, then the due checkpoints, in the transaction in which the saver saves a step."""

        def before(connection: Connection) -> After:
            held = self.context.store.sessions.query_hold(connection, self.branch)
            return lambda: due(connection, held)

        def due(connection: Connection, held: After) -> None:
            held()
            taken.write(connection)
            if makes:
                self._make_due(connection, place)

        if place.thread != self.branch.thread_id:
            with self.saves.saving(place):
                yield NOTHING_ELSE
            return
        makes = self.counts_calls and not place.ns
        fence = BranchHold(self.branch.id, self.branch.epoch, self.branch.owner)
        with self.saves.saving(place), self.recorder.outcomes.draining() as taken:
            yield PutHook(before, is_alone=not (taken.number or makes), fence=fence)

    def on_read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        """Record which checkpoint the graph read, so that a call can wait until the checkpoints before it are saved."""
        self.saves.read(thread, ns, found)

    def _make_due(self, connection: Connection, place: GraphKey) -> None:
        """Make the checkpoints that are due after a finished batch of tool calls."""
        store = self.context.store
        at = store.graphs.find(connection, place)
        asking = store.answered(connection, at) if at is not None else None
        batch = self.recorder.batch_of(name_of(asking["id"], asking["tool_calls"])) if asking else None
        if at is None or batch is None:
            return
        before, after = (store.journal.count(connection, self.branch_id, before_batch=n) for n in (batch, batch + 1))
        snapshot = snapshot_of(at, self.branch.inherited + after, NO_WRITES)
        self._make_wanted(connection, snapshot, until=batch)
        if self.context.settings.auto.is_passed(before, after):
            label = self._batches.setdefault(batch, replace(self._label("tools", None), id=new_id()))
            self._make(connection, snapshot, label, batch)

    def request_checkpoint(self, batch: int, label: Label) -> None:
        """Register a checkpoint that a tool requested, once even if its batch runs again after an answer."""
        if all((batch, label.name) != (known, one.name) for known, one in self.requested_checkpoints):
            self.requested_checkpoints.append((batch, label))
        self.recorder.outcomes.write()

    def on_batch_ended(self, batch: int) -> None:
        """Handle the end of a call when no other call of its batch is running."""
        if self.counts_calls:
            self.files.snapshot_batch(batch)

    def _make_wanted(self, connection: Connection, snapshot: Snapshot, until: int | None) -> None:
        """Make the checkpoints that tools requested in the batches up to this one; None means all batches."""
        for batch, label in self.requested_checkpoints:
            if until is None or batch <= until:
                self._make(connection, snapshot, label, until)

    def _make(self, connection: Connection, snapshot: Snapshot, label: Label, batch: int | None) -> None:
        """Make a checkpoint that already has an id, unless it exists: a transaction may run twice."""
        if not self.context.store.checkpoints.find(connection, CHECKPOINT.c.id == label.id):
            self._add(connection, self.branch, snapshot, label, batch)

    def _add(
        self, connection: Connection, branch: StoredRow, snapshot: Snapshot, label: Label, batch: int | None = None
    ) -> None:
        snapshot = replace(snapshot, workspace_snapshot_id=self.files.record_snapshot(connection, branch, batch))
        self.context.store.checkpoints.add(connection, self.branch_id, snapshot, label)


class ThreadedTurn:
    """A turn that begins in a thread and releases its branch if the caller has left in the meantime.

    The event loop cannot release the branch: it may end or block before the thread has acquired the branch.

    Args:
        begin: A function that begins the turn.
        end: A function that ends the turn.
    """

    def __init__(
        self,
        begin: Callable[[Any, RunnableConfig | None, TracedSpan], tuple[Turn, RunnableConfig]],
        end: Callable[..., None],
    ) -> None:
        self._begin, self._end = begin, end
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._is_left = False

    def begin(self, value: Any, config: RunnableConfig | None, traced: TracedSpan) -> tuple[Turn, RunnableConfig]:
        """Begin the turn. Runs in a thread."""
        begun = self._begin(value, config, traced)
        with self._lock:
            self._turn, is_left = begun[0], self._is_left
        if is_left:
            self._end(begun[0], completed=False)
        return begun

    def abandon(self) -> None:
        """Abandon the turn; whichever of `begin` and `abandon` finishes second releases the branch."""
        with self._lock:
            self._is_left, turn = True, self._turn
        if turn is not None:
            self._end(turn, completed=False)
