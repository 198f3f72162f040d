"""Routes of rollbacks: plans, rollbacks, file restores, switches, and the operations that they record."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from agentgit.render.records import record
from agentgit.web.api import responses
from agentgit.web.api.dependencies import BranchName, Caller, Id, ReferenceParameter, RequestBody, failures
from agentgit.web.api.responses import JsonResponse

router = APIRouter(tags=["rollbacks"])

Tools = Literal["reverse", "reversible", "keep", "require_clean"]
Replay = Literal["record", "redo", "execute"]
OnFailure = Literal["stop", "continue"]
REF = Field(min_length=1, max_length=300, description="A checkpoint: `main#3`, `HEAD~1`, a name, a tag or an id.")


Plan = Annotated[str | None, Field(max_length=64, description="The `identity` of the plan to carry out.")]


Files = Annotated[
    bool | Literal["overwrite"],
    Field(description="Whether to restore files; `overwrite` also restores those that others have changed, too."),
]


class Rollback(RequestBody):
    """A rollback to run."""

    to: str = REF
    branch: str | None = Field(None, max_length=300, description="The branch to roll back; null is the current one.")
    tools: Tools = "reverse"
    files: Files = True
    conversation: bool = True
    replay: Replay = "record"
    name: str | None = Field(None, min_length=1, max_length=200, description="The name of the new branch.")
    force: bool = Field(False, description="true to keep what cannot be reversed.")
    on_error: OnFailure = "stop"
    on_drift: OnFailure = "stop"
    request_id: str | None = Field(
        None, min_length=1, max_length=64, description="Your id for it; used again, it returns the same branch."
    )
    plan: Plan = None


class RewindFiles(RequestBody):
    """A restore of files to run."""

    restore_point: str = REF
    branch: str | None = Field(None, max_length=300)
    files: Literal[True, "overwrite"] = True
    force: bool = False
    plan: Plan = None


class Switch(RequestBody):
    """A switch to run."""

    branch: str = Field(min_length=1, max_length=300)
    sync: Literal["world", "note", "ignore"] | None = None
    force: bool = False
    on_error: OnFailure = "stop"
    plan: Plan = None


class Resume(RequestBody):
    """The options for resuming an operation."""

    force: bool = Field(False, description="true to finish without the steps that still fail.")
    plan: Plan = None


class Resolution(RequestBody):
    """The outcome of a call, as a person determined it."""

    outcome: Literal["happened", "did_not_happen"]
    result: Any = Field(None, description="The result of the call, if it happened.")


@router.get("/sessions/{session_id}/plan-rollback", response_model=responses.PlanAnswer, responses=failures(409))
def plan_rollback(
    caller: Caller,
    session_id: Id,
    to: ReferenceParameter,
    branch: BranchName = None,
    tools: Tools = "reverse",
    files: Files = True,
    conversation: bool = True,
    replay: Replay = "record",
) -> JsonResponse:
    """Return what a rollback would do. Changes nothing."""
    plan = caller.session(session_id).plan_rollback(
        to, branch=branch, tools=tools, files=files, conversation=conversation, replay=replay
    )
    return JsonResponse(plan.to_dict())


@router.post(
    "/sessions/{session_id}/rollback", status_code=201, response_model=responses.ReportAnswer, responses=failures(409)
)
def rollback(caller: Caller, session_id: Id, wanted: Rollback) -> JsonResponse:
    """Roll back to a checkpoint on a new branch. The server runs the undo functions of the modules that it trusts."""
    options = wanted.model_dump()
    return JsonResponse(caller.session(session_id).rollback(options.pop("to"), **options).to_dict(), 201)


@router.post(
    "/sessions/{session_id}/rewind-files",
    status_code=201,
    response_model=responses.FileChangesAnswer,
    responses=failures(409),
)
def rewind_files(caller: Caller, session_id: Id, wanted: RewindFiles) -> JsonResponse:
    """Restore the files of a session. The conversation is unchanged."""
    options = wanted.model_dump()
    changes = caller.session(session_id).rewind_files(options.pop("restore_point"), **options)
    return JsonResponse(changes.to_dict(), 201)


@router.get("/sessions/{session_id}/plan-switch", response_model=responses.PlanAnswer, responses=failures(409))
def plan_switch(
    caller: Caller, session_id: Id, branch: Annotated[str, Query(min_length=1, max_length=300)]
) -> JsonResponse:
    """Return what a switch with `sync: world` would do. Changes nothing."""
    return JsonResponse(caller.session(session_id).plan_switch(branch).to_dict())


@router.post("/sessions/{session_id}/switch", response_model=responses.SwitchAnswer, responses=failures(409))
def switch(caller: Caller, session_id: Id, wanted: Switch) -> JsonResponse:
    """Continue the session on another branch."""
    session = caller.session(session_id)
    report = session.switch(**wanted.model_dump())
    branch = record(session.branch(wanted.branch))
    return JsonResponse({"branch": branch, "report": report.to_dict() if report.operation_id else None})


@router.get("/sessions/{session_id}/operations", response_model=responses.OperationsAnswer, responses=failures())
def operations(caller: Caller, session_id: Id) -> JsonResponse:
    """List the rollbacks, switches and forks of a session, newest first."""
    return JsonResponse({"items": [record(operation) for operation in caller.session(session_id).operations()]})


@router.get("/operations/{operation_id}", response_model=responses.OperationAnswer, responses=failures())
def operation(caller: Caller, operation_id: Id) -> JsonResponse:
    """Return one operation: a rollback, a switch or a fork."""
    return JsonResponse(record(caller.operation(operation_id)))


@router.post("/operations/{operation_id}/resume", response_model=responses.ReportAnswer, responses=failures(409))
def resume(caller: Caller, operation_id: Id, wanted: Resume) -> JsonResponse:
    """Finish an operation that failed or was interrupted. Completed steps are not repeated.

    If it would do more than was planned, the answer is 409 with the plan of that: send its identity as `plan`.
    """
    return JsonResponse(caller.resume(operation_id, **wanted.model_dump()).to_dict())


@router.post("/invocations/{invocation_id}/resolve", response_model=responses.CallAnswer, responses=failures(409))
def resolve(caller: Caller, invocation_id: Id, wanted: Resolution) -> JsonResponse:
    """Record what really happened to a call whose outcome is unknown."""
    return JsonResponse(caller.resolve(invocation_id, wanted.outcome, result=wanted.result).to_dict())
