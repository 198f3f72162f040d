"""A session's tree as text: the conversation runs downwards, and each branch is drawn where it left.

    support-42: 2 branches, 11 checkpoints
    ● main#3      order two chairs
    ◆ main#4      before payment
    ├─● retry#4   (HEAD -> retry *) rather a sofa
    ● main#7      (main) and a table

A line is a turn, a checkpoint with a name or a tag, or a checkpoint where a branch left. Long runs of turns are folded.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentgit.render.layout import (
    NAME_CELLS,
    RERUN_LEGEND,
    LayoutRow,
    branch_name,
    is_named,
    references,
    title_of,
    walk,
)
from agentgit.render.text import clean, cut
from agentgit.render.view import Cell, Span, Table, Time, View
from agentgit.sessions.folded_tree import FoldedTree, fold
from agentgit.sessions.session import OPEN, SIMULATED
from agentgit.sessions.tree import DONE, Branch, Exploration, Tree
from agentgit.values import count

TURN, NAMED, BEGIN, FOLDED, RERUN = "●", "◆", "○", "┆", "◌"

_LANE_CELLS = 24
"""The maximum width of the lanes, in cells; deeper branches are drawn at that depth."""


def tree(value: Tree | FoldedTree, *, every: bool = False, times: bool = False) -> View:
    """Show a tree."""
    folded = value if isinstance(value, FoldedTree) else fold(value)
    reference_by_id = references(folded.tree)
    rows = [
        _row(_lanes(above, is_first), row, reference_by_id, times) for row, above, is_first in walk(folded, every=every)
    ]
    heading = f": {count(len(folded.counts), 'branch')}, {count(sum(folded.counts.values()), 'checkpoint')}"
    above = [(Span(f"{FOLDED} {count(folded.above, 'more branch')} above", "dim"),)] if folded.above else []
    has_reruns = any(branch.status == SIMULATED for branch in folded.tree.walk())
    return [
        (Span(cut(clean(folded.tree.session_name), 60), "heading"), Span(heading, "dim")),
        *above,
        Table(rows, longest=60),
        *([(Span(f"{RERUN} {RERUN_LEGEND}", "dim"),)] if has_reruns else []),
    ]


def _lanes(above: list[tuple[Branch, bool]], is_first: bool) -> str:
    """Return the lanes of the branches above a line, the last with the joint of a branch that begins there."""
    lanes = ["│ " if goes_on else "  " for _, goes_on in above]
    if above and is_first:
        lanes[-1] = "├─" if above[-1][1] else "╰─"
    return cut("".join(lanes), _LANE_CELLS)


def _row(lanes: str, row: LayoutRow, reference_by_id: Mapping[int, str], times: bool) -> list[Cell]:
    """Return the cells of a line: its lanes and reference, its time, and its title after what ends there."""
    branch, points = row.branch, row.points
    start, time = Span(lanes, "dim"), Time(points[-1].created_at if points and times else None)
    if row.note:
        numbers = f"#{points[0].number}..#{points[-1].number}" if row.folded else ""
        return [(start, Span(f"{FOLDED} {numbers}", "dim")), Time(None), Span(row.note, "dim")]
    if not points:
        reference = Span(branch_name(branch), "reference")
        return [(start, Span(f"{BEGIN} "), reference), time, (_head_label(branch), Span("no checkpoints yet", "dim"))]
    last = points[-1]
    style = "name" if is_named(last) else ""
    is_beginning = last.kind in ("before", "branch")
    glyph = RERUN if branch.status == SIMULATED else NAMED if style else BEGIN if is_beginning else TURN
    head = _head_label(branch) if last is branch.points[-1] else Span("")
    tags = f"(tag: {', '.join(map(clean, last.tags))}) " if last.tags else ""
    title = Span(row.more + tags + title_of(row, reference_by_id), style)
    return [(start, Span(f"{glyph} ", style), Span(reference_by_id[last.id], "reference")), time, (head, title)]


def _head_label(branch: Branch) -> Span:
    words = [f"HEAD -> {branch_name(branch)} *" if branch.is_current else branch_name(branch)]
    if branch.status != OPEN:
        words.append(cut(clean(branch.status), NAME_CELLS))
    return Span(f"({', '.join(words)}) ", "head")


def exploration(value: Exploration) -> View:
    """Show an exploration."""
    leaves, tokens = len(value.leaves), value.tokens
    counts = [count(len(value.branches), "turn"), f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"]
    counts += [count(tokens, "token")] if tokens is not None else []
    heading = f"{clean(value.name)}, from {clean(value.branch)}: {', '.join(counts)}"
    rows = [
        [
            Span(clean(row["branch"]), "reference"),
            Span(f"score {row['score']:g}" if row["score"] is not None else ""),
            Span(count(row["tokens"], "token") if row["tokens"] is not None else "", "dim"),
            Span(count(len(row["tool_calls"]), "call") if row["tool_calls"] else "", "dim"),
            Span("" if row["status"] == DONE else row["status"], "bad"),
            Span(clean(row["error"] or row["answer"] or "")),
        ]
        for row in value.compare()
    ]
    kept = f"  not declared, so not reversed: {clean(', '.join(value.undeclared))}"
    return [
        (Span(heading, "heading"),),
        Table(rows, indent="  "),
        *([(Span(kept, "bad"),)] if value.undeclared else []),
    ]
