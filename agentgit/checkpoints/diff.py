"""The differences between two checkpoints: state, messages, tool calls, files. Pure, no IO."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import unified_diff
from typing import Any, Literal

from agentgit.checkpoints.alignment import align
from agentgit.checkpoints.checkpoint import Checkpoint
from agentgit.errors import InvalidInput
from agentgit.values import PrintableDrawing, portable, to_json

Kind = Literal["added", "removed", "changed"]

_MAX_LENGTH = 160
"""The maximum number of characters of one value, message or call in the text of a diff."""

_LONGEST_TEXT, _MOST_LINES = 20_000, 40
"""The maximum number of characters of a text that is compared by lines, and of differing lines that are shown."""


@dataclass(frozen=True)
class Change:
    """One difference in the state.

    Args:
        path: The position as a JSON pointer (RFC 6901) like `/cart/0`; empty if the whole state differs.
        before: The value before; None if there was none.
        after: The value after; None if there is none.
        kind: `added`, `removed` or `changed`.
    """

    path: str
    before: Any
    after: Any
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens that messages used, as the models reported them (`usage_metadata`); 0 where a model reported nothing.

    Args:
        input: Tokens that models read.
        output: Tokens that models wrote.
        total: All tokens, as the models count them.
    """

    input: int = 0
    output: int = 0
    total: int = 0

    @classmethod
    def of(cls, messages: Iterable[Mapping[str, Any]]) -> Tokens:
        """Add up the tokens that messages used.

        Example:
            >>> Tokens.of([{"role": "assistant", "usage_metadata": {"input_tokens": 7, "output_tokens": 2}}])
            Tokens(input=7, output=2, total=9)
        """
        usages = [usage for message in messages if isinstance(usage := message.get("usage_metadata"), Mapping)]
        input_tokens = sum(_token_count(usage.get("input_tokens")) for usage in usages)
        output_tokens = sum(_token_count(usage.get("output_tokens")) for usage in usages)
        total = sum(
            _token_count(usage.get("total_tokens"))
            or _token_count(usage.get("input_tokens")) + _token_count(usage.get("output_tokens"))
            for usage in usages
        )
        return cls(input=input_tokens, output=output_tokens, total=total)


def _token_count(value: Any) -> int:
    """Return a number of tokens; any other value counts as 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


@dataclass(frozen=True, kw_only=True)
class Diff(PrintableDrawing):
    """The differences between two checkpoints.

    Args:
        from_id: The id of the first checkpoint; None if it was never stored.
        to_id: The id of the second checkpoint; None if it was never stored.
        from_reference: The reference of the first, like `main#7`; empty if it is unknown.
        to_reference: The reference of the second.
        state: The differences in the state, in the order of the first state.
        common_messages: The number of messages that both have, in the same order.
        removed_messages: Messages that only the first has, oldest first. An edited message is removed and added.
        added_messages: Messages that only the second has, oldest first.
        removed_tokens: The tokens of the messages that only the first has.
        added_tokens: The tokens of the messages that only the second has.
        common_calls: The number of tool invocations that both tool tracks have; a replayed invocation counts as the
            one that it replays.
        removed_calls: Tool invocations that only the first has, oldest first.
        added_calls: Tool invocations that only the second has, oldest first.
        removed_pending: Tasks of an unfinished step that only the first has: the questions, answers or writes of each.
        added_pending: Tasks of an unfinished step that only the second has.
        added_files: Paths that only the second has.
        modified_files: Paths whose contents differ.
        deleted_files: Paths that only the first has.
        diff_content: The differences between the files as a unified diff.

    Example:
        >>> print(diff(Checkpoint(session_state={"cart": []}), Checkpoint(session_state={"cart": ["chair"]})))
        state
        + /cart/0  'chair'
    """

    from_id: int | None
    to_id: int | None
    from_reference: str = ""
    to_reference: str = ""
    state: list[Change] = field(default_factory=list)
    common_messages: int = 0
    removed_messages: list[dict[str, Any]] = field(default_factory=list)
    added_messages: list[dict[str, Any]] = field(default_factory=list)
    removed_tokens: Tokens = Tokens()
    added_tokens: Tokens = Tokens()
    common_calls: int = 0
    removed_calls: list[dict[str, Any]] = field(default_factory=list)
    added_calls: list[dict[str, Any]] = field(default_factory=list)
    removed_pending: list[dict[str, Any]] = field(default_factory=list)
    added_pending: list[dict[str, Any]] = field(default_factory=list)
    added_files: list[str] = field(default_factory=list)
    modified_files: list[str] = field(default_factory=list)
    deleted_files: list[str] = field(default_factory=list)
    diff_content: str = ""

    @property
    def is_empty(self) -> bool:
        """True if state, messages, tool calls, questions, answers and files are the same."""
        messages = self.removed_messages or self.added_messages
        calls = self.removed_calls or self.added_calls
        files = self.added_files or self.modified_files or self.deleted_files
        pending = self.removed_pending or self.added_pending
        return not (self.state or messages or calls or pending or files)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["state"] = [vars(change) for change in self.state]
        plain: dict[str, Any] = portable(data)
        return plain

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the text of the diff line by line, each line with its sign.

        The sign is `+`, `-`, or empty for a heading. The text has no control characters, and long values are cut.
        """
        if self.from_reference or self.to_reference:
            yield (
                "",
                f"{escape_unprintable(self.from_reference or '?')} -> {escape_unprintable(self.to_reference or '?')}",
            )
        if self.is_empty:
            yield "", "no difference"
        yield from self.parts()

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the differences like `lines`, each part with its heading; parts without differences are left out."""
        yield from _section_lines("state", list(_state_lines(self.state)))
        yield from _section_lines(
            f"messages ({self.common_messages} in common)",
            [("-", format_message(m)) for m in self.removed_messages]
            + [("+", format_message(m)) for m in self.added_messages],
        )
        yield from _section_lines(
            f"tool calls ({self.common_calls} in common)",
            [("-", _format_call(c)) for c in self.removed_calls] + [("+", _format_call(c)) for c in self.added_calls],
        )
        yield from _section_lines("unfinished step", self.tasks())
        files = [("-", f) for f in self.deleted_files] + [("+", f) for f in self.added_files]
        yield from _section_lines(
            "files", [(s, escape_unprintable(f)) for s, f in [*files, *(("~", f) for f in self.modified_files)]]
        )
        tokens = [("-", self.removed_tokens), ("+", self.added_tokens)]
        yield from _section_lines(
            "tokens", [(s, f"{t.total:,} ({t.input:,} in, {t.output:,} out)") for s, t in tokens if t != Tokens()]
        )

    def tasks(self) -> list[tuple[str, str]]:
        """Return the tasks of an unfinished step as text, each with its sign."""
        return [
            *(("-", _format_task(task)) for task in self.removed_pending),
            *(("+", _format_task(task)) for task in self.added_pending),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{sign} {text}" if sign else text for sign, text in self.lines())


def diff(a: Checkpoint, b: Checkpoint) -> Diff:
    """Compare two checkpoints, of one branch, of two branches or of two sessions.

    Args:
        a: The first checkpoint.
        b: The second checkpoint.

    Raises:
        InvalidInput: One of them is not a checkpoint, like the head of an agent that has no checkpoint yet.

    Example:
        >>> same = Checkpoint(session_state={"cart": ["chair"]})
        >>> diff(same, same).is_empty
        True
    """
    for checkpoint in (a, b):
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInput(f"{checkpoint!r} is not a Checkpoint. session.diff() takes names.")
    common_messages, removed_messages, added_messages = align(a.conversation_history, b.conversation_history, to_json)
    origins = {c["id"]: c["replay_of"] for c in [*a.tool_invocations, *b.tool_invocations] if c.get("replay_of")}
    common_calls, removed_calls, added_calls = align(
        a.tool_invocations, b.tool_invocations, lambda call: _call_identity(call, origins)
    )
    _, removed_pending, added_pending = align(_pending_tasks(a), _pending_tasks(b), to_json)
    return Diff(
        from_id=a.id,
        to_id=b.id,
        from_reference=str(a.metadata.get("reference") or ""),
        to_reference=str(b.metadata.get("reference") or ""),
        state=list(_iterate_changes(a.session_state, b.session_state)),
        common_messages=common_messages,
        removed_messages=removed_messages,
        added_messages=added_messages,
        removed_tokens=Tokens.of(removed_messages),
        added_tokens=Tokens.of(added_messages),
        common_calls=common_calls,
        removed_calls=removed_calls,
        added_calls=added_calls,
        removed_pending=removed_pending,
        added_pending=added_pending,
    )


# -- messages, tool calls and questions


def _pending_tasks(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    return list(checkpoint.metadata.get("pending") or [])


def _call_identity(call: Mapping[str, Any], origins: Mapping[int, int]) -> Hashable:
    """Return a key that identifies a tool call: the invocation that really ran, and its outcome."""
    if call.get("id") is None:
        return to_json(call)
    origin = call["id"]
    for _ in origins:  # bounded by the number of replays: a damaged record could contain a cycle
        if origin not in origins:
            break
        origin = origins[origin]
    # A replay that ran again may have another outcome; then it is not the same call.
    return origin, to_json([call.get("result"), call.get("error_message")])


# -- state


def _iterate_changes(before: Any, after: Any) -> Iterator[Change]:
    """Yield the differences between two JSON-like values."""
    # An explicit stack, because a state may be nested deeper than Python's recursion limit.
    stack: list[tuple[str, Any, Any]] = [("", before, after)]
    while stack:
        path, old, new = stack.pop()
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = [*old, *(key for key in new if key not in old)]
            parts = [(f"{path}/{_escape_key(key)}", old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in keys]
            stack += reversed(parts)
        elif isinstance(old, list) and isinstance(new, list):
            # The common end is left out, so that one inserted or removed item is one change.
            shared_count = _count_common_end(old, new)
            indexes = range(max(len(old), len(new)) - shared_count)
            left, right = old[: len(old) - shared_count], new[: len(new) - shared_count]
            stack += reversed([(f"{path}/{i}", _item_at(left, i), _item_at(right, i)) for i in indexes])
        elif old is _ABSENT:
            yield Change(path, None, new, "added")
        elif new is _ABSENT:
            yield Change(path, old, None, "removed")
        elif not _is_same_scalar(old, new):
            yield Change(path, old, new, "changed")


_ABSENT: Any = object()
"""Marks a missing value, because None is a value."""


def _count_common_end(old: list[Any], new: list[Any]) -> int:
    """Count the items at the end that two lists of different lengths share, besides their common beginning."""
    shorter = min(len(old), len(new))
    if len(old) == len(new):
        return 0  # these are compared index by index, with the same result
    begin = next((i for i in range(shorter) if not _is_equal(old[i], new[i])), shorter)
    remaining = shorter - begin
    return next((n for n in range(remaining) if not _is_equal(old[-1 - n], new[-1 - n])), remaining)


def _is_equal(old: Any, new: Any) -> bool:
    """Return whether two JSON-like values are equal, at any depth."""
    stack = [(old, new)]
    while stack:
        a, b = stack.pop()
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if a.keys() != b.keys():
                return False
            stack += [(a[key], b[key]) for key in a]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            stack += zip(a, b, strict=True)
        elif not _is_same_scalar(a, b):
            return False
    return True


def _item_at(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else _ABSENT


def _is_same_scalar(a: Any, b: Any) -> bool:
    # In JSON true is not 1; and NaN is the same as NaN here.
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b or (a != a and b != b))


def _escape_key(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


# -- text


def _section_lines(heading: str, lines: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    if lines:
        yield "", heading
        yield from lines


def _state_lines(changes: list[Change]) -> Iterator[tuple[str, str]]:
    for change in changes:
        path = escape_unprintable(change.path or "/")
        if change.kind == "changed" and _is_multiline_change(change.before, change.after):
            yield "~", path
            yield from _text_lines(change.before, change.after)
            continue
        if change.kind != "added":
            yield "-", f"{path}  {_truncate(repr(change.before))}"
        if change.kind != "removed":
            yield "+", f"{path}  {_truncate(repr(change.after))}"


def _is_multiline_change(before: Any, after: Any) -> bool:
    """Return whether a change is between texts of several lines that are short enough to compare by lines."""
    if not isinstance(before, str) or not isinstance(after, str) or max(len(before), len(after)) > _LONGEST_TEXT:
        return False
    return "\n" in before + after and before.splitlines() != after.splitlines()


def _text_lines(before: str, after: str) -> Iterator[tuple[str, str]]:
    diff_lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    lines = [line for line in diff_lines[2:] if line[0] in "+-"]
    yield from ((line[0], f"  {_truncate(escape_unprintable(line[1:]))}") for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield "~", f"  and {len(lines) - _MOST_LINES} more lines"


def format_message(message: Mapping[str, Any]) -> str:
    """Format a shown message on one line: its role, its text and its tool calls."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(b.get("text", "")) if isinstance(b, Mapping) else str(b) for b in content)
    calls = ", ".join(f"{c.get('name')}({_format_arguments(c.get('args'))})" for c in message.get("tool_calls") or [])
    text = " ".join(part for part in (str(content), calls and f"-> {calls}") if part)
    return f"{escape_unprintable(str(message.get('role', '')))}: {_truncate(escape_unprintable(text))}"


def _format_call(call: Mapping[str, Any]) -> str:
    error, status = call.get("error_message"), call.get("status", "done")
    outcome = f"failed: {error}" if error else f"-> {call.get('result')!r}"
    # The status, such as reversed, comes before the part that may be cut.
    status_prefix = "" if status in ("done", "failed") else f"({status}) "
    return _truncate(
        escape_unprintable(f"{call.get('tool_name')}({_format_arguments(call.get('args'))}) {status_prefix}{outcome}")
    )


def _format_task(task: Mapping[str, Any]) -> str:
    interrupts = ", ".join(map(repr, task.get("questions") or [])) or f"task {task.get('task')}"
    answers = ", ".join(map(repr, task.get("answers") or []))
    results = ", ".join(f"{name}={value!r}" for name, value in task.get("results") or [])
    errors = ", ".join(map(str, task.get("errors") or []))
    outcome = {"waiting": "waits for an answer", "failed": f"failed: {errors}"}.get(str(task.get("status")), "done")
    phrases = [interrupts, outcome, answers and f"answered {answers}", results and f"wrote {results}"]
    return _truncate(escape_unprintable("; ".join(phrase for phrase in phrases if phrase)))


def _format_arguments(args: Any) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in args.items()) if isinstance(args, Mapping) else repr(args)


def escape_unprintable(text: str) -> str:
    """Escape characters that a terminal would interpret or not show, as Python's repr does."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
