"""Reports: the outcome of each step of an operation, read from the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import RollbackReport, ToolInvocation, invocation
from agentgit.effects.files import FileChanges
from agentgit.effects.plan import ANSWER, EXECUTE, GONE, REDO, REVERSE, ROLLBACK, SWITCH, WORLD_ONLY
from agentgit.effects.registry import Registry
from agentgit.effects.report import GROUPS, ReportItem
from agentgit.rollback.executor import IN_THE_WORLD, Executor, drift
from agentgit.sessions.operation import DONE
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.values import as_object

FAILED_BEFORE = "not tried, because an earlier one failed"
STANDS = "not tried, because it was not reversed and would happen twice"
DRIFTED_BEFORE = "not tried, because an earlier one returned something different"


_LEFT = {GONE: "gone", ANSWER: "answered"}


class Reports:
    """Creates and reads the reports of operations.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
        executor: The executor, which finds the calls that ran again.
    """

    def __init__(self, store: Store, registry: Registry, executor: Executor) -> None:
        self.store = store
        self.registry = registry
        self.executor = executor

    def outcome(self, connection: Connection, row: StoredRow) -> dict[str, list[ReportItem]]:
        """Return the outcome of each step, by group, read from the journal."""
        groups: dict[str, list[ReportItem]] = {group: [] for group in GROUPS}
        request, untried = as_object(row.request), FAILED_BEFORE
        stops = {"failed": FAILED_BEFORE}
        if request.get("on_drift") == "stop":
            stops["drifted"] = DRIFTED_BEFORE
        calls = self.store.journal.invocations(connection, [step["invocation"] for step in request["steps"]])
        for step in request["steps"]:
            call = calls[step["invocation"]]  # never deleted while an operation refers to it
            for group, item in self._became(connection, row, call, step, untried):
                groups[group].append(item)
                untried = stops.get(group, untried)
        return groups

    def _became(
        self, connection: Connection, row: StoredRow, call: ToolInvocation, step: dict[str, Any], untried: str
    ) -> Iterable[tuple[str, ReportItem]]:
        """Yield the outcome of one step; a call that ran again and returned something different is yielded twice."""
        if step["action"] == REVERSE:
            group, why = self._reversed(row, call, untried)
        elif step["action"] == REDO:
            again = self.executor.find_rerun(connection, row, call.id)
            group, why = self._redone(row, call, again, untried)
            if group == "redone" and again is not None and (other := drift(call, again)) is not None:
                yield "drifted", ReportItem(invocation=again, reason=other)
        else:
            group, why = self._left(connection, call, _LEFT.get(step["action"], "kept"))
        yield group, ReportItem(invocation=call, reason=why or step["why"])

    def _left(self, connection: Connection, call: ToolInvocation, group: str) -> tuple[str, str]:
        """Return the current state of an effect that was left alone; other operations may have changed it since."""
        if group == "kept" and call.status != invocation.REVERSED:
            return group, ""
        stands = any(one.status in IN_THE_WORLD for one in self.store.world.redone(connection, call.first_id))
        if group == "kept" and not stands:
            return "reversed", "it was to be kept, but has been reversed since"
        if group == "answered" and call.status == invocation.REVERSED and not stands:
            return "gone", "it is answered from the record, and has been reversed since"
        return ("kept", "it was gone, but has run again since") if group == "gone" and stands else (group, "")

    def _reversed(self, row: StoredRow, call: ToolInvocation, untried: str) -> tuple[str, str]:
        if call.status == invocation.REVERSED:
            return "reversed", ""
        if call.status == invocation.REVERSE_UNKNOWN:
            return "failed", f"it is unknown whether it was reversed ({call.error_message}); see repo.resolve()"
        missing = self.registry.cannot_undo(row.external_session_id, call)
        if call.status == invocation.REVERSE_FAILED:
            return "failed", "; ".join(filter(None, [f"its undo raised {call.error_message}", missing]))
        return "remaining", missing or untried

    def _redone(
        self, row: StoredRow, call: ToolInvocation, again: ToolInvocation | None, untried: str
    ) -> tuple[str, str]:
        if again is None:
            if self.executor.still_stands(row, call):
                return "remaining", STANDS
            missing = self.registry.cannot_run(row.external_session_id, call)
            return "remaining", missing or untried
        if again.status in IN_THE_WORLD:
            return "redone", ""
        if again.status == invocation.FAILED:
            return "failed", f"it raised {again.error_message} when it ran again"
        if again.status == invocation.REVERSED:
            return "remaining", "it ran again, but has been reversed since"
        if again.has_raised:
            said = f"it raised {again.error_message} when it ran again, but may have happened"
            return "failed", said if again.may_be_repeated else f"{said} (invocation {again.id}); see repo.resolve()"
        return "failed", f"it is unknown whether it ran again (invocation {again.id}); see repo.resolve()"

    def _recorded(self, connection: Connection, row: StoredRow) -> dict[str, list[ReportItem]]:
        stored = as_object(row.report)
        told = {group: stored.get(group, []) for group in GROUPS}
        calls = self.store.journal.invocations(connection, [i["invocation"] for items in told.values() for i in items])
        return {
            group: [
                ReportItem(invocation=calls[i["invocation"]], reason=i["reason"])
                for i in items
                if i["invocation"] in calls
            ]
            for group, items in told.items()
        }

    def read(self, connection: Connection, row: StoredRow) -> RollbackReport:
        """Return the report of an operation; if it is not done, the outcome of its steps so far."""
        groups = self._recorded(connection, row) if row.status == DONE else self.outcome(connection, row)
        branch = self.store.sessions.branch(connection, row.internal_session_id)
        kind = WORLD_ONLY if row.kind == ROLLBACK and row.internal_session_id == row.source_id else row.kind
        if kind not in (SWITCH, WORLD_ONLY) and as_object(row.request).get("replay") != EXECUTE:
            track = self.store.track(connection, branch, branch.inherited)
            groups["replayed"] = [ReportItem(invocation=call, reason="replayed from the record") for call in track]
        files = as_object(row.report).get("files")
        return RollbackReport(
            operation_id=row.id,
            status=row.status,
            checkpoint_id=row.target_id,
            branch=branch.name,
            kind=kind,
            files=FileChanges.from_dict(files) if files else None,
            **groups,
        )
