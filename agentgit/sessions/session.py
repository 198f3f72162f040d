"""The external session, which a person calls a session, and its internal sessions, which are the branches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from agentgit.errors import InvalidInput
from agentgit.values import Deferred, Listed, Shown

OPEN = "open"
RUNNING = "running"
REPLAYING = "replaying"
PARTIAL = "partial"

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class SessionMark(NamedTuple):
    """A place in a list of sessions: behind the one that moved then, with that id."""

    at: datetime
    id: int


@dataclass(kw_only=True)
class ExternalSession(Shown):
    """One conversation container with one owner: a tree of branches over one world.

    Args:
        id: The identity in the database.
        user_id: The owner.
        session_name: Unique for its owner.
        created_at: The time at which it was made, aware UTC.
        updated_at: The time at which a branch last moved, aware UTC.
        is_active: False once it was put away.
        current_internal_session_id: The branch that it continues on.
        metadata: JSON-like facts about it.
        branch_count: The number of its branches.
        owner_name: The name of its owner.
        role: The role of the user who looks: `viewer`, `forker`, `editor` or `owner`.
        is_own: False if it is another one's, who shares it.
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
        """The name of the session for the user who looks: plain for their own, like `alice/support-42` for others'."""
        return self.session_name if self.is_own else f"{self.owner_name}/{self.session_name}"

    @property
    def cursor(self) -> str:
        """The place after which a list of sessions continues, as text; see `place_of`."""
        return f"{(self.updated_at - _EPOCH) // _MICROSECOND}-{self.id}"


def require_limit(limit: object, of: str) -> None:
    """Refuse what cannot say how many are wanted.

    Raises:
        InvalidInput: It is no number, or none that a database takes.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 2**31:
        raise InvalidInput(f"limit={limit!r} is not a number of {of}; give 1 or more.")


def place_of(after: ExternalSession | str | None) -> SessionMark | None:
    """Read where a list of sessions is to go on: behind a session, or its cursor; None is the beginning.

    Raises:
        InvalidInput: It is something else.

    Example:
        >>> place_of("1767225600000000-7").id
        7
    """
    if after is None:
        return None
    if isinstance(after, ExternalSession):
        return SessionMark(after.updated_at, after.id)
    match = re.fullmatch(r"([0-9]{1,17})-([0-9]{1,16})", after) if isinstance(after, str) else None
    if match is None:
        raise InvalidInput(f"after={after!r} is not a place in a list of sessions. Give the last of the previous page.")
    return SessionMark(_EPOCH + int(match[1]) * _MICROSECOND, min(int(match[2]), 2**53))


@dataclass(kw_only=True, repr=False)
class InternalSession(Shown, Deferred):
    """One branch: one line of execution, which is one LangGraph thread.

    Args:
        id: The identity in the database.
        external_session_id: The session that it belongs to.
        langgraph_session_id: Its thread id in LangGraph.
        name: Unique in its session; the first is `main`.
        session_state: The newest values of the graph's state without the messages, JSON-like.
        conversation_history: The newest messages as dicts.
        created_at: The time at which it was made, aware UTC.
        is_current: True if the session continues on it.
        checkpoint_count: The number of checkpoints that it made itself.
        parent_session_id: The branch it left from; None for the first.
        branch_point_checkpoint_id: The checkpoint where it left.
        tool_invocation_count: The length of its tool track, from the root of the session.
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


class Sessions(Listed[ExternalSession]):
    """Sessions, which a notebook shows as a table."""


class Branches(Listed[InternalSession]):
    """Branches, which a notebook shows as a table."""
