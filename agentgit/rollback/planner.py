"""Planning: the action for each effect, and the calls that `replay="execute"` runs again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from agentgit.effects import RollbackPlan, ToolInvocation
from agentgit.effects.files import SnapshotRef
from agentgit.effects.invocation import (
    DONE,
    FAILED,
    INTENDED,
    NEVER_RUNS_REASON,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    SIMULATED,
    STANDING,
    UNKNOWN,
)
from agentgit.effects.kinds import MEMORY, STATE, UNDECLARED, WORKSPACE
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.effects.plan import BLOCK, EXECUTE, GONE, KEEP, RECORD, REDO, REVERSE, ROLLBACK, SWITCH, PlanStep
from agentgit.effects.planning import Knowledge, PastCall, ReasonFunction, make_plan
from agentgit.effects.registry import Registry
from agentgit.next_steps import Next, Reason, join_reasons
from agentgit.rollback.request import AS_REQUESTED, Request
from agentgit.sessions.rerun import LIVE
from agentgit.sessions.session import DONE as OPERATION_DONE
from agentgit.store.queries.graph_points import move
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.json_columns import read_report, read_request
from agentgit.store.records.sessions import StoredRow, is_simulated, require_real
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey

HAPPENED = STANDING - {FAILED} | {REVERSED}
"""The statuses of calls that happened, or may have."""

UNSURE = frozenset({INTENDED, UNKNOWN, REVERSING, REVERSE_UNKNOWN})
"""The statuses of calls for which it is unknown whether they happened or were reversed."""


class PathCalls:
    """Reads the calls of a path and determines which of them cannot run again."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    def load_past_calls(
        self,
        transaction: Reading,
        target: StoredRow,
        path: Sequence[TrackPart],
        calls_in_effect: Sequence[ToolInvocation],
    ) -> list[PastCall]:
        """Read the calls on the path to a checkpoint, oldest first, each with the run that may be in the world."""
        calls = list({call.id: call for call in self.load_calls(transaction, path).values()}.values())
        effective_runs = {run.first_id: run for run in reversed(calls_in_effect) if run.status != FAILED}
        graph_key = GraphKey(target.thread_id, "", target.graph_checkpoint_id or "")
        last_step = self.store.graphs.find(transaction, graph_key)
        blocked: dict[int, str | None] = {}
        answered: dict[int, str | None] = {}
        inner_calls = {
            call.id: self.store.recorded_calls.inner_calls(transaction, call, HAPPENED, include_reads=True)
            for call in calls
        }
        outer_calls = {inner_call.first_id: call for call in calls for inner_call in inner_calls[call.id]}
        for call in sorted(calls, key=lambda call: -len(inner_calls[call.id])):  # outer calls first
            effective_run = effective_runs.get(call.id)
            answered[call.id] = self._answer_reason(transaction, call, effective_run)
            reason = self._block_reason(
                transaction, target.external_session_id, call, effective_run, inner_calls[call.id], answered[call.id]
            )
            if last_step is not None and call.replay_of is None and last_step.precedes(call.started_at):
                reason = "its step of the graph has not ended, and goes on as it is"
            elif call.id in outer_calls:
                outer_call = outer_calls[call.id]
                is_stuck = blocked.get(outer_call.id, "not known")
                reason = f"{outer_call} called it, and does not run again" if is_stuck else None
                answered[call.id] = answered.get(outer_call.id)
            blocked[call.id] = reason
        return [
            PastCall(
                invocation=call,
                effective_run=effective_runs.get(call.id),
                blocked=blocked[call.id],
                answered=answered[call.id],
            )
            for call in calls
            # Calls that a tool makes itself run again with that tool.
            if call.id not in outer_calls or blocked[call.id] or answered[call.id]
        ]

    def load_calls(self, transaction: Reading, path: Sequence[TrackPart]) -> dict[int, ToolInvocation]:
        """Read the calls of a track in order, by the ids of their rows; for an answer from the record, its original."""
        ids = [call.id for call in self.store.journal.track(transaction, path)]
        originals = self.store.recorded_calls.originals(transaction, self.store.journal.invocations(transaction, ids))
        return {id: originals[id] for id in ids}

    def rerun_obstacle(self, transaction: Reading, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot run again in this process; None if it can."""
        is_history = call.is_imported or call.status == SIMULATED  # a rerun repeats the inputs of the file
        if is_history and self.store.sessions.is_imported(transaction, session_id):
            asked_by_file = "a rerun in an imported session may repeat what the file asks for; ask in a new message"
            return NEVER_RUNS_REASON if call.is_imported else asked_by_file
        if declared := self.declared_inner_calls(transaction, call):
            return f"it called {declared[0]}, which is not recorded outside a turn"
        if self.store.recorded_calls.has_asked(transaction, session_id, call):
            return "its tool asked a person (interrupt), and outside a turn there is nobody to answer"
        return self.registry.rerun_obstacle(session_id, call)

    def declared_inner_calls(self, transaction: Reading, call: ToolInvocation) -> list[ToolInvocation]:
        """Read the calls with a declared effect that the tool of a call made; the others are part of its own effect."""
        inner_calls = self.store.recorded_calls.inner_calls(transaction, call, HAPPENED)
        return [one for one in inner_calls if one.effect != UNDECLARED]

    def _block_reason(
        self,
        transaction: Reading,
        session_id: int,
        call: ToolInvocation,
        effective_run: ToolInvocation | None,
        inner_calls: Sequence[ToolInvocation],
        answer_reason: str | None,
    ) -> str | None:
        """Return why a call on the path must not or cannot run again; None if it can, or is answered anyway."""
        if call.tool_name in MEMORY_TOOLS and answer_reason is not None:
            return None
        if reason := self.registry.rerun_prohibition(session_id, call):
            return reason
        unsure = [one for one in (effective_run, call) if one is not None and one.status in UNSURE]
        if unsure and not call.effect.is_repeatable:
            return Reason(f"its outcome is unknown ({unsure[0].status})", Next("resolve", call=unsure[0].id))
        if acting := [one for one in inner_calls if not one.effect.is_neutral]:
            return f"it called {acting[0]}, which is not recorded outside a turn"
        if answer_reason is not None or call.effect in (STATE, WORKSPACE):
            return None  # it does not run again: its state and its files are restored
        return self.rerun_obstacle(transaction, session_id, call)

    def _answer_reason(
        self, transaction: Reading, call: ToolInvocation, effective_run: ToolInvocation | None
    ) -> str | None:
        """Return why a call on the path is answered from the record because of memory; None if it is not."""
        if call.tool_name in MEMORY_TOOLS:
            return None if call.effect == MEMORY else "memory stays as it is, as its effect says"
        is_in_world = effective_run is not None or call.effect.is_neutral
        if is_in_world and self.store.recorded_calls.has_written_memory(transaction, call):
            return "its writes to memory are made again by themselves"
        return None


Refusals = Mapping[int, str]
"""The reasons why calls cannot be undone, as their prechecks returned them, by the id of the call."""


class Planner:
    """Creates plans from the recorded calls of a session."""

    def __init__(self, store: Store, registry: Registry, user_id: int) -> None:
        self.store = store
        self.registry = registry
        self.user_id = user_id
        self.path_calls = PathCalls(store, registry)

    def name_session(self, transaction: Reading, session_id: int) -> str:
        """Return the name by which the user refers to a session."""
        session = self.store.visible_sessions.find_by_id(transaction, self.user_id, session_id)
        if session is None:  # a user who lost access still gets the report of an operation that had begun
            return str(self.store.sessions.load_row(transaction, session_id).session_name)
        return session.reference

    def add_names(self, transaction: Reading, plan: RollbackPlan, branch_id: int) -> RollbackPlan:
        """Add the names of the session and the branch to a plan that a user will see."""
        branch = self.store.sessions.branch(transaction, branch_id)
        session_name = self.name_session(transaction, branch.external_session_id)
        return replace(plan, session_name=session_name, branch=branch.name)

    def complete(
        self, transaction: Reading, plan: RollbackPlan, source_id: int, branch_id: int, position: int | None = None
    ) -> RollbackPlan:
        """Add to a plan what a user sees besides its steps: names, and the calls that its branch begins with."""
        replayed = self.store.live_track(transaction, self.store.sessions.branch(transaction, branch_id), position)
        return self.add_names(transaction, replace(plan, replayed=replayed), source_id)

    def plan_request(self, transaction: Reading, request: Request, refusals: Refusals | None = None) -> RollbackPlan:
        """Plan the rollback that a request describes; see `plan_rollback`."""
        require_real(self.store.sessions.branch(transaction, request.target.internal_session_id))
        if not request.conversation:
            require_real(self.store.sessions.branch(transaction, request.source_id))
        has_snapshot = isinstance(request.files, SnapshotRef) or request.target.workspace_snapshot_id is not None
        source = self.store.sessions.branch(transaction, request.source_id)
        basis = {
            "target": [request.target.id, request.target.graph_checkpoint_id],
            "options": [request.tools, request.replay, bool(request.files)],
            "branch": [source.id, source.head_id, source.epoch],
            "world": self.world_state(transaction, source.external_session_id),
        }
        plan = self.plan_rollback(
            transaction,
            request.source_id,
            request.target,
            request.label,
            tools=request.tools,
            replay=request.replay,
            kept_files=_why_files_are_kept(
                has_snapshot=has_snapshot, unwanted=request.why_files_stay or (None if request.files else AS_REQUESTED)
            ),
            kind=request.kind,
            refusals=refusals,
        )
        return replace(plan, basis=basis)

    def world_state(self, transaction: Reading, session_id: int) -> list[int]:
        """Return the last change of a session's world, and its last rollback or switch."""
        store = self.store
        return [store.world.last_seq(transaction, session_id), store.operations.last_move(transaction, session_id)]

    def plan_rollback(
        self,
        transaction: Reading,
        source_id: int,
        target: StoredRow,
        label: str,
        *,
        tools: str = "reverse",
        replay: str = RECORD,
        kept_files: str | None = None,
        kind: str = ROLLBACK,
        refusals: Refusals | None = None,
    ) -> RollbackPlan:
        """Plan an action for every effect in the world that is not on the path to a checkpoint."""
        session_id = target.external_session_id
        branch = self.store.sessions.branch(transaction, target.internal_session_id)
        path = self.store.track_parts(transaction, branch, target.position)
        later = self._load_effects(transaction, session_id, () if replay == EXECUTE else path)
        accepted_ids = self.accepted_ids(transaction, source_id)
        present_ids = self._file_calls(transaction, source_id, later) | accepted_ids if kept_files else set()
        return make_plan(
            checkpoint_id=target.id,
            target=label,
            position=target.position,
            later=[*self._load_paused_calls(transaction, target, branch), *later],
            gone=self._load_gone_calls(transaction, session_id, path),
            accepted_ids=accepted_ids,
            tools=tools,
            replay=replay,
            track=self.path_calls.load_past_calls(transaction, target, path, later) if replay == EXECUTE else (),
            kind=kind,
            knowledge=self._knowledge(
                transaction, session_id, refusals, lambda call: kept_files if call.first_id in present_ids else None
            ),
        )

    def plan_switch(
        self,
        transaction: Reading,
        branch: StoredRow,
        refusals: Refusals | None = None,
        why_files_stay: str | None = None,
    ) -> RollbackPlan:
        """Plan the actions that would bring the world to the state of a branch."""
        session_id = branch.external_session_id
        path = self.store.track_parts(transaction, branch)
        has_snapshot = self.store.snapshots.newest_of_branch(transaction, branch) is not None
        kept_files = _why_files_are_kept(has_snapshot=has_snapshot, unwanted=why_files_stay)
        # Not its head: a turn that only asks for consent moves that, too.
        basis = {"target": branch.id, "world": self.world_state(transaction, session_id)}
        plan = make_plan(
            checkpoint_id=branch.head_id or 0,
            target=f"branch {branch.name}",
            position=branch.inherited + self.store.journal.tally(transaction, branch.id).calls,
            later=self._load_effects(transaction, session_id, path),
            gone=self._load_gone_calls(transaction, session_id, path),
            accepted_ids=self.accepted_ids(transaction, branch.id),
            replay=REDO,
            kind=SWITCH,
            knowledge=self._knowledge(transaction, session_id, refusals, lambda call: kept_files),
        )
        return replace(plan, basis=basis, steps=[*plan.steps, *self._block_callers(transaction, branch)])

    def _block_callers(self, transaction: Reading, branch: StoredRow) -> Iterator[PlanStep]:
        """Yield a block for each call that a rerun answered alone, although its tool had made calls that act."""
        if not is_simulated(branch):
            return
        reports = [read_report(row) for row in self.store.operations.of_branch(transaction, branch.id)]
        noted = [call for report in reports for call in report.get("calls", ()) if call["answered_by"] != LIVE]
        ids = [call["recorded_id"] for call in noted if call["recorded_id"] is not None]
        for call in self.store.journal.invocations(transaction, ids).values():
            if inner_calls := self.path_calls.declared_inner_calls(transaction, call):
                why = f"it called {inner_calls[0]}, which the rerun neither made nor simulated; ask for it in a turn"
                steps = [Next("rerun_live", name=call.tool_name)] if call.effect.is_neutral else []
                yield PlanStep(action=BLOCK, invocation=call, why=Reason(why, *steps), otherwise=BLOCK)

    def _knowledge(
        self, transaction: Reading, session_id: int, refusals: Refusals | None, kept_files: ReasonFunction
    ) -> Knowledge:
        """Return what this process knows about the calls of a session."""
        refused, registry, rerun_obstacle = refusals or {}, self.registry, self.path_calls.rerun_obstacle
        return Knowledge(
            undo_obstacle=lambda call: refused.get(call.id) or registry.undo_obstacle(session_id, call),
            redo_obstacle=lambda call: refused.get(call.id) or rerun_obstacle(transaction, session_id, call),
            kept_files=kept_files,
            remark=lambda call: self._remark(session_id, call),
            changed_unsaved_files=lambda call: registry.changed_unsaved_files(session_id, call),
            undoes_unknown=lambda call: registry.undoes_unknown(session_id, call),
        )

    def divergence(self, transaction: Reading, branch: StoredRow) -> RollbackPlan | None:
        """Return the plan that would bring the world back to a branch; None if no other branch has changed the world.

        An effect that was made and reversed in between is no divergence. Neither is an effect that existed when the
        branch last looked.
        """
        foreign_ids = self.store.world.changes_by_others(transaction, branch)
        if not foreign_ids:
            return None
        plan = self.plan_switch(transaction, branch)
        steps = [s for s in plan.steps if s.invocation.id in foreign_ids and s.action in (REVERSE, REDO, BLOCK)]
        last_actions = self.store.world.last_actions(transaction, branch, [step.invocation.first_id for step in steps])
        return plan if any(_has_changed(step, last_actions.get(step.invocation.first_id)) for step in steps) else None

    def find_nearest(self, transaction: Reading, request: Request, refusals: Refusals) -> StoredRow | None:
        """Find the first checkpoint between a blocked target and HEAD to which a rollback is possible, or None.

        This is a binary search, because a later checkpoint needs fewer reversals. If calls run again, more of them run
        for a later checkpoint: if they block the first checkpoint found, they block all later ones.
        """
        source = self.store.sessions.branch(transaction, request.source_id)
        lineage = self.store.sessions.lineage(transaction, source)
        path = self.store.checkpoints.on_path(transaction, lineage)
        is_on_path = request.target.id in {row.id for row in path}
        later = [row for row in path if row.id > request.target.id] if is_on_path else list(path)
        if is_simulated(source):  # nothing goes on from a rerun
            later = [row for row in later if row.internal_session_id != source.id]
        # To "go back" to HEAD would change nothing, whether it is named by its last checkpoint or by another one there.
        later = [row for row in later if (row.state_hash, row.position) != (path[-1].state_hash, path[-1].position)]

        def is_possible(row: StoredRow, replay: str = RECORD) -> bool:
            return self.plan_request(transaction, replace(request, target=row, replay=replay), refusals).is_admissible

        index = bisect_left(later, True, key=is_possible)
        return later[index] if index < len(later) and is_possible(later[index], request.replay) else None

    def replan(
        self,
        transaction: Reading,
        row: StoredRow,
        refusals: Refusals | None = None,
        why_files_stay: str | None = None,
    ) -> RollbackPlan:
        """Plan an operation again that was started before."""
        request = read_request(row)
        if row.kind == SWITCH:
            branch = self.store.sessions.branch(transaction, row.internal_session_id)
            return self.plan_switch(transaction, branch, refusals, why_files_stay)
        target = self.store.checkpoints.find(transaction, CHECKPOINT.c.id == row.target_id)[0]
        if request.get("point"):
            target = move(target, request["point"])
        label = f"{target.branch_name}#{target.number}"
        unwanted = why_files_stay or (AS_REQUESTED if request.get("files") is None else None)
        has_snapshot = target.workspace_snapshot_id is not None
        return self.plan_rollback(
            transaction,
            row.source_id,
            target,
            label,
            tools=request["tools"],
            replay=request["replay"],
            kept_files=_why_files_are_kept(has_snapshot=has_snapshot, unwanted=unwanted) if unwanted else None,
            refusals=refusals,
        )

    def _remark(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return a remark on a call's functions for the plan: one has changed, is missing here, or raised."""
        remarks = (self.registry.remark(session_id, call), call.verify_raised)
        return join_reasons(remarks) or None

    def _file_calls(self, transaction: Reading, branch_id: int, calls: Sequence[ToolInvocation]) -> set[int]:
        """Return the ids of the calls whose changes to files are there on a branch.

        The files of other branches were restored when the session left them. A restore of files alone leaves those of
        the calls before its checkpoint.
        """
        file_calls = [call for call in calls if call.effect == WORKSPACE]
        if not file_calls:
            return set()
        for row in self.store.operations.of_branch(transaction, branch_id):
            if row.internal_session_id == row.source_id and read_request(row).get("files") is not None:
                targets = self.store.checkpoints.find(transaction, CHECKPOINT.c.id == row.target_id)
                position = targets[0].position if targets else 0
                file_calls = [call for call in file_calls if call.id > row.id or call.position < position]
        path = self.store.track_parts(transaction, self.store.sessions.branch(transaction, branch_id))
        return self.store.world.ids_on_path(transaction, path, [call.first_id for call in file_calls])

    def _load_effects(self, transaction: Reading, session_id: int, path: Sequence[TrackPart]) -> list[ToolInvocation]:
        """Read the calls that may have an effect in the world and are not on a path, newest first."""
        return [self.registry.current(call) for call in self.store.world.calls_in_effect(transaction, session_id, path)]

    def _load_paused_calls(self, transaction: Reading, target: StoredRow, branch: StoredRow) -> list[ToolInvocation]:
        """Read the calls that asked a person and were not answered, except those that wait at a checkpoint too."""
        branches = [segment.branch for segment in self.store.sessions.lineage(transaction, branch)]
        limits = {parent.id: child.branch_point_id for parent, child in pairwise(branches)} | {branch.id: target.id}
        calls = self.store.world.paused_calls(transaction, target.external_session_id)
        return [call for call in calls if call.id > limits.get(call.internal_session_id, 0)]

    def _load_gone_calls(
        self, transaction: Reading, session_id: int, path: Sequence[TrackPart]
    ) -> list[ToolInvocation]:
        """Read the calls that should be in the world but are not, or may not be, oldest first."""
        calls = [
            *self.store.world.reversed_calls(transaction, path),
            *self.store.world.uncertain_calls(transaction, session_id, path),
        ]
        return sorted(calls, key=lambda call: call.id)

    def accepted_ids(self, transaction: Reading, branch_id: int, *, only_done: bool = False) -> set[int]:
        """Return the ids of the calls whose effects a branch accepts, because its operations kept them.

        This includes the effects that it accepted from the branch it was created from. For a call that ran again, the
        id of the first call is included. A write to memory that stayed because of a conflict is not: once the conflict
        is over, it can be undone. With `only_done`, what an unfinished operation will keep is left out: no report has
        told of it.
        """
        rows = self.store.operations.of_branch(transaction, branch_id)
        requests = [read_request(row) for row in rows]
        decided = [
            request
            for row, request in zip(rows, requests, strict=True)
            if (row.status == OPERATION_DONE or not only_done) and not is_of_files(row)
        ]
        kept_ids = self.store.world.with_repeated_ids(
            transaction,
            (
                step["invocation"]
                for request in decided
                for step in request["steps"]
                if step["action"] == KEEP and step["invocation"] not in request.get("conflicts", ())
            ),
        )
        return kept_ids.union(*(request.get("accepted", ()) for request in requests))


def is_in_place(operation: StoredRow) -> bool:
    """Return whether an operation is a rollback that has left the conversation as it was."""
    return bool(operation.kind == ROLLBACK and operation.internal_session_id == operation.source_id)


def is_of_files(operation: StoredRow) -> bool:
    """Return whether an operation has restored files alone, and decided nothing about effects."""
    return is_in_place(operation) and read_request(operation).get("tools") == "keep"


def _has_changed(step: PlanStep, last_action: str | None) -> bool:
    """Return whether the state of an effect differs from the last action that the branch saw in the log."""
    if step.action == REDO or step.otherwise in (GONE, BLOCK):
        return last_action != REVERSED
    in_world_statuses = (DONE, REVERSE_FAILED)
    return step.invocation.status not in in_world_statuses or last_action not in in_world_statuses


def _why_files_are_kept(*, has_snapshot: bool, unwanted: str | None = None) -> str | None:
    """Return why the files of a workspace stay as they are; None if they are restored."""
    return unwanted if has_snapshot else "there is no snapshot to restore its files from"
