"""Plans and reports of rollbacks."""

from __future__ import annotations

from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.files import ASIDE, CONFLICT, DELETE, LEFT, MISSING, OUTSIDE, OVERWRITTEN, WRITE, FileChanges
from agentgit.effects.plan import BLOCK, GONE, REDO, REVERSE
from agentgit.next_steps import Reason, once
from agentgit.render.text import clean
from agentgit.render.view import Fold, Span, Table, View
from agentgit.render.views.conversation import calls, effect, format_call
from agentgit.sessions.session import DONE
from agentgit.values import count, escape_path

STYLES = {
    REVERSE: "changed",
    REDO: "added",
    GONE: "dim",
    BLOCK: "bad",
    WRITE: "changed",
    DELETE: "removed",
    ASIDE: "changed",
    CONFLICT: "bad",
    MISSING: "bad",
    LEFT: "dim",
    OUTSIDE: "dim",
    OVERWRITTEN: "bad",
    "reversed": "added",
    "redone": "added",
    "drifted": "changed",
    "failed": "bad",
    "remaining": "bad",
}
"""The styles of actions of a plan and of groups of a report, if they have one."""

_MAX_FILES = 20
"""The maximum number of written or deleted paths that are shown; paths with another action are always shown."""


def outcome(value: RollbackPlan | RollbackReport) -> View:
    """Show a plan or a report. Reasons are never cut."""
    if isinstance(value, RollbackPlan):
        items = [(step.action, step.invocation, step.why) for step in value.steps]
        is_bad = not value.is_admissible
    else:
        groups = value.groups().items()
        items = [(group, i.invocation, i.reason) for group, found in groups if group != "replayed" for i in found]
        is_bad = value.status != DONE
    reasons = once(why for _, _, why in items)
    rows = [
        [Span(action, STYLES.get(action, "")), _call(call), effect(call.to_dict()), Span(why)]
        for (action, call, _), why in zip(items, reasons, strict=True)
    ]
    return [
        (Span(clean(value.heading), "heading"),),
        Table(rows, ("", "call", "effect", "why"), indent="  ", wraps=True),
        *([_file_table(value.files)] if value.files is not None else []),
        (Span(Reason.of(value.summary), "bad" if is_bad else "dim"),),
    ]


def replayed(value: RollbackPlan | RollbackReport) -> View:
    """Show the calls before the target point."""
    before = value.replayed if isinstance(value, RollbackPlan) else [item.invocation for item in value.replayed]
    return [Fold(f"{count(len(before), 'tool call')} before that point", calls(before))] if before else []


def file_changes(changes: FileChanges) -> View:
    """Show the file changes of a plan or report."""
    return [_file_table(changes), (Span(changes.summary, "bad" if changes.problem else "dim"),)]


def _call(call: ToolInvocation) -> Span:
    return Span(clean(str(call)), full=lambda: format_call(call.to_dict()))


def _file_table(files: FileChanges) -> Table:
    applied = [change for change in files.changes if change.action in (WRITE, DELETE)]
    others = [change for change in files.changes if change.action not in (WRITE, DELETE)]
    rows = [
        [Span(one.action, STYLES[one.action]), Span(escape_path(one.path)), Span(clean(one.why), "dim")]
        for one in [*applied[:_MAX_FILES], *others]
    ]
    hidden_count = len(applied) - _MAX_FILES
    rows += [[Span(""), Span(f"… and {hidden_count} more"), Span("")]] if hidden_count > 0 else []
    return Table(rows, ("", "file", "why"), indent="  ", wraps=True)
