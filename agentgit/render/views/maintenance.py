"""Results of database maintenance, encryption keys, and results of erasures, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo

from agentgit.checkpoints.retention import Retention, RetentionResult, RetentionVerdict
from agentgit.render.text import Line, Span, clean, count, format_time, table
from agentgit.sessions.reports import Checked, Erased, Finding, Reclaimed, Rotated
from agentgit.sessions.stats import Figures, Prices, Stats, UsedTokens, cost_of

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
    keeps = str(retention) if retention is not None else "everything; no limits are set"
    return [(Span(clean(session_name), "heading"), Span(f" keeps {keeps}"))]


def thinned_lines(thinned: RetentionResult, *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """List the checkpoints that were or would be deleted, and why the others are kept."""
    would = "would be deleted" if thinned.dry_run else "deleted"
    rows = [
        *(_verdict(one, would, "removed", zone) for one in thinned.gone),
        *(_verdict(one, "kept", "", zone) for one in thinned.kept),
    ]
    said = f"{count(len(thinned.gone), 'checkpoint')} {would}, {len(thinned.kept)} kept"
    return [*table(rows, width=width), (Span(said, "heading"),), *_limit(thinned)]


def _limit(thinned: RetentionResult) -> list[Line]:
    """Return lines with the size of a session before and after, and whether it is within its limit."""
    most = thinned.retention.max_bytes if thinned.retention is not None else None
    if most is None or thinned.bytes_before is None or thinned.bytes_after is None:
        return []
    then = "it would use" if thinned.dry_run else "it uses"
    before, after = format_bytes(thinned.bytes_before), format_bytes(thinned.bytes_after)
    said = f"the session uses {before}; {then} {after} after a collection"
    if thinned.is_within:
        return [(Span(said, "dim"),)]
    return [(Span(said, "dim"),), (Span(f"that is more than {format_bytes(most)}: the rest is still needed", "bad"),)]


def _verdict(verdict: RetentionVerdict, word: str, style: str, zone: tzinfo | None) -> list[Span]:
    point = verdict.point
    return [
        Span(word, style),
        Span(clean(point.reference), "reference"),
        Span(format_time(point.created_at, zone), "dim"),
        Span(clean(point.name or ""), "name"),
        Span(clean(verdict.why)),
    ]


def reclaimed_lines(found: Reclaimed) -> list[Line]:
    """Return lines that show what a garbage collection deleted or would delete."""
    counts = (
        (found.checkpoints, "checkpoint", "that no session needs"),
        (found.steps, "step", "between checkpoints"),
        (found.values, "value", f"that nothing needs, {format_bytes(found.bytes)}"),
        (found.writes, "pending write", "without a graph checkpoint"),
        (found.snapshots, "snapshot", "of files that no checkpoint has"),
    )
    would = "would be deleted" if found.dry_run else "deleted"
    lines: list[Line] = [(Span(f"{count(n, noun)} {what}: {would}"),) for n, noun, what in counts if n]
    if not lines:
        lines = [(Span("there is nothing to delete"),)]
    if found.dry_run:
        return [*lines, (Span(f"the database takes {format_bytes(found.disk_before)}; nothing was changed", "dim"),)]
    took = f"the database took {format_bytes(found.disk_before)}, and now takes {format_bytes(found.disk_after)}"
    return [*lines, (Span(took, "heading"),), *([(Span(clean(found.problem), "bad"),)] if found.problem else [])]


def finding_lines(findings: Iterable[Finding]) -> list[Line]:
    """Return two lines for each finding: the row with its problem, and the remedy."""
    return [
        line
        for one in findings
        for line in (
            (Span(clean(one.row), "reference"), Span(f"  {clean(one.what)}", "bad")),
            (Span(f"  {clean(one.todo)}", "dim"),),
        )
    ]


def checked_lines(found: Checked) -> list[Line]:
    """List the problems of a database."""
    lines = finding_lines(found.findings)
    if found.more:
        lines.append((Span(f"and {found.more} more", "bad"),))
    level = {1: "references", 2: "references and hashes", 3: "references, hashes and the state of every head"}
    wrong = count(len(found.findings) + found.more, "finding") if found.findings else "no problems found"
    said = f"{wrong}: {count(found.objects, 'row')} checked, {level.get(found.level, '')}"
    return [*lines, (Span(said, "bad" if found.findings else "heading"),)]


def stats_lines(stats: Stats, *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Return the totals, then a line for each branch."""
    total = stats.total
    facts = [
        ("checkpoints", _checkpoints(total)),
        ("names", _names(stats.names)),
        ("first, last", _between(total, zone)),
        ("branches", _branches(stats)),
        ("calls", _words(total.calls)),
        ("operations", _words(total.operations)),
        ("reversals", _reversals(total)),
        *((f"tokens of {clean(m)}", _tokens(t)) for m, t in sorted(total.tokens.items())),
        ("cost", _cost(total, stats.prices)),
        ("storage", _storage(stats)),
    ]
    rows = [[Span(name, "dim"), Span(said)] for name, said in facts if said]
    lines: list[Line] = [(Span(clean(stats.subject), "heading"),), *table(rows, width=width, indent="  ")]
    if len(stats.branches) > 1:
        lines += table([_branch(one.session_name, one.name, one.figures, stats) for one in stats.branches], width=width)
    return lines


def _tokens(tokens: UsedTokens) -> str:
    cached = ((tokens.cache_read, "from a cache"), (tokens.cache_write, "into a cache"))
    said = ", ".join(f"{n} {what}" for n, what in cached if n)
    return f"{tokens.input} in{f' ({said})' if said else ''}, {tokens.output} out"


def _branches(stats: Stats) -> str:
    said = f" in {count(stats.sessions, 'session')}" if stats.sessions != 1 else ""
    return f"{len(stats.branches)}{said}"


def _checkpoints(figures: Figures) -> str:
    return f"{figures.checkpoints}: {figures.automatic} automatic, {figures.named} named"


def _names(names: Mapping[str, int]) -> str:
    shown = [f"{clean(name)} ({n})" for name, n in list(names.items())[:5]]
    return f"{len(names)}: {', '.join(shown)}{', …' if len(names) > 5 else ''}" if names else ""


def _between(figures: Figures, zone: tzinfo | None) -> str:
    if figures.first is None:
        return ""
    times = f"{format_time(figures.first, zone)}, {format_time(figures.last, zone)}"
    return f"{times} ({figures.duration_seconds:.0f} s)"


def _words(counts: Mapping[str, int]) -> str:
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
    found = stats.storage
    return (
        f"{format_bytes(found.own)} of its own, {format_bytes(found.shared)} shared with others"
        if found is not None
        else ""
    )


def _branch(session_name: str, name: str, figures: Figures, stats: Stats) -> Sequence[Span]:
    label = clean(name) if stats.sessions == 1 else f"{clean(session_name)}@{clean(name)}"
    tokens = sum(one.total for one in figures.tokens.values())
    cost = _cost(figures, stats.prices) if stats.prices is not None else ""
    return [
        Span(label, "reference"),
        Span(count(figures.checkpoints, "checkpoint"), "dim"),
        Span(count(sum(figures.calls.values()), "call"), "dim"),
        Span(count(figures.rollbacks, "rollback"), "dim"),
        Span(f"{count(tokens, 'token')}{f', {cost}' if cost else ''}"),
    ]


IN_CLEAR = "plaintext"


def key_lines(found: Mapping[str, int], *, width: int = 100) -> list[Line]:
    """List the keys, with the number of values that each has encrypted.

    Example:
        >>> from agentgit.render.text import plain
        >>> print(plain(key_lines({"": 3, "2026-11": 12})))
        plaintext  3 values
        2026-11    12 values
    """
    rows = [
        [Span(clean(name) or IN_CLEAR, "reference" if name else "bad"), Span(count(n, "value"))]
        for name, n in found.items()
    ]
    return table(rows, width=width) or [(Span("nothing is stored yet"),)]


def rotated_lines(done: Rotated, *, width: int = 100) -> list[Line]:
    """Return lines that show how many values were rewritten, and which keys are still in use."""
    problem: list[Line] = [(Span(clean(done.problem), "bad"),)] if done.problem else []
    return [
        (Span(f"{count(done.changed, 'value')} rewritten", "heading"),),
        *key_lines(done.keys, width=width),
        *problem,
    ]


def erased_lines(name: str, done: Erased) -> list[Line]:
    """Return lines that show what was erased, and what could not be reached."""
    first = f"erased {clean(name)}: {count(sum(done.rows.values()), 'row')}, {count(done.values, 'value')}"
    more = f", {count(done.events, 'event')} of its trail, {count(done.snapshots, 'snapshot')} of files"
    return [(Span(first + more, "heading"),), *((Span(f"  {clean(one)}", "bad"),) for one in done.left)]
