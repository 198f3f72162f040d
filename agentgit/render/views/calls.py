"""Tool calls, one line each: which effect, which status, what was called and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgit.effects import ToolInvocation
from agentgit.effects.effects import IRREVERSIBLE, UNDECLARED
from agentgit.effects.invocation import DECISIONS, REPLAY, brief
from agentgit.render import html
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import clean, count

_EFFECTS = {IRREVERSIBLE: "bad", UNDECLARED: "changed"}

_LONGEST, _SHOWN = 2_000, 200
"""The most characters of one call, and the most calls, that a page shows."""


def draw(calls: Sequence[ToolInvocation], *, width: int = 100) -> str:
    """Draw a tool track as plain text.

    Args:
        calls: The calls, in the order to show them.
        width: The longest line, in terminal cells.

    Example:
        >>> draw([])
        'no tool calls yet'
    """
    return plain(lines(calls, width=width)) or "no tool calls yet"


def lines(calls: Sequence[ToolInvocation], *, width: int = 100) -> list[Line]:
    """Draw a tool track.

    Args:
        calls: The calls, in the order to show them.
        width: The longest line, in terminal cells.
    """
    return table(call_rows([call.to_dict() for call in calls], len(calls)), width=width)


def call_rows(calls: Sequence[Mapping[str, Any]], latest: int) -> list[list[Span]]:
    """Return a row for each of the last tool calls.

    Args:
        calls: The calls as `ToolInvocation.to_dict` returns them.
        latest: The number of calls, from the end.
    """
    first = max(0, len(calls) - latest)
    return [_row(call, i) for i, call in enumerate(calls[first:], start=first)]


def _row(call: Mapping[str, Any], place: int) -> list[Span]:
    status = str(call.get("status", ""))
    return [
        Span(str(call.get("position", place)), "dim"),
        Span(str(call.get("id")) if status in DECISIONS else "", "reference"),  # what `agentgit resolve` takes
        Span(clean(str(call.get("effect", "")))),
        Span(clean(status), "bad" if "failed" in status or "unknown" in status else ""),
        Span(clean(f"{call.get('tool_name', '')}({arguments(call.get('args'))}) {_outcome(call)}")),
    ]


def _outcome(call: Mapping[str, Any]) -> str:
    error = call.get("error_message")
    said = f"failed: {error}" if error else f"→ {call.get('result')!r}"
    runs = call.get("runs", 1)
    again = f", began {runs} times" if isinstance(runs, int) and runs > 1 else ""
    return f"{said}{again}, from the record" if call.get("kind") == REPLAY else said + again


def arguments(args: Any) -> str:
    """Write the arguments of a call, the long ones cut."""
    if not isinstance(args, Mapping):
        return brief(args)
    return ", ".join(f"{key}={brief(value)}" for key, value in args.items())


# -- HTML


def page(calls: Sequence[ToolInvocation]) -> str:
    """Draw a tool track as HTML, the last calls of a long one.

    Args:
        calls: The calls, in the order to show them.
    """
    if not calls:
        return "<p>no tool calls yet</p>"
    rows = [
        [str(call.position), cell(call), html.styled(effect(call)), html.styled(status(call)), _came(call)]
        for call in calls[-_SHOWN:]
    ]
    earlier = len(calls) - len(rows)
    more = f"<p>{count(earlier, 'earlier call')} not shown</p>" if earlier else ""
    return f"<div>{more}{html.table(['', 'call', 'effect', 'status', 'what came of it'], rows)}</div>"


def cell(call: ToolInvocation) -> str:
    """Write a call in one line; what was shortened can be unfolded."""
    whole = f"{call.tool_name}({', '.join(f'{k}={v!r}' for k, v in call.args.items())})"
    return _shortened(str(call), whole)


def effect(call: ToolInvocation) -> Span:
    """Return the effect of a call on the outside world, as a span."""
    return Span(clean(call.effect), _EFFECTS.get(call.effect, "dim"))


def status(call: ToolInvocation) -> Span:
    """Return the status of a call, as a span."""
    again = f", began {call.runs} times" if call.runs > 1 else ""
    return Span(clean(call.status) + again, "bad" if call.status in DECISIONS else "dim")


def _came(call: ToolInvocation) -> str:
    if call.error_message:
        return _shortened(clean(call.error_message)[:80], call.error_message)
    return "" if call.result is None else _shortened(brief(call.result), repr(call.result))


def _shortened(short: str, whole: str) -> str:
    content = html.code(short) if whole == short else html.fold(html.code(short), html.code(whole[:_LONGEST]))
    return html.room(content, len(short))
