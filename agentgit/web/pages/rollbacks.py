"""The pages for rollbacks and switches: the plan, the report, and how to finish an interrupted operation."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any, Literal, TypedDict
from uuid import uuid4

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import Response

from agentgit.effects import RollbackPlan
from agentgit.errors import Conflict, InvalidInput, RollbackIncomplete
from agentgit.sessions.messages import text_of
from agentgit.sessions.rerun import RerunReport
from agentgit.sessions.session import SIMULATED
from agentgit.values import to_json
from agentgit.web.api.dependencies import BranchName, Id
from agentgit.web.pages.dependencies import (
    MAX_URL_LENGTH,
    Checkbox,
    Name,
    Text,
    Visit,
    local_path_or_home,
    parse_checkpoint_ref,
)
from agentgit.web.pages.rendering import query
from agentgit.web.security import require_same_site

router = APIRouter()

Tools = Literal["reverse", "reversible", "keep", "require_clean"]


@router.get("/sessions/{session_id}/rollback")
def plan_rollback(
    visit: Visit,
    session_id: Id,
    to: Annotated[str, Query(max_length=300)] = "HEAD",
    branch: BranchName = None,
    tools: Tools = "reverse",
    scope: Literal["all", "conversation", "files"] = "all",
    message: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """Show what a rollback would do, without doing it; `message` is the id of the message that it takes back first."""
    session = visit.repo.session(session_id)
    history = session.branch(branch).conversation_history if message else []
    rollback_plan = session.plan_rollback(
        parse_checkpoint_ref(to), branch=branch, tools=_effective_tools(tools, scope), **_parts_of_scope(scope)
    )
    return visit.page(
        "plan",
        session=session.info,
        plan=rollback_plan,
        to=to,
        branch=branch,
        tools=tools,
        scope=scope,
        message=message,
        before=next((text_of(said) for said in history if said["id"] == message), ""),
        seen=plan_hash(rollback_plan),
        request_id=f"web-{uuid4().hex}",
    )


class _Parts(TypedDict):
    """The parts of a session that a rollback affects."""

    conversation: bool
    files: bool


class _RollbackOptions(_Parts):
    """The options that the plan of a rollback and the rollback itself share."""

    branch: str | None
    tools: str


def _parts_of_scope(scope: str) -> _Parts:
    return {"conversation": scope != "files", "files": scope != "conversation"}


def plan_hash(plan: RollbackPlan) -> str:
    """Return a hash of a plan's effects. Two plans with the same hash would do the same."""
    files = plan.files.to_dict() if plan.files is not None else None
    return sha256(to_json([plan.kind, plan.checkpoint_id, plan.as_request(), files])).hexdigest()


def require_plan_unchanged(seen_hash: str, plan: RollbackPlan) -> None:
    """Check that the plan is still the one that the user has seen."""
    if seen_hash != plan_hash(plan):
        raise Conflict(
            "Nothing was changed: the plan is different now, because something happened in the meantime. Go back, "
            "reload, and check the plan."
        )


def _effective_tools(tools: str, scope: str) -> str:
    return "keep" if scope == "files" else tools


@router.post("/sessions/{session_id}/rollback", dependencies=[Depends(require_same_site)])
def rollback(
    visit: Visit,
    session_id: Id,
    to: Text,
    seen: Text,
    request_id: Text,
    branch: Text = "",
    name: Name = "",
    tools: Annotated[Tools, Form()] = "reverse",
    scope: Annotated[Literal["all", "conversation", "files"], Form()] = "all",
    force: Checkbox = False,
    on_error: Annotated[Literal["stop", "continue"], Form()] = "stop",
) -> Response:
    """Roll back as planned, and show the report. A form that is sent twice runs once."""
    repo, ref = visit.repo, parse_checkpoint_ref(to)
    options: _RollbackOptions = {
        "branch": branch or None,
        "tools": _effective_tools(tools, scope),
        **_parts_of_scope(scope),
    }
    session = repo.session(session_id)
    if not any(operation.request_id == request_id for operation in session.operations()):
        require_plan_unchanged(seen, session.plan_rollback(ref, **options))
    try:
        report = session.rollback(
            ref,
            name=name or None,
            force=force,
            on_error=on_error,
            request_id=request_id,
            **options,
        )
    except RollbackIncomplete as error:
        return visit.redirect(f"/operations/{error.operation}")
    return visit.redirect(f"/operations/{report.operation_id}")


@router.get("/sessions/{session_id}/switch")
def plan_switch(visit: Visit, session_id: Id, branch: Annotated[str, Query(max_length=300)]) -> Response:
    """Show what a switch that also changes the world would do, without doing it."""
    session = visit.repo.session(session_id)
    switch_plan = session.plan_switch(branch)
    return visit.page(
        "switch",
        session=session.info,
        plan=switch_plan,
        branch=branch,
        is_rerun=session.branch(branch).status == SIMULATED,
        seen=plan_hash(switch_plan),
    )


@router.post("/sessions/{session_id}/switch", dependencies=[Depends(require_same_site)])
def switch(
    visit: Visit,
    session_id: Id,
    branch: Text,
    seen: Text,
    sync: Annotated[Literal["", "world", "note", "ignore"], Form()] = "",
    force: Checkbox = False,
) -> Response:
    """Continue the session on another branch. The world is changed only as planned."""
    session = visit.repo.session(session_id)
    if sync == "world":
        require_plan_unchanged(seen, session.plan_switch(branch))
    try:
        report = session.switch(branch, sync=sync or None, force=force)
    except RollbackIncomplete as error:
        return visit.redirect(f"/operations/{error.operation}")
    return visit.redirect(f"/sessions/{session_id}" if not sync else f"/operations/{report.operation_id}")


@router.get("/sessions/{session_id}/operations")
def operations(visit: Visit, session_id: Id) -> Response:
    """List the operations of a session."""
    session = visit.repo.session(session_id)
    names = {branch.id: branch.name for branch in session.branches()}
    return visit.page(
        "operations",
        session=session.info,
        operations=session.operations(),
        names=names,
    )


@router.get("/operations/{operation_id}")
def operation(visit: Visit, operation_id: Id) -> Response:
    """Show the report of an operation, and how to continue one that was interrupted."""
    target = visit.repo.operation(operation_id)
    session = visit.repo.session(target.external_session_id)
    report = visit.repo.report(target)
    if isinstance(report, RerunReport):
        return visit.redirect(f"/sessions/{session.id}/rerun?{query(branch=report.branch)}")
    branches = {branch.id: branch for branch in session.branches()}
    return visit.page(
        "operation",
        session=session.info,
        operation=target,
        report=report,
        branch=branches.get(target.internal_session_id),
        left=branches.get(target.source_session_id),
    )


@router.post("/operations/{operation_id}/resume", dependencies=[Depends(require_same_site)])
def resume(visit: Visit, operation_id: Id, force: Checkbox = False) -> Response:
    """Finish an interrupted operation."""
    with suppress(RollbackIncomplete):  # the operation's page shows the report so far
        visit.repo.resume(operation_id, force=force)
    return visit.redirect(f"/operations/{operation_id}")


@router.post("/invocations/{invocation_id}/resolve", dependencies=[Depends(require_same_site)])
def resolve(
    visit: Visit,
    invocation_id: Id,
    outcome: Annotated[Literal["happened", "did_not_happen"], Form()],
    back: Annotated[str, Form(max_length=MAX_URL_LENGTH)] = "/",
    result: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    """Record the real outcome of a call, and return to the previous page."""
    visit.repo.resolve(invocation_id, outcome, result=_parse_result(result) if outcome == "happened" else None)
    return visit.redirect(local_path_or_home(back, ""))


def _parse_result(text: str) -> Any:
    """Parse the result in a form; an empty text is None."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f'The result is not valid JSON: {error}. Write text in quotes, like "sent".') from error
