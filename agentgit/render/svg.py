"""A session's tree as SVG: lanes, a dot for each checkpoint, names, tags, and marks for the effects of calls.

The SVG loads nothing and runs no scripts. Colours are attributes, which every content security policy allows. Each has
a contrast of at least 4:1 on white and on the dark grey of JupyterLab, because an SVG in an `<img>` cannot detect its
background.
"""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentgit.effects.invocation import MARKS
from agentgit.render.html import fold as collapsed
from agentgit.render.html import pre
from agentgit.render.layout import RERUN_LEGEND, LayoutRow, branch_name, is_named, references, title_of, walk
from agentgit.render.text import cells, clean, cut, format_time, xml_text
from agentgit.render.view import Medium
from agentgit.render.views.tree import tree as text_view
from agentgit.sessions.folded_tree import fold
from agentgit.sessions.session import OPEN, SIMULATED
from agentgit.sessions.tree import Branch, Point, Tree
from agentgit.values import count

Link = Callable[[Point], str | None]
"""A function that returns the address that a checkpoint links to, or None."""

LANES = ("#2f76e1", "#bc5f0a", "#198b39", "#0b868e", "#cf3f95", "#877a07")
"""The colours of the branches, in turn."""

TEXT, TAG = "#767676", "#ae51c5"

COLOURS = {
    "running": "#2f76e1",
    "done": "#198b39",
    "irreversible": "#d4474f",
    "reversed": "#0b868e",
    "failed": "#d4474f",
    "unknown": "#bc5f0a",
}
"""The colours of the marks of calls; each mark also has its own shape."""

_SHAPES = {
    "running": '<path d="M2 6h.1M6 6h.1M10 6h.1" stroke="{c}" stroke-width="2.6"/>',
    "done": '<path d="M1.5 6.5l3 3.5 6-7.5" stroke="{c}" stroke-width="2"/>',
    "irreversible": '<path d="M6 .5l5.8 10.5H.2z" fill="{c}"/><path d="M6 4.5v3M6 9.3v.1" stroke="#fff" '
    'stroke-width="1.4"/>',
    "reversed": '<path d="M4.5 1L1.5 4l3 3M1.5 4H8a3.2 3.2 0 0 1 0 6.5H4" stroke="{c}" stroke-width="1.7"/>',
    "failed": '<path d="M2 2l8 8M10 2l-8 8" stroke="{c}" stroke-width="2"/>',
    "unknown": '<circle cx="6" cy="6" r="5.8" fill="{c}"/><path d="M4.2 4.8a1.8 1.8 0 1 1 2.5 1.6q-.7.3-.7 1.1M6 '
    '9.3v.1" stroke="#fff" stroke-width="1.4"/>',
}

_FONT_FAMILY = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
_CELL_WIDTH = 7.3
"""The approximate width of a character, in pixels."""

_LANE, _LINE, _STEP, _LEFT, _TOP, _CURVE = 18, 26, 9, 14, 44, 17
"""The width of a lane, the height of a line, the distance between a turn's dots, the first dot's x and y, and the
minimum height of the curve to a new lane."""

_LINES, _BRANCHES, _DOTS, _LANES, _TITLE_CELLS, _TAGS = 60, 60, 6, 12, 56, 4
"""The maximum numbers of lines of a branch, branches, dots of a turn, lanes, cells of a title, and tags."""

_FOLD_DASHES, _RERUN_DASHES = ' stroke-dasharray="1 5"', ' stroke-dasharray="4 5"'
"""The dashes of a lane beside folded turns, and of the lane of a rerun, which did not act on the world."""

_MIN_SCALE = 0.85
"""The smallest scale at which a notebook shows a wide picture; beyond that it scrolls, to stay readable."""

_READER_STYLE = (
    "<style>@media(prefers-color-scheme:light){.agentgit-text{fill:#1f2328}}"
    "@media(prefers-color-scheme:dark){.agentgit-text{fill:#e6edf3}}</style>"
)


def tree_svg(tree: Tree, *, link: Link | None = None, follow_reader: bool = False) -> str:
    """Draw a tree as SVG.

    Args:
        tree: The branches of a session.
        link: A function that returns the address that a checkpoint links to; None to draw no links.
        follow_reader: True if the page follows its reader's light or dark preference; text then has more contrast.

    Example:
        >>> from agentgit.sessions.tree import Branch
        >>> main = Branch(id=1, name="main", is_current=True, points=[Point(id=5, number=1, name="start")])
        >>> drawn = tree_svg(Tree(session_name="s", roots=[main]))
        >>> drawn[:4], "s: 1 branch, 1 checkpoint, on main at #1" in drawn
        ('<svg', True)
    """
    return _Picture(tree).svg(link, follow_reader=follow_reader)


def mark_svg(mark: str, number: int) -> str:
    """Draw the mark of calls as an SVG of its own.

    Example:
        >>> mark_svg("done", 2)[:62]
        '<svg role="img" aria-label="2 done" width="12" height="12" vie'
    """
    return (
        f'<svg role="img" aria-label="{number} {mark}" width="12" height="12" viewBox="0 0 12 12" fill="none" '
        f'stroke-linecap="round" stroke-linejoin="round"><title>{number} {mark}</title>'
        f"{_SHAPES[mark].format(c=COLOURS[mark])}</svg>"
    )


def page(tree: Tree) -> str:
    """Draw a tree for a notebook: an image, which untrusted notebooks keep too, and the text, collapsed."""
    picture = _Picture(tree)
    data = base64.b64encode(picture.svg(None).encode()).decode()
    style = f"max-width:100%;min-width:{picture.width * _MIN_SCALE:.0f}px"
    alt = _escape(picture.heading)
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{alt}" style="{style}">'
    text = collapsed("as text", pre(Medium().lines(text_view(tree))))
    return f'<div><div style="overflow-x:auto">{image}</div>{text}</div>'


@dataclass(eq=False)
class _Lane:
    """The line of a branch: its paths, and how far down it is drawn."""

    branch: Branch
    column: int
    colour: str
    paths: list[str] = field(default_factory=list)
    bottom: int = 0

    @property
    def x(self) -> int:
        return _LEFT + self.column * _LANE

    @property
    def is_rerun(self) -> bool:
        return self.branch.status == SIMULATED

    def begin(self, y: int, parent: _Lane | None) -> None:
        """Begin at `y`, with a curve from the bottom of the lane that it leaves."""
        if parent is not None:
            bend = (y - parent.bottom) * 0.6
            top, end = f"{parent.x} {parent.bottom + bend:.0f}", f"{self.x} {y - bend:.0f} {self.x} {y}"
            self._draw(f"M{parent.x} {parent.bottom}C{top} {end}")
        self.bottom = y

    def extend_to(self, y: int, *, is_folded: bool = False) -> None:
        if y > self.bottom:
            self._draw(f"M{self.x} {self.bottom}V{y}", _FOLD_DASHES if is_folded else "")
        self.bottom = y

    def _draw(self, path: str, dashes: str = "") -> None:
        dashes = dashes or (_RERUN_DASHES if self.is_rerun else "")
        self.paths.append(f'<path d="{path}" stroke="{self.colour}" stroke-width="2"{dashes}/>')


@dataclass(frozen=True)
class _Row:
    """A line of text, with the dots that belong to it, each with its y."""

    row: LayoutRow
    lane: _Lane
    y: int
    dots: list[tuple[Point, int]]

    @property
    def is_end(self) -> bool:
        """Whether the branch ends here."""
        points, end = self.row.points, self.lane.branch.points
        return not self.row.note and (not points or points[-1] is end[-1])

    @property
    def marks(self) -> list[tuple[str, int]]:
        """The marks of the calls of a line with their counts, in display order."""
        counts = Counter[str]()
        for effects in [*(point.effects for point in self.row.points), self.lane.branch.effects if self.is_end else {}]:
            counts.update(effects)
        return [(mark, counts[mark]) for mark in MARKS if counts[mark]]


class _Picture:
    """A tree with its lanes and lines in place; drawing it adds up how wide it is."""

    def __init__(self, tree: Tree) -> None:
        self.folded = fold(tree, limit=_BRANCHES)
        self.references = references(self.folded.tree)
        self.y, self.width = _TOP - _LINE, 240.0
        self.lanes: dict[int, _Lane] = {}
        self.rows: list[_Row] = []
        for row, above, _ in walk(self.folded, max_rows=_LINES):
            self._place(row, above)
        self.text_x = _LEFT + _LANE * (1 + max((lane.column for lane in self.lanes.values()), default=0)) + 4
        reference_cells = max((cells(self._reference(row)) for row in self.rows), default=0)
        self.marks_x = self.text_x + (reference_cells + 1.5) * _CELL_WIDTH
        branches = list(tree.walk())
        counts = [count(len(branches), "branch"), count(sum(len(one.points) for one in branches), "checkpoint")]
        for one in branches:
            if one.is_current:
                counts.append(f"on {branch_name(one)}" + (f" at #{one.points[-1].number}" if one.points else ""))
        self.heading = f"{cut(clean(tree.session_name), 60)}: {', '.join(counts)}"

    def _place(self, row: LayoutRow, above: list[tuple[Branch, bool]]) -> None:
        """Place a line, with the height that its dots need, and draw the lane of its branch down to it."""
        points = [] if row.folded else row.points[-_DOTS:]
        lane, start = self.lanes.get(row.branch.id), self.y
        self.y += max(_LINE, (_STEP if lane else _CURVE) + _STEP * (len(points) - 1))
        dots = [(point, self.y - _STEP * i) for i, point in enumerate(reversed(points))][::-1]
        top = dots[0][1] if dots else self.y
        if lane is None:
            parent = self.lanes[above[-1][0].id] if above else None
            used = {self.lanes[branch.id].column for branch, goes_on in above if goes_on or branch is above[-1][0]}
            column = _free_column(used, parent.column) if parent else 0
            lane = self.lanes[row.branch.id] = _Lane(row.branch, column, LANES[len(self.lanes) % len(LANES)])
            if parent is not None:
                parent.extend_to(start)
            lane.begin(top, parent)
        lane.extend_to(top, is_folded=not dots)
        lane.extend_to(self.y)
        self.rows.append(_Row(row, lane, self.y, dots))

    def svg(self, link: Link | None, *, follow_reader: bool = False) -> str:
        """Return the SVG."""
        heading = self._text(6, 16, self.heading, bold=True)
        lanes = ["".join(lane.paths) for lane in self.lanes.values()]
        rows = [self._row(row, link) for row in self.rows]
        footer = self._footer()
        width, height = self.width + 10, self.y + 18 + _LINE * len(footer)
        role = "img" if link is None else "group"  # assistive technology ignores links inside an image
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="agentgit-tree" role="{role}" '
                f'aria-label="{_escape(self.heading)}" '
                f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
                f'font-family="{_FONT_FAMILY}" '
                'font-size="12" fill="none" stroke-linecap="round" stroke-linejoin="round">',
                *([_READER_STYLE] if follow_reader else []),
                *(heading, *lanes, *rows, *footer),
                "</svg>",
            ]
        )

    def _reference(self, row: _Row) -> str:
        if row.row.note or not row.row.points:
            return "⋯" if row.row.note else branch_name(row.lane.branch)
        return self.references[row.row.points[-1].id]

    def _row(self, row: _Row, link: Link | None) -> str:
        """Draw a line: its dots, its reference, marks, branch and tags, and its title."""
        label = self._text(self.text_x, row.y + 4, self._reference(row), colour=row.lane.colour)
        x = self.marks_x
        for mark, n in row.marks:
            part, x = self._mark(mark, n, x, row.y)
            label += part
        for text, colour, is_filled in _labels(row):
            part, x = self._label(text, colour, is_filled, x, row.y)
            label += part
        points, title = row.row.points, row.row.note or "no checkpoints yet"
        if points and not row.row.note:
            title = cut(row.row.more + title_of(row.row, self.references), _TITLE_CELLS)
        label += self._text(x, row.y + 4, title, bold=bool(row.dots) and is_named(points[-1]))
        if not row.dots:
            return label
        *others, last = (self._dot(row, point, y) for point, y in row.dots)
        linked = [_linked(dot, point, link) for dot, (point, _) in zip(others, row.dots, strict=False)]
        return "".join(linked) + _linked(last + label, points[-1], link)

    def _dot(self, row: _Row, point: Point, y: int) -> str:
        lane, is_last = row.lane, y == row.y
        radius = "6.5" if is_named(point) else "4" if is_last else "2.8"
        paint = f' stroke="{lane.colour}" stroke-width="1.6"' if lane.is_rerun else f' fill="{lane.colour}"'
        circles = f'<circle cx="{lane.x}" cy="{y}" r="{radius}"{paint}/>'
        if point is lane.branch.points[-1]:
            circles += f'<circle cx="{lane.x}" cy="{y}" r="9" stroke="{lane.colour}" stroke-width="1.6"/>'
        return f"<g><title>{self._tooltip(point)}</title>{circles}</g>"

    def _tooltip(self, point: Point) -> str:
        parts = [
            self.references[point.id],
            *([f"“{clean(point.name)}”"] if point.name is not None else []),
            *(f"tag {clean(tag)}" for tag in point.tags),
            format_time(point.created_at) + (" UTC" if point.created_at else ""),
            count(point.message_count, "message"),
            count(point.position, "call"),
            *(f"{point.effects[mark]} {mark}" for mark in MARKS if mark in point.effects),
        ]
        title = cut(clean(point.title), 200)
        return _escape(", ".join(filter(None, parts)) + (f": {title}" if title else ""))

    def _mark(self, mark: str, n: int, x: float, y: int) -> tuple[str, float]:
        """Draw a mark with its number, and return where the next part begins."""
        shape = _SHAPES[mark].format(c=COLOURS[mark])
        symbol = f'<g transform="translate({x:.1f} {y - 6})"><title>{n} {mark}</title>{shape}</g>'
        if n == 1:
            return symbol, x + 18
        text = self._text(x + 15, y + 4, str(n), colour=COLOURS[mark])
        return symbol + text, x + 21 + cells(str(n)) * _CELL_WIDTH

    def _label(self, text: str, colour: str, is_filled: bool, x: float, y: int) -> tuple[str, float]:
        text_width = cells(text) * _CELL_WIDTH
        corner = 3 if colour == TAG else 9
        paint = f'fill="{colour}"' if is_filled else f'stroke="{colour}"'
        box = f'<rect x="{x:.1f}" y="{y - 9}" width="{text_width + 14:.1f}" height="18" rx="{corner}" {paint}/>'
        ink = "#fff" if is_filled else colour
        words = self._text(x + 7, y + 4, text, colour=ink, length=text_width, bold=is_filled)
        return box + words, x + text_width + 22

    def _footer(self) -> list[str]:
        """Draw a note on the branches that are left out, and a legend of what occurs, a line each."""
        y, parts = self.y + _LINE + 8, []
        if self.folded.above:
            parts.append(self._text(6, y, f"{count(self.folded.above, 'more branch')} above"))
        if any(lane.is_rerun for lane in self.lanes.values()):
            y += _LINE * len(parts)
            line = f'<path d="M8 {y - 4}H32" stroke="{TEXT}" stroke-width="2"{_RERUN_DASHES}/>'
            parts.append(line + self._text(40, y, RERUN_LEGEND))
        used = {mark for row in self.rows for mark, _ in row.marks}
        x, symbols, y = 8.0, "", self.y + _LINE * (len(parts) + 1) + 4
        for mark in (mark for mark in MARKS if mark in used):
            part, x = self._mark(mark, 1, x, y)
            symbols += part + self._text(x, y + 4, mark)
            x += cells(mark) * _CELL_WIDTH + 18
        return [*parts, symbols] if symbols else parts

    def _text(self, x: float, y: int, text: str, *, colour: str = TEXT, length: float = 0, bold: bool = False) -> str:
        if not text:
            return ""
        self.width = max(self.width, x + cells(text) * _CELL_WIDTH)
        attributes = f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"' if length else ""
        attributes += ' font-weight="bold"' if bold else ""
        attributes += ' class="agentgit-text"' if colour == TEXT else ""
        return f'<text x="{x:.1f}" y="{y}" fill="{colour}"{attributes}>{_escape(text)}</text>'


def _free_column(used_columns: set[int], column: int) -> int:
    """Return a free column for a branch that leaves from `column`."""
    to_the_right = next(c for c in range(column + 1, column + 2 + len(used_columns)) if c not in used_columns)
    if to_the_right < _LANES:
        return to_the_right
    return next((c for c in range(_LANES) if c not in used_columns), to_the_right)


def _linked(content: str, point: Point, link: Link | None) -> str:
    address = link(point) if link is not None else None
    return content if address is None else f'<a href="{_escape(address)}">{content}</a>'


def _labels(row: _Row) -> Iterator[tuple[str, str, bool]]:
    """Yield the labels of a line (the branch that ends there, and tags), each with its colour and if it is filled."""
    branch, points = row.lane.branch, row.row.points
    if row.is_end:
        status = f" · {cut(clean(branch.status), 16)}" if branch.status != OPEN else ""
        name = f"{branch_name(branch)}{status}"
        yield (f"HEAD → {name}" if branch.is_current else name), row.lane.colour, branch.is_current
    tags = points[-1].tags if points and not row.row.note else ()
    for tag in tags[:_TAGS]:
        yield f"tag: {cut(clean(tag), 24)}", TAG, False
    if len(tags) > _TAGS:
        yield f"and {len(tags) - _TAGS} tags", TAG, False


def _escape(text: str) -> str:
    return xml_text(html.escape(text))
