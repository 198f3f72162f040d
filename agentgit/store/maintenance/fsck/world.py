"""Checks of calls, operations and the world log: they refer to each other and must agree."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, func, select

from agentgit.effects import invocation
from agentgit.effects.effects import MEMORY, RECORDED_KINDS
from agentgit.effects.invocation import FAILED, PAUSED, REVERSED, SIMULATED, TRANSITIONS
from agentgit.effects.memory import names_item
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.errors import Corrupt
from agentgit.sessions import operation
from agentgit.sessions.session import RERUN
from agentgit.store.maintenance.fsck.rows import RowCheck
from agentgit.store.maintenance.fsck.values import RESTORE
from agentgit.store.records.journal import LAST_LOGGED_STATUSES, LOGGED_STATUSES
from agentgit.store.sql.tables import BRANCH, OPERATION, TOOL_INVOCATION, WORLD_LOG
from agentgit.values import as_object, from_json

CALL_STATUSES = frozenset({*TRANSITIONS, FAILED, PAUSED, REVERSED, SIMULATED})
CALL_KINDS = (invocation.CALL, invocation.REPLAY, invocation.REDO)
OPERATION_KINDS = (ROLLBACK, SWITCH, "fork", RERUN)
OPERATION_STATUSES = (operation.RUNNING, operation.DONE, operation.PARTIAL)


def check_world(check: RowCheck) -> None:
    """Check the tool invocations, the operations and the world log."""
    _check_calls(check)
    _check_operations(check)
    _check_log(check)
    _check_last_logged(check)
    _check_world_seen(check)


def _check_calls(check: RowCheck) -> None:
    """Check the tool invocations: their branch, the call that they replay, and their enumerated values."""
    columns = ("id", "external_session_id", "internal_session_id", "status", "effect", "kind", "replay_of")
    content = ("args", "result", "answers") if check.with_hashes else ()
    for row in check.read(*(TOOL_INVOCATION.c[name] for name in (*columns, *content))):
        name = f"tool_invocation {row.id}"
        check.require_same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "earlier call", row.replay_of, check.call_ids)
        check.require_known(name, "status", row.status, CALL_STATUSES)
        check.require_known(name, "effect", row.effect, RECORDED_KINDS)
        check.require_known(name, "kind", row.kind, CALL_KINDS)
        if check.with_hashes:
            check.require_valid_json(name, args=row.args, result=row.result, answers=row.answers)
            if row.effect == MEMORY and not _names_item(row.args):
                check.report.add(name, "it is a write to memory without the item or the value before it", RESTORE)


def _names_item(args: bytes) -> bool:
    """Return whether arguments name an item of memory; True if they are unreadable and already reported."""
    try:
        return names_item(as_object(args))
    except Corrupt:
        return True


def _check_operations(check: RowCheck) -> None:
    """Check the operations: their session, branches, target checkpoint, and the calls of their steps."""
    columns = ("id", "external_session_id", "user_id", "kind", "status", "source_id", "target_id", "request", "report")
    for row in check.read(*(OPERATION.c[name] for name in columns), OPERATION.c.internal_session_id):
        name = f"operation {row.id}"
        check.require_existing(name, "session", row.external_session_id, check.current_branches)
        check.require_existing(name, "user", row.user_id, check.author_ids)
        if row.external_session_id in check.current_branches:
            check.require_same_session(name, "source", row.source_id, row.external_session_id)
            check.require_same_session(name, "branch", row.internal_session_id, row.external_session_id)
        check.require_existing(name, "checkpoint", row.target_id or None, check.checkpoint_positions)
        check.require_known(name, "kind", row.kind, OPERATION_KINDS)
        check.require_known(name, "status", row.status, OPERATION_STATUSES)
        check.require_valid_json(name, request=row.request, report=row.report)
        for call_id in _call_ids_of_steps(row.request) if check.with_hashes else ():
            check.require_existing(name, "call", call_id, check.call_ids)


def _call_ids_of_steps(request: bytes) -> list[int]:
    """Return the ids of the calls in an operation's steps; none if the request is unreadable and already reported."""
    try:
        return [step["invocation"] for step in from_json(request).get("steps", ())]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []


def _check_log(check: RowCheck) -> None:
    """Check the world log: the session, the call and the operation of each entry."""
    columns = ("external_session_id", "seq", "invocation_id", "action", "operation_id")
    for row in check.read(*(WORLD_LOG.c[name] for name in columns)):
        name = f"world_log {row.external_session_id}/{row.seq}"
        check.require_existing(name, "session", row.external_session_id, check.current_branches)
        check.require_existing(name, "call", row.invocation_id, check.call_ids)
        check.require_existing(name, "operation", row.operation_id, check.operation_ids)
        check.require_known(name, "action", row.action, LOGGED_STATUSES)


def _check_last_logged(check: RowCheck) -> None:
    """Compare the status of each call with its last entry in the world log. Both are written in one transaction."""
    key_columns = (WORLD_LOG.c.tenant_id, WORLD_LOG.c.external_session_id, WORLD_LOG.c.invocation_id)
    tenant_condition = WORLD_LOG.c.tenant_id == check.store.tenant_id
    last_entries = (
        select(*key_columns, func.max(WORLD_LOG.c.seq).label("seq"))
        .where(tenant_condition)
        .group_by(*key_columns)
        .subquery()
    )
    entry_join: Any = and_(
        *(WORLD_LOG.c[name] == last_entries.c[name] for name in ("tenant_id", "external_session_id", "seq"))
    )
    call_join = and_(
        TOOL_INVOCATION.c.tenant_id == WORLD_LOG.c.tenant_id, TOOL_INVOCATION.c.id == WORLD_LOG.c.invocation_id
    )
    query = (
        select(TOOL_INVOCATION.c.id, TOOL_INVOCATION.c.status, WORLD_LOG.c.action)
        .select_from(last_entries.join(WORLD_LOG, entry_join).join(TOOL_INVOCATION, call_join))
        .where(TOOL_INVOCATION.c.status != WORLD_LOG.c.action)
    )
    for id, status, action in check.connection.execute(query):
        if status in CALL_STATUSES and action in LOGGED_STATUSES and action not in LAST_LOGGED_STATUSES.get(status, ()):
            problem = f"its status is {status}, but its last entry in the world log is {action}"
            check.report.add(f"tool_invocation {id}", problem, RESTORE)


def _check_world_seen(check: RowCheck) -> None:
    """Check that no branch has seen more entries of the world log than exist."""
    last_seq = select(func.max(WORLD_LOG.c.seq)).where(
        WORLD_LOG.c.tenant_id == BRANCH.c.tenant_id, WORLD_LOG.c.external_session_id == BRANCH.c.external_session_id
    )
    is_beyond_end = BRANCH.c.world_seen > func.coalesce(last_seq.correlate(BRANCH).scalar_subquery(), 0)
    query = select(BRANCH.c.id, BRANCH.c.world_seen).where(BRANCH.c.tenant_id == check.store.tenant_id, is_beyond_end)
    for id, seen_count in check.connection.execute(query):
        problem = f"it has seen {seen_count} entries of the world log, which has fewer"
        check.report.add(f"internal_session {id}", problem, RESTORE)
