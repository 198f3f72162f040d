"""Conversations and tool calls: messages with their roles, and one line for each call with its effect and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import DECISIONS, REDO, REPLAY, UNOWNED, short_repr
from agentgit.effects.kinds import IRREVERSIBLE, UNDECLARED
from agentgit.render import html
from agentgit.render.text import Line, Span, clean, cut, plain, table, visible
from agentgit.sessions.messages import text_of
from agentgit.values import count

LATEST = 20
"""The number of latest messages, or of one checkpoint's latest calls, that are shown."""

_TITLE_CELLS, _LONGEST, _ARGUMENTS = 100, 20_000, 20
"""The maximum cells of a message's title, characters of a message on a page, and arguments of a call on a line."""


def draw_messages(messages: Sequence[Mapping[str, Any]], *, width: int = 100) -> str:
    """Draw a conversation as plain text, one line for each message.

    Example:
        >>> print(draw_messages([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]))
        user       hello
        assistant  hi
    """
    return plain(message_lines(messages, width=width)) or "no messages yet"


def message_lines(messages: Sequence[Mapping[str, Any]], *, width: int = 100, indent: str = "") -> list[Line]:
    """Draw a conversation; of a long one, only the latest messages."""
    rows = [[Span(clean(str(m.get("role", ""))), "reference"), Span(message_text(m))] for m in messages[-LATEST:]]
    return table(rows, width=width, indent=indent)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message and its tool calls, on one line."""
    return clean(" ".join(part for part in (text_of(message), _format_tool_calls(message)) if part))


def _format_tool_calls(message: Mapping[str, Any]) -> str:
    calls = ", ".join(f"{c.get('name')}({arguments(c.get('args'))})" for c in message.get("tool_calls") or [])
    return calls and f"→ {calls}"


def message_page(messages: Sequence[Mapping[str, Any]]) -> str:
    """Draw a conversation as HTML, with long messages collapsed."""
    if not messages:
        return "<p>no messages yet</p>"
    rows = [
        [html.styled(Span(clean(str(m.get("role", ""))), "reference")), _message_cell(m)] for m in messages[-LATEST:]
    ]
    earlier_count = len(messages) - len(rows)
    notice = f"<p>{count(earlier_count, 'earlier message')} not shown</p>" if earlier_count else ""
    return f"<div>{notice}{html.table(['', 'says'], rows)}</div>"


def _message_cell(message: Mapping[str, Any]) -> str:
    line = message_text(message)
    title = cut(line, _TITLE_CELLS)
    full_text = visible(text_of(message)[:_LONGEST])
    if title == line and "\n" not in full_text.strip():
        return html.wrapping_cell(html.escape(line), len(line))
    text = "\n".join(filter(None, (full_text, _format_tool_calls(message) and clean(_format_tool_calls(message)))))
    content = html.pre(((Span(one),) for one in text.split("\n")), wrapped=True)
    return html.wrapping_cell(html.fold(html.escape(title), content), len(line))


_EFFECTS: dict[str, str] = {IRREVERSIBLE: "bad", UNDECLARED: "changed"}

_LONGEST_CALL, _SHOWN = 2_000, 200
"""The maximum characters of one call, and calls, on a page."""


def draw_calls(calls: Sequence[ToolInvocation], *, width: int = 100) -> str:
    """Draw a tool track as plain text.

    Example:
        >>> draw_calls([])
        'no tool calls yet'
    """
    return plain(call_lines(calls, width=width)) or "no tool calls yet"


def call_lines(calls: Sequence[ToolInvocation], *, width: int = 100) -> list[Line]:
    """Draw a tool track."""
    return table(call_rows([call.to_dict() for call in calls], len(calls)), width=width)


def call_rows(calls: Sequence[Mapping[str, Any]], latest: int) -> list[list[Span]]:
    """Return a row for each of the last tool calls."""
    first = max(0, len(calls) - latest)
    return [_row(call, i) for i, call in enumerate(calls[first:], start=first)]


def _row(call: Mapping[str, Any], index: int) -> list[Span]:
    status = str(call.get("status", ""))
    return [
        Span(str(call.get("position", index)), "dim"),
        Span(str(call.get("id")) if status in DECISIONS else "", "reference"),  # what `agentgit resolve` takes
        Span(clean(str(call.get("effect", "")))),
        Span(clean(status), "bad" if "failed" in status or "unknown" in status else ""),
        Span(clean(f"{call.get('tool_name', '')}({arguments(call.get('args'))}) {_outcome(call)}")),
    ]


def _outcome(call: Mapping[str, Any]) -> str:
    error = call.get("error_message")
    outcome = f"failed: {error}" if error else f"→ {call.get('result')!r}"
    runs = call.get("runs", 1)
    runs_text = f", started {runs} times" if isinstance(runs, int) and runs > 1 else ""
    return outcome + runs_text + _REMARKS.get(str(call.get("kind")), "")


_REMARKS = {REPLAY: ", from the record", REDO: ", ran again", UNOWNED: ", in threads that no turn owns"}
"""The remark on a call of each kind."""


def arguments(args: Any) -> str:
    """Return the arguments of a call as text, with long names and values, and arguments after the 20th, cut.

    Example:
        >>> arguments({"item": "chair", "count": 2})
        "item='chair', count=2"
    """
    if not isinstance(args, Mapping):
        return _shorten(short_repr(args))
    texts = [f"{_shorten(str(key))}={_shorten(short_repr(value))}" for key, value in islice(args.items(), _ARGUMENTS)]
    return ", ".join([*texts, *(["…"] if len(args) > _ARGUMENTS else [])])


def _shorten(text: str) -> str:
    return text if len(text) <= _TITLE_CELLS else f"{text[:_TITLE_CELLS]}…"


# -- HTML


def call_page(calls: Sequence[ToolInvocation]) -> str:
    """Draw a tool track as HTML; of a long one, only the latest calls."""
    if not calls:
        return "<p>no tool calls yet</p>"
    rows = [
        [str(call.position), cell(call), html.styled(effect(call)), html.styled(status(call)), _result_cell(call)]
        for call in calls[-_SHOWN:]
    ]
    earlier_count = len(calls) - len(rows)
    notice = f"<p>{count(earlier_count, 'earlier call')} not shown</p>" if earlier_count else ""
    return f"<div>{notice}{html.table(['', 'call', 'effect', 'status', 'result'], rows)}</div>"


def cell(call: ToolInvocation) -> str:
    """Return a call as HTML on one line; if it is shortened, the reader can expand it."""
    full_text = f"{call.tool_name}({', '.join(f'{k}={v!r}' for k, v in call.args.items())})"
    return _expandable(str(call), full_text)


def effect(call: ToolInvocation) -> Span:
    """Return the effect of a call on the outside world, as a span. That of an imported call is what its file claims."""
    text = f"{call.effect}, imported" if call.is_imported else call.effect
    return Span(clean(text), _EFFECTS.get(call.effect, "dim"))


def status(call: ToolInvocation) -> Span:
    """Return the status of a call, as a span."""
    runs_text = f", started {call.runs} times" if call.runs > 1 else ""
    return Span(clean(call.status) + runs_text, "bad" if call.status in DECISIONS else "dim")


def _result_cell(call: ToolInvocation) -> str:
    if call.error_message:
        return _expandable(clean(call.error_message)[:80], call.error_message)
    return "" if call.result is None else _expandable(short_repr(call.result), repr(call.result))


def _expandable(summary: str, full_text: str) -> str:
    content = (
        html.code(summary)
        if full_text == summary
        else html.fold(html.code(summary), html.code(full_text[:_LONGEST_CALL]))
    )
    return html.wrapping_cell(content, len(summary))
