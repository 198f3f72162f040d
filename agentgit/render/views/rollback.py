"""Plans and reports of rollbacks, and the list of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC

from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.files import ASIDE, CONFLICT, DELETE, LEFT, MISSING, OUTSIDE, OVERWRITTEN, WRITE, FileChanges
from agentgit.effects.plan import ANSWER, BLOCK, GONE, KEEP, REDO, REVERSE
from agentgit.effects.report import GROUPS
from agentgit.next_steps import Face, Reason, word_once
from agentgit.render import html
from agentgit.render.text import Line, Span, Zone, clean, format_time, plain, table
from agentgit.render.views.conversation import cell, effect, status
from agentgit.sessions.reports import Operation
from agentgit.sessions.session import DONE
from agentgit.values import count, escape_path


def operation_lines(
    operations: Sequence[Operation], branches: Mapping[int, str], *, width: int = 100, zone: Zone = UTC
) -> list[Line]:
    """Draw a list of operations."""
    return table([_row(operation, branches, zone) for operation in operations], width=width)


def _row(operation: Operation, branches: Mapping[int, str], zone: Zone) -> list[Span]:
    source, target = (
        clean(branches.get(branch, "?")) for branch in (operation.source_session_id, operation.internal_session_id)
    )
    status = operation.status
    return [
        Span(str(operation.id), "reference"),
        Span(format_time(operation.created_at, zone), "dim"),
        Span(clean(operation.kind)),
        Span(source if source == target else f"{source} -> {target}", "name"),
        Span(clean(status), "" if status == DONE else "bad"),
        Span(_count_groups(operation), "dim"),
    ]


def _count_groups(operation: Operation) -> str:
    """Return the number of effects in each group of the report; nothing for a rerun, which has no effects."""
    groups = ((group, operation.report.get(group)) for group in GROUPS)
    return ", ".join(f"{len(items)} {group}" for group, items in groups if items)


STYLES = {
    REVERSE: "changed",
    REDO: "added",
    KEEP: "",
    GONE: "dim",
    BLOCK: "bad",
    ANSWER: "",
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
    "answered": "",
    "kept": "",
    "failed": "bad",
    "remaining": "bad",
}
"""The style of each action of a plan, and of each group of a report."""

Row = tuple[str, ToolInvocation, str]
"""The action, its call, and the reason."""


def draw(value: RollbackPlan | RollbackReport, *, width: int = 100, face: Face = "python") -> str:
    """Draw a plan or a report as plain text.

    Example:
        >>> call = ToolInvocation(id=1, internal_session_id=1, position=0, tool_name="add_note", args={"text": "hi"})
        >>> from agentgit.effects.plan import PlanStep
        >>> step = PlanStep(action="keep", invocation=call, why="nothing was declared about this tool")
        >>> print(draw(RollbackPlan(checkpoint_id=1, target="main#1", position=0, steps=[step])))
        Rollback to main#1: a new branch that begins with 0 tool calls.
          keep  add_note(text='hi')  undeclared  nothing was declared about this tool
        1 stays; no blockers.
    """
    return plain(lines(value, width=width, face=face))


def lines(value: RollbackPlan | RollbackReport, *, width: int = 100, face: Face = "python") -> list[Line]:
    """Draw a plan or a report in the words of a face. Reasons are never cut."""
    cells = [
        [Span(action, STYLES[action]), Span(clean(str(call))), effect(call), Span(clean(why))]
        for action, call, why in _rows(value, face)
    ]
    summary = Reason.of(value.summary).worded(face)
    return [
        (Span(clean(value.heading), "heading"),),
        *table(cells, width=width, indent="  ", wrap_last=True),
        *table(_file_cells(value.files), width=width, indent="  ", wrap_last=True),
        (Span(summary, "bad" if _needs_attention(value) else "dim"),),
    ]


def file_lines(changes: FileChanges, *, width: int = 100) -> list[Line]:
    """Draw the file changes of a plan or report."""
    cells = table(_file_cells(changes), width=width, indent="  ", wrap_last=True)
    return [*cells, (Span(clean(changes.summary), "bad" if changes.problem else "dim"),)]


def page(value: RollbackPlan | RollbackReport) -> str:
    """Draw a plan or a report as HTML, for a notebook or a page."""
    rows = [
        [
            html.styled(Span(action, STYLES[action])),
            cell(call),
            html.styled(effect(call)),
            html.wrapping_cell(html.escape(why), len(why)),
        ]
        for action, call, why in _rows(value, "python")
    ]
    return "".join(
        [
            "<div>",
            f"<p><b>{html.escape(value.heading)}</b></p>",
            html.table(["", "call", "effect", "why"], rows) if rows else "",
            _file_table(value),
            f"<p>{html.styled(Span(value.summary, 'bad' if _needs_attention(value) else ''))}</p>",
            _replayed_calls(value),
            "</div>",
        ]
    )


def _rows(value: RollbackPlan | RollbackReport, face: Face) -> Iterable[Row]:
    if isinstance(value, RollbackPlan):
        return [(step.action, step.invocation, why) for step, why in value.worded_steps(face)]
    items = [(group, item) for group, found in value.groups().items() if group != "replayed" for item in found]
    reasons = word_once((item.reason for _, item in items), face)
    return [(group, item.invocation, why) for (group, item), why in zip(items, reasons, strict=True)]


def _file_cells(files: FileChanges | None) -> list[list[Span]]:
    changes = files.changes if files is not None else []
    applied = [change for change in changes if change.action in (WRITE, DELETE)]
    others = [change for change in changes if change.action not in (WRITE, DELETE)]
    cells = [
        [Span(one.action, STYLES[one.action]), Span(escape_path(one.path)), Span(clean(one.why), "dim")]
        for one in [*applied[:_MAX_FILES], *others]
    ]
    hidden_count = len(applied) - _MAX_FILES
    return [*cells, [Span("", ""), Span(f"… and {hidden_count} more", "dim")]] if hidden_count > 0 else cells


def _file_table(value: RollbackPlan | RollbackReport) -> str:
    rows = [[html.styled(span) for span in (*cells, Span(""))[:3]] for cells in _file_cells(value.files)]
    return html.table(["", "file", "why"], rows) if rows else ""


_MAX_FILES = 20
"""The maximum number of written or deleted paths that are shown; paths with another action are always shown."""


def _needs_attention(value: RollbackPlan | RollbackReport) -> bool:
    return not value.is_admissible if isinstance(value, RollbackPlan) else value.status != "done"


def _replayed_calls(value: RollbackPlan | RollbackReport) -> str:
    """Return the calls before the target point as a collapsed HTML table."""
    calls = value.replayed if isinstance(value, RollbackPlan) else [item.invocation for item in value.replayed]
    if not calls:
        return ""
    rows = [[str(c.position), cell(c), html.styled(effect(c)), html.styled(status(c))] for c in calls[:_MAX_CALLS]]
    title = f"{count(len(calls), 'tool call')} before that point"
    return html.fold(title, html.table(["", "call", "effect", "status"], rows))


_MAX_CALLS = 200
"""The maximum number of calls before the target point on a page."""
