"""Results of an import, one line for each thread."""

from __future__ import annotations

from agentgit.render.lines import Line, Span
from agentgit.render.text import clean, count
from agentgit.sessions.imports import EXTENDED, FAILED, IMPORTED, UNCHANGED, ImportReport, ThreadReport

STYLES = {IMPORTED: "added", EXTENDED: "added", UNCHANGED: "dim", FAILED: "bad"}


def lines(report: ImportReport) -> list[Line]:
    """Draw what came of an import, each thread in full, and at the end how many there were.

    Example:
        >>> lines(ImportReport([]))
        [(Span(text='no threads there', style=''),)]
    """
    statuses = [status for status in STYLES if report.count(status)]
    said = ", ".join(f"{report.count(status)} {status}" for status in statuses)
    last = f"{count(len(report.threads), 'thread')}: {said}" if said else "no threads there"
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
        parts.append(f"{one.left_out} on other lines left out")
    if one.hidden:
        parts.append(f"without {', '.join(map(clean, one.hidden))}")
    return f"  {', '.join(parts)}"
