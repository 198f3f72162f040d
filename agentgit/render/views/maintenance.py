"""Results of maintenance, exports and imports, encryption keys, and statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgit.checkpoints.retention import Retention, RetentionResult
from agentgit.render.text import clean
from agentgit.render.view import Line, Span, Table, Time, View, facts
from agentgit.sessions.reports import (
    EXTENDED,
    FAILED,
    IMPORTED,
    UNCHANGED,
    Checked,
    Erased,
    ImportReport,
    Reclaimed,
    Rotated,
    ThreadReport,
)
from agentgit.sessions.stats import Figures, Prices, Stats, cost_of
from agentgit.store.transfer.summary import TransferSummary
from agentgit.values import count

MAX_PATHS = 20
"""The number of omitted paths that are shown."""


def format_bytes(n: int) -> str:
    """Format a number of bytes for people."""
    value, unit = float(n), 0
    units = ("bytes", "KB", "MB", "GB", "TB")
    while value >= 1000 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {units[unit]}" if unit else count(n, "byte")


def retention(session_name: str, retention: Retention | None) -> View:
    """Show the retention of a session."""
    limits = str(retention) if retention is not None else "everything; no limits are set"
    return [(Span(clean(session_name), "heading"), Span(f" keeps {limits}"))]


def thinned(result: RetentionResult) -> View:
    """Show the checkpoints that were or would be deleted, and why the others are kept."""
    outcome = "would be deleted" if result.dry_run else "deleted"
    verdicts = [(one, outcome, "removed") for one in result.gone] + [(one, "kept", "") for one in result.kept]
    rows = [
        [
            Span(word, style),
            Span(clean(one.point.reference), "reference"),
            Time(one.point.created_at),
            Span(clean(one.point.name or ""), "name"),
            Span(clean(one.why)),
        ]
        for one, word, style in verdicts
    ]
    summary = f"{count(len(result.gone), 'checkpoint')} {outcome}, {len(result.kept)} kept"
    return [Table(rows), (Span(summary, "heading"),)]


def reclaimed(result: Reclaimed) -> View:
    """Show what a garbage collection deleted or would delete."""
    counts = (
        (result.checkpoints, "checkpoint", "that no session needs"),
        (result.steps, "step", "between checkpoints"),
        (result.values, "value", f"that nothing needs, {format_bytes(result.bytes)}"),
        (result.writes, "pending write", "without a graph checkpoint"),
        (result.snapshots, "snapshot", "of files that no checkpoint has"),
    )
    outcome = "would be deleted" if result.dry_run else "deleted"
    lines: list[Line] = [(Span(f"{count(n, noun)} {what}: {outcome}"),) for n, noun, what in counts if n]
    lines = lines or [(Span("there is nothing to delete"),)]
    before, after = format_bytes(result.disk_before), format_bytes(result.disk_after)
    if result.dry_run:
        return [*lines, (Span(f"the database takes {before}; nothing was changed", "dim"),)]
    return [*lines, (Span(f"the database took {before}, and now takes {after}", "heading"),), *_problem(result.problem)]


def _problem(problem: str | None) -> View:
    return [(Span(clean(problem), "bad"),)] if problem else []


def checked(result: Checked) -> View:
    """Show the problems of a database: the row and what is wrong with it, then the remedy."""
    lines: list[Line] = []
    for finding in result.findings:
        lines.append((Span(clean(finding.row), "reference"), Span(f"  {clean(finding.what)}", "bad")))
        lines.append((Span(f"  {clean(finding.todo)}", "dim"),))
    if result.more:
        lines.append((Span(f"and {result.more} more", "bad"),))
    level_names = {1: "references", 2: "references and hashes", 3: "references, hashes and the state of every head"}
    verdict = count(len(result.findings) + result.more, "finding") if result.findings else "no problems found"
    summary = f"{verdict}: {count(result.objects, 'row')} checked, {level_names.get(result.level, '')}"
    return [*lines, (Span(summary, "bad" if result.findings else "heading"),)]


def stats(value: Stats) -> View:
    """Show the totals, then a row for each branch."""
    total, usage = value.total, value.storage
    in_sessions = f" in {count(value.sessions, 'session')}" if value.sessions != 1 else ""
    names = [f"{name} ({n})" for name, n in list(value.names.items())[:5]] + ["…"] * (len(value.names) > 5)
    share = total.reversal_success
    known = {
        "checkpoints": f"{total.checkpoints}: {total.automatic} automatic, {total.named} named",
        "names": f"{len(value.names)}: {', '.join(names)}" if names else "",
        "first, last": (Time(total.first), Span(", "), Time(total.last), Span(f" ({total.duration_seconds:.0f} s)"))
        if total.first
        else "",
        "branches": f"{len(value.branches)}{in_sessions}",
        "calls": _format_counts(total.calls),
        "operations": _format_counts(total.operations),
        "reversals": f"{total.reversals}, {share:.0%} succeeded" if share is not None else "",
    }
    for model, tokens in sorted(total.tokens.items()):
        cache_counts = ((tokens.cache_read, "from a cache"), (tokens.cache_write, "into a cache"))
        cached = ", ".join(f"{n} {what}" for n, what in cache_counts if n)
        known[f"tokens of {clean(model)}"] = f"{tokens.input} in{f' ({cached})' if cached else ''}, {tokens.output} out"
    known |= {
        "of erased sessions": f"{sum(t.total for t in value.erased.values())} tokens" if value.erased else "",
        "cost": _cost(total, value.prices),
        "storage": f"{format_bytes(usage.own)} of its own, {format_bytes(usage.shared)} shared with others"
        if usage
        else "",
    }
    rows = [_branch_row(branch.session_name, branch.name, branch.figures, value) for branch in value.branches]
    return [
        (Span(clean(value.subject), "heading"),),
        facts(known, indent="  "),
        *([Table(rows)] if len(rows) > 1 else []),
    ]


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {word}" for word, n in counts.items())


def _cost(figures: Figures, prices: Prices | None) -> str:
    if prices is None:
        return ""
    cost = cost_of(figures.tokens, prices)
    return f"{cost:.4f}" if cost is not None else "unknown: a model has no price"


def _branch_row(session_name: str, name: str, figures: Figures, value: Stats) -> Sequence[Span]:
    label = clean(name) if value.sessions == 1 else f"{clean(session_name)}@{clean(name)}"
    tokens = sum(used_tokens.total for used_tokens in figures.tokens.values())
    cost = _cost(figures, value.prices)
    return [
        Span(label, "reference"),
        Span(count(figures.checkpoints, "checkpoint"), "dim"),
        Span(count(sum(figures.calls.values()), "call"), "dim"),
        Span(count(figures.rollbacks, "rollback"), "dim"),
        Span(f"{count(tokens, 'token')}{f', {cost}' if cost else ''}"),
    ]


def encryption_keys(counts: Mapping[str, int]) -> View:
    """Show the keys, with the number of values that each has encrypted."""
    rows = [
        [Span(clean(name) or "plaintext", "reference" if name else "bad"), Span(count(n, "value"))]
        for name, n in counts.items()
    ]
    return [Table(rows, empty="nothing is stored yet")]


def rotated(result: Rotated) -> View:
    """Show how many values were rewritten, and which keys are still in use."""
    changed = (Span(f"{count(result.changed, 'value')} rewritten", "heading"),)
    return [changed, *encryption_keys(result.keys), *_problem(result.problem)]


def erased(name: str, result: Erased) -> View:
    """Show what was erased, and what could not be reached."""
    summary = f"erased {clean(name)}: {count(sum(result.rows.values()), 'row')}, {count(result.values, 'value')}"
    details = f", {count(result.events, 'event')} of its trail, {count(result.snapshots, 'snapshot')} of files"
    return [(Span(summary + details, "heading"),), *((Span(f"  {clean(problem)}", "bad"),) for problem in result.left)]


# -- exports and imports


def transferred(verb: str, summary: TransferSummary) -> View:
    """Show what an export contains, or what an import created."""
    location = f" ({clean(summary.place)})" if summary.place is not None else ""
    counts = [
        count(summary.branches, "branch"),
        count(summary.checkpoints, "checkpoint"),
        count(summary.graph_checkpoints, "graph checkpoint"),
        count(summary.tool_calls, "call"),
        count(summary.values, "value"),
    ]
    if summary.snapshots:
        counts.append(f"{count(summary.snapshots, 'snapshot')} of {count(summary.files, 'file')}")
    name = Span(f"{clean(summary.session.reference)}{location}", "reference")
    omitted = [f"{count(n, 'snapshot')} left out: {clean(why)}" for why, n in sorted(summary.left_out.items())]
    paths = list(summary.left_paths.items())
    omitted += [f"left out: {clean(path)} {clean(why)}" for path, why in paths[:MAX_PATHS]]
    omitted += [f"and {len(paths) - MAX_PATHS} more paths"] if len(paths) > MAX_PATHS else []
    return [
        (Span(f"{verb}  "), name, Span(f"  {', '.join(counts)}")),
        *((Span(f"  {text}", "bad"),) for text in omitted),
        *([(Span(f"  SHA-256 {summary.sha256}", "dim"),)] if summary.sha256 else []),
    ]


_STYLES = {IMPORTED: "added", EXTENDED: "added", UNCHANGED: "dim", FAILED: "bad"}


def imported(report: ImportReport) -> View:
    """Show the report of an import: a line for each thread, then the totals."""
    counts = ", ".join(f"{report.count(status)} {status}" for status in _STYLES if report.count(status))
    totals = f"{count(len(report.threads), 'thread')}: {counts}" if counts else "no threads found"
    return [*map(_thread_line, report.threads), (Span(totals),)]


def _thread_line(thread: ThreadReport) -> Line:
    is_named_alike = thread.session_name in (None, thread.thread_id)
    session = "" if is_named_alike else f" as {clean(thread.session_name or '')}"
    parts = []
    if thread.status not in (FAILED, UNCHANGED):
        parts = [count(thread.graph_checkpoints, "graph checkpoint"), count(thread.checkpoints, "checkpoint")]
        parts.append(count(thread.tool_calls, "call"))
        parts += [f"{thread.left_out} on other branches left out"] if thread.left_out else []
        parts += [f"without {', '.join(map(clean, thread.hidden))}"] if thread.hidden else []
    return (
        Span(f"{thread.status:9}", _STYLES[thread.status]),
        Span(f"  {clean(thread.thread_id)}{session}", "reference"),
        Span(f"  {', '.join(parts)}" if parts or thread.error else ""),
        *([Span(thread.error.reason)] if thread.error else []),
    )
