"""Rules for automatic checkpoints (rows A6, C6)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from agentgit.errors import InvalidInput

AutoCheckpoint = Literal["turn", "tool", "off"] | str | int


@dataclass(frozen=True)
class Interval:
    """The interval at which automatic checkpoints are made.

    Args:
        before_turns: True for a checkpoint before each user message.
        turns: The number of turns between checkpoints; 0 for none.
        calls: The number of tool calls between checkpoints, each made where its batch ends; 0 for none.
    """

    before_turns: bool
    turns: int
    calls: int = 0

    @classmethod
    def read(cls, value: AutoCheckpoint) -> Self:
        """Read what `wrap(auto_checkpoint=...)` was given.

        Raises:
            InvalidInput: It means nothing.

        Example:
            >>> Interval.read("tool:10")
            Interval(before_turns=True, turns=1, calls=10)
        """
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return cls(before_turns=False, turns=value)
        if value == "off":
            return cls(before_turns=False, turns=0)
        if value == "turn":
            return cls(before_turns=True, turns=1)
        calls = re.fullmatch(r"tool(?::([1-9]\d{0,8}))?", value) if isinstance(value, str) else None
        if calls is None:
            raise InvalidInput(
                f"auto_checkpoint={value!r} means nothing; give 'turn', 'tool', 'tool:10' for every tenth tool call, "
                "'off', or a number of turns."
            )
        return cls(before_turns=True, turns=1, calls=int(calls[1] or 1))

    def is_passed(self, before: int, after: int) -> bool:
        """Return whether a checkpoint is due where there were so many calls before a batch, and so many after it."""
        return self.calls > 0 and before // self.calls < after // self.calls
