"""Checkpoints: the log, one checkpoint in full, search results and tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.queries import Hit, Hits, Tag
from agentgit.errors import AgentGitError
from agentgit.next_steps import Next, Reason
from agentgit.render.text import clean, visible, waiting_text
from agentgit.render.view import Cell, Fold, Span, Table, Time, View, facts
from agentgit.render.views.conversation import LATEST, calls, conversation
from agentgit.values import count

INCOMPLETE = Reason("incomplete results: the database cannot be written now, or is damaged", Next("fsck"))
NAMES_ONLY = "only names of checkpoints were searched: everything else is encrypted"


def log(checkpoints: Sequence[Checkpoint], questions: Sequence[Any] = ()) -> View:
    """Show a log, below what the graph asks at the head of its branch."""
    rows = [
        [
            Span(reference(one), "reference"),
            Time(one.created_at),
            Span(clean(one.kind), style := "" if one.is_auto else "name"),
            Span(count(one.get_tool_track_position(), "call"), "dim"),
            Span(title(one), style),
        ]
        for one in reversed(checkpoints)
    ]
    waits = [Table([[Span(waiting_text(questions), "bad")]])] if questions else []
    return [*waits, Table(rows, empty="no checkpoints yet")]


def reference(checkpoint: Checkpoint) -> str:
    """Return the reference of a checkpoint, like `main#7`, or its id if none was recorded."""
    return clean(str(checkpoint.metadata.get("reference") or checkpoint.id or "-"))


def title(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's name, description and tags on one line."""
    texts = (checkpoint.checkpoint_name, checkpoint.metadata.get("description"))
    tags = ", ".join(map(clean, checkpoint.metadata.get("tags") or ()))
    return " ".join(filter(None, [" - ".join(clean(str(text)) for text in texts if text), tags and f"(tag: {tags})"]))


def checkpoint(value: Checkpoint) -> View:
    """Show one checkpoint in full: its metadata, state, latest messages and latest tool calls."""
    metadata = value.metadata
    known = {
        "id": value.id,
        "made": (Time(value.created_at, seconds=True), Span(f"{' ' * bool(value.created_at)}({clean(value.kind)})")),
        "description": metadata.get("description"),
        "restore point": metadata.get("restore_point"),
        "state hash": metadata.get("state_hash"),
        "data": repr(metadata["data"]) if metadata.get("data") is not None else None,
    }
    name = clean(value.checkpoint_name or "")
    return [
        (Span(reference(value), "heading"), Span(f"  {name}" if name else "", "name")),
        facts(known),
        *_content(value),
    ]


def _content(value: Checkpoint) -> View:
    try:
        state, messages, invocations = value.session_state, value.conversation_history, value.tool_invocations
    except AgentGitError as error:
        return [(Span(error.reason, "bad"),)]
    rows = [[Span(clean(str(key)), "reference"), Span(clean(repr(item)))] for key, item in state.items()]
    return [
        *([Fold("state", [Table(rows, indent="  ")])] if state else []),
        *([Fold(count(len(messages), "message"), conversation(messages, indent="  "))] if messages else []),
        *(
            [Fold(count(len(invocations), "tool call"), calls(invocations, latest=LATEST, indent="  "))]
            if invocations
            else []
        ),
    ]


def hits(found: Hits) -> View:
    """Show search results."""
    rows: list[list[Cell]] = [
        [
            Span(clean(hit.reference), "reference"),
            Time(hit.created_at),
            Span(clean(hit.role or hit.kind), "dim"),
            tuple(_snippet(hit)),
        ]
        for hit in found
    ]
    notes = [
        (Span(f"more: after {found.next}", "dim"), found.next),
        (Span(INCOMPLETE, "bad"), not found.complete),
        (Span(NAMES_ONLY, "dim"), found.names_only),
    ]
    return [Table(rows, empty="nothing found"), *((note,) for note, is_shown in notes if is_shown)]


def _snippet(hit: Hit) -> Iterator[Span]:
    """Yield the text in pieces, with the matches in their own style."""
    position = 0
    for start, end in hit.marks:
        if start >= position:
            yield Span(visible(hit.snippet[position:start]))
            yield Span(visible(hit.snippet[start:end]), "name")
            position = end
    yield Span(visible(hit.snippet[position:]))


def tags(values: Sequence[Tag]) -> View:
    """Show a list of tags."""
    rows = [
        [
            Span(clean(tag.name), "name"),
            Span(clean(tag.reference), "reference"),
            Time(tag.created_at),
            Span(clean(tag.description or "")),
        ]
        for tag in values
    ]
    return [Table(rows, empty=Reason("no tags yet", Next("tag")))]
