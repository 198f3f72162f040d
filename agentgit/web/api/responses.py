"""The response models of the API, most of them generated from dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from agentgit.checkpoints import comparison, diff, queries
from agentgit.effects import ToolInvocation, files, plan, report
from agentgit.sessions import ExternalSession, InternalSession, events, reports, tree
from agentgit.sessions.reports import Operation
from agentgit.values import to_json

ARGUMENTS = re.compile(r"^Args:\n((?: {4}.*\n?)+)", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5}.*)*)", re.MULTILINE)


def model_of_dataclass(
    name: str,
    dataclass_type: type[Any],
    *,
    exclude: tuple[str, ...] = (),
    overrides: dict[str, Any] | None = None,
    **more: Any,
) -> type[BaseModel]:
    """Create a response model with the fields of a dataclass.

    Example:
        >>> from agentgit.checkpoints.queries import Tag
        >>> sorted(model_of_dataclass("Tag", Tag).model_json_schema()["required"])[:2]
        ['checkpoint_id', 'created_at']
    """
    hints, descriptions = typing.get_type_hints(dataclass_type), _arguments(dataclass_type.__doc__ or "")
    names = [
        field.name for field in dataclasses.fields(dataclass_type) if field.name not in exclude and field.name[0] != "_"
    ]
    types = {field: hints[field] for field in names} | (overrides or {}) | more
    fields: dict[str, Any] = {
        field: (kind, Field(description=descriptions.get(field))) for field, kind in types.items()
    }
    return create_model(name, __doc__=(dataclass_type.__doc__ or "").partition("\n")[0], **fields)


def create_list_model(name: str, item_model: type[BaseModel], doc: str, **more: Any) -> type[BaseModel]:
    """Create a response model that lists items of another model."""
    return create_model_of_fields(name, doc, items=list_of(item_model), **more)


def create_model_of_fields(name: str, doc: str, **types: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in types.items()}
    return create_model(name, __doc__=doc, **fields)


def list_of(item_model: type[BaseModel]) -> Any:
    return list.__class_getitem__(item_model)


def _arguments(docstring: str) -> dict[str, str]:
    """Parse the `Args` section of a docstring; return the description of each argument, in the words of JSON."""
    section = ARGUMENTS.search(inspect.cleandoc(docstring))
    found = ARGUMENT.findall(section[1]) if section else []
    return {name: " ".join(text.split()) for name, text in found}


class JsonResponse(Response):
    """A JSON response. It also encodes values that Starlette's encoder refuses: lone surrogates, huge numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class Me(BaseModel):
    """The user who is signed in."""

    id: int
    name: str
    is_admin: bool
    scopes: list[str]


SessionAnswer = model_of_dataclass("Session", ExternalSession)
SessionsAnswer = create_list_model(
    "Sessions", SessionAnswer, "A page of sessions, the most recently updated first.", next=str | None
)
ErasedAnswer = model_of_dataclass("Erased", reports.Erased, overrides={"left": list[str]})
BranchAnswer = model_of_dataclass("Branch", InternalSession, exclude=InternalSession.CONTENT)
BranchesAnswer = create_list_model("Branches", BranchAnswer, "The branches of a session, oldest first.")
PointAnswer = model_of_dataclass("Point", tree.Point)
TreeBranchAnswer = model_of_dataclass(
    "TreeBranch", tree.Branch, exclude=("children",), overrides={"points": list_of(PointAnswer)}
)
TreeAnswer = model_of_dataclass("Tree", tree.Tree, exclude=("roots",), branches=list_of(TreeBranchAnswer))


class CheckpointAnswer(BaseModel):
    """A checkpoint without its content."""

    id: int
    name: str | None
    is_auto: bool
    created_at: datetime | None
    internal_session_id: int
    user_id: int | None
    reference: str = Field(description="A readable reference, like `main#7`.")
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


CheckpointsAnswer = create_list_model(
    "Checkpoints", CheckpointAnswer, "A page of a log, the newest first.", next=str | None
)


class MessageAnswer(BaseModel):
    """A message of a conversation."""

    role: str
    content: Any
    id: str | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None


CallAnswer = model_of_dataclass("Call", ToolInvocation)
PAGE_FIELDS = {"total": int, "next": int | None}
"""The fields of a part of a long list besides `items`; `next` is the `offset` of the next part, or null."""
MessagesAnswer = create_list_model("Messages", MessageAnswer, "A part of a conversation, oldest first.", **PAGE_FIELDS)
CallsAnswer = create_list_model("Calls", CallAnswer, "A part of a tool track, the first call first.", **PAGE_FIELDS)


class StateValue(BaseModel):
    """A value of a graph's state."""

    key: str
    value: Any


StateAnswer = create_list_model("State", StateValue, "A part of a graph's state, without the messages.", **PAGE_FIELDS)
FileChangeAnswer = model_of_dataclass("FileChange", files.FileChange)
FileChangesAnswer = model_of_dataclass(
    "FileChanges", files.FileChanges, overrides={"changes": list_of(FileChangeAnswer)}
)


CheckpointFilesAnswer = create_model_of_fields(
    "CheckpointFiles",
    "The files of a checkpoint: what its turn changed, and what restoring them now would do.",
    snapshot=int | None,
    before=str | None,
    added_files=list[str],
    modified_files=list[str],
    deleted_files=list[str],
    diff_content=str,
    rewind=FileChangesAnswer | None,
)


TagAnswer = model_of_dataclass("Tag", queries.Tag)
TagsAnswer = create_list_model("Tags", TagAnswer, "The tags of a session, the newest first.")
HitAnswer = model_of_dataclass("Hit", queries.Hit, overrides={"marks": list[list[int]]})


HitsPage = create_model_of_fields(
    "HitsPage", "A page of search results.", hits=list_of(HitAnswer), next=str | None, complete=bool
)


EventAnswer = model_of_dataclass("Event", events.Event)
EventsAnswer = create_list_model("Events", EventAnswer, "The newest events, oldest first.")

ChangeAnswer = model_of_dataclass("Change", diff.Change)
TokensAnswer = model_of_dataclass("Tokens", diff.Tokens)
DiffAnswer = model_of_dataclass(
    "Diff",
    diff.Diff,
    overrides={
        "state": list_of(ChangeAnswer),
        "removed_messages": list_of(MessageAnswer),
        "added_messages": list_of(MessageAnswer),
        "removed_tokens": TokensAnswer,
        "added_tokens": TokensAnswer,
        "removed_calls": list_of(CallAnswer),
        "added_calls": list_of(CallAnswer),
    },
)
ComparisonAnswer = model_of_dataclass(
    "Comparison", comparison.Comparison, overrides={"left": DiffAnswer, "right": DiffAnswer, "between": DiffAnswer}
)
StepAnswer = model_of_dataclass("Step", plan.PlanStep, overrides={"invocation": CallAnswer})
PlanAnswer = model_of_dataclass(
    "Plan",
    plan.RollbackPlan,
    overrides={"steps": list_of(StepAnswer), "replayed": list_of(CallAnswer), "files": FileChangesAnswer | None},
    identity=str,
    is_admissible=bool,
)
ItemAnswer = model_of_dataclass("Item", report.ReportItem, overrides={"invocation": CallAnswer})
ReportAnswer = model_of_dataclass(
    "Report",
    report.RollbackReport,
    overrides={**dict.fromkeys(report.GROUPS, list_of(ItemAnswer)), "files": FileChangesAnswer | None},
)


SwitchAnswer = create_model_of_fields(
    "Switch",
    "The result of a switch; `report` is null without `sync`.",
    branch=BranchAnswer,
    report=ReportAnswer | None,
)


OperationAnswer = model_of_dataclass("Operation", Operation)
OperationsAnswer = create_list_model("Operations", OperationAnswer, "The operations of a session, newest first.")
