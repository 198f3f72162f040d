"""The log and search results: one line for each checkpoint or hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.queries import Hit, Hits, Tag
from agentgit.render.text import Line, Span, Zone, cells, clean, cut, format_time, plain, table, visible, waiting_text
from agentgit.values import count


def draw_log(checkpoints: Sequence[Checkpoint], *, width: int = 100) -> str:
    """Draw a log as plain text.

    Example:
        >>> print(draw_log([Checkpoint(checkpoint_name="start", metadata={"reference": "main#1", "kind": "named"})]))
        main#1  named  0 calls  start
    """
    return plain(lines(checkpoints, width=width))


def lines(
    checkpoints: Sequence[Checkpoint], *, width: int = 100, zone: Zone = UTC, questions: Sequence[Any] = ()
) -> list[Line]:
    """Draw a log, below what the graph asks at the head of its branch."""
    waits = [(Span(cut(clean(waiting_text(questions)), width), "bad"),)] if questions else []
    return [*waits, *table([_row(checkpoint, zone) for checkpoint in reversed(checkpoints)], width=width)]


def _row(checkpoint: Checkpoint, zone: Zone) -> list[Span]:
    style = "" if checkpoint.is_auto else "name"
    return [
        Span(reference(checkpoint), "reference"),
        Span(format_time(checkpoint.created_at, zone), "dim"),
        Span(kind(checkpoint), style),
        Span(count(checkpoint.get_tool_track_position(), "call"), "dim"),
        Span(title(checkpoint), style),
    ]


def reference(checkpoint: Checkpoint) -> str:
    """Return the reference of a checkpoint, like `main#7`, or its id if none was recorded."""
    text: Any = checkpoint.metadata.get("reference") or checkpoint.id
    return clean(str(text)) if text else "-"


def kind(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint was created, in one word."""
    return clean(checkpoint.kind)


def title(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's name, description and tags on one line."""
    name, description = checkpoint.checkpoint_name, checkpoint.metadata.get("description")
    tags = (
        [f"(tag: {', '.join(clean(tag) for tag in tag_names)})"]
        if (tag_names := checkpoint.metadata.get("tags"))
        else []
    )
    return " ".join([*filter(None, [" - ".join(clean(str(text)) for text in (name, description) if text)]), *tags])


INCOMPLETE = "incomplete results: the database cannot be written now, or is damaged (check with agentgit fsck)"
NAMES_ONLY = "only names of checkpoints were searched: everything else is encrypted"


def draw_hits(hits: Hits) -> str:
    """Draw search results as plain text.

    Example:
        >>> print(draw_hits(Hits([])))
        nothing found
    """
    return plain(hit_lines(hits))


def hit_lines(hits: Hits, *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw search results."""
    # The text is added afterwards, because a table cell has only one style.
    column_lines = table([[*_columns(hit, zone), Span("")] for hit in hits], width=width)
    hit_rows = [_with_text(line, hit, width) for line, hit in zip(column_lines, hits, strict=True)]
    more_notice = [(Span(f"more: after {hits.next}", "dim"),)] if hits.next else []
    incomplete_notice = [] if hits.complete else [(Span(INCOMPLETE, "bad"),)]
    names_only_notice = [(Span(NAMES_ONLY, "dim"),)] if hits.names_only else []
    return [*(hit_rows or [(Span("nothing found"),)]), *more_notice, *incomplete_notice, *names_only_notice]


def _columns(hit: Hit, zone: Zone) -> list[Span]:
    return [
        Span(clean(hit.reference), "reference"),
        Span(format_time(hit.created_at, zone), "dim"),
        Span(clean(hit.role or hit.kind), "dim"),
    ]


def _with_text(line: Line, hit: Hit, width: int) -> Line:
    remaining, text_spans = max(10, width - sum(cells(span.text) for span in line)), []
    for span in _snippet_spans(hit):
        if remaining > 1:
            text_spans.append(span._replace(text=cut(span.text, remaining)))
            remaining -= cells(text_spans[-1].text)
    return (*line, *text_spans)


def _snippet_spans(hit: Hit) -> Iterator[Span]:
    """Yield the text in pieces, with the matches in their own style."""
    position = 0
    for start, end in hit.marks:
        if start >= position:
            yield Span(visible(hit.snippet[position:start]))
            yield Span(visible(hit.snippet[start:end]), "name")
            position = end
    yield Span(visible(hit.snippet[position:]))


def tag_lines(tags: Sequence[Tag], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of tags."""
    rows = [
        [
            Span(clean(tag.name), "name"),
            Span(clean(tag.reference), "reference"),
            Span(format_time(tag.created_at, zone), "dim"),
            Span(clean(tag.description or "")),
        ]
        for tag in tags
    ]
    return table(rows, width=width)
