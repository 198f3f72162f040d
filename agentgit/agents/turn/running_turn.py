"""A running turn, as its calls see it: the branch, what waits to be written, and the checkpoints that tools request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import TurnInput
from agentgit.agents.turn.checkpoint_tracker import CheckpointTracker
from agentgit.agents.turn.files import TurnFiles
from agentgit.effects.kinds import Kind
from agentgit.effects.plan import KEEP
from agentgit.errors import WorldDiverged
from agentgit.next_steps import Next, Reason
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Writing
from agentgit.store.unit_of_work import UnitOfWork
from agentgit.tracing import NO_SPAN, TracedSpan
from agentgit.values import escape_path


@dataclass
class RunningTurn:
    """The part of a turn that its calls use."""

    context: BranchContext
    turn_input: TurnInput
    span: TracedSpan = NO_SPAN
    requested_checkpoints: list[tuple[int, Label]] = field(default_factory=list)
    """Checkpoints that tools requested, each with the batch of its call; they are made when that batch is complete."""
    after_turn: Callable[[], Any] | None = None
    """A function that a tool requested to be called after the turn."""
    branch: StoredRow = field(init=False)
    unit_of_work: UnitOfWork = field(init=False)
    files: TurnFiles = field(init=False)
    checkpoint_tracker: CheckpointTracker = field(default_factory=CheckpointTracker)
    is_completed: bool = False
    """True if the turn has ended, and its run neither raised nor was aborted."""
    has_ended: bool = False
    """True once the turn ends or is abandoned, so that no call can begin."""
    reader: object = None
    """The task or thread that reads the stream of the turn and now holds its last chunk; None while the graph runs."""
    _last_number: int | None = None
    """The number of the last checkpoint of the branch; None if it must be read."""

    def authorize_call(self, transaction: Writing, effect: Kind) -> None:
        if effect.is_exclusive and self.unit_of_work.world_seq is None:
            store = self.context.store
            last_seq = store.world.last_seq(transaction, self.branch.external_session_id)
            branch = store.sessions.branch(transaction, self.branch.id)
            self.require_world_unchanged(transaction, branch, last_seq)

    def require_world_unchanged(self, transaction: Writing, branch: StoredRow, last_seq: int) -> None:
        """Check that the outside world is as this branch left it."""
        planner = self.context.planner
        plan = self.files.divergence(transaction, branch, planner, last_seq)
        if plan is not None:
            changes = [str(step) for step in plan.steps if step.action != KEEP]
            if plan.files is not None:
                paths = ", ".join(escape_path(change.path) for change in plan.files.changes[:5])
                unknown = f"perhaps files in {plan.files.workspace}"  # only its own environment can compare them
                changes.append(Reason.of(plan.files.problem).message or paths or unknown)
            raise WorldDiverged(
                f"The world has changed since branch {branch.name} last ran, so nothing was run: {'; '.join(changes)}.",
                Next("switch_world", branch=branch.name),
                Next("switch_note", branch=branch.name),
                Next("switch_ignore", branch=branch.name),
                plan=planner.add_names(transaction, plan, branch.id),
            )
        self.context.store.sessions.set_world_seen(transaction, branch, last_seq)

    @property
    def counts_calls(self) -> bool:
        """True if a checkpoint, which records the number of calls so far, may be made before the turn ends."""
        return bool(self.requested_checkpoints) or self.context.settings.checkpoint_interval.calls > 0

    def request_checkpoint(self, batch: int, label: Label) -> None:
        """Register a checkpoint that a tool requested, once even if its batch runs again after an answer."""
        if (batch, label.name) not in ((other, known.name) for other, known in self.requested_checkpoints):
            self.requested_checkpoints.append((batch, label))
        self.unit_of_work.flush()

    def make_requested(self, transaction: Writing, state: CheckpointState, last_batch: int | None = None) -> None:
        """Make the checkpoints that tools requested in the batches up to this one; None means all batches."""
        for batch, label in self.requested_checkpoints:
            if last_batch is None or batch <= last_batch:
                self.make_checkpoint(transaction, state, label, last_batch)

    def make_checkpoint(
        self,
        transaction: Writing,
        state: CheckpointState,
        label: Label,
        batch: int | None = None,
        *,
        moves_head: bool = True,
    ) -> int:
        """Make a checkpoint with the files of its state, those that a batch left, or the newest; return its id."""
        # A transaction may run twice, and a request stands until the turn ends.
        checkpoints, branch = self.context.store.checkpoints, self.branch
        if label.id is not None and moves_head and checkpoints.find_one(transaction, label.id):
            return label.id
        # Only the first attempt of the transaction uses the number, because somebody else may have used it since.
        last_number, self._last_number = self._last_number, None
        files_id = self.files.record_snapshot(transaction, branch, batch)
        state = replace(state, workspace_snapshot_id=state.workspace_snapshot_id or files_id)
        return checkpoints.add(transaction, branch.id, state, label, last_number=last_number, moves_head=moves_head)
