"""The protocol by which the parts of a turn access the turn and each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import TurnInput
from agentgit.agents.turn.checkpoint_tracker import CheckpointTracker
from agentgit.agents.turn.files import TurnFiles
from agentgit.effects.kinds import Kind
from agentgit.saver.recorded_turn import RecordedTurn
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.sessions import StoredRow
from agentgit.store.unit_of_work import UnitOfWork
from agentgit.tracing import TracedSpan


class RunningTurn(RecordedTurn, Protocol):
    """A running turn, as its recorder, its interceptor and its saver see it. A saver uses only `RecordedTurn`."""

    context: BranchContext
    turn_input: TurnInput
    span: TracedSpan
    branch: StoredRow
    files: TurnFiles
    checkpoint_tracker: CheckpointTracker
    unit_of_work: UnitOfWork
    after_turn: Callable[[], Any] | None
    is_completed: bool
    has_ended: bool

    @property
    def counts_calls(self) -> bool:
        """True if a checkpoint, which records the number of calls so far, may be made before the turn ends."""

    def authorize_call(self, connection: Connection, effect: Kind) -> None:
        """Authorize a call in the transaction that records its intent."""

    def request_checkpoint(self, batch: int, label: Label) -> None:
        """Register a checkpoint that a tool requested."""

    def on_batch_ended(self, batch: int) -> None:
        """Handle the end of a call when no other call of its batch is running."""
