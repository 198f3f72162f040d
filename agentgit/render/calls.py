"""Tool calls, one line each: which effect, which status, what was called and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean
from agentgit.tools import ToolInvocation
from agentgit.tools.invocation import DECISIONS, REPLAY, brief


def lines(calls: Sequence[ToolInvocation], *, width: int = 100) -> list[Line]:
    """Draw a tool track.

    Args:
        calls: in the order to show them.
        width: the longest line, in terminal cells.
    """
    return table(call_rows([call.to_dict() for call in calls], len(calls)), width=width)


def call_rows(calls: Sequence[Mapping[str, Any]], latest: int) -> list[list[Span]]:
    """Give a row for each of the last tool calls.

    Args:
        calls: as `ToolInvocation.to_dict` gives them.
        latest: how many, from the end.
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
    return f"{said}, from the record" if call.get("kind") == REPLAY else said


def arguments(args: Any) -> str:
    """Write the arguments of a call, the long ones cut."""
    if not isinstance(args, Mapping):
        return brief(args)
    return ", ".join(f"{key}={brief(value)}" for key, value in args.items())
