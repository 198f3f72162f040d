"""A session's tree as SVG: lanes, a dot for each checkpoint, names, tags, and marks for the effects of calls.

The SVG loads nothing and runs no scripts. Colours are attributes, which every content security policy allows. Each has
a contrast of at least 4:1 on white and on the dark grey of JupyterLab, because an SVG in an `<img>` cannot detect its
background.
"""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentgit.effects.invocation import MARKS
from agentgit.render.html import escape, fold, pre
from agentgit.render.layout import (
    LINE,
    RERUN_LEGEND,
    Lane,
    Picture,
    PlacedRow,
    branch_name,
    column_x,
    is_named,
    picture,
    title_of,
)
from agentgit.render.text import cells, clean, cut, format_time
from agentgit.render.views.tree import lines as text_lines
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

_TITLE_CELLS, _TAGS = 56, 4

_RERUN_DASHES = ' stroke-dasharray="4 5"'
"""The dashes of the lane of a rerun, which did not act on the world."""

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
    return _draw(picture(tree), link, follow_reader=follow_reader)[0]


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
    drawing = picture(tree)
    svg_text, width = _draw(drawing, None, follow_reader=False)
    data = base64.b64encode(svg_text.encode()).decode()
    style = f"max-width:100%;min-width:{width * _MIN_SCALE:.0f}px"
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{_summary(drawing)}" style="{style}">'
    return f'<div><div style="overflow-x:auto">{image}</div>{fold("as text", pre(text_lines(tree)))}</div>'


def _draw(drawing: Picture, link: Link | None, *, follow_reader: bool) -> tuple[str, float]:
    """Return the SVG and its width."""
    body = [*map(_lane, drawing.lanes), *_lines(drawing, link), *(footer := _footer(drawing))]
    width = max([*(right for _, right in body), _right_edge(_heading(drawing), 0), 240]) + 10
    height = drawing.bottom + 18 + LINE * len(footer)
    role = "img" if link is None else "group"  # assistive technology ignores links inside an image
    svg_text = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="agentgit-tree" role="{role}" '
            f'aria-label="{_summary(drawing)}" '
            f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" font-family="{_FONT_FAMILY}" '
            'font-size="12" fill="none" stroke-linecap="round" stroke-linejoin="round">',
            *([_READER_STYLE] if follow_reader else []),
            _text(6, 16, _heading(drawing), bold=True),
            *(text for text, _ in body),
            "</svg>",
        ]
    )
    return svg_text, width


def _summary(drawing: Picture) -> str:
    """Describe a picture in a sentence, for screen readers."""
    return _escape_xml_controls(escape(_heading(drawing)))


# -- the parts, each with the x of its right edge

_Part = tuple[str, float]


def _heading(drawing: Picture) -> str:
    return f"{cut(clean(drawing.tree.session_name), 60)}: {drawing.summary}"


def _lane(lane: Lane) -> _Part:
    colour, x = _colour(lane), lane.x
    parts = [_segment(x, *segment, colour, is_rerun=_is_rerun(lane.branch)) for segment in lane.segments]
    if lane.joint is not None and lane.start is not None:
        from_x, from_y = column_x(lane.joint[0]), lane.joint[1]
        bend = (lane.start - from_y) * 0.6
        curve = f"M{from_x} {from_y}C{from_x} {from_y + bend:.0f} {x} {lane.start - bend:.0f} {x} {lane.start}"
        dashes = _RERUN_DASHES if _is_rerun(lane.branch) else ""
        parts.insert(0, f'<path d="{curve}" stroke="{colour}" stroke-width="2"{dashes}/>')
    return "".join(parts), x


def _is_rerun(branch: Branch) -> bool:
    return branch.status == SIMULATED


def _segment(x: int, top: int, bottom: int, broken: bool, colour: str, *, is_rerun: bool) -> str:
    dashes = ' stroke-dasharray="1 5"' if broken else _RERUN_DASHES if is_rerun else ""
    return f'<path d="M{x} {top}V{bottom}" stroke="{colour}" stroke-width="2"{dashes}/>'


def _colour(lane: Lane) -> str:
    return LANES[lane.number % len(LANES)]


def _lines(drawing: Picture, link: Link | None) -> Iterator[_Part]:
    text_x = column_x(drawing.columns) + 4
    reference_cells = max((cells(_reference_of(line, drawing)) for line in drawing.lines), default=0)
    for line in drawing.lines:
        label, right = _line_text(line, drawing, text_x, text_x + (reference_cells + 1.5) * _CELL_WIDTH)
        address = link(line.row.points[-1]) if link is not None and line.dots else None
        marks = [_dot(line, i, drawing, None if i == len(line.dots) - 1 else link) for i in range(len(line.dots))]
        *others, last = marks or [""]
        yield "".join(others) + _linked(last + label, address), right


def _linked(content: str, address: str | None) -> str:
    return content if address is None else f'<a href="{_escape_xml_controls(html.escape(address))}">{content}</a>'


def _dot(line: PlacedRow, index: int, drawing: Picture, link: Link | None) -> str:
    dot, lane = line.dots[index], line.lane
    point, is_last = dot.point, index == len(line.dots) - 1
    radius = "6.5" if is_named(point) else "4" if is_last else "2.8"
    paint = f' stroke="{_colour(lane)}" stroke-width="1.6"' if _is_rerun(lane.branch) else f' fill="{_colour(lane)}"'
    circles = f'<circle cx="{lane.x}" cy="{dot.y}" r="{radius}"{paint}/>'
    if point is lane.branch.points[-1]:
        circles += f'<circle cx="{lane.x}" cy="{dot.y}" r="9" stroke="{_colour(lane)}" stroke-width="1.6"/>'
    content = f"<g><title>{_tooltip(point, drawing.references)}</title>{circles}</g>"
    return _linked(content, link(point) if link is not None else None)


def _tooltip(point: Point, references: Mapping[int, str]) -> str:
    """Return the tooltip of a checkpoint."""
    parts = [
        references[point.id],
        *([f"“{clean(point.name)}”"] if point.name is not None else []),
        *(f"tag {clean(tag)}" for tag in point.tags),
        format_time(point.created_at) + (" UTC" if point.created_at else ""),
        count(point.message_count, "message"),
        count(point.position, "call"),
        *(f"{point.effects[mark]} {mark}" for mark in MARKS if mark in point.effects),
    ]
    title = cut(clean(point.title), 200)
    return _escape_text(", ".join(filter(None, parts)) + (f": {title}" if title else ""))


def _reference_of(line: PlacedRow, drawing: Picture) -> str:
    row = line.row
    if row.folded or not row.points:
        return "⋯" if row.folded or line.is_after_newest else branch_name(row.branch)
    return drawing.references[row.points[-1].id]


def _line_text(line: PlacedRow, drawing: Picture, reference_x: float, marks_x: float) -> _Part:
    """Draw the text of a line: the reference, the marks, the branch and tags, and the title."""
    row, y = line.row, line.y
    parts = [_text(reference_x, y + 4, _reference_of(line, drawing), colour=_colour(line.lane))]
    x = marks_x
    for mark, n in _effects(line):
        part, x = _mark(mark, n, x, y)
        parts.append(part)
    for label in _labels(line):
        part, x = _label(*label, x, y)
        parts.append(part)
    title = _line_title(line, drawing)
    parts.append(_text(x, y + 4, title, bold=bool(line.dots) and is_named(row.points[-1])))
    return "".join(parts), _right_edge(title, x)


def _effects(line: PlacedRow) -> list[tuple[str, int]]:
    """Return the marks of a line with their counts, in display order."""
    counts = Counter[str]()
    for source in [line.row.branch] if line.is_after_newest or not line.row.points else line.row.points:
        counts.update(source.effects)
    return [(mark, counts[mark]) for mark in MARKS if counts[mark]]


def _line_title(line: PlacedRow, drawing: Picture) -> str:
    row = line.row
    if row.folded:
        return f"{row.folded} more"
    if not row.points:
        return "since then" if line.is_after_newest else "no checkpoints yet"
    return cut(title_of(row, drawing.references), _TITLE_CELLS)


def _mark(mark: str, n: int, x: float, y: int) -> _Part:
    shape = _SHAPES[mark].format(c=COLOURS[mark])
    symbol = f'<g transform="translate({x:.1f} {y - 6})"><title>{n} {mark}</title>{shape}</g>'
    if n == 1:
        return symbol, x + 18
    text = str(n)
    return symbol + _text(x + 15, y + 4, text, colour=COLOURS[mark]), x + 21 + cells(text) * _CELL_WIDTH


def _labels(line: PlacedRow) -> Iterator[tuple[str, str, bool]]:
    """Yield the labels of a line (the branch that ends there, and tags), each with its colour and if it is filled."""
    branch, points = line.row.branch, line.row.points
    if not line.row.folded and not line.is_after_newest and (not points or points[-1] is branch.points[-1]):
        status = f" · {cut(clean(branch.status), 16)}" if branch.status != OPEN else ""
        name = f"{branch_name(branch)}{status}"
        yield (f"HEAD → {name}" if branch.is_current else name), _colour(line.lane), branch.is_current
    tags = points[-1].tags if points and not line.row.folded else ()
    for tag in tags[:_TAGS]:
        yield f"tag: {cut(clean(tag), 24)}", TAG, False
    if len(tags) > _TAGS:
        yield f"and {len(tags) - _TAGS} tags", TAG, False


def _label(text: str, colour: str, is_filled: bool, x: float, y: int) -> _Part:
    text_width = cells(text) * _CELL_WIDTH
    corner = 3 if colour == TAG else 9
    paint = f'fill="{colour}"' if is_filled else f'stroke="{colour}"'
    box = f'<rect x="{x:.1f}" y="{y - 9}" width="{text_width + 14:.1f}" height="18" rx="{corner}" {paint}/>'
    words = _text(x + 7, y + 4, text, colour="#fff" if is_filled else colour, length=text_width, bold=is_filled)
    return box + words, x + text_width + 22


def _footer(drawing: Picture) -> list[_Part]:
    """Draw a note on the branches that are left out, and a legend of the marks that occur."""
    used_marks = {mark for line in drawing.lines for mark, _ in _effects(line)}
    y, parts = drawing.bottom + LINE + 8, list[_Part]()
    if drawing.hidden:
        text = f"{count(drawing.hidden, 'older branch')} not shown"
        parts.append((_text(6, y, text), _right_edge(text, 6)))
        y += LINE
    if any(_is_rerun(lane.branch) for lane in drawing.lanes):
        line = f'<path d="M8 {y - 4}H32" stroke="{TEXT}" stroke-width="2"{_RERUN_DASHES}/>'
        parts.append((line + _text(40, y, RERUN_LEGEND), _right_edge(RERUN_LEGEND, 40)))
        y += LINE
    if used_marks:
        parts.append(_legend([mark for mark in MARKS if mark in used_marks], y - 4))
    return parts


def _legend(marks: Sequence[str], y: int) -> _Part:
    x, symbols = 8.0, ""
    for mark in marks:
        part, x = _mark(mark, 1, x, y)
        symbols += part + _text(x, y + 4, mark)
        x += cells(mark) * _CELL_WIDTH + 18
    return symbols, x


def _text(x: float, y: int, text: str, *, colour: str = TEXT, length: float = 0, bold: bool = False) -> str:
    if not text:
        return ""
    attributes = f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"' if length else ""
    attributes += ' font-weight="bold"' if bold else ""
    attributes += ' class="agentgit-text"' if colour == TEXT else ""
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}"{attributes}>{_escape_text(text)}</text>'


def _right_edge(text: str, x: float) -> float:
    return x + cells(text) * _CELL_WIDTH


def _escape_text(text: str) -> str:
    return _escape_xml_controls(html.escape(text))


def _escape_xml_controls(text: str) -> str:
    """Escape the few characters that XML does not allow and `clean` does not escape."""
    return _ILLEGAL_XML.sub(lambda found: repr(found[0])[1:-1], text)


_ILLEGAL_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
