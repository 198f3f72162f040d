"""Values of sessions (`ExternalSession`) and of their branches (`InternalSession`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from agentgit.checkpoints.queries import TimeCursor
from agentgit.errors import InvalidInput
from agentgit.values import COUNT, FLAG, OBJECT, TIME, Deferred, Displayable, TableList, count

OPEN = "open"
RUNNING = "running"
REPLAYING = "replaying"
PARTIAL = "partial"
DONE = "done"
SIMULATED = "simulated"
"""The status of a rerun that nobody runs: effects on its path never existed."""

BRANCH_STATUSES = (OPEN, RUNNING, REPLAYING, PARTIAL, SIMULATED)

IMPORTED = "imported"
"""The key that marks the metadata of a session, and the header of a graph checkpoint, that a file brought."""

RERUN = "rerun"
"""The key in a branch's metadata that marks it as a rerun."""


def idle_status(metadata: Mapping[str, Any]) -> str:
    """Return the status of a branch that nobody runs: `simulated` for a rerun whose calls did not run since.

    Example:
        >>> idle_status({}), idle_status({"rerun": {"of": 7}}), idle_status({"rerun": {"of": 7, "is_real": True}})
        ('open', 'simulated', 'open')
    """
    mark = metadata.get(RERUN)
    return OPEN if mark is None or mark.get("is_real") else SIMULATED


@dataclass(kw_only=True)
class ExternalSession(Displayable):
    """A session: one conversation with one owner, a tree of branches and one world.

    Args:
        id: The id in the database.
        user_id: The id of the owner.
        session_name: The name, unique for its owner.
        created_at: The time of creation, aware UTC.
        updated_at: The time at which a branch last moved, aware UTC.
        is_active: False if the session is inactive.
        current_internal_session_id: The id of the current branch.
        metadata: JSON-like metadata.
        branch_count: The number of branches.
        owner_name: The name of the owner.
        role: The role of the user who reads it: `viewer`, `editor` or `owner`.
        is_own: False if another user owns the session and shares it.
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
    owner_name: str = ""
    role: str = "owner"
    is_own: bool = True

    @property
    def reference(self) -> str:
        """The name by which the reading user refers to it: plain if it is their own, else like `alice/support-42`."""
        return self.session_name if self.is_own else f"{self.owner_name}/{self.session_name}"

    @property
    def cursor(self) -> str:
        """The position of this session in a list of sessions, as text."""
        return TimeCursor(self.updated_at, self.id).cursor


def require_limit(limit: object, noun: str) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 2**31:
        raise InvalidInput(f"limit must be 1 or more {noun}, not {limit!r}.")


@dataclass(kw_only=True, repr=False)
class InternalSession(Displayable, Deferred):
    """A branch: one line of execution in a session, and one LangGraph thread.

    Args:
        id: The id in the database.
        external_session_id: The id of its session.
        langgraph_session_id: The thread id in LangGraph.
        name: The name, unique in the session. The first branch is `main`.
        session_state: The newest values of the graph's state without the messages, JSON-like.
        conversation_history: The newest messages as dicts.
        created_at: The time of creation, aware UTC.
        is_current: True if it is the current branch of the session.
        checkpoint_count: The number of checkpoints made on this branch, without those of its ancestors.
        parent_session_id: The id of the parent branch. None for the first branch.
        branch_point_checkpoint_id: The id of the checkpoint at which it left its parent.
        tool_invocation_count: The length of its tool track, from the root of the session.
        status: `open`, `running`, `replaying` (a rollback is creating it), `partial` (that rollback failed half way) or
            `simulated` (a rerun, whose calls did not run).
        questions: What the graph asks at its head and nobody has answered, as JSON-like values.
        metadata: JSON-like metadata.
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
    questions: list[Any] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"{count(self.checkpoint_count, 'checkpoint')}, {count(self.tool_invocation_count, 'tool call')}"
        return f"<InternalSession {self.id} {self.name} ({self.status}): {counts}>"


class Sessions(TableList[ExternalSession]):
    """A list of sessions. A notebook shows it as a table."""

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "session_name": OBJECT,
        "owner_name": OBJECT,
        "role": OBJECT,
        "branch_count": COUNT,
        "is_active": FLAG,
        "created_at": TIME,
        "updated_at": TIME,
        "metadata": OBJECT,
        "id": COUNT,
    }


class Branches(TableList[InternalSession]):
    """A list of branches. A notebook shows it as a table. A frame leaves out states and messages."""

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "name": OBJECT,
        "status": OBJECT,
        "is_current": FLAG,
        "checkpoint_count": COUNT,
        "tool_invocation_count": COUNT,
        "created_at": TIME,
        "metadata": OBJECT,
        "id": COUNT,
        "parent_session_id": COUNT,
        "branch_point_checkpoint_id": COUNT,
    }
