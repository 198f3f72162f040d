"""Results of exports and imports, as lines."""

from __future__ import annotations

from agentgit.render.text import Line, Span, clean
from agentgit.sessions.reports import EXTENDED, FAILED, IMPORTED, UNCHANGED, ImportReport, ThreadReport
from agentgit.store.transfer.summary import TransferSummary
from agentgit.values import count

MAX_PATHS = 20
"""The number of omitted paths that are shown."""


def lines(verb: str, summary: TransferSummary) -> list[Line]:
    """Draw what an export contains, or what an import created."""
    location = f" ({clean(summary.place)})" if summary.place is not None else ""
    counts = [
        count(summary.branches, "branch"),
        count(summary.checkpoints, "checkpoint"),
        count(summary.graph_checkpoints, "graph checkpoint"),
        count(summary.tool_calls, "call"),
        count(summary.values, "value"),
    ]
    if summary.snapshots:
        counts += [count(summary.snapshots, "snapshot") + f" of {count(summary.files, 'file')}"]
    name = Span(f"{clean(summary.session.reference)}{location}", "reference")
    omitted = [
        (Span(f"  {count(n, 'snapshot')} left out: {clean(why)}", "bad"),)
        for why, n in sorted(summary.left_out.items())
    ]
    omitted += [
        (Span(f"  left out: {clean(path)} {clean(why)}", "bad"),)
        for path, why in list(summary.left_paths.items())[:MAX_PATHS]
    ]
    if len(summary.left_paths) > MAX_PATHS:
        notice = f"  and {len(summary.left_paths) - MAX_PATHS} more paths"
        omitted.append((Span(notice, "bad"),))
    digest = [(Span(f"  SHA-256 {summary.sha256}", "dim"),)] if summary.sha256 else []
    return [(Span(f"{verb}  "), name, Span(f"  {', '.join(counts)}")), *omitted, *digest]


STYLES = {IMPORTED: "added", EXTENDED: "added", UNCHANGED: "dim", FAILED: "bad"}


def import_lines(report: ImportReport) -> list[Line]:
    """Draw the report of an import: a line for each thread, then the totals.

    Example:
        >>> import_lines(ImportReport([]))
        [(Span(text='no threads found', style=''),)]
    """
    statuses = [status for status in STYLES if report.count(status)]
    counts = ", ".join(f"{report.count(status)} {status}" for status in statuses)
    totals = f"{count(len(report.threads), 'thread')}: {counts}" if counts else "no threads found"
    return [*(_thread_line(thread) for thread in report.threads), (Span(totals),)]


def _thread_line(thread: ThreadReport) -> Line:
    name = clean(thread.thread_id)
    is_named_alike = thread.session_name in (None, thread.thread_id)
    session = "" if is_named_alike else f" as {clean(thread.session_name or '')}"
    return (
        Span(f"{thread.status:9}", STYLES[thread.status]),
        Span(f"  {name}{session}", "reference"),
        Span(_describe_thread(thread)),
    )


def _describe_thread(thread: ThreadReport) -> str:
    if thread.status == FAILED:
        return f"  {clean(str(thread.error))}"
    if thread.status == UNCHANGED:
        return ""
    parts = [count(thread.graph_checkpoints, "graph checkpoint"), count(thread.checkpoints, "checkpoint")]
    parts.append(count(thread.tool_calls, "call"))
    if thread.left_out:
        parts.append(f"{thread.left_out} on other branches left out")
    if thread.hidden:
        parts.append(f"without {', '.join(map(clean, thread.hidden))}")
    return f"  {', '.join(parts)}"
