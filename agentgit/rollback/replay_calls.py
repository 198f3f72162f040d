"""The calls on the path to a checkpoint, as `replay="execute"` makes them again: which ran, what stands of them now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection

from agentgit.effects import ToolInvocation
from agentgit.effects.effects import IDEMPOTENT, READ_ONLY, UNDECLARED
from agentgit.effects.invocation import (
    FAILED,
    INTENDED,
    REPLAY,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    STANDING,
    UNKNOWN,
)
from agentgit.effects.plan import PastCall
from agentgit.effects.registry import Registry
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.sessions import Found
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey

HAPPENED = STANDING - {FAILED} | {REVERSED}
"""The statuses of what happened, or may have."""

UNSURE = frozenset({INTENDED, UNKNOWN, REVERSING, REVERSE_UNKNOWN})
"""The statuses of what nobody knows: whether it happened, or whether it was reversed."""

REPEATABLE = frozenset({READ_ONLY, IDEMPOTENT})
"""The effects that simply run again, also where nobody knows what became of the first run."""


class PathCalls:
    """Reads the calls of a path, and tells which of them cannot be made again.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
    """

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    def read(
        self, connection: Connection, target: Found, path: Sequence[TrackPart], standing: Sequence[ToolInvocation]
    ) -> list[PastCall]:
        """Read the calls on the path to a checkpoint, oldest first, each with what stands of it.

        Args:
            connection: An open connection; the transaction may be read-only.
            target: The row of the checkpoint.
            path: The track up to the checkpoint.
            standing: Everything that may stand in the world of the session.
        """
        calls = list({call.id: call for call in self.calls(connection, path).values()}.values())
        stands = {one.first_id: one for one in reversed(standing) if one.status != FAILED}
        open_calls = self._open_calls(connection, target)
        blocked: dict[int, str | None] = {}
        outer: dict[int, ToolInvocation] = {}
        for call in calls:
            inside = self.store.fences.inside(connection, call, HAPPENED, reads=True)
            outer.update((one.id, call) for one in inside)
            why = self._blocked(connection, target.external_session_id, call, stands.get(call.id))
            if call.tool_call_id in open_calls:
                why = "its batch waits for a person's answer, and is gone on with as it is"
            if call.id in outer:
                over = outer[call.id]
                why = f"{over} called it in its turn, and does not run again" if blocked[over.id] else None
            blocked[call.id] = why
        return [
            PastCall(invocation=call, stands=stands.get(call.id), blocked=blocked[call.id])
            for call in calls
            if call.id not in outer or blocked[call.id]  # what a tool calls runs with that tool
        ]

    def calls(self, connection: Connection, path: Sequence[TrackPart]) -> dict[int, ToolInvocation]:
        """Read the calls of a track in order, by the ids of their rows; of an answer from the record its original."""
        ids = [call.id for call in self.store.journal.track(connection, path)]
        rows = self.store.journal.invocations(connection, ids)
        originals = self.store.journal.invocations(connection, _originals(rows.values()))
        return {id: _original(rows[id], originals) for id in ids}

    def cannot_run(self, connection: Connection, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot be made again here; None if it can."""
        inside = self.store.fences.inside(connection, call, HAPPENED)
        if inner := [one for one in inside if one.effect != UNDECLARED]:
            return f"it called {inner[0]} in its turn, which runs again by itself and would happen twice"
        if self.store.fences.asked(connection, call.id):
            return "its tool asked a person (interrupt), and outside of a turn there is nobody to answer"
        return self.registry.cannot_run(session_id, call)

    def _blocked(
        self, connection: Connection, session_id: int, call: ToolInvocation, stands: ToolInvocation | None
    ) -> str | None:
        """Return why a call of the path must not or cannot be made again; None if nothing is in the way."""
        if why := self.registry.must_not_run(session_id, call):
            return why
        unsure = next((one for one in (stands, call) if one is not None and one.status in UNSURE), None)
        if unsure is not None and call.effect not in REPEATABLE:
            return f"it is unknown what became of it ({unsure.status}); look, and tell with repo.resolve()"
        if inside := self.store.fences.inside(connection, call, HAPPENED):
            return f"it called {inside[0]} in its turn, which nobody records outside of a turn"
        return self.cannot_run(connection, session_id, call)

    def _open_calls(self, connection: Connection, target: Found) -> set[str]:
        """Return the tool call ids of a batch that waits at a checkpoint for a person's answer."""
        if target.graph_checkpoint_id is None:
            return set()
        at = self.store.graphs.find(connection, GraphKey(target.thread_id, "", target.graph_checkpoint_id))
        if at is None or not self.store.is_interrupted(connection, at):
            return set()
        return set(self.store.unanswered(connection, at))


def _originals(rows: Iterable[ToolInvocation]) -> list[int]:
    return [row.replay_of for row in rows if row.kind == REPLAY and row.replay_of is not None]


def _original(row: ToolInvocation, originals: Mapping[int, ToolInvocation]) -> ToolInvocation:
    """Return the call that a row of a track is about; one that failed was an answer that nobody took."""
    taken = row.kind == REPLAY and row.status != FAILED and row.replay_of is not None
    return originals.get(row.replay_of or 0, row) if taken else row
