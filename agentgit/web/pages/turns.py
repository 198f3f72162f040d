"""A conversation in turns: the messages between two checkpoints, images, tool calls as cards, tokens and durations."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import (
    DONE,
    FAILED,
    INTENDED,
    PAUSED,
    REDO,
    REPLAY,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    REVERSED,
    REVERSING,
    SIMULATED,
    UNKNOWN,
    UNOWNED,
)
from agentgit.sessions.messages import text_of
from agentgit.values import portable

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The media types of images that pages show. SVG is not among them, because it can contain scripts."""


@dataclass(frozen=True, kw_only=True)
class Image:
    index: int
    url: str | None = None


def images_of(message: Mapping[str, Any]) -> list[Image]:
    """Return the images of a message.

    Example:
        >>> images_of({"content": [{"type": "text", "text": "see"}, {"type": "image", "url": "https://a.example/b.png"}]})
        [Image(index=1, url='https://a.example/b.png')]
    """
    return list(_images(message.get("content")))


def _images(content: Any) -> Iterator[Image]:
    for index, block in enumerate(content if isinstance(content, list) else ()):
        source = image_source(block)
        if source is None:
            continue
        if isinstance(source, str):
            yield Image(index=index, url=source)
        elif source[0] in IMAGE_TYPES:
            yield Image(index=index)


def image_source(block: Any) -> str | tuple[str, str] | None:
    """Return the address of an image block, or its media type and base64 text; None for any other block.

    It reads the blocks of LangChain, of OpenAI (`image_url`) and of Anthropic (`source`).

    Example:
        >>> image_source({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}})
        ('image/png', 'aGk=')
    """
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "image_url"):
        return None
    linked = block.get("image_url")
    url = linked.get("url") if isinstance(linked, Mapping) else linked or block.get("url")
    nested = block.get("source")
    source = nested if isinstance(nested, Mapping) else block
    data = source.get("base64") or source.get("data")
    media_type = source.get("mime_type") or source.get("media_type")
    if isinstance(url, str) and url[:5].lower() == "data:":
        header, _, data = url[5:].partition(",")
        media_type = header.partition(";")[0]
    elif isinstance(url, str):
        return url
    return (media_type, data) if isinstance(data, str) and isinstance(media_type, str) else None


OUTCOMES = {
    INTENDED: ("running", "busy"),
    PAUSED: ("waits for an answer", "busy"),
    DONE: ("done", "good"),
    FAILED: ("failed", "bad"),
    UNKNOWN: ("unknown", "bad"),
    SIMULATED: ("simulated", "simulated"),
    REVERSING: ("being undone", "busy"),
    REVERSED: ("undone", "undone"),
    REVERSE_FAILED: ("could not be undone", "bad"),
    REVERSE_UNKNOWN: ("undo unknown", "bad"),
}
"""The outcome of a call in each status, and the CSS class of its chip."""


def outcome_of(status: str) -> tuple[str, str]:
    """Return the outcome of a call in a status, and the CSS class of its chip."""
    return OUTCOMES.get(status, (status, "bad"))


MAX_ENTRIES = 300
"""The number of messages and tool calls from which a page shows no earlier message."""


@dataclass(frozen=True, kw_only=True)
class Card:
    name: str
    args: Any
    result: str | None = None
    call: ToolInvocation | None = None
    is_kept: bool = False

    @property
    def outcome(self) -> tuple[str, str]:
        """The outcome of the call, and the CSS class of its chip."""
        if self.call is None:
            return ("answered", "") if self.result is not None else ("no result", "")
        if self.is_kept and self.call.status == DONE:
            return "kept", "warn"
        return outcome_of(self.call.status)

    @property
    def note(self) -> str:
        """A remark on the call besides its outcome; empty if there is none."""
        return _NOTES.get(self.call.kind, "") if self.call is not None else ""

    @property
    def shown_result(self) -> str | None:
        """The result that the model got, or the recorded one if the tool ran again or the model got none; else None."""
        if self.call is None or (self.result is not None and self.call.kind != REDO):
            return self.result
        if self.call.result is None or isinstance(self.call.result, str):
            return self.call.result
        return json.dumps(portable(self.call.result), ensure_ascii=False)

    @property
    def earlier_result(self) -> str | None:
        """The result that the model got, if it is not the one that is shown; else None."""
        return self.result if self.result != self.shown_result else None

    @property
    def error(self) -> str | None:
        return self.call.error_message if self.call is not None else None


_NOTES = {REPLAY: "from the record", REDO: "ran again", UNOWNED: "in threads that no turn owns"}
"""The note on a call of each kind."""


@dataclass(frozen=True, kw_only=True)
class Said:
    number: int
    message: Mapping[str, Any]
    cards: Sequence[Card] = ()
    images: Sequence[Image] = ()

    @property
    def role(self) -> str:
        return str(self.message.get("role") or "message")

    @property
    def text(self) -> str:
        return text_of(self.message)


@dataclass(kw_only=True)
class Turn:
    """A part of a conversation that starts where a user's message arrived."""

    points: list[Checkpoint] = field(default_factory=list)
    entries: list[Said | Checkpoint] = field(default_factory=list)
    loose: list[Card] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def before(self) -> Checkpoint | None:
        """The checkpoint before the turn; None if it has none."""
        first = self.points[0] if self.points else None
        return first if first is not None and kind_of(first) == "before" else None

    @property
    def after(self) -> Checkpoint | None:
        """The checkpoint after the turn; None if the turn has not ended."""
        return next((point for point in reversed(self.points) if kind_of(point) == "after"), None)

    @property
    def seconds(self) -> float | None:
        """The duration of the turn; None if it is not known."""
        before, after = self.before, self.after
        if before is None or after is None or before.created_at is None or after.created_at is None:
            return None
        return max(0.0, (after.created_at - before.created_at).total_seconds())

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


def kind_of(point: Checkpoint) -> str:
    """Return the kind of a checkpoint, such as `before` or `named`."""
    return str(point.metadata.get("kind", ""))


def turns_of(
    points: Sequence[Checkpoint],
    messages: Sequence[Mapping[str, Any]],
    calls: Sequence[ToolInvocation],
    *,
    kept: Collection[int] = (),
    is_start: bool = True,
    counts: Sequence[int] | None = None,
) -> list[Turn]:
    """Group messages, checkpoints and calls into turns.

    Example:
        >>> [turn] = turns_of([], [{"role": "user", "content": "hello"}], [])
        >>> turn.entries[0].text
        'hello'
    """
    starts = [i for i, point in enumerate(points) if i == 0 or kind_of(point) == "before"]
    indexes = _ascending(counts or [_message_count(point) for point in points], len(messages))
    positions = [point.get_tool_track_position() for point in points]
    turns = list[Turn]()
    until, at = (indexes[0], positions[0]) if points else (len(messages), len(calls))
    if is_start and (until or at):
        turns.append(_turn([], messages, (0, until), [], calls[:at], kept))
    for start, end in zip(starts, [*starts[1:], len(points)][: len(starts)], strict=True):
        is_last = end == len(points)
        part = (indexes[start], len(messages) if is_last else indexes[end])
        own_calls = calls[positions[start] : len(calls) if is_last else positions[end]]
        turns.append(_turn(points[start:end], messages, part, indexes[start:end], own_calls, kept))
    return turns


def last_entries(turns: Sequence[Turn], until: int | None = None) -> tuple[list[Turn], int | None]:
    left, room, first, is_reached = list[Turn](), MAX_ENTRIES, until, until is None
    for turn in reversed(turns):
        entries = list[Said | Checkpoint]()
        for entry in reversed(turn.entries):
            if isinstance(entry, Said) and (until is None or entry.number < until):
                if room <= 0:
                    return [*([replace(turn, entries=entries[::-1])] if entries else []), *left[::-1]], first
                first, room, is_reached = entry.number, room - 1 - len(entry.cards), True
                entries.append(entry)
            elif isinstance(entry, Checkpoint) and is_reached:
                entries.append(entry)
        if is_reached:
            left.append(replace(turn, entries=entries[::-1]))
    return left[::-1], None


def counts_at(
    points: Sequence[Checkpoint], messages: Sequence[Mapping[str, Any]], *, is_start: bool = True
) -> list[int]:
    """Return how many of the first messages of a conversation each checkpoint has.

    A graph may remove messages, so the count that a checkpoint records can include some that are gone since. The
    conversations of the checkpoints are read only then.
    """
    recorded = [_message_count(point) for point in points]
    if not _has_removals(points, messages, recorded, is_start):
        return recorded
    counts, limit = list[int](), len(messages)
    for number, point in reversed(list(enumerate(points))):
        is_shown = not number or kind_of(point) not in ("tools", "after") or point.metadata.get("tags")
        if limit and is_shown:
            known = {_key(message) for message in point.conversation_history}
            limit = next((i for i, message in enumerate(messages[:limit]) if _key(message) not in known), limit)
        counts.append(limit)
    return counts[::-1]


def _has_removals(
    points: Sequence[Checkpoint], messages: Sequence[Mapping[str, Any]], recorded: Sequence[int], is_start: bool
) -> bool:
    """Return whether a graph seems to have removed messages.

    It has if a count decreases, if a turn adds no message, or if the first checkpoint has other messages.
    """
    if any(later < earlier for earlier, later in pairwise([*recorded, len(messages)])):
        return True
    ends = [(kind_of(point), number) for point, number in zip(points, recorded, strict=True)]
    ends = [end for end in ends if end[0] in ("before", "after")]
    if messages and any(kind == "before" and number >= later for (kind, number), (_, later) in pairwise(ends)):
        return True
    if is_start or not points:
        return False
    first = points[0].conversation_history
    return [_key(message) for message in first] != [_key(message) for message in messages[: len(first)]]


def _key(message: Mapping[str, Any]) -> str:
    return str(message.get("id") or message)


def _message_count(point: Checkpoint) -> int:
    return int(point.metadata.get("message_count", 0))


def _ascending(counts: Sequence[int], total: int) -> list[int]:
    """Return the counts, none of which is then larger than a later one or than the total."""
    return list(accumulate(reversed(counts), min, initial=total))[:0:-1]


def _turn(
    points: Sequence[Checkpoint],
    messages: Sequence[Mapping[str, Any]],
    part: tuple[int, int],
    indexes: Sequence[int],
    calls: Sequence[ToolInvocation],
    kept: Collection[int],
) -> Turn:
    turn = Turn(points=list(points))
    shown = messages[part[0] : part[1]]
    cards = _Cards(shown, calls, kept)
    marks = deque(
        (index, point)
        for index, point in zip(indexes, points, strict=True)
        if not any(point is end for end in (turn.before, turn.after))
        and (kind_of(point) != "tools" or point.metadata.get("tags"))
    )
    for number, message in enumerate(shown, start=part[0]):
        while marks and marks[0][0] <= number:
            turn.entries.append(marks.popleft()[1])
        if message.get("role") == "tool" and cards.is_answer(message):
            continue
        turn.entries.append(Said(number=number, message=message, cards=cards.of(message), images=images_of(message)))
        usage = message.get("usage_metadata") or {}
        turn.tokens_in += _count(usage, "input_tokens")
        turn.tokens_out += _count(usage, "output_tokens")
    turn.entries.extend(point for _, point in marks)
    turn.loose = cards.rest()
    return turn


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) else 0


class _Cards:
    """The cards of one turn. Each recorded call and each answer belongs to one card."""

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], calls: Sequence[ToolInvocation], kept: Collection[int]
    ) -> None:
        self._kept = kept
        self._calls = defaultdict[Any, deque[ToolInvocation]](deque)
        for call in calls:
            self._calls[call.tool_call_id].append(call)
        self._asked = {call.get("id") for message in messages for call in message.get("tool_calls") or ()}
        self._answers = defaultdict[Any, deque[str]](deque)
        for message in messages:
            if message.get("role") == "tool":
                self._answers[message.get("tool_call_id")].append(text_of(message))

    def is_answer(self, message: Mapping[str, Any]) -> bool:
        """Return whether a tool's message is shown in the card of its call."""
        return message.get("tool_call_id") in self._asked

    def of(self, message: Mapping[str, Any]) -> list[Card]:
        """Return the cards of the calls that a message requests."""
        return [self._card(asked) for asked in message.get("tool_calls") or ()]

    def rest(self) -> list[Card]:
        """Return the cards of the recorded calls that no message requests."""
        return [
            Card(name=call.tool_name, args=call.args, call=call, is_kept=call.id in self._kept)
            for queue in self._calls.values()
            for call in queue
        ]

    def _card(self, asked: Mapping[str, Any]) -> Card:
        key = asked.get("id")
        recorded, answers = self._calls[key] if key is not None else deque(), self._answers[key]
        call = recorded.popleft() if recorded else None
        return Card(
            name=str(asked.get("name") or ""),
            args=asked.get("args"),
            result=answers.popleft() if answers else None,
            call=call,
            is_kept=call is not None and call.id in self._kept,
        )
