"""What stands already: earlier attempts at a call, and the effects that a new call would make a second time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, select, update

from agentgit.store.journal import BRANCH, INVOCATION, WITH_BRANCH, Journal, Part
from agentgit.store.world import SUPERSEDED, World
from agentgit.tools import ToolInvocation
from agentgit.tools.effects import READ_ONLY
from agentgit.tools.invocation import CALL, DONE, FAILED, REDO, REPLAY, REVERSE_FAILED, STANDING
from agentgit.values import as_object

ANSWERS = frozenset({DONE, REVERSE_FAILED})
"""The statuses of what stands and has a result."""


class Fences:
    """Looks up what a call is compared with.

    Args:
        tenant_id: whose.
        journal: the invocations.
        world: where they stand.
    """

    def __init__(self, tenant_id: int, journal: Journal, world: World) -> None:
        self.tenant_id = tenant_id
        self.journal = journal
        self.world = world

    def attempts(
        self, connection: Connection, path: Sequence[Part], tool_call_id: str, tool_name: str
    ) -> list[ToolInvocation]:
        """Read the calls on a path that had this id and tool, newest first; models may repeat an id.

        Args:
            connection: any.
            path: root first.
            tool_call_id: the id of the call in the AI message.
            tool_name: which tool.
        """
        parts = {part.branch_id: part for part in path}
        rows = self._rows(
            connection,
            INVOCATION.c.internal_session_id.in_(list(parts)),
            INVOCATION.c.tool_call_id == tool_call_id,
            INVOCATION.c.tool_name == tool_name,
            INVOCATION.c.kind != REDO,
        )
        last = {branch_id: self.journal.last_of(connection, parts[branch_id]) for branch_id in _branches(rows)}
        return self.journal.own_values(connection, [r for r in rows if r.arrival <= last[r.internal_session_id]][::-1])

    def shares(self, connection: Connection, path: Sequence[Part], task: str) -> list[dict[str, Any]]:
        """Read which of a person's answers the calls of a task took, later attempts and nearer branches last.

        Args:
            connection: any.
            path: root first. What its branches did after they were left counts too: it is the same task.
            task: its name; a task that runs again has the same, on a fork too.
        """
        parts = [part.branch_id for part in path]
        rows = self._rows(connection, INVOCATION.c.internal_session_id.in_(parts), INVOCATION.c.answers.is_not(None))
        rows = sorted(rows, key=lambda row: (parts.index(row.internal_session_id), row.id))
        return [share for row in rows if (share := as_object(row.answers))["task"] == task]

    def asked(self, connection: Connection, invocation_id: int) -> bool:
        """Tell whether a call took an answer of a person."""
        this = and_(INVOCATION.c.tenant_id == self.tenant_id, INVOCATION.c.id == invocation_id)
        answers = connection.execute(select(INVOCATION.c.answers).where(this)).scalar()
        return answers is not None and bool(as_object(answers)["taken"])

    def standing(self, connection: Connection, session_id: int, identity: str) -> list[ToolInvocation]:
        """Read what stands in the world of a session, or may stand there, and is the same call; oldest first.

        Args:
            connection: any.
            session_id: the external session.
            identity: what makes two calls the same.
        """
        rows = self._rows(
            connection,
            INVOCATION.c.external_session_id == session_id,
            INVOCATION.c.identity == identity,
            INVOCATION.c.status.in_(sorted(STANDING - {FAILED})),
            INVOCATION.c.kind != REPLAY,
            ~SUPERSEDED,
        )
        return self.journal.own_values(connection, rows)

    def inside(
        self, connection: Connection, call: ToolInvocation, statuses: Collection[str] = ANSWERS
    ) -> list[ToolInvocation]:
        """Read what a call called in its turn, and what of that has one of these statuses; oldest first."""
        if call.ended_at is None or call.kind != CALL:
            return []
        place = select(INVOCATION.c.batch, INVOCATION.c.batch_index, INVOCATION.c.arrival)
        own = connection.execute(
            place.where(INVOCATION.c.tenant_id == self.tenant_id, INVOCATION.c.id == call.id)
        ).one()
        rows = self._rows(
            connection,
            INVOCATION.c.internal_session_id == call.internal_session_id,
            INVOCATION.c.batch == own.batch,
            INVOCATION.c.batch_index == own.batch_index,
            INVOCATION.c.arrival > own.arrival,
            INVOCATION.c.started_at <= call.ended_at,
            INVOCATION.c.status.in_(sorted(statuses)),
            INVOCATION.c.effect != READ_ONLY,
            INVOCATION.c.kind == CALL,
        )
        return self.journal.own_values(connection, rows)

    def withdraw(self, connection: Connection, invocation_id: int, error: str) -> None:
        """Record that an answer from the record was not taken: the call that it was for raised before.

        Args:
            connection: in a transaction that writes.
            invocation_id: the replay; it never stood in the world.
            error: what was raised.
        """
        connection.execute(
            update(INVOCATION)
            .where(INVOCATION.c.tenant_id == self.tenant_id, INVOCATION.c.id == invocation_id)
            .where(INVOCATION.c.kind == REPLAY)
            .values(status=FAILED, result=None, error_message=error)
        )

    def _rows(self, connection: Connection, *conditions: Any) -> Sequence[Row[Any]]:
        query = select(INVOCATION, BRANCH.c.inherited).select_from(WITH_BRANCH)
        mine = INVOCATION.c.tenant_id == self.tenant_id
        return connection.execute(query.where(mine, *conditions).order_by(INVOCATION.c.id)).all()


def _branches(rows: Sequence[Row[Any]]) -> set[int]:
    return {row.internal_session_id for row in rows}
