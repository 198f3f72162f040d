"""Marks: what a call means to somebody who looks at a tree, in one word."""

from __future__ import annotations

from agentgit.effects import invocation
from agentgit.effects.effects import IRREVERSIBLE, READ_ONLY

MARKS = ("running", "done", "irreversible", "reversed", "failed", "unknown")
"""The marks of a call, in the order to show them."""

_OF_STATUS = {
    invocation.INTENDED: "running",
    invocation.REVERSING: "running",
    invocation.DONE: "done",
    invocation.REVERSED: "reversed",
    invocation.FAILED: "failed",
    invocation.UNKNOWN: "unknown",
    invocation.REVERSE_FAILED: "unknown",
    invocation.REVERSE_UNKNOWN: "unknown",
}


def mark(effect: str, status: str) -> str | None:
    """Return the mark of a call; None if it is nothing that somebody would want to see in a tree.

    Args:
        effect: The effect of the tool on the outside world.
        status: The call's, in the journal.

    Example:
        >>> mark("reversible", "done"), mark("irreversible", "done"), mark("read_only", "done")
        ('done', 'irreversible', None)
    """
    if effect == READ_ONLY:
        return None
    found = _OF_STATUS.get(status)
    return IRREVERSIBLE if found == "done" and effect == IRREVERSIBLE else found
