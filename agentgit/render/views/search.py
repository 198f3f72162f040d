"""Search results, one line each: the place, the time, what it is, and the piece of text with what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo

from agentgit.checkpoints.queries import Hit, Hits, Tag
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import cells, clean, clock, cut, visible

INCOMPLETE = "not all was looked at: the database cannot be written now, or is damaged (agentgit fsck tells)"
NAMES_ONLY = "only names of checkpoints were looked at: everything else is encrypted"


def draw_hits(hits: Hits) -> str:
    """Draw what was found as plain text.

    Example:
        >>> print(draw_hits(Hits([])))
        nothing found
    """
    return plain(lines(hits))


def lines(hits: Hits, *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw what was found.

    Args:
        hits: The page of hits.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    # The text is put in afterwards, because a table knows one style for a column.
    first = table([[*_columns(hit, zone), Span("")] for hit in hits], width=width)
    drawn = [_with_text(line, hit, width) for line, hit in zip(first, hits, strict=True)]
    more = [(Span(f"more: --after {hits.next}", "dim"),)] if hits.next else []
    missing = [] if hits.complete else [(Span(INCOMPLETE, "bad"),)]
    sealed = [(Span(NAMES_ONLY, "dim"),)] if hits.names_only else []
    return [*(drawn or [(Span("nothing found"),)]), *more, *missing, *sealed]


def _columns(hit: Hit, zone: tzinfo | None) -> list[Span]:
    return [
        Span(clean(hit.reference), "reference"),
        Span(clock(hit.created_at, zone), "dim"),
        Span(clean(hit.role or hit.kind), "dim"),
    ]


def _with_text(line: Line, hit: Hit, width: int) -> Line:
    left, shown = max(10, width - sum(cells(span.text) for span in line)), []
    for span in _pieces(hit):
        if left > 1:
            shown.append(span._replace(text=cut(span.text, left)))
            left -= cells(shown[-1].text)
    return (*line, *shown)


def _pieces(hit: Hit) -> Iterator[Span]:
    """Return the text in pieces, those that were found in a style of their own."""
    at = 0
    for start, end in hit.marks:
        if start >= at:
            yield Span(visible(hit.snippet[at:start]))
            yield Span(visible(hit.snippet[start:end]), "name")
            at = end
    yield Span(visible(hit.snippet[at:]))


def tag_lines(tags: Sequence[Tag], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of tags.

    Args:
        tags: The tags, in the order to show them.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    rows = [
        [
            Span(clean(tag.name), "name"),
            Span(clean(tag.reference), "reference"),
            Span(clock(tag.created_at, zone), "dim"),
            Span(clean(tag.description or "")),
        ]
        for tag in tags
    ]
    return table(rows, width=width)
