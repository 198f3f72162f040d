"""The new branch of `replay="execute"`: a track of its own, and the new results in its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import FAILED
from agentgit.effects.plan import EXECUTE, REDO
from agentgit.effects.tool_messages import Answered, Rewriter
from agentgit.rollback.executor import IN_THE_WORLD, Executor
from agentgit.rollback.replay_calls import PathCalls
from agentgit.store.records import rerun_track
from agentgit.store.records.rerun_track import PlacedCall
from agentgit.store.records.sessions import Found
from agentgit.store.store import Store
from agentgit.store.threads import message_rewrite
from agentgit.values import as_object


class Executed:
    """Gives a branch what the tools of its path returned when they ran again.

    Args:
        store: The store of the database.
        past: Knows the calls of the path.
        worker: Knows what ran again.
    """

    def __init__(self, store: Store, past: PathCalls, worker: Executor) -> None:
        self.store = store
        self.past = past
        self.executor = worker

    def is_of(self, row: Found) -> bool:
        """Return whether an operation makes a branch whose calls run again."""
        return row.internal_session_id != row.source_id and as_object(row.request).get("replay") == EXECUTE

    def take_over(self, connection: Connection, row: Found) -> None:
        """Put the runs of an operation that has done its steps on its branch, in place of the calls of its path.

        Args:
            connection: In the transaction that publishes the branch.
            row: The operation.
        """
        branch = self.store.sessions.branch(connection, row.internal_session_id)
        calls = self.past.calls(connection, self.store.parts(connection, branch, branch.inherited))
        runs = self._runs(connection, row)
        placed, answers = [], []
        for row_id, call in calls.items():
            run = runs.pop(call.id, None)  # the first of several that one call answered
            placed.append(PlacedCall(row_id, call.id, run.id if run is not None else None))
            answers.append((row_id, call, run))
        rerun_track.place(connection, self.store.journal, self.store.sessions, branch.id, placed)
        rewriter = Rewriter(self._answered(connection, answers))
        message_rewrite.rewrite(connection, self.store.graphs, branch.thread_id, rewriter)

    def _runs(self, connection: Connection, row: Found) -> dict[int, ToolInvocation]:
        """Read what ran again, by the ids of the calls that it repeats."""
        steps = [step["invocation"] for step in as_object(row.request)["steps"] if step["action"] == REDO]
        found = {id: self.executor.redone(connection, row, id) for id in steps}
        return {id: run for id, run in found.items() if run is not None and run.status in IN_THE_WORLD}

    def _answered(
        self, connection: Connection, answers: list[tuple[int, ToolInvocation, ToolInvocation | None]]
    ) -> list[Answered]:
        rows: Mapping[int, ToolInvocation] = self.store.journal.invocations(connection, [id for id, *_ in answers])
        return [
            Answered(tool_call_id=asked, then=call.result, now=_now(call, run))
            for row_id, call, run in answers
            if (asked := rows[row_id].tool_call_id) and call.status != FAILED
        ]


def _now(call: ToolInvocation, run: ToolInvocation | None) -> Any:
    """Return what a call is answered with now: as before if nothing ran, or if a person told only that it happened."""
    return call.result if run is None or run.result is None else run.result
