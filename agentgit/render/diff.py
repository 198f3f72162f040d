"""The text of a diff, with a style for each sign."""

from __future__ import annotations

from agentgit.checkpoints.diff import Diff
from agentgit.render.lines import Line, Span
from agentgit.render.text import cut

_STYLES = {"": "heading", "+": "added", "-": "removed", "~": "changed"}


def lines(diff: Diff, *, width: int = 100) -> list[Line]:
    """Draw a diff.

    Args:
        diff: the difference of two checkpoints.
        width: the longest line, in terminal cells.
    """
    signed = ((sign, f"{sign} {text}" if sign else text) for sign, text in diff.lines())
    return [(Span(cut(text, width), _STYLES[sign]),) for sign, text in signed]
