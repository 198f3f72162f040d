"""Answers to comparisons and moves, for the description of the API: differences, plans, reports, operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from agentgit.web.api.answers import Branch, Call, FileChanges, Message


class Change(BaseModel):
    """One place of the state that differs."""

    path: str
    before: Any
    after: Any
    kind: str


class Tokens(BaseModel):
    """The tokens that messages used."""

    input: int
    output: int
    total: int


class Diff(BaseModel):
    """The differences between two checkpoints."""

    from_id: int | None
    to_id: int | None
    from_reference: str
    to_reference: str
    state: list[Change]
    common_messages: int
    removed_messages: list[Message]
    added_messages: list[Message]
    removed_tokens: Tokens
    added_tokens: Tokens
    common_calls: int
    removed_calls: list[Call]
    added_calls: list[Call]
    removed_pending: list[dict[str, Any]]
    added_pending: list[dict[str, Any]]
    added_files: list[str]
    modified_files: list[str]
    deleted_files: list[str]
    diff_content: str


class Comparison(BaseModel):
    """The changes on two branches since they parted."""

    fork: str
    messages: int
    calls: int
    left: Diff
    right: Diff
    between: Diff


class Step(BaseModel):
    """The planned action for one effect."""

    action: str
    why: str
    otherwise: str
    invocation: Call


class Plan(BaseModel):
    """The plan of a rollback or a switch; nothing was done."""

    checkpoint_id: int
    target: str
    position: int
    kind: str
    is_admissible: bool
    steps: list[Step]
    replayed: list[Call]
    files: FileChanges | None


class Item(BaseModel):
    """The outcome for one call."""

    invocation: Call
    reason: str


class Report(BaseModel):
    """The results of a rollback or a switch."""

    operation_id: int
    status: str
    checkpoint_id: int
    branch: str
    kind: str
    reversed: list[Item]
    redone: list[Item]
    drifted: list[Item]
    answered: list[Item]
    replayed: list[Item]
    kept: list[Item]
    gone: list[Item]
    failed: list[Item]
    remaining: list[Item]
    files: FileChanges | None


class Switched(BaseModel):
    """The result of a switch."""

    branch: Branch
    report: Report | None = Field(description="What was done to the world; null without `sync`.")


class Operation(BaseModel):
    """A rollback, a switch or a fork."""

    id: int
    kind: str
    status: str
    request_id: str
    created_at: datetime
    ended_at: datetime | None
    external_session_id: int
    source_session_id: int
    checkpoint_id: int
    internal_session_id: int
    report: dict[str, Any]


class Operations(BaseModel):
    """The operations of a session, newest first."""

    items: list[Operation]
