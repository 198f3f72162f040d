"""Answers to comparisons and moves, for the description of the API: differences, plans, reports, operations."""

from __future__ import annotations

from agentgit.checkpoints import comparison, diff
from agentgit.effects import plan, report
from agentgit.sessions import operation
from agentgit.web.api.answers import Branch, Call, FileChanges, MessageAnswer
from agentgit.web.api.models import answer, described, listing, many

Change = described("Change", diff.Change)
Tokens = described("Tokens", diff.Tokens)
Diff = described(
    "Diff",
    diff.Diff,
    but={
        "state": many(Change),
        "removed_messages": many(MessageAnswer),
        "added_messages": many(MessageAnswer),
        "removed_tokens": Tokens,
        "added_tokens": Tokens,
        "removed_calls": many(Call),
        "added_calls": many(Call),
    },
)
Comparison = described("Comparison", comparison.Comparison, but={"left": Diff, "right": Diff, "between": Diff})
Step = described("Step", plan.PlanStep, but={"invocation": Call})
Plan = described(
    "Plan",
    plan.RollbackPlan,
    but={"steps": many(Step), "replayed": many(Call), "files": FileChanges | None},
    is_admissible=bool,
)
Item = described("Item", report.ReportItem, but={"invocation": Call})
Report = described(
    "Report",
    report.RollbackReport,
    but={**dict.fromkeys(report.GROUPS, many(Item)), "files": FileChanges | None},
)


Switched = answer(
    "Switched", "The result of a switch; `report` is null without `sync`.", branch=Branch, report=Report | None
)


Operation = described("Operation", operation.Operation)
Operations = listing("Operations", Operation, "The operations of a session, newest first.")
