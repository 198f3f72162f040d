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
from agentgit.sessions import ExternalSession, InternalSession, events, operation, reports, tree
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

    Args:
        name: The name of the model in the OpenAPI description.
        dataclass_type: The dataclass. Its docstring describes the model and the fields.
        exclude: Fields to omit.
        overrides: Types of fields that differ from those of the dataclass, such as other models.
        more: Additional fields, each with its type.

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
    """Create a response model that lists items of another model.

    Args:
        name: The name of the model in the OpenAPI description.
        item_model: The model of the `items`.
        doc: The description of the model.
        more: Fields besides `items`, each with its type.
    """
    return create_model_of_fields(name, doc, items=list_of(item_model), **more)


def create_model_of_fields(name: str, doc: str, **types: Any) -> type[BaseModel]:
    """Create a response model from its fields, each with its type."""
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in types.items()}
    return create_model(name, __doc__=doc, **fields)


def list_of(item_model: type[BaseModel]) -> Any:
    """Return the type of a list of a model's instances."""
    return list.__class_getitem__(item_model)


def _arguments(docstring: str) -> dict[str, str]:
    """Parse the `Args` section of a docstring; return the description of each argument."""
    section = ARGUMENTS.search(inspect.cleandoc(docstring))
    return {name: " ".join(text.split()) for name, text in ARGUMENT.findall(section[1])} if section else {}


class JsonResponse(Response):
    """A JSON response. It also encodes values that Starlette's encoder refuses: lone surrogates, huge numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content as JSON."""
        return to_json(content)


class Me(BaseModel):
    """The user who is logged in."""

    id: int
    name: str
    is_admin: bool
    scopes: list[str]


Session = model_of_dataclass("Session", ExternalSession)
Sessions = create_list_model(
    "Sessions", Session, "A page of sessions, the most recently updated first.", next=str | None
)
Erased = model_of_dataclass("Erased", reports.Erased, overrides={"left": list[str]})
Branch = model_of_dataclass("Branch", InternalSession, exclude=InternalSession.CONTENT)
Branches = create_list_model("Branches", Branch, "The branches of a session, oldest first.")
Point = model_of_dataclass("Point", tree.Point)
TreeBranch = model_of_dataclass("TreeBranch", tree.Branch, exclude=("children",), overrides={"points": list_of(Point)})
Tree = model_of_dataclass("Tree", tree.Tree, exclude=("roots",), branches=list_of(TreeBranch))


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


Checkpoints = create_list_model("Checkpoints", CheckpointAnswer, "A page of a log, the newest first.", next=str | None)


class MessageAnswer(BaseModel):
    """A message of a conversation."""

    role: str
    content: Any
    id: str | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None


Call = model_of_dataclass("Call", ToolInvocation)
PAGE_FIELDS = {"total": int, "next": int | None}
"""The fields of a part of a long list besides `items`; `next` is the `offset` of the next part, or null."""
Messages = create_list_model("Messages", MessageAnswer, "A part of a conversation, oldest first.", **PAGE_FIELDS)
Calls = create_list_model("Calls", Call, "A part of a tool track, the first call first.", **PAGE_FIELDS)


class StateValue(BaseModel):
    """A value of a graph's state."""

    key: str
    value: Any


State = create_list_model("State", StateValue, "A part of a graph's state, without the messages.", **PAGE_FIELDS)
FileChange = model_of_dataclass("FileChange", files.FileChange)
FileChanges = model_of_dataclass("FileChanges", files.FileChanges, overrides={"changes": list_of(FileChange)})


CheckpointFiles = create_model_of_fields(
    "CheckpointFiles",
    "The files of a checkpoint: what its turn changed, and what restoring them now would do.",
    snapshot=int | None,
    before=str | None,
    added_files=list[str],
    modified_files=list[str],
    deleted_files=list[str],
    diff_content=str,
    rewind=FileChanges | None,
)


Tag = model_of_dataclass("Tag", queries.Tag)
Tags = create_list_model("Tags", Tag, "The tags of a session, the newest first.")
Hit = model_of_dataclass("Hit", queries.Hit, overrides={"marks": list[list[int]]})


HitsPage = create_model_of_fields(
    "HitsPage", "A page of search results.", hits=list_of(Hit), next=str | None, complete=bool
)


Event = model_of_dataclass("Event", events.Event)
Events = create_list_model("Events", Event, "The newest events, oldest first.")

Change = model_of_dataclass("Change", diff.Change)
Tokens = model_of_dataclass("Tokens", diff.Tokens)
Diff = model_of_dataclass(
    "Diff",
    diff.Diff,
    overrides={
        "state": list_of(Change),
        "removed_messages": list_of(MessageAnswer),
        "added_messages": list_of(MessageAnswer),
        "removed_tokens": Tokens,
        "added_tokens": Tokens,
        "removed_calls": list_of(Call),
        "added_calls": list_of(Call),
    },
)
Comparison = model_of_dataclass(
    "Comparison", comparison.Comparison, overrides={"left": Diff, "right": Diff, "between": Diff}
)
Step = model_of_dataclass("Step", plan.PlanStep, overrides={"invocation": Call})
Plan = model_of_dataclass(
    "Plan",
    plan.RollbackPlan,
    overrides={"steps": list_of(Step), "replayed": list_of(Call), "files": FileChanges | None},
    is_admissible=bool,
)
Item = model_of_dataclass("Item", report.ReportItem, overrides={"invocation": Call})
Report = model_of_dataclass(
    "Report",
    report.RollbackReport,
    overrides={**dict.fromkeys(report.GROUPS, list_of(Item)), "files": FileChanges | None},
)


Switched = create_model_of_fields(
    "Switched", "The result of a switch; `report` is null without `sync`.", branch=Branch, report=Report | None
)


Operation = model_of_dataclass("Operation", operation.Operation)
Operations = create_list_model("Operations", Operation, "The operations of a session, newest first.")
