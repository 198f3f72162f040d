"""The external session, which a person calls a session, and its internal sessions, which are the branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from agentgit.values import Deferred

OPEN = "open"
RUNNING = "running"
REPLAYING = "replaying"
PARTIAL = "partial"


@dataclass(kw_only=True)
class ExternalSession:
    """One conversation container with one owner: a tree of branches over one world.

    Args:
        id: the identity in the database.
        user_id: the owner.
        session_name: unique for its owner.
        created_at: aware UTC.
        updated_at: when a branch last moved, aware UTC.
        is_active: False once it was put away.
        current_internal_session_id: the branch that it continues on.
        metadata: JSON-like facts about it.
        branch_count: how many branches it has.
    """

    id: int
    user_id: int
    session_name: str
    created_at: datetime
    updated_at: datetime
    is_active: bool = True
    current_internal_session_id: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    branch_count: int = 1


@dataclass(kw_only=True, repr=False)
class InternalSession(Deferred):
    """One branch: one line of execution, which is one LangGraph thread.

    Args:
        id: the identity in the database.
        external_session_id: the session that it belongs to.
        langgraph_session_id: its thread id in LangGraph.
        name: unique in its session; the first is `main`.
        session_state: the newest values of the graph's state without the messages, JSON-like.
        conversation_history: the newest messages as dicts.
        created_at: aware UTC.
        is_current: True if the session continues on it.
        checkpoint_count: how many checkpoints it made itself.
        parent_session_id: the branch it left from; None for the first.
        branch_point_checkpoint_id: the checkpoint where it left.
        tool_invocation_count: the length of its tool track, from the root of the session.
        status: `open`, `running`, `replaying` (a rollback is being made) or `partial` (it failed half way).
        metadata: JSON-like facts about it.
    """

    CONTENT: ClassVar[tuple[str, ...]] = ("session_state", "conversation_history")

    id: int
    external_session_id: int
    langgraph_session_id: str
    name: str
    session_state: dict[str, Any] = field(default_factory=dict)
    conversation_history: list[dict[str, Any]] = field(default_factory=list)
    created_at: datetime | None = None
    is_current: bool = False
    checkpoint_count: int = 0
    parent_session_id: int | None = None
    branch_point_checkpoint_id: int | None = None
    tool_invocation_count: int = 0
    status: str = OPEN
    metadata: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"{self.checkpoint_count} checkpoints, {self.tool_invocation_count} tool calls"
        return f"<InternalSession {self.id} {self.name} ({self.status}): {counts}>"
