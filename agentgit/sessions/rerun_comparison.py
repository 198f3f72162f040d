"""A rerun beside the recorded conversation, with the place where they diverge. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, TypeAlias

from agentgit.sessions.rerun import RerunReport
from agentgit.values import COUNT, FLAG, OBJECT, PrintableDrawing, Tabular

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RerunComparison(PrintableDrawing, Tabular):
    """A rerun beside what was recorded. A frame has one row for each pair of messages.

    Args:
        report: The report of the rerun.
        recorded: The recorded messages, from `first` on.
        rerun: The messages of the rerun, from `first` on.
        first: The number of the first of these messages, from 1.
        diverges_at: The number of the first message that differs, from 1; None if all are the same.
        recorded_count: The number of all recorded messages.
        rerun_count: The number of all messages of the rerun.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "number": COUNT,
        "is_same": FLAG,
        "recorded_role": OBJECT,
        "recorded": OBJECT,
        "recorded_calls": OBJECT,
        "rerun_role": OBJECT,
        "rerun": OBJECT,
        "rerun_calls": OBJECT,
    }

    report: RerunReport
    recorded: Sequence[Message]
    rerun: Sequence[Message]
    first: int = 1
    diverges_at: int | None = None
    recorded_count: int = 0
    rerun_count: int = 0

    def pairs(self) -> Iterator[tuple[int, Message | None, Message | None]]:
        """Yield the number of each pair of messages, with the recorded message and that of the rerun, if any."""
        for number, (before, after) in enumerate(zip_longest(self.recorded, self.rerun), self.first):
            yield number, before, after

    def _records(self) -> Iterator[dict[str, Any]]:
        for number, before, after in self.pairs():
            yield {
                "number": number,
                "is_same": before is not None and after is not None and is_same_message(before, after),
                "recorded_role": before and before["role"],
                "recorded": before and before["content"],
                "recorded_calls": before and _calls(before),
                "rerun_role": after and after["role"],
                "rerun": after and after["content"],
                "rerun_calls": after and _calls(after),
            }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        return {**vars(self), "report": self.report.to_dict()}


def is_same_message(a: Message, b: Message) -> bool:
    """Return whether two shown messages have the same role, content and tool calls. Ids are not compared.

    Example:
        >>> is_same_message({"role": "user", "content": "a", "id": "1"}, {"role": "user", "content": "a", "id": "2"})
        True
    """
    return _content(a) == _content(b)


def _content(message: Message) -> tuple[Any, ...]:
    return message.get("role"), message.get("content"), _calls(message)


def _calls(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of a message, without their ids."""
    return [{"name": call.get("name"), "args": call.get("args")} for call in message.get("tool_calls") or []]
