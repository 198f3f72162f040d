"""Warnings of turns: about a new message that leaves a turn whose process died, and at the line of the caller."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.effects.invocation import UNKNOWN, call_text
from agentgit.errors import TurnAbandoned
from agentgit.sessions.messages import unanswered_calls

_MAX_NAMED_CALLS = 5
"""The maximum number of calls that the warning names."""


def warn_of_abandoned_turn(
    context: BranchContext, connection: Connection, owner: str, unfinished_messages: Sequence[Mapping[str, Any]]
) -> None:
    """Warn if a new message leaves calls of a turn without an answer.

    A filter that makes the warning an error ends the transaction, and the turn can still be continued.
    """
    calls = _unanswered(context, connection, owner, unfinished_messages)
    if not calls:
        return
    named = ", ".join(calls[:_MAX_NAMED_CALLS]) + (", …" if len(calls) > _MAX_NAMED_CALLS else "")
    warn_caller(
        f"The last turn of session {context.session(connection).reference}, branch {context.row(connection).name}, "
        f"died before these calls were answered: {named}. This message begins another turn, which may make them "
        "again. To avoid that, first continue the turn with agent.invoke(None).",
        TurnAbandoned,
    )


def _unanswered(
    context: BranchContext, connection: Connection, owner: str, unfinished_messages: Sequence[Mapping[str, Any]]
) -> list[str]:
    """List the calls that have no answer.

    A call that no message requested is answered when its node ends, which the conversation does not show.
    """
    ids = unanswered_calls(unfinished_messages)
    requested = unfinished_messages[0]["tool_calls"] if ids else ()
    journal = context.store.journal
    recorded = journal.invocations(connection, [*journal.calls_of_turn(connection, context.branch_id, owner)])
    return [
        *(call_text(call["name"], call["args"]) for call in requested if call["id"] in ids),
        *(
            str(call)
            for call in recorded.values()
            if call.tool_call_id not in ids and (call.tool_call_id is None or call.status == UNKNOWN)
        ),
    ]


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("agentgit.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
