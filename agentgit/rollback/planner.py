"""Planning: the action for each effect, and the calls that `replay="execute"` runs again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan, ToolInvocation
from agentgit.effects.effects import IDEMPOTENT, READ_ONLY, UNDECLARED
from agentgit.effects.invocation import (
    DONE,
    FAILED,
    INTENDED,
    REPLAY,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    STANDING,
    UNKNOWN,
)
from agentgit.effects.plan import (
    BLOCK,
    EXECUTE,
    GONE,
    KEEP,
    RECORD,
    REDO,
    REVERSE,
    ROLLBACK,
    SWITCH,
    PastCall,
    PlanStep,
    make_plan,
)
from agentgit.effects.registry import Registry
from agentgit.rollback.request import Request
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.values import as_object

HAPPENED = STANDING - {FAILED} | {REVERSED}
"""The statuses of calls that happened, or may have."""

UNSURE = frozenset({INTENDED, UNKNOWN, REVERSING, REVERSE_UNKNOWN})
"""The statuses of calls for which it is unknown whether they happened or were reversed."""

REPEATABLE = frozenset({READ_ONLY, IDEMPOTENT})
"""The effects whose calls may always run again, even if the outcome of the first run is unknown."""


class PathCalls:
    """Reads the calls of a path and determines which of them cannot run again.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
    """

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    def read(
        self, connection: Connection, target: StoredRow, path: Sequence[TrackPart], standing: Sequence[ToolInvocation]
    ) -> list[PastCall]:
        """Read the calls on the path to a checkpoint, oldest first, each with the run that may be in the world.

        Args:
            connection: An open connection; the transaction may be read-only.
            target: The row of the checkpoint.
            path: The track up to the checkpoint.
            standing: All calls of the session whose effects may be in the world.
        """
        calls = list({call.id: call for call in self.calls(connection, path).values()}.values())
        stands = {one.first_id: one for one in reversed(standing) if one.status != FAILED}
        open_calls = self._open_calls(connection, target)
        blocked: dict[int, str | None] = {}
        outer: dict[int, ToolInvocation] = {}
        for call in calls:
            inside = self.store.fences.inner_calls(connection, call, HAPPENED, reads=True)
            outer.update((one.id, call) for one in inside)
            why = self._blocked(connection, target.external_session_id, call, stands.get(call.id))
            if call.tool_call_id in open_calls:
                why = "its batch is waiting for a person's answer, and continues as it is"
            if call.id in outer:
                over = outer[call.id]
                why = f"{over} called it, and does not run again" if blocked[over.id] else None
            blocked[call.id] = why
        return [
            PastCall(invocation=call, effective_run=stands.get(call.id), blocked=blocked[call.id])
            for call in calls
            if call.id not in outer or blocked[call.id]  # calls that a tool makes itself run again with that tool
        ]

    def calls(self, connection: Connection, path: Sequence[TrackPart]) -> dict[int, ToolInvocation]:
        """Read the calls of a track in order, by the ids of their rows; for an answer from the record, its original."""
        ids = [call.id for call in self.store.journal.track(connection, path)]
        rows = self.store.journal.invocations(connection, ids)
        originals = self.store.journal.invocations(connection, _originals(rows.values()))
        return {id: _original(rows[id], originals) for id in ids}

    def cannot_run(self, connection: Connection, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot run again in this process; None if it can."""
        inside = self.store.fences.inner_calls(connection, call, HAPPENED)
        if inner := [one for one in inside if one.effect != UNDECLARED]:
            return f"it called {inner[0]}, which runs again by itself and would happen twice"
        if self.store.fences.has_used_answer(connection, call.id):
            return "its tool asked a person (interrupt), and outside a turn there is nobody to answer"
        return self.registry.cannot_run(session_id, call)

    def _blocked(
        self, connection: Connection, session_id: int, call: ToolInvocation, stands: ToolInvocation | None
    ) -> str | None:
        """Return why a call on the path must not or cannot run again; None if it can."""
        if why := self.registry.must_not_run(session_id, call):
            return why
        unsure = next((one for one in (stands, call) if one is not None and one.status in UNSURE), None)
        if unsure is not None and call.effect not in REPEATABLE:
            return f"its outcome is unknown ({unsure.status}); check, then call repo.resolve()"
        if inside := self.store.fences.inner_calls(connection, call, HAPPENED):
            return f"it called {inside[0]}, which is not recorded outside a turn"
        return self.cannot_run(connection, session_id, call)

    def _open_calls(self, connection: Connection, target: StoredRow) -> set[str]:
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
    """Return the call that a row of a track stands for. A failed answer from the record was not used."""
    taken = row.kind == REPLAY and row.status != FAILED and row.replay_of is not None
    return originals.get(row.replay_of or 0, row) if taken else row


Refusals = Mapping[int, str]
"""The reasons why calls cannot be undone, as their prechecks returned them, by the id of the call."""


class Planner:
    """Creates plans from the recorded calls of a session.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
    """

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry
        self.path_calls = PathCalls(store, registry)

    def plan_request(self, connection: Connection, request: Request, cannot: Refusals | None = None) -> RollbackPlan:
        """Plan the rollback that a request describes; see `rollback`."""
        return self.rollback(
            connection,
            request.source_id,
            request.target,
            request.label,
            tools=request.tools,
            replay=request.replay,
            kind=request.kind,
            cannot=cannot,
        )

    def rollback(
        self,
        connection: Connection,
        source_id: int,
        target: StoredRow,
        label: str,
        *,
        tools: str = "reverse",
        replay: str = RECORD,
        kind: str = ROLLBACK,
        cannot: Refusals | None = None,
    ) -> RollbackPlan:
        """Plan an action for every effect in the world that is not on the path to a checkpoint.

        Args:
            connection: An open connection; the transaction may be read-only.
            source_id: The branch that is left.
            target: The row of the checkpoint.
            label: The user's name for the checkpoint.
            tools: One of `TOOLS_MODES`.
            replay: One of `REPLAY_MODES`; `execute` also plans the calls on the path.
            kind: The subject of the plan.
            cannot: The refusals of prechecks.
        """
        session_id = target.external_session_id
        branch = self.store.sessions.branch(connection, target.internal_session_id)
        path = self.store.parts(connection, branch, target.position)
        later = self.store.world.calls_in_effect(connection, session_id, () if replay == EXECUTE else path)
        return make_plan(
            checkpoint_id=target.id,
            target=label,
            position=target.position,
            later=later,
            gone=self._gone(connection, session_id, path),
            accepted=self.accepted(connection, source_id),
            can_undo=lambda call: (cannot or {}).get(call.id) or self.registry.cannot_undo(session_id, call),
            tools=tools,
            replay=replay,
            track=self.path_calls.read(connection, target, path, later) if replay == EXECUTE else (),
            can_redo=lambda call: self.path_calls.cannot_run(connection, session_id, call),
            remark=lambda call: self._remark(session_id, call),
            kind=kind,
        )

    def switch(self, connection: Connection, branch: StoredRow, cannot: Refusals | None = None) -> RollbackPlan:
        """Plan the actions that would bring the world to the state of a branch.

        Args:
            connection: An open connection; the transaction may be read-only.
            branch: The row of the branch.
            cannot: The refusals of prechecks.
        """
        session_id = branch.external_session_id
        path = self.store.parts(connection, branch)
        return make_plan(
            checkpoint_id=branch.head_id or 0,
            target=f"branch {branch.name}",
            position=branch.inherited + self.store.journal.tally(connection, branch.id)()[0],
            later=self.store.world.calls_in_effect(connection, session_id, path),
            gone=self._gone(connection, session_id, path),
            accepted=self.accepted(connection, branch.id),
            can_undo=lambda call: (cannot or {}).get(call.id) or self.registry.cannot_undo(session_id, call),
            replay=REDO,
            can_redo=lambda call: self.path_calls.cannot_run(connection, session_id, call),
            remark=lambda call: self._remark(session_id, call),
            kind=SWITCH,
        )

    def divergence(self, connection: Connection, branch: StoredRow) -> RollbackPlan | None:
        """Return the plan that would bring the world back to a branch; None if no other branch has changed the world.

        An effect that was made and reversed in between is no divergence. Neither is an effect that existed when the
        branch last looked.

        Args:
            connection: An open connection; the transaction may be read-only.
            branch: The row of the branch.
        """
        foreign = self.store.world.changes_by_others(connection, branch)
        if not foreign:
            return None
        plan = self.switch(connection, branch)
        steps = [s for s in plan.steps if s.invocation.id in foreign and s.action in (REVERSE, REDO, BLOCK)]
        then = self.store.world.last_actions(connection, branch, [step.invocation.first_id for step in steps])
        return plan if any(_is_other(step, then.get(step.invocation.first_id)) for step in steps) else None

    def nearest(self, connection: Connection, request: Request, cannot: Refusals) -> StoredRow | None:
        """Find the first checkpoint after a blocked target that can be rolled back to; None if there is none.

        This is a binary search, because a later checkpoint needs fewer reversals. If calls run again, more of them run
        for a later checkpoint: if they block the first checkpoint found, they block all later ones.

        Args:
            connection: An open connection; the transaction may be read-only.
            request: The requested rollback, whose target is blocked.
            cannot: The refusals of prechecks.
        """
        line = self.store.sessions.lineage(connection, self.store.sessions.branch(connection, request.source_id))
        path = self.store.checkpoints.on_path(connection, line)
        known = request.target.id in {row.id for row in path}
        later = [row for row in path if row.id > request.target.id] if known else list(path)

        def admits(row: StoredRow, replay: str = RECORD) -> bool:
            return self.plan_request(connection, replace(request, target=row, replay=replay), cannot).is_admissible

        at = bisect_left(later, True, key=admits)
        return later[at] if at < len(later) and admits(later[at], request.replay) else None

    def replan(self, connection: Connection, row: StoredRow, cannot: Refusals | None = None) -> RollbackPlan:
        """Plan an operation again that was started before.

        Args:
            connection: An open connection; the transaction may be read-only.
            row: The row of the operation.
            cannot: The refusals of prechecks.
        """
        request = as_object(row.request)
        if row.kind == SWITCH:
            return self.switch(connection, self.store.sessions.branch(connection, row.internal_session_id), cannot)
        target = self.store.checkpoints.find(connection, CHECKPOINT.c.id == row.target_id)[0]
        label = f"checkpoint {row.target_id}"
        return self.rollback(
            connection,
            row.source_id,
            target,
            label,
            tools=request["tools"],
            replay=request["replay"],
            cannot=cannot,
        )

    def _remark(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return a remark on a call's functions for the plan: one has changed, is missing here, or raised."""
        said = (self.registry.remark(session_id, call), call.verify_raised)
        return "; ".join(one for one in said if one) or None

    def _gone(self, connection: Connection, session_id: int, path: Sequence[TrackPart]) -> list[ToolInvocation]:
        """Read the calls that should be in the world but are not, or may not be, oldest first."""
        found = [
            *self.store.world.reversed_calls(connection, path),
            *self.store.world.uncertain_calls(connection, session_id, path),
        ]
        return sorted(found, key=lambda call: call.id)

    def accepted(self, connection: Connection, branch_id: int) -> set[int]:
        """Return the ids of the calls whose effects a branch accepts, because its operations kept them.

        This includes the effects that it accepted from the branch it was created from. For a call that ran again, the
        id of the first call is included.
        """
        requests = [as_object(row.request) for row in self.store.operations.of_branches(connection, [branch_id])]
        steps = [step for request in requests for step in request["steps"]]
        kept = self.store.world.with_repeated_ids(
            connection, (step["invocation"] for step in steps if step["action"] == KEEP)
        )
        return kept.union(*(request.get("accepted", ()) for request in requests))


def _is_other(step: PlanStep, then: str | None) -> bool:
    """Return whether the state of an effect differs from `then`, the last action that the branch saw in the log."""
    if step.action == REDO or step.otherwise == GONE:
        return then != REVERSED
    stands = (DONE, REVERSE_FAILED)
    return step.invocation.status not in stands or then not in stands
