"""The facts about a branch that a turn needs when it begins, read in one statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import bindparam, exists, func, or_, select

from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import BRANCH_WITH_SESSION, NAME_COLUMNS, know_names
from agentgit.store.records.journal import CALLS, LAST_SEQ_OF_BRANCH, NEXT_BATCH, CallTally
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import require_row
from agentgit.store.sql.rows import value_of
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, OPERATION, SESSION, is_running
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import (
    HAS_CONTENT,
    HAS_INTERRUPT,
    NewestState,
    is_newest,
    parse_newest_state,
)


class TurnState(NamedTuple):
    newest: NewestState
    tally: CallTally
    world_seq: int
    last_number: int
    head_id: int | None
    session_name: str
    current_branch_id: int | None
    is_busy: bool


def query_turn_state(transaction: Writing, branch_id: int) -> Callable[[], TurnState]:
    """Query what a turn and its events have to know, together with the next statements. The session must be locked."""
    result = _READ.submit(transaction, {"branch": branch_id})
    know_names(transaction, branch_id, result.first)

    return lambda: _parse(result.first(), branch_id)


def read_turn_state(transaction: Reading, branch_id: int) -> TurnState:
    return _parse(_READ.first(transaction, {"branch": branch_id}), branch_id)


def _parse(row: Any, branch_id: int) -> TurnState:
    row = require_row(row, "branch", branch_id)
    return value_of(TurnState, row, newest=parse_newest_state(row), tally=value_of(CallTally, row))


def _query() -> Any:
    of_branch = CHECKPOINT.alias("of_branch").c
    last_number = select(func.max(of_branch.number)).where(of_branch.internal_session_id == BRANCH.c.id)
    other = BRANCH.alias("other")
    return (
        select(
            GRAPH_CHECKPOINT,
            HAS_INTERRUPT.label("asks"),
            HAS_CONTENT.label("holds"),
            CALLS.label("calls"),
            NEXT_BATCH.label("next_batch"),
            func.coalesce(LAST_SEQ_OF_BRANCH, 0).label("world_seq"),
            func.coalesce(last_number.scalar_subquery(), 0).label("last_number"),
            BRANCH.c.head_id,
            or_(
                exists().where(other.c.external_session_id == BRANCH.c.external_session_id, is_running(other)),
                exists().where(
                    OPERATION.c.external_session_id == BRANCH.c.external_session_id, OPERATION.c.status == RUNNING
                ),
            ).label("is_busy"),
            SESSION.c.current_branch_id,
            *NAME_COLUMNS,
        )
        .select_from(BRANCH_WITH_SESSION.outerjoin(GRAPH_CHECKPOINT, is_newest(BRANCH.c.thread_id)))
        .where(BRANCH.c.id == bindparam("branch"))
    )


_READ = CompiledStatement(_query())
