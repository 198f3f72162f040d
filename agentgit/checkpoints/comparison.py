"""Two branches side by side, aligned where they diverge. Pure, no IO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentgit.checkpoints.diff import Diff, escape_unprintable
from agentgit.values import PrintableDrawing, count


@dataclass(frozen=True, kw_only=True)
class Comparison(PrintableDrawing):
    """The changes on two branches since they diverged.

    Args:
        fork: The checkpoint where they diverge, like `main#3`.
        messages: The number of messages that both share from the start.
        calls: The number of tool invocations that both share from the start.
        left: The changes from the fork to the compared point of the first branch.
        right: The changes from the fork to the compared point of the second branch.
        between: The differences between the two compared points.

    Example:
        >>> from agentgit.checkpoints import Checkpoint
        >>> from agentgit.checkpoints.diff import diff
        >>> fork, a, b = (Checkpoint(metadata={"reference": name}) for name in ("main#1", "main#2", "retry#2"))
        >>> print(Comparison(fork="main#1", left=diff(fork, a), right=diff(fork, b), between=diff(a, b)))
        main#2 and retry#2 diverge at main#1 (0 messages and 0 tool calls in common)
        main#2: unchanged
        retry#2: unchanged
    """

    fork: str
    messages: int = 0
    calls: int = 0
    left: Diff
    right: Diff
    between: Diff

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        sides = {name: getattr(self, name).to_dict() for name in ("left", "right", "between")}
        return {"fork": self.fork, "messages": self.messages, "calls": self.calls, **sides}

    @property
    def heading(self) -> str:
        """A sentence that names the point where the branches diverge."""
        common = f"{count(self.messages, 'message')} and {count(self.calls, 'tool call')} in common"
        return f"{self.between.from_reference} and {self.between.to_reference} diverge at {self.fork} ({common})"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the text line by line, each line with its sign, like `Diff.lines`."""
        yield "", escape_unprintable(self.heading)
        for side in (self.left, self.right):
            name = escape_unprintable(side.to_reference or "?")
            yield "", f"{name}: unchanged" if side.is_empty else name
            yield from ((sign, text if sign else f"  {text}") for sign, text in side.parts())

    def __str__(self) -> str:
        return "\n".join(f"{sign} {text}" if sign else text for sign, text in self.lines())
