"""Conversations and tool calls: messages with their roles, and one line for each call with its effect and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import DECISIONS, REDO, REPLAY, UNOWNED, short_repr
from agentgit.effects.kinds import IRREVERSIBLE, UNDECLARED
from agentgit.render.text import clean
from agentgit.render.view import Span, Table, View
from agentgit.sessions.messages import text_of
from agentgit.values import count

LATEST = 20
"""The number of latest messages, or of one checkpoint's latest calls, that are shown."""

_LONGEST, _ARGUMENTS = 100, 20
"""The maximum characters of an argument, and arguments, of a call on a line."""


def conversation(messages: Sequence[Mapping[str, Any]], *, indent: str = "") -> View:
    """Show a conversation; of a long one, only the latest messages."""
    rows = [
        [Span(clean(str(m.get("role", ""))), "reference"), Span(message_text(m), full=partial(_full_message, m))]
        for m in messages[-LATEST:]
    ]
    return [*_earlier(messages, LATEST, "message", indent), Table(rows, ("", "says"), "no messages yet", indent)]


def _earlier(items: Sequence[Any], latest: int, noun: str, indent: str) -> View:
    earlier = len(items) - latest
    return [(Span(f"{indent}{count(earlier, f'earlier {noun}')} not shown", "dim"),)] if earlier > 0 else []


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message and its tool calls, on one line."""
    return clean(" ".join(filter(None, (text_of(message), _requested_calls(message)))))


def _full_message(message: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, (text_of(message), clean(_requested_calls(message)))))


def _requested_calls(message: Mapping[str, Any]) -> str:
    calls = ", ".join(f"{c.get('name')}({arguments(c.get('args'))})" for c in message.get("tool_calls") or [])
    return calls and f"→ {calls}"


def calls(calls: Sequence[ToolInvocation | Mapping[str, Any]], *, latest: int = 200, indent: str = "") -> View:
    """Show tool calls; of many, only the latest."""
    first = max(0, len(calls) - latest)
    given = [call.to_dict() if isinstance(call, ToolInvocation) else call for call in calls[first:]]
    rows = [_row(call, i) for i, call in enumerate(given, start=first)]
    headings = ("", "", "effect", "status", "call")
    return [*_earlier(calls, latest, "call", indent), Table(rows, headings, "no tool calls yet", indent)]


def _row(call: Mapping[str, Any], index: int) -> list[Span]:
    name, status = call.get("tool_name", ""), str(call.get("status", ""))
    return [
        Span(str(call.get("position", index)), "dim"),
        Span(str(call.get("id")) if status in DECISIONS else "", "reference"),  # what `agentgit resolve` takes
        effect(call),
        Span(clean(status), "bad" if "failed" in status or "unknown" in status else ""),
        Span(
            clean(f"{name}({arguments(call.get('args'))}) {_outcome(call)}"),
            full=lambda: f"{format_call(call)} {_outcome(call)}",
        ),
    ]


def effect(call: Mapping[str, Any]) -> Span:
    """Show the effect of a call on the outside world. That of an imported call is what its file claims."""
    kind = str(call.get("effect", ""))
    style = "bad" if kind == IRREVERSIBLE else "changed" if kind == UNDECLARED else "dim"
    return Span(clean(kind) + (", imported" if call.get("made_on") is not None else ""), style)


def _outcome(call: Mapping[str, Any]) -> str:
    error = call.get("error_message")
    outcome = f"failed: {error}" if error else f"→ {call.get('result')!r}"
    runs = call.get("runs", 1)
    runs_text = f", started {runs} times" if isinstance(runs, int) and runs > 1 else ""
    return outcome + runs_text + _REMARKS.get(str(call.get("kind")), "")


_REMARKS = {REPLAY: ", from the record", REDO: ", ran again", UNOWNED: ", in threads that no turn owns"}
"""The remark on a call of each kind."""


def format_call(call: Mapping[str, Any]) -> str:
    """Return a call with all its arguments."""
    args = call.get("args")
    texts = ", ".join(f"{k}={v!r}" for k, v in args.items()) if isinstance(args, Mapping) else repr(args)
    return f"{call.get('tool_name', '')}({texts})"


def arguments(args: Any) -> str:
    """Return the arguments of a call as text, with long names and values, and arguments after the 20th, cut."""
    if not isinstance(args, Mapping):
        return _shorten(short_repr(args))
    texts = [f"{_shorten(str(key))}={_shorten(short_repr(value))}" for key, value in islice(args.items(), _ARGUMENTS)]
    return ", ".join([*texts, *(["…"] if len(args) > _ARGUMENTS else [])])


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
