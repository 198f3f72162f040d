"""Answers of the API, for its description. The answers themselves are the values' own dicts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from agentgit.checkpoints import queries
from agentgit.effects import ToolInvocation, files
from agentgit.sessions import ExternalSession, InternalSession, events, maintenance, tree
from agentgit.values import to_json
from agentgit.web.api.models import answer, described, listing, many


class Answer(Response):
    """JSON, also of what other writers refuse: lone surrogates, huge numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write it."""
        return to_json(content)


class Me(BaseModel):
    """The user who is logged in."""

    id: int
    name: str
    is_admin: bool
    scopes: list[str]


Session = described("Session", ExternalSession)
Sessions = listing("Sessions", Session, "A page of sessions, the one that moved last first.", next=str | None)
Erased = described("Erased", maintenance.Erased, but={"left": list[str]})
Branch = described("Branch", InternalSession, without=InternalSession.CONTENT)
Branches = listing("Branches", Branch, "The branches of a session, in the order they were made.")
Point = described("Point", tree.Point)
TreeBranch = described("TreeBranch", tree.Branch, without=("children",), but={"points": many(Point)})
Tree = described("Tree", tree.Tree, without=("roots",), branches=many(TreeBranch))


class CheckpointAnswer(BaseModel):
    """A checkpoint without its content."""

    id: int
    name: str | None
    is_auto: bool
    created_at: datetime | None
    internal_session_id: int
    user_id: int | None
    reference: str = Field(description="How a person calls it, like `main#7`.")
    branch: str
    number: int
    kind: str
    description: str | None
    restore_point: str | None
    message_count: int
    tool_track_position: int
    state_hash: str
    workspace_snapshot: int | None
    data: Any
    tags: list[str] = []


Checkpoints = listing("Checkpoints", CheckpointAnswer, "A page of a log, the newest first.", next=str | None)


class MessageAnswer(BaseModel):
    """A message of a conversation."""

    role: str
    content: Any
    id: str | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None


Call = described("Call", ToolInvocation)
PART = {"total": int, "next": int | None}
"""What a part of a long list has beside its items; `next` is the `offset` of the part that follows."""
Messages = listing("Messages", MessageAnswer, "A part of a conversation, oldest first.", **PART)
Calls = listing("Calls", Call, "A part of a tool track, the first call first.", **PART)


class StateValue(BaseModel):
    """A value of a graph's state."""

    key: str
    value: Any


State = listing("State", StateValue, "A part of a graph's state, without the messages.", **PART)
FileChange = described("FileChange", files.FileChange)
FileChanges = described("FileChanges", files.FileChanges, but={"changes": many(FileChange)})


CheckpointFiles = answer(
    "CheckpointFiles",
    "The files of a checkpoint: what its turn changed, and what bringing them back now would do.",
    snapshot=int | None,
    before=str | None,
    added_files=list[str],
    modified_files=list[str],
    deleted_files=list[str],
    diff_content=str,
    rewind=FileChanges | None,
)


Tag = described("Tag", queries.Tag)
Tags = listing("Tags", Tag, "The tags of a session, the newest first.")
Hit = described("Hit", queries.Hit, but={"marks": list[list[int]]})


HitsPage = answer("HitsPage", "A page of what was found.", hits=many(Hit), next=str | None, complete=bool)


Event = described("Event", events.Event)
Events = listing("Events", Event, "The newest events, the oldest of these first.")
