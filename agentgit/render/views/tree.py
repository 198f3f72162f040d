"""A session's tree as text: the conversation runs downwards, and each branch is drawn where it left.

    support-42: 2 branches, 11 checkpoints
    ● main#3      order two chairs
    ◆ main#4      before payment
    ├─● retry#4   (HEAD -> retry *) rather a sofa
    ● main#7      (main) and a table

A line is a turn, a checkpoint with a name or a tag, or a checkpoint where a branch left. Long runs of turns are folded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC

from agentgit.render.layout import (
    NAME_CELLS,
    RERUN_LEGEND,
    LayoutItem,
    LayoutRow,
    branch_name,
    folded_items,
    is_named,
    references,
    title_of,
)
from agentgit.render.text import Line, Span, Zone, cells, clean, cut, format_time, pad, plain, table
from agentgit.sessions.folded_tree import FoldedTree, fold
from agentgit.sessions.session import OPEN, SIMULATED
from agentgit.sessions.tree import DONE, Branch, Exploration, Tree
from agentgit.values import count

TURN, NAMED, BEGIN, FOLDED, RERUN = "●", "◆", "○", "┆", "◌"

_LANE_CELLS = 24
"""The maximum width of the lanes, in cells; deeper branches are drawn at that depth."""


def draw(tree: Tree | FoldedTree, *, width: int = 100) -> str:
    """Draw a tree as plain text.

    Example:
        >>> from agentgit.sessions.tree import Point
        >>> main = Branch(id=1, name="main", is_current=True, points=[Point(id=5, number=1, name="start")])
        >>> print(draw(Tree(session_name="s", roots=[main])))
        s: 1 branch, 1 checkpoint
        ◆ main#1  (HEAD -> main *) start
    """
    return plain(lines(tree, width=width))


def lines(
    tree: Tree | FoldedTree, *, width: int = 100, every: bool = False, times: bool = False, zone: Zone = UTC
) -> list[Line]:
    """Draw a tree."""
    folded = tree if isinstance(tree, FoldedTree) else fold(tree)
    reference_by_id = references(folded.tree)
    rows = [
        (
            cut(lane, _LANE_CELLS),
            *_row(row, reference_by_id, format_time(row.points[-1].created_at, zone) if row.points else ""),
        )
        for lane, row in _lay_out(folded, every)
    ]
    heading = f": {count(len(folded.counts), 'branch')}, {count(sum(folded.counts.values()), 'checkpoint')}"
    reference_width = min(
        50, max((cells(lane) + cells(glyph.text + where.text) for lane, glyph, where, *_ in rows), default=0)
    )
    result: list[Line] = [(Span(cut(clean(folded.tree.session_name), width - 30), "heading"), Span(heading, "dim"))]
    if folded.above:
        result.append((Span(f"{FOLDED} ", "dim"), Span(f"{count(folded.above, 'more branch')} above", "dim")))
    has_reruns = False
    for lane, glyph, where, time, head, title in rows:
        has_reruns = has_reruns or glyph.text.startswith(RERUN)
        padded_reference = pad(where.text, reference_width - cells(lane + glyph.text)) + "  "
        time_spans = (Span(pad(time.text, 18), time.style),) if times else ()
        title_width = (
            width
            - cells(lane + glyph.text + padded_reference + head.text)
            - sum(cells(span.text) for span in time_spans)
        )
        short_title = title._replace(text=cut(title.text, max(8, title_width)))
        result.append((Span(lane, "dim"), glyph, Span(padded_reference, where.style), *time_spans, head, short_title))
    if has_reruns:
        result.append((Span(f"{RERUN} {RERUN_LEGEND}", "dim"),))
    return result


# -- layout: the lanes


def _lay_out(folded: FoldedTree, every: bool) -> Iterator[tuple[str, LayoutRow]]:
    """Yield every line with its lanes, from top to bottom."""
    for root in folded.tree.roots:
        # An explicit stack, because branches may be nested deeper than Python's recursion limit.
        stack: list[tuple[str, str, deque[LayoutItem]]] = [("", "", deque(folded_items(folded, root, every=every)))]
        while stack:
            lane, first_lane, items = stack.pop()
            if not items:
                continue
            item = items.popleft()
            if isinstance(item, LayoutRow):
                yield first_lane or lane, item
                stack.append((lane, "", items))
            else:
                stack.append((lane, "", items))
                inner, joint = ("│ ", "├─") if items else ("  ", "╰─")
                stack.append((lane + inner, lane + joint, deque(folded_items(folded, item, every=every))))


# -- text of a line


def _row(row: LayoutRow, reference_by_id: Mapping[int, str], time: str) -> tuple[Span, Span, Span, Span, Span]:
    """Return a line's glyph, reference, time, head and title."""
    branch, points = row.branch, row.points
    if row.folded:
        numbers = f"#{points[0].number}..#{points[-1].number}"
        words = count(row.folded, "turn")
        return Span(FOLDED + " ", "dim"), Span(numbers, "dim"), Span(""), Span(""), Span(words, "dim")
    if not points and (row.hidden or row.unread):
        words = count(row.hidden, "more branch") if row.hidden else count(row.unread, "earlier checkpoint")
        return Span(FOLDED + " ", "dim"), Span(""), Span(""), Span(""), Span(words, "dim")
    if not points:
        placeholder = Span("no checkpoints yet", "dim")
        return Span(BEGIN + " "), Span(branch_name(branch), "reference"), Span(""), _head_label(branch), placeholder
    last = points[-1]
    style = "name" if is_named(last) else ""
    is_beginning = last.kind in ("before", "branch")
    glyph = RERUN if branch.status == SIMULATED else NAMED if style else BEGIN if is_beginning else TURN
    head = _head_label(branch) if last is branch.points[-1] else Span("")
    tags = f"(tag: {', '.join(map(clean, last.tags))}) " if last.tags else ""
    more = f"(+{count(row.hidden, 'branch')}) " if row.hidden else ""
    title = Span(more + tags + title_of(row, reference_by_id), style)
    reference = Span(reference_by_id[last.id], "reference")
    return Span(f"{glyph} ", style), reference, Span(time, "dim"), head, title


def _head_label(branch: Branch) -> Span:
    words = [f"HEAD -> {branch_name(branch)} *" if branch.is_current else branch_name(branch)]
    if branch.status != OPEN:
        words.append(cut(clean(branch.status), NAME_CELLS))
    return Span(f"({', '.join(words)}) ", "head")


def draw_exploration(exploration: Exploration, *, width: int = 100) -> str:
    """Draw an exploration as plain text.

    Example:
        >>> from agentgit.sessions.tree import ExploredBranch
        >>> leaf = ExploredBranch(id=7, name="explore/1", choices=(1,), answer="two chairs", score=1.0)
        >>> print(draw_exploration(Exploration(name="explore", branch="main", branches=[leaf])))
        explore, from main: 1 turn, 1 leaf
          explore/1  score 1  two chairs
    """
    return plain(exploration_lines(exploration, width=width))


def exploration_lines(exploration: Exploration, *, width: int = 100) -> list[Line]:
    """Draw an exploration."""
    leaves, tokens = len(exploration.leaves), exploration.tokens
    counts = [count(len(exploration.branches), "turn"), f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"]
    counts += [count(tokens, "token")] if tokens is not None else []
    heading = f"{clean(exploration.name)}, from {clean(exploration.branch)}: {', '.join(counts)}"
    rows = [
        [
            Span(clean(row["branch"]), "reference"),
            Span(f"score {row['score']:g}" if row["score"] is not None else ""),
            Span(count(row["tokens"], "token") if row["tokens"] is not None else "", "dim"),
            Span(count(len(row["tool_calls"]), "call") if row["tool_calls"] else "", "dim"),
            Span("" if row["status"] == DONE else row["status"], "bad"),
            Span(clean(row["error"] or row["answer"] or "")),
        ]
        for row in exploration.compare()
    ]
    result = [(Span(heading, "heading"),), *table(rows, width=width, indent="  ")]
    if undeclared := exploration.undeclared:
        result.append((Span(f"  not declared, so not reversed: {clean(', '.join(undeclared))}", "bad"),))
    return result
