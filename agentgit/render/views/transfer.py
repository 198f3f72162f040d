"""Results of exports and imports, as lines."""

from __future__ import annotations

from agentgit.render.text import Line, Span, clean, count
from agentgit.sessions.reports import EXTENDED, FAILED, IMPORTED, UNCHANGED, ImportReport, ThreadReport
from agentgit.store.transfer.summary import TransferSummary

NAMED = 20
"""The number of omitted paths that are shown."""


def lines(what: str, carried: TransferSummary) -> list[Line]:
    """Draw what an export contains, or what an import created.

    Args:
        what: `exported` or `imported`.
        carried: The counts.
    """
    place = f" ({clean(carried.place)})" if carried.place is not None else ""
    counted = [
        count(carried.branches, "branch"),
        count(carried.checkpoints, "checkpoint"),
        count(carried.graph_checkpoints, "graph checkpoint"),
        count(carried.tool_calls, "call"),
        count(carried.values, "value"),
    ]
    if carried.snapshots:
        counted += [count(carried.snapshots, "snapshot") + f" of {count(carried.files, 'file')}"]
    name = Span(f"{clean(carried.session.reference)}{place}", "reference")
    left = [
        (Span(f"  {count(n, 'snapshot')} left out: {clean(why)}", "bad"),)
        for why, n in sorted(carried.left_out.items())
    ]
    left += [
        (Span(f"  left out: {clean(path)} {clean(why)}", "bad"),)
        for path, why in list(carried.left_paths.items())[:NAMED]
    ]
    if len(carried.left_paths) > NAMED:
        more = f"  and {len(carried.left_paths) - NAMED} more paths; --json names all of them"
        left.append((Span(more, "bad"),))
    return [(Span(f"{what}  "), name, Span(f"  {', '.join(counted)}")), *left]


STYLES = {IMPORTED: "added", EXTENDED: "added", UNCHANGED: "dim", FAILED: "bad"}


def import_lines(report: ImportReport) -> list[Line]:
    """Draw the report of an import: a line for each thread, then the totals.

    Example:
        >>> import_lines(ImportReport([]))
        [(Span(text='no threads found', style=''),)]
    """
    statuses = [status for status in STYLES if report.count(status)]
    said = ", ".join(f"{report.count(status)} {status}" for status in statuses)
    last = f"{count(len(report.threads), 'thread')}: {said}" if said else "no threads found"
    return [*(_thread(one) for one in report.threads), (Span(last),)]


def _thread(one: ThreadReport) -> Line:
    name = clean(one.thread_id)
    session = "" if one.session_name == one.thread_id else f" as {clean(one.session_name)}"
    return (Span(f"{one.status:9}", STYLES[one.status]), Span(f"  {name}{session}", "reference"), Span(_said(one)))


def _said(one: ThreadReport) -> str:
    if one.status == FAILED:
        return f"  {clean(str(one.error))}"
    if one.status == UNCHANGED:
        return ""
    parts = [count(one.graph_checkpoints, "graph checkpoint"), count(one.checkpoints, "checkpoint")]
    parts.append(count(one.tool_calls, "call"))
    if one.left_out:
        parts.append(f"{one.left_out} on other branches left out")
    if one.hidden:
        parts.append(f"without {', '.join(map(clean, one.hidden))}")
    return f"  {', '.join(parts)}"
