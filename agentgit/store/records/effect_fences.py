"""Earlier attempts at a call, and the effects that a new call would make a second time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from agentgit.effects import ToolInvocation
from agentgit.effects.effects import READ_ONLY
from agentgit.effects.invocation import CALL, DONE, FAILED, REDO, REPLAY, REVERSE_FAILED, STANDING
from agentgit.store.records.journal import WITH_BRANCH, Journal, TrackPart
from agentgit.store.records.world_log import MADE_HERE, SUPERSEDED, World
from agentgit.store.sql.driver_errors import missing_row
from agentgit.store.sql.tables import BRANCH, TOOL_INVOCATION
from agentgit.values import as_object

ANSWERS = frozenset({DONE, REVERSE_FAILED})
"""The statuses of what stands and has a result."""


class Fences:
    """Looks up what a call is compared with.

    Args:
        tenant_id: The tenant.
        journal: The invocations.
        world: The world log that they stand in.
    """

    def __init__(self, tenant_id: int, journal: Journal, world: World) -> None:
        self.tenant_id = tenant_id
        self.journal = journal
        self.world = world

    def attempts(
        self,
        connection: Connection,
        path: Sequence[TrackPart],
        tool_name: str,
        tool_call_id: str | None,
        task: str | None,
    ) -> list[ToolInvocation]:
        """Read the calls of a tool on a path that had this id, or that this task made, newest first.

        Args:
            connection: Any open connection.
            path: The path, root first.
            tool_name: The name of the tool.
            tool_call_id: The id of the call in the AI message; models may repeat an id.
            task: The task; None if the id counts.
        """
        parts = {part.branch_id: part for part in path}
        place = TOOL_INVOCATION.c.tool_call_id == tool_call_id if task is None else TOOL_INVOCATION.c.task == task
        rows = self._rows(
            connection,
            TOOL_INVOCATION.c.internal_session_id.in_(list(parts)),
            place,
            TOOL_INVOCATION.c.tool_name == tool_name,
            TOOL_INVOCATION.c.kind != REDO,
        )
        last = {branch_id: self.journal.last_of(connection, parts[branch_id]) for branch_id in _branches(rows)}
        return self.journal.own_values(connection, [r for r in rows if r.arrival <= last[r.internal_session_id]][::-1])

    def shares(self, connection: Connection, path: Sequence[TrackPart], task: str) -> list[dict[str, Any]]:
        """Read which of a person's answers the calls of a task took, later attempts and nearer branches last.

        Args:
            connection: Any open connection.
            path: The path, root first. What its branches did after they were left counts too: it is the same task.
            task: Its name; a task that runs again has the same, on a fork too.
        """
        parts = [part.branch_id for part in path]
        rows = self._rows(
            connection, TOOL_INVOCATION.c.internal_session_id.in_(parts), TOOL_INVOCATION.c.answers.is_not(None)
        )
        rows = sorted(rows, key=lambda row: (parts.index(row.internal_session_id), row.id))
        return [share for row in rows if (share := as_object(row.answers))["task"] == task]

    def asked(self, connection: Connection, invocation_id: int) -> bool:
        """Return whether a call took an answer of a person."""
        answers = self.answers(connection, invocation_id)
        return answers is not None and bool(answers["taken"])

    def answers(self, connection: Connection, invocation_id: int) -> dict[str, Any] | None:
        """Read which of a person's answers a call took, and which graphs it ran; None if none."""
        rows = self._rows(connection, TOOL_INVOCATION.c.id == invocation_id)
        return as_object(rows[0].answers) if rows and rows[0].answers is not None else None

    def standing(self, connection: Connection, session_id: int, identity: str) -> list[ToolInvocation]:
        """Read what stands in the world of a session, or may stand there, and is the same call; oldest first.

        Args:
            connection: Any open connection.
            session_id: The external session.
            identity: The value that makes two calls the same.
        """
        rows = self._rows(
            connection,
            TOOL_INVOCATION.c.external_session_id == session_id,
            TOOL_INVOCATION.c.identity == identity,
            ~SUPERSEDED,
            ~MADE_HERE,
        )
        stands = [row for row in rows if row.status in STANDING - {FAILED} and row.kind != REPLAY]
        return self.journal.own_values(connection, stands)

    def inside(
        self, connection: Connection, call: ToolInvocation, statuses: Collection[str] = ANSWERS, *, reads: bool = False
    ) -> list[ToolInvocation]:
        """Read what a call called in its turn, and what of that has one of these statuses; oldest first.

        Args:
            connection: Any open connection.
            call: The call.
            statuses: The statuses to look for.
            reads: True for those that only read too.
        """
        if call.ended_at is None or call.kind != CALL:
            return []
        place = select(TOOL_INVOCATION.c.batch, TOOL_INVOCATION.c.batch_index, TOOL_INVOCATION.c.arrival)
        own = connection.execute(
            place.where(TOOL_INVOCATION.c.tenant_id == self.tenant_id, TOOL_INVOCATION.c.id == call.id)
        ).first()
        if own is None:
            raise missing_row("tool invocation", call.id)
        rows = self._rows(
            connection,
            TOOL_INVOCATION.c.internal_session_id == call.internal_session_id,
            TOOL_INVOCATION.c.batch == own.batch,
            TOOL_INVOCATION.c.batch_index == own.batch_index,
            TOOL_INVOCATION.c.arrival > own.arrival,
            TOOL_INVOCATION.c.started_at <= call.ended_at,
            TOOL_INVOCATION.c.status.in_(sorted(statuses)),
            *(() if reads else (TOOL_INVOCATION.c.effect != READ_ONLY,)),
            TOOL_INVOCATION.c.kind == CALL,
        )
        return self.journal.own_values(connection, rows)

    def withdraw(self, connection: Connection, invocation_id: int, error: str) -> None:
        """Record that an answer from the record was not taken: the call that it was for raised before.

        Args:
            connection: A connection in a transaction that writes.
            invocation_id: The replay; it never stood in the world.
            error: The exception that was raised.
        """
        is_replay = TOOL_INVOCATION.c.kind == REPLAY
        self.journal.change(connection, invocation_id, is_replay, status=FAILED, result=None, error_message=error)

    def _rows(self, connection: Connection, *conditions: Any) -> Sequence[Row[Any]]:
        query = select(TOOL_INVOCATION, BRANCH.c.inherited).select_from(WITH_BRANCH)
        mine = TOOL_INVOCATION.c.tenant_id == self.tenant_id
        found = connection.execute(query.where(mine, *conditions).order_by(TOOL_INVOCATION.c.id)).all()
        return self.journal.authentic(connection, found)


def _branches(rows: Sequence[Row[Any]]) -> set[int]:
    return {row.internal_session_id for row in rows}
