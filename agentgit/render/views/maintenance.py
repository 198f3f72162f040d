"""Results of database maintenance, encryption keys, and results of erasures, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC

from agentgit.checkpoints.retention import Retention, RetentionResult, RetentionVerdict
from agentgit.render.text import Line, Span, Zone, clean, format_time, table
from agentgit.sessions.reports import Checked, Erased, Finding, Reclaimed, Rotated
from agentgit.sessions.stats import Figures, Prices, Stats, UsedTokens, cost_of
from agentgit.values import count

UNITS = ("bytes", "KB", "MB", "GB", "TB")


def format_bytes(n: int) -> str:
    """Format a number of bytes for people.

    Example:
        >>> format_bytes(1), format_bytes(999), format_bytes(5_300_000)
        ('1 byte', '999 bytes', '5.3 MB')
    """
    value, unit = float(n), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit else count(n, "byte")


def retention_lines(session_name: str, retention: Retention | None) -> list[Line]:
    """Return a line that shows the retention of a session."""
    limits = str(retention) if retention is not None else "everything; no limits are set"
    return [(Span(clean(session_name), "heading"), Span(f" keeps {limits}"))]


def thinned_lines(result: RetentionResult, *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """List the checkpoints that were or would be deleted, and why the others are kept."""
    outcome = "would be deleted" if result.dry_run else "deleted"
    rows = [
        *(_verdict_row(one, outcome, "removed", zone) for one in result.gone),
        *(_verdict_row(one, "kept", "", zone) for one in result.kept),
    ]
    summary = f"{count(len(result.gone), 'checkpoint')} {outcome}, {len(result.kept)} kept"
    return [*table(rows, width=width), (Span(summary, "heading"),)]


def _verdict_row(verdict: RetentionVerdict, word: str, style: str, zone: Zone) -> list[Span]:
    point = verdict.point
    return [
        Span(word, style),
        Span(clean(point.reference), "reference"),
        Span(format_time(point.created_at, zone), "dim"),
        Span(clean(point.name or ""), "name"),
        Span(clean(verdict.why)),
    ]


def reclaimed_lines(reclaimed: Reclaimed) -> list[Line]:
    """Return lines that show what a garbage collection deleted or would delete."""
    counts = (
        (reclaimed.checkpoints, "checkpoint", "that no session needs"),
        (reclaimed.steps, "step", "between checkpoints"),
        (reclaimed.values, "value", f"that nothing needs, {format_bytes(reclaimed.bytes)}"),
        (reclaimed.writes, "pending write", "without a graph checkpoint"),
        (reclaimed.snapshots, "snapshot", "of files that no checkpoint has"),
    )
    outcome = "would be deleted" if reclaimed.dry_run else "deleted"
    lines: list[Line] = [(Span(f"{count(n, noun)} {what}: {outcome}"),) for n, noun, what in counts if n]
    if not lines:
        lines = [(Span("there is nothing to delete"),)]
    if reclaimed.dry_run:
        return [
            *lines,
            (Span(f"the database takes {format_bytes(reclaimed.disk_before)}; nothing was changed", "dim"),),
        ]
    disk_text = (
        f"the database took {format_bytes(reclaimed.disk_before)}, and now takes {format_bytes(reclaimed.disk_after)}"
    )
    return [
        *lines,
        (Span(disk_text, "heading"),),
        *([(Span(clean(reclaimed.problem), "bad"),)] if reclaimed.problem else []),
    ]


def finding_lines(findings: Iterable[Finding]) -> list[Line]:
    """Return two lines for each finding: the row with its problem, and the remedy."""
    return [
        line
        for finding in findings
        for line in (
            (Span(clean(finding.row), "reference"), Span(f"  {clean(finding.what)}", "bad")),
            (Span(f"  {clean(finding.todo)}", "dim"),),
        )
    ]


def checked_lines(checked: Checked) -> list[Line]:
    """List the problems of a database."""
    lines = finding_lines(checked.findings)
    if checked.more:
        lines.append((Span(f"and {checked.more} more", "bad"),))
    level_names = {1: "references", 2: "references and hashes", 3: "references, hashes and the state of every head"}
    verdict = count(len(checked.findings) + checked.more, "finding") if checked.findings else "no problems found"
    summary = f"{verdict}: {count(checked.objects, 'row')} checked, {level_names.get(checked.level, '')}"
    return [*lines, (Span(summary, "bad" if checked.findings else "heading"),)]


def stats_lines(stats: Stats, *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Return the totals, then a line for each branch."""
    total = stats.total
    facts = [
        ("checkpoints", _checkpoints(total)),
        ("names", _names(stats.names)),
        ("first, last", _period(total, zone)),
        ("branches", _branches(stats)),
        ("calls", _format_counts(total.calls)),
        ("operations", _format_counts(total.operations)),
        ("reversals", _reversals(total)),
        *((f"tokens of {clean(m)}", _tokens(t)) for m, t in sorted(total.tokens.items())),
        ("of erased sessions", f"{sum(t.total for t in stats.erased.values())} tokens" if stats.erased else ""),
        ("cost", _cost(total, stats.prices)),
        ("storage", _storage(stats)),
    ]
    rows = [[Span(name, "dim"), Span(text)] for name, text in facts if text]
    lines: list[Line] = [(Span(clean(stats.subject), "heading"),), *table(rows, width=width, indent="  ")]
    if len(stats.branches) > 1:
        lines += table(
            [_branch_row(branch.session_name, branch.name, branch.figures, stats) for branch in stats.branches],
            width=width,
        )
    return lines


def _tokens(tokens: UsedTokens) -> str:
    cache_counts = ((tokens.cache_read, "from a cache"), (tokens.cache_write, "into a cache"))
    cache_text = ", ".join(f"{n} {what}" for n, what in cache_counts if n)
    return f"{tokens.input} in{f' ({cache_text})' if cache_text else ''}, {tokens.output} out"


def _branches(stats: Stats) -> str:
    session_text = f" in {count(stats.sessions, 'session')}" if stats.sessions != 1 else ""
    return f"{len(stats.branches)}{session_text}"


def _checkpoints(figures: Figures) -> str:
    return f"{figures.checkpoints}: {figures.automatic} automatic, {figures.named} named"


def _names(names: Mapping[str, int]) -> str:
    shown = [f"{clean(name)} ({n})" for name, n in list(names.items())[:5]]
    return f"{len(names)}: {', '.join(shown)}{', …' if len(names) > 5 else ''}" if names else ""


def _period(figures: Figures, zone: Zone) -> str:
    if figures.first is None:
        return ""
    times = f"{format_time(figures.first, zone)}, {format_time(figures.last, zone)}"
    return f"{times} ({figures.duration_seconds:.0f} s)"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {clean(word)}" for word, n in counts.items())


def _reversals(figures: Figures) -> str:
    share = figures.reversal_success
    return f"{figures.reversals}, {share:.0%} succeeded" if share is not None else ""


def _cost(figures: Figures, prices: Prices | None) -> str:
    if prices is None:
        return ""
    cost = cost_of(figures.tokens, prices)
    return f"{cost:.4f}" if cost is not None else "unknown: a model has no price"


def _storage(stats: Stats) -> str:
    usage = stats.storage
    return (
        f"{format_bytes(usage.own)} of its own, {format_bytes(usage.shared)} shared with others"
        if usage is not None
        else ""
    )


def _branch_row(session_name: str, name: str, figures: Figures, stats: Stats) -> Sequence[Span]:
    label = clean(name) if stats.sessions == 1 else f"{clean(session_name)}@{clean(name)}"
    tokens = sum(used_tokens.total for used_tokens in figures.tokens.values())
    cost = _cost(figures, stats.prices) if stats.prices is not None else ""
    return [
        Span(label, "reference"),
        Span(count(figures.checkpoints, "checkpoint"), "dim"),
        Span(count(sum(figures.calls.values()), "call"), "dim"),
        Span(count(figures.rollbacks, "rollback"), "dim"),
        Span(f"{count(tokens, 'token')}{f', {cost}' if cost else ''}"),
    ]


PLAINTEXT = "plaintext"


def key_lines(counts: Mapping[str, int], *, width: int = 100) -> list[Line]:
    """List the keys, with the number of values that each has encrypted.

    Example:
        >>> from agentgit.render.text import plain
        >>> print(plain(key_lines({"": 3, "2026-11": 12})))
        plaintext  3 values
        2026-11    12 values
    """
    rows = [
        [Span(clean(name) or PLAINTEXT, "reference" if name else "bad"), Span(count(n, "value"))]
        for name, n in counts.items()
    ]
    return table(rows, width=width) or [(Span("nothing is stored yet"),)]


def rotated_lines(rotated: Rotated, *, width: int = 100) -> list[Line]:
    """Return lines that show how many values were rewritten, and which keys are still in use."""
    problem: list[Line] = [(Span(clean(rotated.problem), "bad"),)] if rotated.problem else []
    return [
        (Span(f"{count(rotated.changed, 'value')} rewritten", "heading"),),
        *key_lines(rotated.keys, width=width),
        *problem,
    ]


def erased_lines(name: str, erased: Erased) -> list[Line]:
    """Return lines that show what was erased, and what could not be reached."""
    summary = f"erased {clean(name)}: {count(sum(erased.rows.values()), 'row')}, {count(erased.values, 'value')}"
    details = f", {count(erased.events, 'event')} of its trail, {count(erased.snapshots, 'snapshot')} of files"
    return [(Span(summary + details, "heading"),), *((Span(f"  {clean(problem)}", "bad"),) for problem in erased.left)]
