"""The pages for rollbacks and switches: the plan, the report, and how to finish an interrupted operation."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import Response

from agentgit.errors import InvalidInput, PlanChanged, RollbackIncomplete
from agentgit.sessions.messages import text_of
from agentgit.sessions.rerun import RerunReport
from agentgit.sessions.session import SIMULATED
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

Scope = Literal["all", "overwrite", "conversation", "files"]


@router.get("/sessions/{session_id}/rollback")
def plan_rollback(
    visit: Visit,
    session_id: Id,
    to: Annotated[str, Query(max_length=300)] = "HEAD",
    branch: BranchName = None,
    tools: Tools = "reverse",
    scope: Scope = "all",
    message: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """Show what a rollback would do, without doing it; `message` is the id of the message that it takes back first."""
    session = visit.repo.session(session_id)
    history = session.branch(branch).conversation_history if message else []
    rollback_plan = session.plan_rollback(parse_checkpoint_ref(to), branch=branch, **_parts_of_scope(scope, tools))
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
        request_id=f"web-{uuid4().hex}",
    )


def _parts_of_scope(scope: str, tools: str) -> dict[str, Any]:
    is_files = scope == "files"
    files = "overwrite" if scope == "overwrite" else scope != "conversation"
    return {"conversation": not is_files, "files": files, "tools": "keep" if is_files else tools}


@router.post("/sessions/{session_id}/rollback", dependencies=[Depends(require_same_site)])
def rollback(
    visit: Visit,
    session_id: Id,
    to: Text,
    plan: Text,
    request_id: Text,
    branch: Text = "",
    name: Name = "",
    tools: Annotated[Tools, Form()] = "reverse",
    scope: Annotated[Scope, Form()] = "all",
    force: Checkbox = False,
    on_error: Annotated[Literal["stop", "continue"], Form()] = "stop",
) -> Response:
    """Roll back as planned, and show the report. A form that is sent twice runs once."""
    try:
        report = visit.repo.session(session_id).rollback(
            parse_checkpoint_ref(to),
            branch=branch or None,
            name=name or None,
            force=force,
            on_error=on_error,
            request_id=request_id,
            plan=plan,
            **_parts_of_scope(scope, tools),
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
    )


@router.post("/sessions/{session_id}/switch", dependencies=[Depends(require_same_site)])
def switch(
    visit: Visit,
    session_id: Id,
    branch: Text,
    plan: Text,
    sync: Annotated[Literal["", "world", "note", "ignore"], Form()] = "",
    force: Checkbox = False,
) -> Response:
    session = visit.repo.session(session_id)
    try:
        report = session.switch(branch, sync=sync or None, force=force, plan=plan if sync == "world" else None)
    except RollbackIncomplete as error:
        return visit.redirect(f"/operations/{error.operation}")
    return visit.redirect(f"/sessions/{session_id}" if not sync else f"/operations/{report.operation_id}")


@router.get("/sessions/{session_id}/operations")
def operations(visit: Visit, session_id: Id) -> Response:
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
    return _show_operation(visit, operation_id)


def _show_operation(visit: Visit, operation_id: int, changed: PlanChanged | None = None) -> Response:
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
        changed=changed,
        status=409 if changed else 200,
    )


@router.post("/operations/{operation_id}/resume", dependencies=[Depends(require_same_site)])
def resume(visit: Visit, operation_id: Id, plan: Text = "", force: Checkbox = False) -> Response:
    """Finish an interrupted operation, or show what it would do now if that is more than was planned."""
    try:
        visit.repo.resume(operation_id, force=force, plan=plan or None)
    except PlanChanged as changed:
        return _show_operation(visit, operation_id, changed)
    except RollbackIncomplete:
        pass  # the operation's page shows the report so far
    return visit.redirect(f"/operations/{operation_id}")


@router.post("/invocations/{invocation_id}/resolve", dependencies=[Depends(require_same_site)])
def resolve(
    visit: Visit,
    invocation_id: Id,
    outcome: Annotated[Literal["happened", "did_not_happen"], Form()],
    back: Annotated[str, Form(max_length=MAX_URL_LENGTH)] = "/",
    result: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    visit.repo.resolve(invocation_id, outcome, result=_parse_result(result) if outcome == "happened" else None)
    return visit.redirect(local_path_or_home(back, ""))


def _parse_result(text: str) -> Any:
    """Parse the result in a form; an empty text is None."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f'The result is not valid JSON: {error}. Write text in quotes, like "sent".') from error
