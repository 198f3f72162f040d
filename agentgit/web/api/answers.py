"""Answers of the API, for its description. The answers themselves are the values' own dicts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from agentgit.values import to_json


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


class Session(BaseModel):
    """A session: a tree of branches over one world."""

    id: int
    user_id: int
    owner_name: str | None = None
    role: str | None = Field(None, description="What you may do with it: viewer, forker, editor or owner.")
    session_name: str
    created_at: datetime
    updated_at: datetime
    is_active: bool
    current_internal_session_id: int | None
    branch_count: int
    metadata: dict[str, Any]


class Sessions(BaseModel):
    """A page of sessions, the one that moved last first."""

    items: list[Session]
    next: str | None = Field(description="Give it as `after` for the page that follows; null if there is none.")


class Erased(BaseModel):
    """The result of an erasure."""

    sessions: int
    rows: dict[str, int] = Field(description="How many rows, by their tables.")
    values: int
    bytes: int
    events: int
    snapshots: int
    left: list[str] = Field(description="What could not be reached from here, as sentences.")


class Branch(BaseModel):
    """A branch: one line of execution."""

    id: int
    external_session_id: int
    langgraph_session_id: str
    name: str
    created_at: datetime | None
    is_current: bool
    checkpoint_count: int
    parent_session_id: int | None
    branch_point_checkpoint_id: int | None
    tool_invocation_count: int
    status: str
    metadata: dict[str, Any]


class Branches(BaseModel):
    """The branches of a session, in the order they were made."""

    items: list[Branch]


class Point(BaseModel):
    """A checkpoint in a tree."""

    id: int
    number: int
    name: str | None
    kind: str
    is_auto: bool
    created_at: datetime | None
    position: int
    message_count: int
    title: str


class TreeBranch(BaseModel):
    """A branch in a tree, with its checkpoints."""

    id: int
    name: str
    status: str
    is_current: bool
    parent_id: int | None
    branch_point_id: int | None
    points: list[Point]


class Tree(BaseModel):
    """The branches of a session, parents before their children."""

    session_name: str
    branches: list[TreeBranch]


class Checkpoint(BaseModel):
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


class Checkpoints(BaseModel):
    """A page of a log, the newest first."""

    items: list[Checkpoint]
    next: str | None


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: Any
    id: str | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None


class Call(BaseModel):
    """A call of a tool."""

    id: int
    internal_session_id: int
    position: int
    tool_name: str
    args: dict[str, Any]
    result: Any
    error_message: str | None
    status: str
    effect: str
    tool_call_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    replay_of: int | None
    idempotency_key: str
    undo: str | None
    verify: str | None
    precheck: str | None
    kind: str
    identity: str | None
    made_on: int | None
    runs: int = Field(description="How often its tool has begun: once more each time that it waited for an answer.")


class Part(BaseModel):
    """A part of a list whose length is known."""

    total: int
    next: int | None = Field(description="Give it as `offset` for the part that follows; null if there is none.")


class Messages(Part):
    """A part of a conversation, oldest first."""

    items: list[Message]


class Calls(Part):
    """A part of a tool track, the first call first."""

    items: list[Call]


class StateValue(BaseModel):
    """A value of a graph's state."""

    key: str
    value: Any


class State(Part):
    """A part of a graph's state, without the messages."""

    items: list[StateValue]


class FileChange(BaseModel):
    """The change to one path."""

    action: str
    path: str
    why: str


class FileChanges(BaseModel):
    """The changes to the files of a workspace."""

    workspace: str
    snapshot: str
    changes: list[FileChange]
    safety: str
    problem: str


class Files(BaseModel):
    """The files of a checkpoint: what its turn changed, and what bringing them back now would do."""

    snapshot: int | None = Field(description="The row of the snapshot; null if there were no files.")
    before: str | None = Field(description="The checkpoint that it is compared with.")
    added_files: list[str]
    modified_files: list[str]
    deleted_files: list[str]
    diff_content: str
    rewind: FileChanges | None


class Tag(BaseModel):
    """A name for one checkpoint."""

    name: str
    checkpoint_id: int
    reference: str
    description: str | None
    user_id: int
    created_at: datetime


class Tags(BaseModel):
    """The tags of a session, the newest first."""

    items: list[Tag]


class Hit(BaseModel):
    """Something that was found."""

    kind: str
    reference: str
    checkpoint_id: int
    created_at: datetime
    role: str | None
    name: str | None
    id: str | int | None
    snippet: str
    marks: list[list[int]]


class Hits(BaseModel):
    """A page of what was found."""

    hits: list[Hit]
    next: str | None
    complete: bool


class Event(BaseModel):
    """One thing that happened."""

    id: int
    kind: str
    number: int
    session_id: int | None
    session_name: str | None
    branch_id: int | None
    branch_name: str | None
    owner_id: int | None
    user_id: int | None
    created_at: datetime
    detail: dict[str, Any]
    hash: str


class Events(BaseModel):
    """The newest events, the oldest of these first."""

    items: list[Event]
