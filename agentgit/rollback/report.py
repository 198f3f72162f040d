"""Reports: the outcome of each step of an operation, read from the journal, and the notes about it for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation, invocation
from agentgit.effects.files import FileChanges
from agentgit.effects.plan import ANSWER, EXECUTE, GONE, REDO, REVERSE, SWITCH, WORLD_ONLY
from agentgit.effects.registry import Registry
from agentgit.effects.report import GROUPS, ReportItem
from agentgit.next_steps import Next, Reason, join_reasons
from agentgit.rollback.executor import IN_THE_WORLD, Executor, describe_drift
from agentgit.rollback.planner import Planner, is_in_place
from agentgit.sessions.session import DONE
from agentgit.store.records.json_columns import read_meta, read_report, read_request
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store

FAILED_BEFORE = "not tried, because an earlier one failed"
NOT_REVERSED = "not tried, because it was not reversed and would happen twice"
REPLAYED = "replayed from the record"
DRIFTED_BEFORE = "not tried, because an earlier one returned something different"


_GROUP_OF_ACTION = {GONE: "gone", ANSWER: "answered"}


class Reports:
    """Creates and reads the reports of operations."""

    def __init__(self, store: Store, registry: Registry, executor: Executor, planner: Planner) -> None:
        self.store = store
        self.registry = registry
        self.executor = executor
        self.planner = planner

    def outcome(self, transaction: Reading, row: StoredRow) -> dict[str, list[ReportItem]]:
        """Return the outcome of each step, by group, read from the journal."""
        groups: dict[str, list[ReportItem]] = {group: [] for group in GROUPS}
        request, untried_reason = read_request(row), FAILED_BEFORE
        stop_reasons = {"failed": FAILED_BEFORE}
        if request.get("on_drift") == "stop":
            stop_reasons["drifted"] = DRIFTED_BEFORE
        calls = self.store.journal.invocations(transaction, [step["invocation"] for step in request["steps"]])
        for step in request["steps"]:
            call = calls[step["invocation"]]  # never deleted while an operation refers to it
            for group, item in self._step_outcomes(transaction, row, call, step, untried_reason):
                groups[group].append(item)
                untried_reason = stop_reasons.get(group, untried_reason)
        return groups

    def _step_outcomes(
        self, transaction: Reading, row: StoredRow, call: ToolInvocation, step: dict[str, Any], untried_reason: str
    ) -> Iterable[tuple[str, ReportItem]]:
        """Yield the outcome of one step; a call that ran again and returned something different is yielded twice."""
        shown = call
        if step["action"] == REVERSE:
            group, reason = self._reversal_outcome(row, call, untried_reason)
        elif step["action"] == REDO:
            run = self.executor.find_rerun(transaction, row, call.id)
            group, reason = self._redo_outcome(transaction, row, call, run, untried_reason)
            if group in ("redone", "failed") and run is not None:
                shown = run
                if group == "redone" and (difference := describe_drift(call, run)) is not None:
                    yield "drifted", ReportItem(invocation=run, reason=difference)
        else:
            group, reason = self._untouched_outcome(transaction, call, _GROUP_OF_ACTION.get(step["action"], "kept"))
        yield group, ReportItem(invocation=shown, reason=reason or Reason.from_dict(step, "why"))

    def _untouched_outcome(self, transaction: Reading, call: ToolInvocation, group: str) -> tuple[str, str]:
        """Return the current state of an effect that was left alone; other operations may have changed it since."""
        if group == "kept" and call.status != invocation.REVERSED:
            return group, ""
        is_in_world = any(run.status in IN_THE_WORLD for run in self.store.world.redo_calls(transaction, call.first_id))
        if group == "kept" and not is_in_world:
            return "reversed", "it was to be kept, but has been reversed since"
        if group == "answered" and call.status == invocation.REVERSED and not is_in_world:
            return "gone", "it is answered from the record, and has been reversed since"
        return ("kept", "it was gone, but has run again since") if group == "gone" and is_in_world else (group, "")

    def _reversal_outcome(self, row: StoredRow, call: ToolInvocation, untried_reason: str) -> tuple[str, str]:
        if call.status == invocation.REVERSED:
            return "reversed", ""
        if call.status == invocation.REVERSE_UNKNOWN:
            text = f"it is unknown whether it was reversed ({call.error_message})"
            return "failed", Reason(text, Next("resolve", call=call.id))
        obstacle = self.registry.undo_obstacle(row.external_session_id, call)
        if call.status == invocation.REVERSE_FAILED:
            error = f"its undo raised {call.error_message}" if call.undo_may_have_acted else call.error_message
            return "failed", join_reasons([error, obstacle])
        return "remaining", obstacle or untried_reason

    def _redo_outcome(
        self,
        transaction: Reading,
        row: StoredRow,
        call: ToolInvocation,
        rerun: ToolInvocation | None,
        untried_reason: str,
    ) -> tuple[str, str]:
        if rerun is None:
            if self.executor.may_still_be_in_world(transaction, row, call):
                return "remaining", NOT_REVERSED
            obstacle = self.registry.rerun_obstacle(row.external_session_id, call)
            return "remaining", obstacle or untried_reason
        if rerun.status in IN_THE_WORLD:
            return "redone", ""
        if rerun.status == invocation.FAILED:
            return "failed", f"it {rerun.failure} when it ran again"
        if rerun.status == invocation.REVERSED:
            return "remaining", "it ran again, but has been reversed since"
        if rerun.ended_with_error:
            reason = f"it {rerun.failure} when it ran again, but may have happened"
            return "failed", Reason(reason, *([] if rerun.may_be_repeated else [Next("resolve", call=rerun.id)]))
        cause = f" ({rerun.error_message})" if rerun.error_message else ""
        return "failed", Reason(f"it is unknown whether it ran again{cause}", Next("resolve", call=rerun.id))

    def _load_groups(self, transaction: Reading, row: StoredRow) -> dict[str, list[ReportItem]]:
        report = read_report(row)
        stored_groups = {group: report.get(group, []) for group in GROUPS}
        calls = self.store.journal.invocations(
            transaction, [i["invocation"] for items in stored_groups.values() for i in items]
        )
        return {
            group: [
                ReportItem(invocation=calls[i["invocation"]], reason=Reason.from_dict(i, "reason"))
                for i in items
                if i["invocation"] in calls
            ]
            for group, items in stored_groups.items()
        }

    def read(self, transaction: Reading, row: StoredRow) -> RollbackReport:
        """Return the report of an operation; if it is not done, the outcome of its steps so far."""
        groups = self._load_groups(transaction, row) if row.status == DONE else self.outcome(transaction, row)
        branch = self.store.sessions.branch(transaction, row.internal_session_id)
        kind = WORLD_ONLY if is_in_place(row) else row.kind
        if kind not in (SWITCH, WORLD_ONLY) and read_request(row).get("replay") != EXECUTE:
            track = self.store.live_track(transaction, branch, branch.inherited)
            groups["replayed"] = [ReportItem(invocation=call, reason=REPLAYED) for call in track]
        files = read_report(row).get("files")
        return RollbackReport(
            operation_id=row.id,
            status=row.status,
            checkpoint_id=row.target_id or 0,
            branch=branch.name,
            kind=kind,
            session_name=self.planner.name_session(transaction, row.external_session_id),
            files=FileChanges.from_dict(files) if files else None,
            **groups,
        )


CHANGED = "world_note"
"""The key in a branch's metadata for how the world differs from the conversation, as a sync="note" switch found it."""

DRIFTED = "world_drift"
"""The key for the calls that ran again and returned something different from the conversation, by the call's id."""

DELIVERED: Mapping[str, Any] = {CHANGED: None, DRIFTED: None}
"""The metadata of a branch whose notes have been delivered."""


def at_switch(meta: Mapping[str, Any], plan: RollbackPlan, sync: str) -> dict[str, Any]:
    """Return the notes of the branch that a switch leads to, without earlier notes that no longer apply."""
    changed_ids = {str(step.invocation.first_id) for step in plan.steps}
    undelivered = {} if sync == "ignore" else meta.get(DRIFTED) or {}
    drifted = {call_id: note for call_id, note in undelivered.items() if call_id not in changed_ids}
    return {CHANGED: _describe_changes(plan) if sync == "note" else None, DRIFTED: drifted}


def after_drift(meta: Mapping[str, Any], items: Sequence[ReportItem]) -> dict[str, Any]:
    """Return the notes of a branch with calls that ran again and returned something different."""
    drift_notes = {str(item.invocation.first_id): f"- {item.invocation} ran again: {item.reason}" for item in items}
    return {DRIFTED: {**(meta.get(DRIFTED) or {}), **drift_notes}}


def undelivered_notes(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the undelivered notes, for a new branch that continues the same conversation."""
    return {name: meta[name] for name in DELIVERED if meta.get(name)}


def note_for_model(meta: Mapping[str, Any]) -> str | None:
    """Return the note for the model of a branch; None if there is none."""
    drifted = meta.get(DRIFTED) or {}
    drift_lines = ["Calls of this conversation ran again and returned something different:", *drifted.values()]
    parts = [meta.get(CHANGED), "\n".join(drift_lines) if drifted else None]
    return "\n".join(part for part in parts if part) or None


def store_notes(store: Store, transaction: Writing, branch: StoredRow, notes: Mapping[str, Any]) -> None:
    """Store the notes of a branch, if they have changed."""
    meta = read_meta(branch)
    if any((meta.get(name) or None) != (note or None) for name, note in notes.items()):
        store.sessions.merge_metadata(transaction, branch.id, notes)


def _describe_changes(plan: RollbackPlan) -> str | None:
    """Describe how the world differs from the conversation; None if it does not."""
    lines = [f"- {step.invocation} was reversed" for step in plan.steps if step.action in (REDO, GONE)]
    lines += [f"- {step.invocation} was done elsewhere" for step in plan.steps if step.action not in (REDO, GONE)]
    return "\n".join(["Since the last turn of this conversation, the world has changed:", *lines]) if lines else None
