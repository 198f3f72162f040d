"""Checks of calls, operations and the world log: they refer to each other and must agree."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, func, select

from agentgit.effects import invocation
from agentgit.effects.effects import KINDS, UNDECLARED
from agentgit.effects.invocation import FAILED, PAUSED, REVERSED, TRANSITIONS
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.sessions import operation
from agentgit.store.maintenance.fsck.rows import RowCheck
from agentgit.store.maintenance.fsck.values import RESTORE
from agentgit.store.records.journal import LAST_LOGGED, LOGGED
from agentgit.store.sql.tables import BRANCH, OPERATION, TOOL_INVOCATION, WORLD_LOG
from agentgit.values import from_json

CALL_STATUSES = frozenset({*TRANSITIONS, FAILED, PAUSED, REVERSED})
CALL_KINDS = (invocation.CALL, invocation.REPLAY, invocation.REDO)
OPERATION_KINDS = (ROLLBACK, SWITCH, "fork")
OPERATION_STATUSES = (operation.RUNNING, operation.DONE, operation.PARTIAL)


def check_world(check: RowCheck) -> None:
    """Check the tool invocations, the operations and the world log."""
    _calls(check)
    _operations(check)
    _log(check)
    _check_last_logged(check)
    _check_world_seen(check)


def _calls(check: RowCheck) -> None:
    """Check the tool invocations: their branch, the call that they replay, and their enumerated values."""
    columns = ("id", "external_session_id", "internal_session_id", "status", "effect", "kind", "replay_of")
    content = ("args", "result", "answers") if check.hashes else ()
    for row in check.read(*(TOOL_INVOCATION.c[name] for name in (*columns, *content))):
        name = f"tool_invocation {row.id}"
        check.same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "earlier call", row.replay_of, check.call_ids)
        check.one_of(name, "status", row.status, CALL_STATUSES)
        check.one_of(name, "effect", row.effect, (*KINDS, UNDECLARED))
        check.one_of(name, "kind", row.kind, CALL_KINDS)
        if check.hashes:
            check.json(name, args=row.args, result=row.result, answers=row.answers)


def _operations(check: RowCheck) -> None:
    """Check the operations: their session, branches, target checkpoint, and the calls of their steps."""
    columns = ("id", "external_session_id", "user_id", "kind", "status", "source_id", "target_id", "request", "report")
    for row in check.read(*(OPERATION.c[name] for name in columns), OPERATION.c.internal_session_id):
        name = f"operation {row.id}"
        check.require_existing(name, "session", row.external_session_id, check.current)
        check.require_existing(name, "user", row.user_id, check.authors)
        if row.external_session_id in check.current:
            check.same_session(name, "source", row.source_id, row.external_session_id)
            check.same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "checkpoint", row.target_id or None, check.of_checkpoint)
        check.one_of(name, "kind", row.kind, OPERATION_KINDS)
        check.one_of(name, "status", row.status, OPERATION_STATUSES)
        check.json(name, request=row.request, report=row.report)
        for step in _steps(row.request) if check.hashes else ():
            check.require_existing(name, "call", step, check.call_ids)


def _steps(request: bytes) -> list[int]:
    """Return the ids of the calls in an operation's steps; none if the request is unreadable and already reported."""
    try:
        return [step["invocation"] for step in from_json(request).get("steps", ())]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []


def _log(check: RowCheck) -> None:
    """Check the world log: the session, the call and the operation of each entry."""
    columns = ("external_session_id", "seq", "invocation_id", "action", "operation_id")
    for row in check.read(*(WORLD_LOG.c[name] for name in columns)):
        name = f"world_log {row.external_session_id}/{row.seq}"
        check.require_existing(name, "session", row.external_session_id, check.current)
        check.require_existing(name, "call", row.invocation_id, check.call_ids)
        check.require_existing(name, "operation", row.operation_id, check.operation_ids)
        check.one_of(name, "action", row.action, LOGGED)


def _check_last_logged(check: RowCheck) -> None:
    """Compare the status of each call with its last entry in the world log. Both are written in one transaction."""
    key = (WORLD_LOG.c.tenant_id, WORLD_LOG.c.external_session_id, WORLD_LOG.c.invocation_id)
    mine = WORLD_LOG.c.tenant_id == check.store.tenant_id
    newest = select(*key, func.max(WORLD_LOG.c.seq).label("seq")).where(mine).group_by(*key).subquery()
    same: Any = and_(*(WORLD_LOG.c[name] == newest.c[name] for name in ("tenant_id", "external_session_id", "seq")))
    of_call = and_(
        TOOL_INVOCATION.c.tenant_id == WORLD_LOG.c.tenant_id, TOOL_INVOCATION.c.id == WORLD_LOG.c.invocation_id
    )
    query = (
        select(TOOL_INVOCATION.c.id, TOOL_INVOCATION.c.status, WORLD_LOG.c.action)
        .select_from(newest.join(WORLD_LOG, same).join(TOOL_INVOCATION, of_call))
        .where(TOOL_INVOCATION.c.status != WORLD_LOG.c.action)
    )
    for id, status, action in check.connection.execute(query):
        if status in CALL_STATUSES and action in LOGGED and action not in LAST_LOGGED.get(status, ()):
            said = f"its status is {status}, but its last entry in the world log is {action}"
            check.report.add(f"tool_invocation {id}", said, RESTORE)


def _check_world_seen(check: RowCheck) -> None:
    """Check that no branch has seen more entries of the world log than exist."""
    last = select(func.max(WORLD_LOG.c.seq)).where(
        WORLD_LOG.c.tenant_id == BRANCH.c.tenant_id, WORLD_LOG.c.external_session_id == BRANCH.c.external_session_id
    )
    beyond = BRANCH.c.world_seen > func.coalesce(last.correlate(BRANCH).scalar_subquery(), 0)
    query = select(BRANCH.c.id, BRANCH.c.world_seen).where(BRANCH.c.tenant_id == check.store.tenant_id, beyond)
    for id, seen in check.connection.execute(query):
        said = f"it has seen {seen} entries of the world log, which has fewer"
        check.report.add(f"internal_session {id}", said, RESTORE)
