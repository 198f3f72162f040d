"""The protocol by which the parts of a turn know it, and each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import Given
from agentgit.agents.turn.checkpoint_buffer import Saves
from agentgit.agents.turn.files import TurnFiles
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.sessions import Found
from agentgit.tracing import Traced


class RunningTurn(Protocol):
    """A turn that runs, as its recorder and its interceptor know it; `RecordedTurn` is what a saver knows."""

    context: BranchContext
    given: Given
    span: Traced
    branch: Found
    files: TurnFiles
    saves: Saves
    afterwards: Callable[[], Any] | None

    @property
    def counts_calls(self) -> bool:
        """True if a checkpoint may be made before the turn ends, which records how many calls there were until then."""

    def authorize_call(self, connection: Connection, effect: str) -> None:
        """Let a call begin, in the transaction that records its intent."""

    def holds(self, connection: Connection) -> bool:
        """Return whether this turn still has its branch."""

    def want(self, batch: int, label: Label) -> None:
        """Note a checkpoint that a tool asked for."""

    def ended(self, batch: int) -> None:
        """Take note that a call of a batch has ended, and none is running."""
