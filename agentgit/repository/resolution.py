"""Manual decisions about the outcomes of tool calls and reversals."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import DECISIONS, DONE
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.rollback.crash_recovery import recover_abandoned
from agentgit.store.audit.trail import record_event
from agentgit.store.sql.ids import is_id


class Resolution:
    """Records the outcomes that users decide by hand."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def resolve(self, invocation: ToolInvocation | int, outcome: str, *, result: Any) -> ToolInvocation:
        """Record the outcome of a call or of its reversal, and return the updated invocation."""
        invocation_id = invocation.id if isinstance(invocation, ToolInvocation) else invocation

        def decide(connection: Connection) -> ToolInvocation:
            call = self._load_visible_call(connection, invocation_id)
            branch = self.context.store.sessions.branch(connection, call.internal_session_id)
            self.context.authorize(connection, branch.external_session_id)
            self.context.store.sessions.lock(connection, branch.external_session_id)
            recover_abandoned(self.context.store, connection, branch.external_session_id)
            call = self._load_visible_call(connection, invocation_id)
            decisions = DECISIONS.get(call.status)
            if decisions is None:
                raise InvalidInput(
                    f"{call} is {call.status}: there is nothing to resolve. Only a call that is "
                    f"{' or '.join(DECISIONS)} can be resolved."
                )
            if outcome not in decisions:
                raise InvalidInput(f"outcome must be {' or '.join(map(repr, decisions))}, not {outcome!r}.")
            if result is not None and decisions[outcome] != DONE:
                raise InvalidInput(f"{call} is {call.status}; only a call that happened has a result. Leave it out.")
            if decisions[outcome] != call.status:
                error = None if outcome == "happened" else call.own_error or "resolved: it did not happen"
                self.context.store.journal.move(connection, call.id, decisions[outcome], error=error, result=result)
            record_event(
                connection,
                self.context.store.tenant_id,
                "call.resolved",
                branch_id=branch.id,
                user_id=self.context.user.id,
                invocation=call.id,
                tool=call.tool_name,
                outcome=outcome,
            )
            return self._load_visible_call(connection, invocation_id)

        return self.context.change(decide)

    def _load_visible_call(self, connection: Connection, invocation_id: int) -> ToolInvocation:
        call = self.context.store.journal.invocation(connection, invocation_id) if is_id(invocation_id) else None
        if call is not None:
            branch = self.context.store.sessions.branch(connection, call.internal_session_id)
            if self.context.lookup.find_visible(connection, branch.external_session_id) is not None:
                return call
        raise NotFound(f"There is no tool invocation {invocation_id}. session.tool_track() lists a branch's calls.")
