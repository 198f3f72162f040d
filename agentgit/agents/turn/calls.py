"""A call of a tool: as it is requested, and as it was admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentgit.agents.turn.inflight_calls import Attempt, InflightResult
from agentgit.effects.effects import IDEMPOTENT, READ_ONLY, UNDECLARED
from agentgit.store.records.journal import Intent

HARMLESS = frozenset({READ_ONLY, IDEMPOTENT, UNDECLARED})
"""The effects that may run again where the record cannot answer: nothing is lost by it, or nobody said so."""


@dataclass(frozen=True)
class RequestedCall:
    """A call that is about to begin.

    Args:
        intent: The record of it; the interceptor makes its idempotency key.
        task: The task of the graph that makes it.
        place: The place where it is made, the same each time: its AI message, or else the task.
        run: The run of the task or of the tool that makes it.
        same: The hash of what it has in common with its repetitions.
        is_named: True if its id is the same each time: an AI message asked for it.
        is_in_batch: True if a ToolNode makes it, beside others.
        once: True if its tool happens at most once in a session.
        is_reachable: True if the tool can be answered for: it runs as a copy of ours.
    """

    intent: Intent
    task: str
    place: str
    run: UUID | None
    same: str
    is_named: bool
    is_in_batch: bool
    once: bool
    is_reachable: bool

    @property
    def call_id(self) -> str | None:
        """Its id, if that is the same each time."""
        return self.intent.tool_call_id if self.is_named else None

    @property
    def again(self) -> tuple[str, str, int]:
        """The key that stays the same if LangGraph runs the call once more in this turn."""
        return self.intent.idempotency_key, self.task, self.intent.batch if self.is_named else 0

    @property
    def is_harmless(self) -> bool:
        """True if it may run again where the record cannot answer."""
        return self.intent.effect in HARMLESS and not self.once


@dataclass(frozen=True)
class AdmittedCall:
    """A call that was let in.

    Args:
        intent: The record of it.
        id: The id of its row, once that is on disk.
        answer: The answer that it gets instead of running; the row is then a replay, if there is one.
        attempt: The attempt by which it is recognised, if LangGraph runs it once more in this turn.
        used: If it is answered, the numbers of its task that it used up when it ran; see `Questions.skip`.
        name: The name that tells it from the other calls of its place, the same each time.
        scope: The name of what is called in it, the same each time.
    """

    intent: Intent
    id: int | None
    answer: InflightResult | None = None
    attempt: Attempt | None = None
    used: dict[str, Any] | None = None
    name: str = ""
    scope: str = ""
