"""The keys of a database, and the results of an erasure, as lines."""

from __future__ import annotations

from collections.abc import Mapping

from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean, count
from agentgit.sessions.maintenance import Erased, Rotated

IN_CLEAR = "in clear"


def key_lines(found: Mapping[str, int], *, width: int = 100) -> list[Line]:
    """List the keys with how many values each has.

    Example:
        >>> from agentgit.render.lines import plain
        >>> print(plain(key_lines({"": 3, "2026-11": 12})))
        in clear  3 values
        2026-11   12 values
    """
    rows = [
        [Span(clean(name) or IN_CLEAR, "reference" if name else "bad"), Span(count(n, "value"))]
        for name, n in found.items()
    ]
    return table(rows, width=width) or [(Span("nothing is stored yet"),)]


def rotated_lines(done: Rotated, *, width: int = 100) -> list[Line]:
    """Return lines that show how many values were stored anew, and which keys are still needed."""
    problem: list[Line] = [(Span(clean(done.problem), "bad"),)] if done.problem else []
    return [
        (Span(f"{count(done.changed, 'value')} stored anew", "heading"),),
        *key_lines(done.keys, width=width),
        *problem,
    ]


def erased_lines(name: str, done: Erased) -> list[Line]:
    """Return lines that show what was erased, and what could not be reached."""
    first = f"erased {clean(name)}: {count(sum(done.rows.values()), 'row')}, {count(done.values, 'value')}"
    more = f", {count(done.events, 'event')} of its trail, {count(done.snapshots, 'snapshot')} of files"
    return [(Span(first + more, "heading"),), *((Span(f"  {clean(one)}", "bad"),) for one in done.left)]
