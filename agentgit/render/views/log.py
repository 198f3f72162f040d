"""The log: the checkpoints of a path, one line each, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import clean, clock, count


def draw_log(checkpoints: Sequence[Checkpoint], *, width: int = 100) -> str:
    """Draw a log as plain text.

    Args:
        checkpoints: A path, oldest first.
        width: The longest line, in terminal cells.

    Example:
        >>> print(draw_log([Checkpoint(checkpoint_name="start", metadata={"reference": "main#1", "kind": "named"})]))
        main#1  named  0 calls  start
    """
    return plain(lines(checkpoints, width=width))


def lines(checkpoints: Sequence[Checkpoint], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a log.

    Args:
        checkpoints: A path, oldest first.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    return table([_row(checkpoint, zone) for checkpoint in reversed(checkpoints)], width=width)


def _row(checkpoint: Checkpoint, zone: tzinfo | None) -> list[Span]:
    style = "" if checkpoint.is_auto else "name"
    return [
        Span(reference(checkpoint), "reference"),
        Span(clock(checkpoint.created_at, zone), "dim"),
        Span(kind(checkpoint), style),
        Span(count(checkpoint.get_tool_track_position(), "call"), "dim"),
        Span(title(checkpoint), style),
    ]


def reference(checkpoint: Checkpoint) -> str:
    """Return the short name of a checkpoint, like `main#7`; its id where nobody recorded one."""
    known: Any = checkpoint.metadata.get("reference") or checkpoint.id
    return clean(str(known)) if known else "-"


def kind(checkpoint: Checkpoint) -> str:
    """Return the reason why a checkpoint was made, in one word."""
    return clean(str(checkpoint.metadata.get("kind") or ("auto" if checkpoint.is_auto else "named")))


def title(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's name, description and tags on one line."""
    name, description = checkpoint.checkpoint_name, checkpoint.metadata.get("description")
    tags = [f"(tag: {', '.join(clean(tag) for tag in known)})"] if (known := checkpoint.metadata.get("tags")) else []
    return " ".join([*filter(None, [" - ".join(clean(str(text)) for text in (name, description) if text)]), *tags])
