"""Results of an export or an import: one line for what was transferred, and one for each kind of what was not."""

from __future__ import annotations

from agentgit.render.lines import Line, Span
from agentgit.render.text import clean, count
from agentgit.store.transfer.summary import Carried

NAMED = 20
"""The number of omitted paths that are shown."""


def lines(what: str, carried: Carried) -> list[Line]:
    """Draw what an export holds, or what an import has made.

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
